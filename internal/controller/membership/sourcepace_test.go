package membership

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

const (
	paceIntruder = "intruder"
	paceVictim   = "victim"
)

// pacedViews is a sourcePace with the views of a registry.
type pacedViews struct {
	*sourcePace
	clock    time.Time
	requeued map[mcs.Key]time.Duration
}

func newPacedViews() *pacedViews {
	v := &pacedViews{clock: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC), requeued: map[mcs.Key]time.Duration{}}
	v.sourcePace = newSourcePace(func(key mcs.Key, delay time.Duration) { v.requeued[key] = delay })
	v.now = func() time.Time { return v.clock }
	return v
}

func pacedKey(i int) mcs.Key { return mcs.Key{Namespace: "demo", Name: fmt.Sprint("web-", i)} }

// version is a version of a cluster's export.
func (v *pacedViews) version(cluster string, i, version int) mcs.Export {
	return mcs.Export{Key: pacedKey(i), Cluster: cluster, MinimumReady: int32(version)}
}

// shown returns the versions that a view of the exports has, by cluster, and -1 for those that are
// unknown.
func (v *pacedViews) shown(i int, exports ...mcs.Export) (versions map[string]int, postponed bool) {
	view, postponed := v.limit(pacedKey(i), registrytest.ViewOf(exports...))
	versions = map[string]int{}
	for _, exp := range view.Exports() {
		versions[exp.Cluster] = int(exp.MinimumReady)
	}
	for _, cluster := range view.In(registry.Unknown) {
		versions[cluster] = -1
	}
	return versions, postponed
}

// useBurst shows the first version of as many exports of the intruder as its burst has, and the
// change that is due at once then. It returns the number of exports.
func (v *pacedViews) useBurst(t *testing.T) int {
	t.Helper()
	for i := range sourceBurst {
		if versions, postponed := v.shown(i, v.version(paceIntruder, i, 1)); versions[paceIntruder] != 1 || postponed {
			t.Fatalf("export %d of the burst: %v", i, versions)
		}
	}
	v.shown(sourceBurst-1, v.version(paceIntruder, sourceBurst-1, 2))
	return sourceBurst
}

// TestSourcePaceHolds: beyond its pace, the changes of a cluster are shown one after the other,
// however often a service is looked up and however often it changes meanwhile.
func TestSourcePaceHolds(t *testing.T) {
	v := newPacedViews()
	v.useBurst(t)
	const changing = 2 * sourceChanges
	latest, changes := 1, 0
	last := map[int]int{}
	for range 100 * 10 { // 10 s in steps of 10 ms
		v.clock = v.clock.Add(10 * time.Millisecond)
		latest++
		for i := range changing {
			v.shown(i, v.version(paceIntruder, i, latest))
			versions, _ := v.shown(i, v.version(paceIntruder, i, latest))
			if was := max(1, last[i]); versions[paceIntruder] != was {
				changes++
			}
			last[i] = versions[paceIntruder]
		}
	}
	if changes < 9*sourceChanges || changes > 11*sourceChanges {
		t.Errorf("%d changes are shown in 10 s, want 500", changes)
	}
	for i := range changing {
		if age := latest - last[i]; age > 210 { // its turn comes every 2 s
			t.Errorf("service %d is shown %d versions late", i, age)
		}
	}
	v.clock = v.clock.Add(2 * time.Second)
	for i := range changing {
		if versions, _ := v.shown(i, v.version(paceIntruder, i, latest)); versions[paceIntruder] != latest {
			t.Errorf("service %d shows version %d 2 s after the last change, %d: the changes in between cost nothing", i, versions[paceIntruder], latest)
		}
	}
}

// TestSourcePaceCountsSlices: changes of large exports are held as long as their writes take, and a
// change of one endpoint is not.
func TestSourcePaceCountsSlices(t *testing.T) {
	const groups = 100 // of one endpoint each, as many slices
	export := func(version int, changed int) mcs.Export {
		exp := mcs.Export{Key: pacedKey(0), Cluster: paceIntruder}
		for i := range groups {
			ep := mcs.Endpoint{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Ready: true}
			if i < changed {
				ep.Address = netip.AddrFrom4([4]byte{10, 1, byte(version), byte(i)})
			}
			exp.Backends = append(exp.Backends, mcs.Backends{Ports: []mcs.BackendPort{{Name: fmt.Sprint("p", i), Port: int32(1 + i)}}, Endpoints: []mcs.Endpoint{ep}})
		}
		return exp
	}
	for _, tc := range []struct{ changed, least, most int }{
		{changed: groups, least: 50, most: 60}, // 5,000 writes of the burst, and 500 in 10 s
		{changed: 1, least: 1000, most: 1000},
	} {
		v := newPacedViews()
		v.limit(pacedKey(0), registrytest.ViewOf(export(0, tc.changed)))
		shown, last := 0, export(0, tc.changed)
		for n := range 1000 { // 10 s in steps of 10 ms
			v.clock = v.clock.Add(10 * time.Millisecond)
			view, _ := v.limit(pacedKey(0), registrytest.ViewOf(export(1+n%200, tc.changed)))
			if !view.Exports()[0].Equal(last) {
				shown, last = shown+1, view.Exports()[0]
			}
		}
		if shown < tc.least || shown > tc.most {
			t.Errorf("%d changes of %d slices each are shown, want %d to %d", shown, tc.changed, tc.least, tc.most)
		}
	}
	v, begun := newPacedViews(), 0
	for range 1000 { // begins and ends
		v.clock = v.clock.Add(5 * time.Millisecond)
		view, _ := v.limit(pacedKey(0), registrytest.ViewOf(export(0, 0)))
		begun += len(view.Exports())
		v.clock = v.clock.Add(5 * time.Millisecond)
		v.limit(pacedKey(0), registry.View{})
	}
	if begun < 50 || begun > 60 {
		t.Errorf("an export of %d slices begins %d times, want some 55", groups, begun)
	}
}

// TestSourcePaceShows has the cases of one service after the burst.
func TestSourcePaceShows(t *testing.T) {
	intruder := func(v *pacedViews, version int) mcs.Export { return v.version(paceIntruder, 0, version) }
	victim := func(v *pacedViews, version int) mcs.Export { return v.version(paceVictim, 0, version) }
	for name, test := range map[string]func(t *testing.T, v *pacedViews) (got map[string]int, postponed bool){
		"a change is held: intruder=1 postponed": func(_ *testing.T, v *pacedViews) (map[string]int, bool) {
			return v.shown(0, intruder(v, 2))
		},
		"another notification is not postponed: intruder=1": func(_ *testing.T, v *pacedViews) (map[string]int, bool) {
			v.shown(0, intruder(v, 2))
			return v.shown(0, intruder(v, 2))
		},
		"a change of another cluster is shown: intruder=1 victim=1": func(_ *testing.T, v *pacedViews) (map[string]int, bool) {
			return v.shown(0, intruder(v, 2), victim(v, 1))
		},
		"the end is shown:": func(_ *testing.T, v *pacedViews) (map[string]int, bool) {
			v.shown(0, intruder(v, 2))
			return v.shown(0)
		},
		"the next beginning is unknown: intruder=-1 postponed": func(_ *testing.T, v *pacedViews) (map[string]int, bool) {
			v.shown(0)
			return v.shown(0, intruder(v, 3))
		},
		"the end of another cluster is shown: intruder=1": func(_ *testing.T, v *pacedViews) (map[string]int, bool) {
			v.shown(0, intruder(v, 1), victim(v, 1))
			return v.shown(0, intruder(v, 2))
		},
		"the way back is free: intruder=1": func(_ *testing.T, v *pacedViews) (map[string]int, bool) {
			v.shown(0, intruder(v, 2))
			return v.shown(0, intruder(v, 1))
		},
		"it is shown when it is due: intruder=3": func(t *testing.T, v *pacedViews) (map[string]int, bool) {
			v.shown(0, intruder(v, 2))
			v.shown(0, intruder(v, 3))
			due := v.requeued[pacedKey(0)]
			if due <= 0 || due > time.Second {
				t.Errorf("requeued after %v", due)
			}
			v.clock = v.clock.Add(due)
			return v.shown(0, intruder(v, 3))
		},
		"an hour later nothing is held: intruder=2": func(_ *testing.T, v *pacedViews) (map[string]int, bool) {
			v.clock = v.clock.Add(time.Hour)
			return v.shown(0, intruder(v, 2))
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newPacedViews()
			v.useBurst(t)
			got, postponed := test(t, v)
			var words []string
			for _, cluster := range []string{paceIntruder, paceVictim} {
				if version, has := got[cluster]; has {
					words = append(words, fmt.Sprintf("%s=%d", cluster, version))
				}
			}
			if postponed {
				words = append(words, "postponed")
			}
			if want := fieldsAfterColon(name); !slices.Equal(words, want) {
				t.Errorf("shown: %v, want %v", words, want)
			}
		})
	}
}

// TestSourcePaceKeepsUnknown: an export that cannot be read for a moment has not ended, so that it
// costs nothing when it is read again.
func TestSourcePaceKeepsUnknown(t *testing.T) {
	v := newPacedViews()
	v.useBurst(t)
	if view, _ := v.limit(pacedKey(0), registrytest.With(registry.View{}, registry.Unknown, paceIntruder)); !slices.Equal(view.In(registry.Unknown), []string{paceIntruder}) {
		t.Errorf("unknown are %v", view.In(registry.Unknown))
	}
	if versions, postponed := v.shown(0, v.version(paceIntruder, 0, 1)); versions[paceIntruder] != 1 || postponed {
		t.Errorf("shown: %v", versions)
	}
}

// TestSourcePaceHoldsProperties: the properties of a cluster change with its export, and other
// facts of a view are never held.
func TestSourcePaceHoldsProperties(t *testing.T) {
	v := newPacedViews()
	v.useBurst(t)
	of := func(zone string) registry.View {
		view := registrytest.ViewOf(v.version(paceIntruder, 0, 1), v.version(paceVictim, 0, 1))
		for id, c := range view.Clusters {
			c.Properties = mcs.Properties{"zone": zone}
			view.Set(id, c)
		}
		return registrytest.WithLiveness(view, registry.Stale, paceIntruder)
	}
	v.clock = v.clock.Add(time.Second)
	v.limit(pacedKey(0), of("a"))
	for i := range sourceChanges {
		v.shown(1+i, v.version(paceIntruder, 1+i, 2))
	}
	given := of("b")
	view, _ := v.limit(pacedKey(0), given)
	if view.Clusters[paceIntruder].Properties["zone"] != "a" || view.Clusters[paceVictim].Properties["zone"] != "b" || !slices.Equal(view.WithLiveness(registry.Stale), given.WithLiveness(registry.Stale)) {
		t.Errorf("the view is %+v", view)
	}
	if given.Clusters[paceIntruder].Properties["zone"] != "b" {
		t.Error("the registry's view was changed")
	}
}

// TestSourcePaceForgets: services without exports cost no memory.
func TestSourcePaceForgets(t *testing.T) {
	v := newPacedViews()
	n := v.useBurst(t)
	for i := range n {
		v.shown(i)
	}
	if len(v.services) != 0 {
		t.Errorf("%d services are known", len(v.services))
	}
}

// fieldsAfterColon returns the words after the colon of a test's name.
func fieldsAfterColon(name string) []string {
	_, words, _ := strings.Cut(name, ":")
	return strings.Fields(words)
}
