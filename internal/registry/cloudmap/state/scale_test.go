package state

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// otherClusters are the records and catalogs of clusters beside cls1. Each exports 100 services of
// 10 endpoints, in 10 namespaces that ten clusters share: every service has ten exports. A tenth of
// the namespaces is imported.
type otherClusters struct {
	members  []api.Instance
	catalogs map[string][]api.Instance
	// exporters are the clusters of each imported service.
	exporters map[mcs.Key][]string
	// pins are the keys that the previous process has saved.
	pins []trust.Record
}

// isImported is the import policy of cls1.
func isImported(namespace string) bool { return strings.HasSuffix(namespace, "-0") }

func newOtherClusters(b testing.TB, count int) *otherClusters {
	b.Helper()
	others := &otherClusters{catalogs: map[string][]api.Instance{}, exporters: map[mcs.Key][]string{}}
	now := time.Now()
	for c := range count {
		id := fmt.Sprintf("other-%04d", c)
		identity := mcs.Identity{ClusterID: id, ClusterSetID: "set1", UID: "uid-" + id}
		signer := signerOf(fmt.Sprint(c))
		m := format.Member{ClusterID: id, ClusterSetID: "set1", UID: identity.UID, Key: signer.Key(), Joined: now, Generation: 1, Heartbeat: now.UnixMilli(), Process: "1-" + id}
		pages := map[int]map[mcs.Key]mcs.Export{}
		for i := range 100 {
			exp := webExport(id, i, 10)
			exp.Key.Namespace = fmt.Sprintf("team-%d-%d", c/10, i%10)
			page := format.PageOf(exp.Key)
			if pages[page] == nil {
				pages[page] = map[mcs.Key]mcs.Export{}
			}
			pages[page][exp.Key] = exp
			if isImported(exp.Key.Namespace) {
				others.exporters[exp.Key] = append(others.exporters[exp.Key], id)
			}
		}
		for page, exports := range pages {
			w, err := EncodePage(identity, signer, page, 1, exports)
			if err != nil {
				b.Fatal(err)
			}
			m.Pages[page] = w.digest
			others.catalogs[id] = append(others.catalogs[id], w.Instances...)
		}
		others.pins = append(others.pins, trust.Record{ClusterID: id, UID: identity.UID, Key: m.Key})
		others.members = append(others.members, m.Instance(signer))
	}
	return others
}

// beat writes new heartbeats of the first clusters.
func (o *otherClusters) beat(count int) {
	for c, instance := range o.members[:count] {
		m, err := format.ParseMember(instance, "set1")
		if err != nil {
			panic(err)
		}
		m.Heartbeat++
		o.members[c] = m.Instance(signerOf(fmt.Sprint(c)))
	}
}

// start returns the state of a controller that restarts with all imports.
func (o *otherClusters) start() *State {
	cfg := testConfig()
	cfg.Wanted = isImported
	for _, pin := range o.pins {
		cfg.Keyring.Observe(pin)
	}
	s := New(cfg)
	o.lookup(s, maps.Keys(o.exporters))
	return s
}

// lookup looks up keys as the reconciler of imports does, and returns the number of exports.
func (o *otherClusters) lookup(s *State, keys func(func(mcs.Key) bool)) (exports int) {
	for key := range keys {
		view, _ := s.Lookup(key, o.exporters[key])
		exports += len(view.Exports())
	}
	return exports
}

// readAll reads the members and all catalogs, looks up the keys that change after each read, and
// returns the number of lookups.
func (o *otherClusters) readAll(b *testing.B, s *State) (lookups int) {
	changed := engine.Keys{}
	s.Reads.ObserveMembers(o.members, changed)
	s.AddResolved(changed)
	lookups += len(changed)
	o.lookup(s, maps.Keys(changed))
	wanted := staleReads(s)
	if len(wanted) != len(o.members) {
		b.Fatalf("%d catalogs are read, want %d", len(wanted), len(o.members))
	}
	for _, read := range wanted {
		changed = s.Reads.ObserveCatalog(time.Now(), read.ClusterID, o.catalogs[read.ClusterID])
		lookups += len(changed)
		o.lookup(s, maps.Keys(changed))
	}
	return lookups
}

// TestStatusOfIsThatOfTheView reads the catalogs of a start one by one, and compares the status of
// each key with that of its view, and the view with one that asks every catalog.
func TestStatusOfIsThatOfTheView(t *testing.T) {
	others := newOtherClusters(t, 20)
	s := others.start()
	check := func() {
		t.Helper()
		for key, imported := range others.exporters {
			view := s.catalogs.viewOf(key, imported)
			want := engine.StatusOf(view, imported)
			if got := s.catalogs.belief.StatusOf(key, imported); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: status %+v, want %+v", key, got, want)
			}
			var exporters []string
			for id := range s.catalogs.clusters {
				if s.catalogs.belief.ExportOf(id, key) != nil {
					exporters = append(exporters, id)
				}
			}
			if len(exporters) != len(view.Exports()) {
				t.Fatalf("%s: %d exports, want those of %q", key, len(view.Exports()), exporters)
			}
		}
	}
	s.Reads.ObserveMembers(others.members, engine.Keys{})
	check()
	for _, read := range staleReads(s) {
		s.Reads.ObserveCatalog(time.Now(), read.ClusterID, others.catalogs[read.ClusterID])
		check()
	}
	for id := range others.catalogs {
		s.Forget(id)
		check()
	}
	if left := s.catalogs.belief.Keys(); len(left) > 0 {
		t.Errorf("%d keys of forgotten clusters are left", len(left))
	}
}

// TestStaleReads_ChangedFirst: a process that starts first reads the clusters whose pages have
// changed since the previous one has read them, and the one that this one had not read. One whose
// process starts too, and leaves its pages undecided, is not read.
func TestStaleReads_ChangedFirst(t *testing.T) {
	others := newOtherClusters(t, 40)
	previous := others.start()
	previous.Reads.ObserveMembers(others.members, engine.Keys{})
	for _, read := range staleReads(previous) {
		if read.ClusterID != "other-0007" {
			previous.Reads.ObserveCatalog(time.Now(), read.ClusterID, others.catalogs[read.ClusterID])
		}
	}
	previous.Reads.SetError(nil)
	change := func(c int, change func(*format.Member)) {
		m, err := format.ParseMember(others.members[c], "set1")
		if err != nil {
			t.Fatal(err)
		}
		change(&m)
		m.Generation++
		m.Heartbeat++
		others.members[c] = m.Instance(signerOf(fmt.Sprint(c)))
	}
	page := format.PageOf(slices.Collect(maps.Keys(others.exporters))[0])
	change(3, func(m *format.Member) { m.Pages[page] = format.Digest([]byte("other")) })
	change(5, func(m *format.Member) {
		for i := range m.Pages {
			m.Pages[i] = format.UnwrittenDigest
		}
	})
	change(8, func(*format.Member) {}) // another process, with the same pages
	s := New(previous.cfg)
	s.Reads.ObserveMembers(others.members, engine.Keys{})
	changed, unchanged := s.Reads.StaleReads(time.Now())
	if len(unchanged) != 37 {
		t.Errorf("%d other catalogs are read, want all but the undecided one", len(unchanged))
	}
	var first []string
	for _, read := range changed {
		first = append(first, read.ClusterID)
	}
	if slices.Sort(first); !slices.Equal(first, []string{"other-0003", "other-0007"}) {
		t.Errorf("read first are %q", first)
	}
}

// staleReads returns all catalogs that have to be read.
func staleReads(s *State) []CatalogRead {
	changed, others := s.Reads.StaleReads(time.Now())
	return slices.Concat(changed, others)
}

// TestReads_UncertainClustersNotifyOnce: after a restart, the exports of a cluster count from its
// second record on. Only then their keys change, once.
func TestReads_UncertainClustersNotifyOnce(t *testing.T) {
	others := newOtherClusters(t, 20)
	for i := range others.pins {
		// as the previous process has saved them
		others.pins[i].Registry, others.pins[i].At = "", trust.Time{Generation: 1, Heartbeat: 1}
	}
	s := others.start()
	s.Reads.ObserveMembers(others.members, engine.Keys{})
	s.Reads.SetError(nil)
	others.lookup(s, maps.Keys(others.exporters))
	for _, read := range staleReads(s) {
		if changed := s.Reads.ObserveCatalog(time.Now(), read.ClusterID, others.catalogs[read.ClusterID]); len(changed) > 0 {
			t.Errorf("reading the catalog of %s after its first record changes %v", read.ClusterID, changed)
		}
	}
	changed := engine.Keys{}
	s.AddResolved(changed)
	if len(changed) > 0 {
		t.Errorf("%v changed after the first record of each cluster", changed)
	}
	if got := others.lookup(s, maps.Keys(others.exporters)); got > 0 {
		t.Errorf("%d exports count after the first record of each cluster", got)
	}
	others.beat(20)
	s.Reads.ObserveMembers(others.members, changed)
	imported := 0
	for key := range changed {
		if isImported(key.Namespace) {
			imported++
		}
	}
	if imported != len(others.exporters) || len(changed) != 200 {
		t.Errorf("%d imported keys of %d changed with the second records, want %d of 200: the others wait for their namespaces", imported, len(changed), len(others.exporters))
	}
	if got := others.lookup(s, maps.Keys(others.exporters)); got != 200 {
		t.Errorf("%d exports count after the second record of each cluster, want 200", got)
	}
}

// TestState_LooksUpUnusedNamespaces: the view of a key whose namespace is not used shows who
// exports it, and that there may be others, without a list of these.
func TestState_LooksUpUnusedNamespaces(t *testing.T) {
	others := newOtherClusters(t, 20)
	s := others.start()
	s.Reads.ObserveMembers(others.members, engine.Keys{})
	used, unused := webExport("other-0000", 0, 10).Key, webExport("other-0000", 1, 10).Key
	used.Namespace, unused.Namespace = "team-0-0", "team-0-1"
	lookup := func(key mcs.Key, wantUnknown, wantIgnored int) {
		t.Helper()
		if view, err := s.Lookup(key, nil); err != nil || len(view.In(registry.Unknown)) != wantUnknown || len(view.In(registry.Ignored)) != wantIgnored {
			t.Errorf("%s: unknown %v, ignored %v, error %v; want %d and %d", key, view.In(registry.Unknown), view.In(registry.Ignored), err, wantUnknown, wantIgnored)
		}
	}
	lookup(used, 20, 0)
	lookup(unused, 1, 0)
	changed := engine.Keys{}
	for _, read := range staleReads(s) {
		maps.Copy(changed, s.Reads.ObserveCatalog(time.Now(), read.ClusterID, others.catalogs[read.ClusterID]))
	}
	if _, isChanged := changed[unused]; !isChanged {
		t.Error("reading the catalogs does not change the key of an unused namespace")
	}
	lookup(used, 0, 0)
	lookup(unused, 0, 10)
}

// TestWrites_AnswersOnce: the answer to a new process is one write, which a heartbeat replaces.
func TestWrites_AnswersOnce(t *testing.T) {
	now := time.Now()
	s := New(testConfig())
	s.claim.state = Held
	s.recorded = now
	s.answerAt = now.Add(3 * time.Second)
	if at, _ := s.Writes.NextRecord(now); !at.Equal(s.answerAt) {
		t.Errorf("the next record is written %v later, want 3s", at.Sub(now))
	}
	if _, _, due := s.Writes.RecordToWrite(now.Add(2 * time.Second)); due {
		t.Error("the record is written before the answer is due")
	}
	if _, _, due := s.Writes.RecordToWrite(now.Add(3 * time.Second)); !due || !s.answerAt.IsZero() {
		t.Errorf("due %v, and the next answer at %v", due, s.answerAt)
	}
}

// sizes are the numbers of other clusters in the benchmarks.
var sizes = []int{10, 100, 300, 1000}

// BenchmarkRestart measures a restart, from the first read of the members until everything is
// looked up, for each of the other clusters.
func BenchmarkRestart(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("clusters=%d", size), func(b *testing.B) {
			others := newOtherClusters(b, size)
			b.ReportAllocs()
			b.ResetTimer()
			lookups := 0
			for range b.N {
				s := others.start()
				lookups += others.readAll(b, s)
				if got := others.lookup(s, maps.Keys(others.exporters)); got != 10*size {
					b.Fatalf("%d exports, want %d", got, 10*size)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*size), "µs/cluster")
			b.ReportMetric(float64(lookups)/float64(b.N*len(others.exporters)), "lookups/service")
		})
	}
}

// BenchmarkPoll measures a poll that shows as many heartbeats as there are in a second, and the
// decision about the next reads.
func BenchmarkPoll(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("clusters=%d", size), func(b *testing.B) {
			others := newOtherClusters(b, size)
			s := others.start()
			others.readAll(b, s)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				others.beat(max(1, size/12))
				b.StartTimer()
				changed := engine.Keys{}
				s.Reads.ObserveMembers(others.members, changed)
				s.AddResolved(changed)
				if wanted := staleReads(s); len(wanted) > 0 {
					b.Fatalf("%d catalogs are read", len(wanted))
				}
				s.Peers(time.Now())
			}
		})
	}
}

// BenchmarkLookup measures the lookup of a service that ten clusters export.
func BenchmarkLookup(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("clusters=%d", size), func(b *testing.B) {
			others := newOtherClusters(b, size)
			s := others.start()
			others.readAll(b, s)
			keys := slices.Collect(maps.Keys(others.exporters))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				key := keys[i%len(keys)]
				if view, err := s.Lookup(key, others.exporters[key]); err != nil || len(view.Exports()) != 10 {
					b.Fatalf("%d exports, error %v", len(view.Exports()), err)
				}
			}
		})
	}
}
