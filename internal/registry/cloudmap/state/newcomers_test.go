package state

import (
	"fmt"
	"testing"
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

// TestReads_ManyNewcomers: a controller that knows no keys reads the catalogs of many clusters in few polls, and few catalogs of clusters that do not exist.
func TestReads_ManyNewcomers(t *testing.T) {
	others := newOtherClusters(t, 60)
	s := New(testConfig())
	poll := func() (reads int) {
		s.Reads.ObserveMembers(others.members, engine.Keys{})
		for _, read := range s.Reads.StaleReads(time.Now()) {
			reads++
			record := others.recordOf(read.ClusterID)
			s.Reads.ObserveCatalog(time.Now(), read.ClusterID, append(others.catalogs[read.ClusterID], record...))
		}
		return reads
	}
	for n, want := range []int{8, 16, 32, 4, 0} {
		if got := poll(); got != want {
			t.Errorf("poll %d reads %d catalogs, want %d", n, got, want)
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
