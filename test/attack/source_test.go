package attack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/dns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/doctor"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
)

func TestAttack_IDInAnotherRegistry(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		// The clusterset's registry is cloudmap; its importer also imports from another one, of
		// which the intruder and a harmless cluster are members.
		exporter, _, web := c.start()
		other := &cloud{t: t, server: newServer(t), keyrings: c.keyrings, joined: map[mcs.Identity]time.Time{}}
		harmless := other.joinAs(admin, identityOf(newcomer))
		own := webExport(newcomer, 1)
		own.Key.Name = "harmless"
		harmless.publish(own)
		until(t, time.Minute, "the other registry has a member", harmless.isExported(own.Key))

		keyring := c.keyrings.Of(t, identityIn(clusterSet, "cls5"))
		registryOf := func(c *cloud, readOnly bool, name string) registry.Registry {
			cfg := c.configOf(identityIn(clusterSet, "cls5"))
			cfg.ReadOnly, cfg.Keyring = readOnly, keyring
			reg, err := cloudmap.New(c.named(name), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return reg
		}
		both := union.New(union.Config{Identity: identityIn(clusterSet, "cls5"), Logger: logr.Discard()},
			union.Source{Name: "cloudmap", Registry: registryOf(c, false, "cloudmap")}, union.Source{Name: "other", Registry: registryOf(other, true, "other")})
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- both.Run(ctx, func(mcs.Key) {}) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		sees := func(exp mcs.Export) func() bool {
			return func() bool {
				view, err := both.Lookup(t.Context(), exp.Key)
				for _, got := range view.Exports() {
					if err == nil && got.Equal(registry.Published(exp)) {
						return true
					}
				}
				return false
			}
		}
		until(t, time.Minute, "the export of the victim is imported", sees(web))
		until(t, time.Minute, "that of the other registry is imported", sees(own)) // control

		// The intruder takes the victim's ID and UID in the other registry, with a heartbeat of the
		// year 9999, a page and a catalog of its own.
		client := other.client(admin)
		namespaces, err := client.ListNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CreateService(t.Context(), namespaces[format.ControlNamespace(clusterSet)], format.CatalogName(victim), identityOf(intruder), "catalog"); err != nil {
			t.Fatal(err)
		}
		forged := c.recordOf(victim)
		forged.Heartbeat, forged.Joined = 253402300000_000, forged.Joined.Add(-24*time.Hour)
		other.write(client, other.members(), forged.Instance(c.signer(intruder)))
		other.writeExports(client, victim, c.signer(intruder), forgedExport())
		for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(time.Second) {
			if !sees(web)() || sees(forgedExport())() {
				t.Fatalf("after %v: imported %t, forged %t", time.Since(began), sees(web)(), sees(forgedExport())())
			}
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change of the victim is imported", sees(changed))
	})
}

func TestAttack_OwnIDInAnotherRegistry(t *testing.T) {
	own, other := startEtcd(t), startEtcd(t)
	other.keyrings = own.keyrings // a controller has one keyring for all registries
	exporter, _, web := own.start()
	identity := identityOf(newcomer) // of the cluster that imports from both
	both := joinBoth(own, other, identity)
	until(t, etcdWait, "the export of the victim is imported", both.sees(web))
	mine := webExport(newcomer, 1)
	mine.Key.Name = "mine"
	if err := both.Publish(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	isExported := func() bool {
		view, err := both.Lookup(t.Context(), mine.Key)
		return err == nil && view.Local.State == registry.Exported && view.Local.Err == nil
	}
	until(t, etcdWait, "its own export is published", isExported)

	// Two intruders in the other registry take its ID and that of the victim, as clusters that
	// joined there earlier.
	forged := func(id string) mcs.Identity {
		return mcs.Identity{ClusterSetID: clusterSet, ClusterID: id, UID: "uid-of-the-intruder"}
	}
	for _, id := range []string{newcomer, victim} {
		m := other.join(forged(id), func(cfg *etcd.Config) { cfg.Keyring = registrytest.NewKeyrings(etcdStaleAfter).Of(t, forged(id)) })
		exp := forgedExport()
		exp.Cluster = id
		m.publish(exp)
		fake := webExport(id, 7)
		fake.Key = mine.Key
		m.publish(fake)
	}
	reports := func(id, text string) func() bool {
		return func() bool {
			members, _ := both.Members(t.Context())
			i := slices.IndexFunc(members, func(m registry.Member) bool { return m.ClusterID == id })
			return i >= 0 && members[i].UID == identityOf(id).UID && slices.ContainsFunc(members[i].Problems, func(p string) bool { return strings.Contains(p, text) })
		}
	}
	// control: the records have arrived
	until(t, etcdWait, "the cluster with its own ID is reported", reports(newcomer, "uid-of-the-intruder"))
	until(t, etcdWait, "the cluster with the victim's ID is reported", reports(victim, "other: refused the member record"))
	holds := func() bool { return both.sees(web)() && isExported() && both.exportOf(newcomer, webKey) == nil }
	holdsFor := func(period time.Duration, what string) {
		for began := time.Now(); time.Since(began) < period; time.Sleep(20 * time.Millisecond) {
			if !holds() {
				t.Fatalf("%s: the victim is imported: %t, its own export is published: %t", what, both.sees(web)(), isExported())
			}
		}
	}
	holdsFor(etcdStaleAfter/2, "while the victim runs")
	exporter.stop(nil)
	holdsFor(3*etcdStaleAfter/2, "while the victim is stale")
	if pin, ok := own.keyrings.Of(t, identity).Pin(newcomer); ok {
		t.Errorf("the key of another cluster is pinned for its own ID: %s", pin.Key)
	}
}

// joinBoth starts a cluster that exports to one registry and imports from both.
func joinBoth(own, other *store, identity mcs.Identity) *unionMember {
	own.t.Helper()
	keyring := own.keyrings.Of(own.t, identity)
	registryOf := func(s *store, readOnly bool, name string) registry.Registry {
		user, passwordFile := s.user(identity)
		client, err := etcd.NewClient(etcd.ClientConfig{Name: name, Endpoints: s.Endpoints(), CAFile: s.CAFile, Username: user, PasswordFile: passwordFile})
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = client.Close() })
		reg, err := etcd.New(client, etcd.Config{
			Identity: identity, Version: "test", Logger: logr.Discard(), ReadOnly: readOnly, Signer: registrytest.Signer(s.t, identity), Keyring: keyring,
			PollInterval: 50 * time.Millisecond, HeartbeatInterval: 400 * time.Millisecond, StaleAfter: etcdStaleAfter,
		})
		if err != nil {
			s.t.Fatal(err)
		}
		return reg
	}
	return runUnion(own.t, keyring, identity, union.Source{Name: "etcd", Registry: registryOf(own, false, "etcd")},
		union.Source{Name: "other", Registry: registryOf(other, true, "other")})
}

func TestAttack_InstancesOfTheLegacyController(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, _, web := c.start()
		identity := identityIn(clusterSet, "cls5")
		keyring := c.keyrings.Of(t, identity)
		join := func() *unionMember {
			main, err := cloudmap.New(c.named("cloudmap"), c.configOf(identity))
			if err != nil {
				t.Fatal(err)
			}
			return runUnion(t, keyring, identity, union.Source{Name: "cloudmap", Registry: main},
				union.Source{Name: "legacy", Registry: legacy.NewRegistry(c.named("legacy"), legacy.Config{Identity: identity, Logger: logr.Discard()})})
		}
		both := join()
		until(t, time.Minute, "the export of the victim is imported", both.sees(web))
		// a cluster that has just joined may still run the legacy controller
		time.Sleep(10 * time.Minute)

		client := c.attacker()
		if _, err := client.CreateNamespace(t.Context(), webKey.Namespace, identityOf(intruder), api.PartView); err != nil {
			t.Fatal(err)
		}
		namespaces, err := client.ListNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		register := func(service string, clusters []string, addresses ...string) {
			s, err := client.CreateService(t.Context(), namespaces[webKey.Namespace], service, identityOf(intruder), api.PartView)
			if err != nil {
				t.Fatal(err)
			}
			for _, cluster := range clusters {
				for i, address := range addresses {
					c.write(client, s, api.Instance{ID: fmt.Sprint(cluster, "-", i), Attributes: map[string]string{
						instances.AttrClusterID: cluster, instances.AttrClusterSetID: clusterSet, instances.AttrServiceType: "ClusterSetIP",
						instances.AttrIPv4: address, instances.AttrPort: "80", instances.AttrProtocol: "TCP", instances.AttrServicePort: "80",
						instances.AttrServicePortName: "http", instances.AttrServiceProtocol: "TCP", instances.AttrTargetPort: "80",
					}})
				}
			}
		}
		const unknown = "cls77"
		register(webKey.Name, []string{victim, unknown}, "10.66.0.1", "169.254.169.254")
		other := mcs.Key{Namespace: webKey.Namespace, Name: "other"}
		register(other.Name, []string{victim, unknown}, "10.66.0.1")
		// Control: instances of a cluster that is not in the registry are imported, without
		// addresses that are refused.
		isImported := func(key mcs.Key) func() bool {
			return func() bool {
				exp := both.exportOf(unknown, key)
				return exp != nil && len(exp.Backends) == 1 && len(exp.Backends[0].Endpoints) == 1
			}
		}
		until(t, 10*time.Minute, "an instance is imported", isImported(webKey))
		until(t, 10*time.Minute, "an instance of the other service is imported", isImported(other))
		always(t, 10*time.Minute, "imported as the victim exports it", func() bool { return both.sees(web)() && both.exportOf(victim, other) == nil })
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change of the victim is imported", both.sees(changed))

		exporter.stop(nil)
		isStale := func() bool { return both.viewOf(webKey, victim).Clusters[victim].Liveness == registry.Stale }
		until(t, 10*time.Minute, "the victim is stale", isStale)
		always(t, 10*time.Minute, "imported as the victim exported it, while it is stale", func() bool {
			return isStale() && both.sees(changed)() && both.exportOf(victim, other) == nil
		})

		// Its records are gone, and the importer starts again: it does not know what the victim
		// exports.
		both.stop()
		for _, s := range []api.Service{c.members(), c.catalog(victim)} {
			for id := range c.instances(s) {
				if s.Name != format.MembersService || id == victim {
					if err := c.client(admin).DeregisterInstance(t.Context(), s.ID, id); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		both = join()
		until(t, 10*time.Minute, "the instances are read again", func() bool { return isImported(webKey)() && isImported(other)() })
		for _, key := range []mcs.Key{webKey, other, {Namespace: webKey.Namespace, Name: "third"}} {
			always(t, 2*time.Minute, "unseen", func() bool {
				return both.exportOf(victim, key) == nil && both.viewOf(key, victim).Clusters[victim].State == registry.Unseen
			})
		}

		// Control: an administrator who goes back to the legacy controller in the victim's cluster
		// makes its instances count (docs/migration.md).
		both.Forget(victim)
		until(t, time.Minute, "the instances of the victim count once it is forgotten", func() bool {
			return both.exportOf(victim, webKey) != nil && both.exportOf(victim, other) != nil
		})
	})
}

// unionMember is a running union of registries.
type unionMember struct {
	registry.Registry
	t    *testing.T
	stop func()
}

// runUnion runs a union of registries until stop or the end of the test.
func runUnion(t *testing.T, keyring *trust.Keyring, identity mcs.Identity, sources ...union.Source) *unionMember {
	t.Helper()
	both := union.New(union.Config{Identity: identity, Logger: logr.Discard(), IsSigned: keyring.IsSigned}, sources[0], sources[1:]...)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- both.Run(ctx, func(mcs.Key) {}); close(ended) }()
	m := &unionMember{Registry: both, t: t, stop: func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}}
	t.Cleanup(m.stop)
	return m
}

// viewOf returns the view of key for a cluster that imports it from the cluster, without content
// before there is one.
func (m *unionMember) viewOf(key mcs.Key, imported string) registry.View {
	view, err := m.Lookup(m.t.Context(), key, imported)
	if err != nil {
		return registry.View{}
	}
	return view
}

// exportOf returns the export of key from a cluster, nil if there is none.
func (m *unionMember) exportOf(clusterID string, key mcs.Key) *mcs.Export {
	for _, exp := range m.viewOf(key, clusterID).Exports() {
		if exp.Cluster == clusterID {
			return &exp
		}
	}
	return nil
}

func (m *unionMember) sees(exp mcs.Export) func() bool {
	return func() bool {
		got := m.exportOf(exp.Cluster, exp.Key)
		return got != nil && got.Equal(registry.Published(exp))
	}
}

func TestAttack_TerminalEscapes(t *testing.T) {
	// with the control sequence introducer of one byte
	const escape = "\x1b]0;owned\x07\x1b[2J\u009b31m\x7f\u202e"
	const version = "v1 " + escape
	// Readers refuse a member record with it; texts of exports, annotations and Kubernetes arrive.
	if err := record.CheckText("version", version); err == nil {
		t.Error("a member record may have terminal escapes in its version")
	}
	clusters := clitest.NewClusters()
	clusters["cls1"].ControllerStatus.Members[1].Version = version
	clusters["cls1"].ControllerStatus.Members[1].Problems = []string{"refused " + version}
	clitest.ExportWeb(clusters)
	// text of a member or of a tenant in each object that the commands read
	for _, imp := range clusters["cls1"].Imports() {
		imp.Status.Conditions = append(imp.Status.Conditions, metav1.Condition{Type: "Conflict", Status: metav1.ConditionTrue, Reason: "Attack", Message: version})
		imp.Annotations = map[string]string{"example.com/attack": version}
	}
	clusters["cls1"].Add(&eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "attack"}, Type: corev1.EventTypeWarning, Reason: "Attack", Note: version, Action: version, EventTime: metav1.NewMicroTime(clitest.Today),
		Regarding: corev1.ObjectReference{APIVersion: mcsv1beta1.GroupVersion.String(), Kind: mcsv1beta1.ServiceImportKindName, Namespace: "demo", Name: "web"},
	})
	exp := *clusters["cls1"].ServiceList[0].Own
	exp.Cluster, exp.Annotations, exp.Type = "cls2", map[string]string{"example.com/attack": version}, mcsv1beta1.ServiceImportType(version)
	exp.Backends[0].Endpoints[0].Hostname = version
	clusters["cls1"].ServiceList[0].Exports = []mcs.Export{exp}
	clusters["cls1"].ServiceList[0].Publication.State, clusters["cls1"].ServiceList[0].Publication.Problem = "Pending", version
	clusters["cls1"].CoreDNS = clitest.NewCoreDNS()
	clusters["cls1"].CoreDNS.SetCorefile(strings.Replace(clitest.StockCorefile, "    errors\n", "    errors # "+version+"\n    "+strings.ReplaceAll(version, " ", "")+"\n", 1))
	clusters["cls1"].CoreDNS.SetImage("registry.k8s.io/coredns/coredns:" + version)
	clusters["cls1"].CoreDNS.QueryError = errors.New(version)
	started := clusters.Start(t)
	const control, direction = "\x1b\x07\u009b\x7f", "\u202e"
	commands := func(s *session.Session) []*cobra.Command {
		return slices.Concat(show.Commands(s), doctor.Commands(s), []*cobra.Command{dns.Command(s)})
	}
	for line, forbidden := range map[string]string{
		"status --context cls1": control + direction, "status --context cls1 -o wide": control + direction, "get clusters --context cls1": control + direction,
		"status --context cls1 -o yaml": control, "status --context cls1 -o json": control + direction, "get clusters --context cls1 -o json": control + direction,
		"check --context cls1": control + direction, "check --context cls1 -o json": control + direction, "check --context cls1 -o yaml": control,
		"describe web --context cls1": control + direction, "diagnose web --context cls1 --no-probe": control + direction,
		"describe web --context cls1 -o json": control + direction, "diagnose web --context cls1 --no-probe -o json": control + direction,
		"describe web --context cls1 -o yaml": control, "registry get web --context cls1": control,
		"registry get web --context cls1 -o json": control + direction, "registry dump --context cls1": control,
		"dns status --context cls1": control + direction, "dns status --context cls1 -o json": control + direction,
		"dns enable --dry-run --force --context cls1": control + direction,
	} {
		text, _ := clitest.Run(t, commands, started, line)
		if strings.ContainsAny(text, forbidden) || !strings.Contains(text, "owned") {
			t.Errorf("%s prints %q", line, text)
		}
	}
}

func TestAttack_FullPage(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		page := format.PageOf(web.Key)
		var last mcs.Key
		// the tenant's namespace has Services on the page of the neighbour
		for i, n := 0, 0; n < 100; i++ {
			exp := webExport(victim, 1000)
			if exp.Key = (mcs.Key{Namespace: "tenant", Name: "s" + strings.Repeat("x", i%40) + string(rune('a'+i/40%26)) + string(rune('a'+i/1040%26))}); format.PageOf(exp.Key) != page {
				continue
			}
			for j := range exp.Backends[0].Endpoints {
				exp.Backends[0].Endpoints[j].Hostname = noise(i, j)
			}
			exporter.publish(exp)
			last, n = exp.Key, n+1
		}
		until(t, 5*time.Minute, "the condition of the tenant has the reason why its exports do not fit", func() bool { return exporter.view(last).Local.Err != nil })
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, 2*time.Minute, "a change of the neighbour on the same page is imported", reader.sees(changed))
	})
}

// noise returns a host name that does not compress.
func noise(i, j int) string {
	sum := sha256.Sum256(fmt.Append(nil, i, " ", j))
	return hex.EncodeToString(sum[:])[:62]
}
