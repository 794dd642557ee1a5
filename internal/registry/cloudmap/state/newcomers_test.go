package state

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

func TestNewcomers(t *testing.T) {
	for name, tt := range map[string]struct {
		// waiting are the unknown clusters; every one of them proves its key, except each fake-th.
		waiting, fake int
		want          []int
	}{
		"a thousand clusters":        {1000, 0, []int{8, 16, 32, 64, 128, 128, 128, 128, 128, 128, 112}},
		"few clusters":               {10, 0, []int{8, 2, 0}},
		"clusters that do not exist": {1000, 1, []int{8, 8, 8, 8}},
		"one of them at each poll":   {1000, 8, []int{8, 8, 8, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			var n newcomers
			proven := map[string]bool{}
			next := 0
			for poll, want := range tt.want {
				n.begin(func(id string) bool { return !proven[id] })
				asked := 0
				for ; !n.isFull() && next < tt.waiting; next++ {
					id := fmt.Sprint(next)
					n.add(id)
					proven[id] = tt.fake == 0 || next%tt.fake != 0
					asked++
				}
				if asked != want {
					t.Errorf("poll %d reads %d catalogs, want %d", poll, asked, want)
				}
			}
		})
	}
}

// TestReads_ManyNewcomers: a controller that knows no keys reads the catalogs of many clusters in
// one poll, and few catalogs of clusters that do not exist.
func TestReads_ManyNewcomers(t *testing.T) {
	others := newOtherClusters(t, 60)
	for name, tt := range map[string]struct {
		fake string // has no catalog
		want []int
	}{
		"all exist":         {"", []int{8, 16, 32, 4, 0}},
		"one does not":      {"other-0000", nil},
		"all prove nothing": {"all", []int{8, 0}},
	} {
		s := New(testConfig())
		read := func(wanted []CatalogRead) int {
			for _, read := range wanted {
				if tt.fake == "all" || read.ClusterID == tt.fake {
					s.Reads.ObserveRecordCopy(time.Now(), read.ClusterID, nil)
					continue
				}
				s.Reads.ObserveCatalog(time.Now(), read.ClusterID, append(others.catalogs[read.ClusterID], others.recordOf(read.ClusterID)...))
			}
			return len(wanted)
		}
		s.Reads.ObserveMembers(others.members, engine.Keys{})
		rounds := []int{read(staleReads(s))}
		for rounds[len(rounds)-1] > 0 {
			rounds = append(rounds, read(s.Reads.MoreNewcomers(time.Now())))
		}
		if tt.want != nil && !slices.Equal(rounds, tt.want) {
			t.Errorf("%s: one poll reads %d catalogs, want %d", name, rounds, tt.want)
		}
		for range 4 {
			s.Reads.ObserveMembers(others.members, engine.Keys{})
			for wanted := staleReads(s); read(wanted) > 0; wanted = s.Reads.MoreNewcomers(time.Now()) {
			}
		}
		if known := others.known(s); tt.fake == "" && known != 60 || tt.fake == "other-0000" && known != 59 || tt.fake == "all" && known != 0 {
			t.Errorf("%s: after four polls %d clusters are known", name, known)
		}
	}
}

// recordOf returns the copy of a cluster's record.
func (o *otherClusters) recordOf(id string) []api.Instance {
	for _, m := range o.members {
		if m.ID == id {
			return []api.Instance{format.CopyOf(m)}
		}
	}
	return nil
}

// known returns how many of the clusters have proved their keys.
func (o *otherClusters) known(s *State) (known int) {
	for _, pin := range o.pins {
		if _, isKnown := s.cfg.Keyring.Pin(pin.ClusterID); isKnown {
			known++
		}
	}
	return known
}

// TestReads_FakesDoNotHoldUpAStart: any member can write records of clusters that do not exist. A
// controller that starts reads each of their catalogs once before it reads one again, so that the
// exports of the others are known after as many polls as there are rounds of firstNewcomers. A
// cluster that joins later has its turn among them.
func TestReads_FakesDoNotHoldUpAStart(t *testing.T) {
	warmUp(t)
	const fakes = 400
	synctest.Test(t, func(t *testing.T) {
		others := newOtherClusters(t, 2)
		early, late, members := others.members[0], others.members[1], []api.Instance(nil)
		for i := range fakes {
			id := fmt.Sprintf("fake-%04d", i)
			r := format.Member{ClusterID: id, ClusterSetID: "set1", UID: id, Joined: time.Now(), Generation: 1, Heartbeat: time.Now().UnixMilli()}
			members = append(members, r.Instance(signerOf("intruder")))
		}
		s := New(testConfig())
		poll := func(members []api.Instance) {
			s.Reads.ObserveMembers(members, engine.Keys{})
			for wanted := staleReads(s); len(wanted) > 0; wanted = s.Reads.MoreNewcomers(time.Now()) {
				for _, read := range wanted {
					if catalog := others.catalogs[read.ClusterID]; catalog != nil {
						s.Reads.ObserveCatalog(time.Now(), read.ClusterID, append(catalog, others.recordOf(read.ClusterID)...))
					} else {
						s.Reads.ObserveRecordCopy(time.Now(), read.ClusterID, nil)
					}
				}
			}
			time.Sleep(time.Second)
		}
		// the first round is due again at the time of the others
		polls, rounds := 0, fakes/firstNewcomers+2
		for members := append(members, early); !s.catalogs.isSynced() && polls <= fakes; polls++ {
			poll(members)
		}
		if polls > rounds {
			t.Errorf("lookups have an answer after %d polls, want at most %d", polls, rounds)
		}
		if known := others.known(s); known != 1 {
			t.Errorf("%d clusters are known after the first round, want the one that exists", known)
		}
		for polls = 0; others.known(s) < 2 && polls <= fakes; polls++ {
			poll(append(members, early, late))
		}
		if polls > rounds {
			t.Errorf("a cluster that joins later is known after %d polls, want at most %d", polls, rounds)
		}
	})
}
