package state

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// changingCluster is another cluster whose exports in a few namespaces change.
type changingCluster struct {
	record  format.Member
	exports map[int]map[mcs.Key]mcs.Export
	catalog map[int][]api.Instance
}

const changingKeys = 12

// changingKey is key i of a few namespaces.
func changingKey(i int) mcs.Key {
	key := webKey(i)
	key.Namespace = fmt.Sprintf("ns-%d", i%4)
	return key
}

func newChangingCluster(n int, now time.Time) *changingCluster {
	id := fmt.Sprint("other-", n)
	return &changingCluster{exports: map[int]map[mcs.Key]mcs.Export{}, catalog: map[int][]api.Instance{}, record: format.Member{
		ClusterID: id, ClusterSetID: "set1", UID: "uid-" + id, Key: signerOf("uid-" + id).Key(), Joined: now, Generation: 1, Heartbeat: now.UnixMilli(), Process: "1-" + id,
	}}
}

func (c *changingCluster) signer() *trust.Signer { return signerOf(c.record.UID) }

// change adds an export or removes it, and writes its page.
func (c *changingCluster) change(t *testing.T, key mcs.Key) {
	page := format.PageOf(key)
	if c.exports[page] == nil {
		c.exports[page] = map[mcs.Key]mcs.Export{}
	}
	if _, has := c.exports[page][key]; has {
		delete(c.exports[page], key)
	} else {
		exp := webExport(c.record.ClusterID, 0, 1)
		exp.Key = key
		c.exports[page][key] = exp
	}
	c.record.Generation++
	c.catalog[page], c.record.Pages[page], c.record.Namespaces[page] = nil, "", ""
	if len(c.exports[page]) > 0 {
		w, err := EncodePage(mcs.Identity{ClusterID: c.record.ClusterID, ClusterSetID: "set1", UID: c.record.UID}, c.signer(), page, c.record.Generation, c.exports[page])
		if err != nil {
			t.Fatal(err)
		}
		c.catalog[page], c.record.Pages[page], c.record.Namespaces[page] = w.Instances, w.digest, format.NamespacesOf(c.exports[page])
	}
}

// TestCatalogs_Random reads records and pages at random, which change, end and come back, or are
// skipped. After each step the catalogs agree with package belief: the record that counts is that
// of belief, only exports that are kept cost something, and nothing stays of clusters that are
// gone.
func TestCatalogs_Random(t *testing.T) {
	warmUp(t)
	counts := map[string]int{}
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { readRandomly(t, seed, counts) })
	}
	for _, name := range []string{"record", "no record", "export", "over budget"} {
		if counts[name] < 100 {
			t.Errorf("%d times %s, want 100 at least", counts[name], name)
		}
	}
}

func readRandomly(t *testing.T, seed uint64, counts map[string]int) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	used := []string{"ns-0"}
	cfg := testConfig()
	cfg.StaleAfter, cfg.Ledger = 5*time.Second, within(budget.Exports, 3)
	cfg.UsedNamespaces = func() ([]string, bool) { return used, true }
	cfg.Wanted = func(namespace string) bool { return slices.Contains(used, namespace) }
	others := make([]*changingCluster, 5)
	for n := range others {
		others[n] = newChangingCluster(n, time.Now())
		if rnd.IntN(2) == 0 { // a previous process has read its record
			cfg.Keyring.Observe(trust.Record{ClusterID: others[n].record.ClusterID, UID: others[n].record.UID, Key: others[n].record.Key, At: others[n].record.Time()})
		}
	}
	s := New(cfg)
	for step := range 150 {
		other := others[rnd.IntN(len(others))]
		switch rnd.IntN(8) {
		case 0, 1:
			other.change(t, changingKey(rnd.IntN(changingKeys)))
		case 2:
			other.record.Farewell = !other.record.Farewell && rnd.IntN(4) == 0
		case 3:
			if rnd.IntN(3) == 0 {
				s.Forget(other.record.ClusterID)
			}
		case 4:
			used = [][]string{{"ns-0"}, {"ns-0", "ns-1"}, {"ns-2"}, {}}[rnd.IntN(4)]
		case 5, 6:
			var records []api.Instance
			for _, c := range others {
				if rnd.IntN(8) == 0 {
					c.record.Heartbeat++
				}
				if rnd.IntN(5) > 0 {
					records = append(records, c.record.Instance(c.signer()))
				}
			}
			s.Reads.ObserveMembers(records, engine.Keys{})
		default:
			for _, read := range staleReads(s) {
				c := others[slices.IndexFunc(others, func(c *changingCluster) bool { return c.record.ClusterID == read.ClusterID })]
				instances := []api.Instance{format.CopyOf(c.record.Instance(c.signer()))}
				for _, page := range c.catalog {
					if rnd.IntN(10) > 0 { // else it is late
						instances = append(instances, page...)
					}
				}
				s.Reads.ObserveCatalog(time.Now(), read.ClusterID, instances)
			}
		}
		time.Sleep(time.Second)
		if checkCatalogs(t, s, counts); t.Failed() {
			t.Fatalf("seed %d, step %d", seed, step)
		}
	}
}

// checkCatalogs compares the catalogs with belief.
func checkCatalogs(t *testing.T, s *State, counts map[string]int) {
	t.Helper()
	for id, cluster := range s.catalogs.clusters {
		r := s.catalogs.belief.RecordOf(id)
		if hasRecord := r != nil && !r.Farewell; hasRecord != (cluster.record != nil) || hasRecord && r.At != cluster.record.Time() {
			t.Errorf("%s: the record is %+v, want %+v", id, cluster.record, r)
		}
		if cluster.record == nil {
			counts["no record"]++
		} else {
			counts["record"]++
		}
		if isShown := cluster.isShown || cluster.isSought; !isShown && cluster.record == nil && s.catalogs.belief.StateOf(id) != belief.Saving {
			t.Errorf("%s is known, and gone", id)
		}
		if len(cluster.overBudget().Keys) > 0 {
			counts["over budget"]++
		}
		kept := map[mcs.Key]bool{}
		for i := range changingKeys {
			if key := changingKey(i); s.catalogs.belief.ExportOf(id, key) != nil {
				kept[key] = true
				counts["export"]++
			}
		}
		cluster.account.KeepOnly(func(key mcs.Key) bool {
			if !kept[key] {
				t.Errorf("%s: export %s costs something, and is not kept", id, key)
			}
			delete(kept, key)
			return true
		})
		if len(kept) > 0 {
			t.Errorf("%s: exports %v are kept, and cost nothing", id, kept)
		}
	}
}
