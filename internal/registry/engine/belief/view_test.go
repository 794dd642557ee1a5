package belief

import (
	"maps"
	"slices"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestViewProperties: a View has the properties of the record that counts, and a change of them
// notifies the keys of the cluster.
func TestViewProperties(t *testing.T) {
	want := mcs.Properties{"region": "a"}
	for state, isExporting := range map[ClusterState]bool{NotRead: false, First: true, Current: true} {
		s, now := reached(t, state)
		changed := testRecord(key1, 40, 20)
		changed.Properties = want
		a := s.Step(RecordRead{changed}, now)
		if got := s.View(web, "cls").Clusters["cls"].Properties; !maps.Equal(got, want) {
			t.Errorf("%v: properties %v, want %v", state, got, want)
		}
		if isNotified := slices.Contains(a.Notify, web); isNotified != isExporting {
			t.Errorf("%v: notified %v", state, a.Notify)
		}
	}
}

func TestKeys(t *testing.T) {
	for _, state := range clusterStates {
		var want []mcs.Key
		if state == First || state == Current {
			want = []mcs.Key{web}
		}
		s, _ := reached(t, state)
		if got := s.Keys(); !slices.Equal(got, want) {
			t.Errorf("%v: keys %v, want %v", state, got, want)
		}
	}
}
