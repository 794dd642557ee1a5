package belief

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// viewOfAll returns the View of a key without the index.
func (s *State) viewOfAll(key mcs.Key, imported []string) (view registry.View) {
	for id, c := range s.clusters {
		s.addTo(&view, c, s.at(key), slices.Contains(imported, id))
	}
	view.SetUnseen(imported, func(id string) bool { return id == s.cfg.Own || s.isKnown(id) })
	return view
}

// indexWorld makes random events about two clusters with two units of three keys each.
type indexWorld struct {
	*rand.Rand
	s     *State
	times map[string]int64
}

var indexClusters = []string{"cls", "dls"}

// indexKey returns a key of a unit.
func indexKey(unit, i int) mcs.Key {
	return mcs.Key{Namespace: fmt.Sprint("ns-", i), Name: fmt.Sprint("unit-", unit)}
}

func newIndexWorld(seed uint64) *indexWorld {
	s := started([]*trust.Pin{nil, pinOf(5), left(5)}[seed%3])
	return &indexWorld{Rand: rand.New(rand.NewPCG(seed, 0)), s: s, times: map[string]int64{"cls": 10, "dls": 10}} //nolint:gosec // not a secret
}

// event returns a random event.
func (w *indexWorld) event() Event {
	id := indexClusters[w.IntN(2)]
	switch w.IntN(13) {
	case 0, 1, 2:
		return RecordRead{w.record(id)}
	case 3, 4, 5, 6:
		return UnitsRead{Cluster: id, Units: []Unit{w.unit(id, 0), w.unit(id, 1)}[w.IntN(2):], All: w.IntN(4) == 0}
	case 7:
		return Namespaces{Used: [][]string{nil, {}, {"ns-0"}, {"ns-0", "ns-1"}}[w.IntN(4)]}
	case 8:
		return pinSaved{}
	case 9:
		r := w.record(id)
		return ProofRead{Cluster: id, Record: inPlace(r, Sealed)}
	case 10:
		if w.IntN(3) == 0 {
			return Forget{Cluster: id}
		}
		return RecordMissing{Cluster: id}
	case 11:
		return ReadAgain{Cluster: id, Units: []UnitName{w.s.cfg.UnitOf(indexKey(w.IntN(2), 0))}}
	}
	return Tick{Heartbeat: true}
}

// record returns a later record of a cluster, seldom an earlier one or a farewell.
func (w *indexWorld) record(id string) Record {
	w.times[id] += int64(w.IntN(4) - 1)
	r := Record{Cluster: id, Key: []trust.Key{key1, key1, key1, key2}[w.IntN(4)], Succession: "signed", At: at(w.times[id]), Farewell: w.IntN(8) == 0}
	m := ByUnit{Digests: map[UnitName]string{}, Unwritten: map[UnitName]bool{}}
	for unit := range 2 {
		name := w.s.cfg.UnitOf(indexKey(unit, 0))
		switch w.IntN(4) {
		case 0:
		case 1:
			m.Unwritten[name] = true
		default:
			m.Digests[name] = fmt.Sprint(w.times[id] - int64(w.IntN(2)))
			m.Codes = map[UnitName][]string{name: [][]string{{"ns-0", "ns-1"}, {"ns-2"}, {}}[w.IntN(3)]}
		}
	}
	r.Manifest = m
	if w.IntN(4) == 0 {
		r.Manifest = AsSet{IsUnknown: w.IntN(2) == 0}
	}
	return r
}

// unit returns a unit with random keys, seldom a missing one.
func (w *indexWorld) unit(id string, unit int) Unit {
	u := Unit{Name: w.s.cfg.UnitOf(indexKey(unit, 0))}
	if w.IntN(6) == 0 {
		return u
	}
	generation := w.times[id] - int64(w.IntN(3)) + 1
	u.Author, u.Version = Author{Key: key1}, Version{Generation: generation, Digest: fmt.Sprint(generation)}
	u.Content = Content{Exports: map[mcs.Key]*mcs.Export{}, Unusable: map[mcs.Key]bool{}, Ignored: map[mcs.Key]bool{}, Unnamed: w.IntN(6) == 0}
	for i := range 3 {
		key := indexKey(unit, i)
		switch w.IntN(4) {
		case 0, 1:
			u.Content.Exports[key] = &mcs.Export{Key: key, Cluster: id, Created: time.Unix(generation, 0)}
		case 2:
			u.Content.Unusable[key] = true
		case 3:
			u.Content.Ignored[key] = true
		}
	}
	return u
}

// TestView_HasAllClusters compares views with those that look at all clusters, after random events.
func TestView_HasAllClusters(t *testing.T) {
	states := map[registry.ClusterState]int{}
	for seed := range uint64(600) {
		w, now := newIndexWorld(seed), began
		for step := range 60 {
			now = now.Add(time.Duration(w.IntN(20)) * time.Second)
			clock = now
			e := w.event()
			counts := countsOf(w.s, e)
			apply(w.s, e, now)
			checkCounts(t, w.s, e, counts)
			checkIndex(t, w.s)
			for unit, i := range []int{0, 1, 2, 0, 1, 2} {
				key := indexKey(unit/3, i)
				checkUnused(t, w.s, key)
				for _, imported := range [][]string{nil, {"cls"}, {"cls", "dls"}} {
					got, want := w.s.View(key, imported...), w.s.viewOfAll(key, imported)
					if status, of := w.s.StatusOf(key, imported), engine.StatusOf(want, imported); !reflect.DeepEqual(status, of) {
						t.Fatalf("seed %d, step %d, %T: the status of %v with imports of %v is %+v, want %+v", seed, step, e, key, imported, status, of)
					}
					if !reflect.DeepEqual(got, want) {
						t.Fatalf("seed %d, step %d, %T: the view of %v with imports of %v (-all clusters +index):\n%s", seed, step, e, key, imported, cmp.Diff(want, got))
					}
					for _, in := range got.Clusters {
						states[in.State]++
					}
				}
			}
		}
		if got := len(w.s.Clone(w.s.cfg.Keyring).index.naming); got != len(w.s.index.naming) {
			t.Fatalf("seed %d: the clone has %d keys, want %d", seed, got, len(w.s.index.naming))
		}
	}
	for _, state := range []registry.ClusterState{registry.Exports, registry.Unknown, registry.Ignored, registry.Unseen} {
		if states[state] < 1000 {
			t.Errorf("state %v was seen %d times", state, states[state])
		}
	}
}

// countsOf returns which units of a read count.
func countsOf(s *State, e Event) (counts []bool) {
	if read, ok := e.(UnitsRead); ok {
		for i := range read.Units {
			counts = append(counts, s.Counts(read.Cluster, &read.Units[i]))
		}
	}
	return counts
}

// checkCounts checks that the units of a read which count are those that State.Counts has named.
func checkCounts(t *testing.T, s *State, e Event, counts []bool) {
	t.Helper()
	for i, want := range counts {
		read, _ := e.(UnitsRead)
		u := &read.Units[i]
		for key, exp := range u.Content.Exports {
			got := s.ExportOf(read.Cluster, key)
			// a record that the read completes may end it at once
			if _, state := s.UnitOf(read.Cluster, u.Name); (got == exp) != want && (!want || state != Absent) {
				t.Fatalf("export %v of unit %+v is %v; the unit counts: %t", key, u, got, want)
			}
		}
	}
}

// checkUnused compares the views of keys that are not used with those of all clusters.
func checkUnused(t *testing.T, s *State, key mcs.Key) {
	t.Helper()
	got, want := s.ViewOfUnused(key), s.viewOfAll(key, nil)
	if got.Has(registry.Unknown) != want.Has(registry.Unknown) || !slices.Equal(got.In(registry.Exports, registry.Ignored), want.In(registry.Exports, registry.Ignored)) {
		t.Fatalf("the view of %v, which is not used, is %+v, want %+v", key, got, want)
	}
}

// checkIndex checks that the index has the clusters that a View has to look at, and no others.
func checkIndex(t *testing.T, s *State) {
	t.Helper()
	want := newIndex()
	for _, c := range s.clusters {
		if c.signed == nil {
			continue
		}
		for name, u := range c.signed.units {
			want.setNamed(c, &Content{}, &u.content)
			in := listing{isOpen: true}
			if !c.signed.mayBeOld {
				in = u.listingOf(name, c.signed.record.Manifest)
			}
			want.setListing(c, name, &listing{}, &in)
		}
	}
	if !maps.EqualFunc(want.naming, s.index.naming, slices.Equal) || !maps.EqualFunc(want.open, s.index.open, slices.Equal) ||
		!maps.EqualFunc(want.skipped, s.index.skipped, slices.Equal) {
		t.Fatalf("the index is %v, want %v", s.index, want)
	}
}

// TestIndex_IsEmptyAtTheEnd checks that nothing stays in the index of clusters that have left.
func TestIndex_IsEmptyAtTheEnd(t *testing.T) {
	for seed := range uint64(100) {
		w := newIndexWorld(seed)
		for range 60 {
			apply(w.s, w.event(), began)
		}
		for _, id := range indexClusters {
			w.s.Step(Forget{Cluster: id}, began)
			pin, _ := w.s.cfg.Keyring.Pin(id)
			w.s.cfg.Keyring.MarkSaved(id, pin)
		}
		w.s.Step(Tick{}, began)
		if n := len(w.s.index.naming) + len(w.s.index.open); n != 0 {
			t.Fatalf("seed %d: %d lists stay: %v, %v", seed, n, w.s.index.naming, w.s.index.open)
		}
	}
}

// BenchmarkView looks a key up that one of 1,000 clusters exports, each of which has 64 units.
func BenchmarkView(b *testing.B) {
	s := started(nil)
	s.cfg.UnitOf = func(mcs.Key) UnitName { return "0" }
	for i := range 1000 {
		id, m := fmt.Sprintf("cls-%03d", i), ByUnit{Digests: map[UnitName]string{}}
		e := UnitsRead{Cluster: id}
		for unit := range 64 {
			name := UnitName(fmt.Sprint(unit))
			m.Digests[name] = "1"
			key := mcs.Key{Namespace: id, Name: string(name)}
			e.Units = append(e.Units, Unit{Name: name, Author: author1, Version: Version{Generation: 1, Digest: "1"}, Content: Content{Exports: map[mcs.Key]*mcs.Export{key: {Key: key}}}})
		}
		s.Step(RecordRead{*inPlace(Record{Cluster: id, Key: key1, At: at(1), Manifest: m}, Sealed)}, began)
		s.Step(e, began)
	}
	key := mcs.Key{Namespace: "cls-500", Name: "0"}
	if n := len(s.View(key).Clusters); n != 1 {
		b.Fatalf("%d clusters", n)
	}
	for b.Loop() {
		s.View(key)
	}
}

// TestIndex_OfRotatedKey rotates the key of a cluster whose first record may be old. What was read
// may be old until a record with the new key decides the units.
func TestIndex_OfRotatedKey(t *testing.T) {
	s, now := reached(t, First)
	if !s.clusters["cls"].signed.mayBeOld {
		t.Fatal("the first record cannot be old")
	}
	for i, m := range []Manifest{AsSet{IsUnknown: true}, ByUnit{}} {
		s.Step(RecordRead{Record{Cluster: "cls", Key: key2, Succession: "signed", At: at(30 + int64(i)), Manifest: m}}, now)
		if got, want := s.clusters["cls"].signed.mayBeOld, i == 0; got != want {
			t.Errorf("after record %d with the new key, what was read may be old: %t, want %t", i, got, want)
		}
		checkIndex(t, s)
	}
}
