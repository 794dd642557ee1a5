package attack

import (
	"bytes"
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// silencer keeps the record of the victim overwritten with one that the intruder has signed, and
// the victim's catalog tagged as the intruder's: the victim is live, and none of its heartbeats
// arrives.
type silencer struct {
	*cloud
	client  *api.Client
	members api.Service
	forged  format.Member
}

// silence begins to silence the victim.
func (c *cloud) silence() *silencer {
	c.t.Helper()
	s := &silencer{cloud: c, client: c.attacker(), members: c.members(), forged: c.recordOf(victim)}
	if err := c.tag(c.catalog(victim).ARN, api.Tags(identityOf(intruder), api.PartCatalog)...); err != nil {
		c.t.Fatalf("tagging the victim's catalog: %v", err)
	}
	s.forged.Heartbeat += 1e6
	return s
}

// overwrite writes the record ten times a second until a condition is met, or for the whole period
// if it is nil. check is called each time.
func (s *silencer) overwrite(period time.Duration, what string, met func() bool, check func(since time.Duration)) {
	s.t.Helper()
	for began := time.Now(); met == nil || !met(); time.Sleep(100 * time.Millisecond) {
		since := time.Since(began)
		if since >= period {
			if met != nil {
				s.t.Fatalf("not within %v: %s", period, what)
			}
			return
		}
		s.forged.Heartbeat++
		s.write(s.client, s.members, s.forged.Instance(s.signer(intruder)))
		check(since)
	}
}

// replace writes a page and a copy of the record into the victim's catalog, signed by the intruder.
func (s *silencer) replace() {
	s.t.Helper()
	s.writeExports(s.client, victim, s.signer(intruder), forgedExport())
	s.forged = s.recordOf(victim)
}

// release restores the tags of the victim's catalog and seals it, as an administrator does.
func (s *silencer) release() {
	s.t.Helper()
	tags := append(api.Tags(identityOf(victim), api.PartCatalog), tag("catalog-of", victim))
	if err := s.tagAs(admin, s.catalog(victim).ARN, tags...); err != nil {
		s.t.Fatal(err)
	}
}

// silenced silences the victim until it is stale, and has the intruder do further while the import
// must stay as the victim exported it. Then an administrator seals the catalog, and the victim's
// changes are imported although its record is still overwritten.
func silenced(t *testing.T, further func(*silencer)) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		c.infiltrate()
		s := c.silence()
		isImported := func(since time.Duration) {
			if !reader.sees(web)() {
				t.Fatalf("after %v: the import is not as the victim exported it: %v", since, reader.view(web.Key, victim))
			}
		}
		s.overwrite(10*time.Minute, "the victim is stale", func() bool { return reader.isStale(victim) }, isImported)
		further(s)
		s.overwrite(5*time.Minute, "", nil, isImported)
		// The victim's own record may be the one that is shown for a moment.
		s.overwrite(time.Minute, "the importer reports a refused record", reader.isRefused(victim), isImported)
		s.overwrite(time.Minute, "the victim reports a refused record", exporter.isRefused(victim), isImported)

		s.release()
		changed := webExport(victim, 3)
		exporter.publish(changed)
		isGenuine := func(since time.Duration) {
			if !reader.sees(web)() && !reader.sees(changed)() {
				t.Fatalf("%v after the catalog was sealed: the import is not as the victim exported it: %v", since, reader.view(web.Key, victim))
			}
		}
		s.overwrite(6*time.Minute, "a change of the victim is imported", reader.sees(changed), isGenuine)
		s.overwrite(2*time.Minute, "", nil, func(since time.Duration) {
			if !reader.sees(changed)() || since > time.Minute && reader.isStale(victim) {
				t.Fatalf("after %v: imported %t, stale %t", since, reader.sees(changed)(), reader.isStale(victim))
			}
		})

		// Control: what the intruder has written counts with the victim's signature.
		exporter.stop(nil)
		c.writeExports(c.client(admin), victim, c.signer(victim), forgedExport())
		until(t, time.Minute, "the page is imported with the victim's own signature", reader.sees(forgedExport()))
	})
}

func TestAttack_SilencedAndReplaced(t *testing.T) {
	silenced(t, (*silencer).replace)
}

func TestAttack_SilencedAndLeft(t *testing.T) {
	silenced(t, func(s *silencer) {
		s.replace()
		for range 300 { // a minute, in which the key in the catalog would be read
			s.forged.Heartbeat++
			s.write(s.client, s.members, s.forged.Instance(s.signer(intruder)))
			time.Sleep(200 * time.Millisecond)
		}
		s.forged.Farewell, s.forged.Pages = true, format.Digests{}
	})
}

// TestCompromisedKey runs docs/security/compromised-key.md: a thief has the victim's key and writes
// exports with it. It shows how long each step takes until the importer follows the victim again,
// and that the stolen key counts for nothing from then on, even if the thief still writes.
func TestCompromisedKey(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		c.infiltrate()
		if err := c.tag(c.catalog(victim).ARN, api.Tags(identityOf(intruder), api.PartCatalog)...); err != nil {
			t.Fatal(err)
		}
		stolen := c.signer(victim)
		c.writeExports(c.attacker(), victim, stolen, forgedExport())
		until(t, time.Minute, "the thief's export is imported", reader.sees(forgedExport()))

		// Step 1: the thief has no rights any more, and the catalog its tags. Step 2: the victim
		// has a key that the stolen one has not signed.
		if err := c.tagAs(admin, c.catalog(victim).ARN, api.Tags(identityOf(victim), api.PartCatalog)...); err != nil {
			t.Fatal(err)
		}
		exporter.stop(nil)
		next, err := trust.NewSigner(bytes.Repeat([]byte{7}, ed25519.SeedSize), nil)
		if err != nil {
			t.Fatal(err)
		}
		exporter = c.join(victim, func(cfg *cloudmap.Config) { cfg.Signer = next })
		exporter.publish(web)
		until(t, time.Minute, "the importer refuses the new key", reader.isRefused(victim))
		always(t, 10*time.Minute, "imported as the stolen key has signed it", reader.sees(forgedExport()))
		if !exporter.isRefused(victim)() {
			t.Errorf("the victim reports %q of itself, want that others refuse its records", exporter.problemsOf(victim))
		}

		// Step 3: an administrator names the new key to the others.
		began := time.Now()
		if err := c.keyrings.Of(t, identityOf(importer)).Trust(victim, next.Key()); err != nil {
			t.Fatal(err)
		}
		until(t, 30*time.Second, "the victim's export is imported", reader.sees(web))
		t.Logf("imported %v after trust", time.Since(began))
		if reader.isStale(victim) || reader.isRefused(victim)() {
			t.Errorf("stale %t, problems %q", reader.isStale(victim), reader.problemsOf(victim))
		}

		// The thief still writes, everywhere.
		if err := c.tag(c.catalog(victim).ARN, api.Tags(identityOf(intruder), api.PartCatalog)...); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			c.writeExports(c.attacker(), victim, stolen, forgedExport())
			always(t, 10*time.Second, "imported as the victim exported it", reader.sees(web))
		}
		if problems := strings.Join(exporter.problemsOf(victim), "; "); !strings.Contains(problems, "another cluster has signed it with key "+stolen.Key().String()) {
			t.Errorf("the victim reports %q of itself, want the stolen key", problems)
		}
	})
}

// TestStolenRole: a thief has the AWS role of the victim and no key of it, and writes records that
// it has signed itself into the victim's catalog while the victim is down. Where an administrator
// has sealed the catalog, the registry proves by this role who the cluster is, and the thief takes
// its place once it is silent for --stale-after. In an unsealed catalog it does not. Without the
// role, and with the victim's key named by an administrator, the importer follows the victim again.
func TestStolenRole(t *testing.T) {
	for name, isSealed := range map[string]bool{"sealed": true, "unsealed": false} {
		t.Run(name, func(t *testing.T) {
			options := cloudOptions{}
			if isSealed {
				options.policies = sealedPolicies
			}
			inCloud(t, options, func(t *testing.T, c *cloud) {
				if isSealed {
					c.seal(victim, importer, intruder)
				}
				exporter, reader, web := c.start()
				exporter.stop(nil)
				thief := &silencer{cloud: c, client: c.client(keyOf(identityOf(victim))), members: c.members(), forged: c.recordOf(victim)}
				thief.forged.Heartbeat += 1e6
				hasTaken := reader.sees(forgedExport())
				began := time.Now()
				for time.Since(began) < 4*time.Minute && !hasTaken() {
					thief.replace()
					thief.overwrite(time.Second, "", nil, func(time.Duration) {})
				}
				if hasTaken() != isSealed {
					t.Fatalf("after %v the thief has the place of the victim: %t, want %t", time.Since(began), hasTaken(), isSealed)
				}
				t.Logf("after %v the thief has the place of the victim: %t", time.Since(began), isSealed)

				// The role has no rights any more, and the victim is back.
				began = time.Now()
				exporter = c.join(victim)
				exporter.publish(web)
				if err := c.keyrings.Of(t, identityOf(importer)).Trust(victim, c.signer(victim).Key()); err != nil {
					t.Fatal(err)
				}
				until(t, 10*time.Minute, "the victim's export is imported", func() bool { return reader.sees(web)() && !reader.isStale(victim) })
				t.Logf("imported %v after trust", time.Since(began))
			})
		})
	}
}
