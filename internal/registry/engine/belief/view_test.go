package belief

import (
	"maps"
	"slices"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
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

// TestNotify: the key of an export that begins is notified, and so is that of one which its unit
// does not have any more.
func TestNotify(t *testing.T) {
	s, now := reached(t, Current)
	other := mcs.Key{Namespace: "other", Name: "web"} // of the same unit
	withOther := testUnit(key1, 40)
	withOther.Content.Exports[other] = &mcs.Export{Key: other, Cluster: "cls"}
	for _, u := range []Unit{withOther, testUnit(key1, 50)} {
		s.Step(RecordRead{testRecord(key1, u.Version.Generation, u.Version.Generation)}, now)
		if a := s.Step(UnitsRead{Cluster: "cls", Units: []Unit{u}}, now); !slices.Contains(a.Notify, other) {
			t.Errorf("unit of generation %d: notified %v, want %v among them", u.Version.Generation, a.Notify, other)
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

// TestViewOfReturn: any key may be an export of a cluster that returns, until a record has decided
// all of its units. A cluster that gets an ID again that it had before would have no import in
// between otherwise.
func TestViewOfReturn(t *testing.T) {
	s := started(left(10))
	digest := SetDigest{}.With("web", 20)
	record := Record{Cluster: "cls", Place: Own, Key: key1, At: at(20), Manifest: AsSet{Digest: digest}}
	unit := testUnit(key1, 20)
	unit.Version.Digest = ""
	for _, tt := range []struct {
		event Event
		want  registry.ClusterState
	}{
		{Tick{}, registry.None},
		{RecordRead{record}, registry.Unknown},
		{UnitsRead{Cluster: "cls", Units: []Unit{unit}}, registry.Unknown},
		{pinSaved{}, registry.Unknown},
		{UnitsRead{Cluster: "cls", All: true}, registry.Unknown}, // another user has deleted it
		{UnitsRead{Cluster: "cls", Units: []Unit{unit}, All: true}, registry.Exports},
	} {
		apply(s, tt.event, began)
		if got := s.View(web).Clusters["cls"].State; got != tt.want {
			t.Errorf("after %T: %v, want %v", tt.event, got, tt.want)
		}
		if other := s.View(mcs.Key{Name: "other"}).Clusters["cls"].State; other == registry.Unknown != (tt.want == registry.Unknown) {
			t.Errorf("after %T: another key is %v", tt.event, other)
		}
	}
}
