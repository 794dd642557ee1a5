package engine_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

func TestPendingLookups(t *testing.T) {
	early, partly, all, more := mcs.Key{Name: "early"}, mcs.Key{Name: "partly"}, mcs.Key{Name: "all"}, mcs.Key{Name: "more"}
	views := map[mcs.Key]registry.View{partly: registrytest.With(registry.View{}, registry.Unknown, "cls2", "cls3"), more: {Incomplete: true}}
	view := func(key mcs.Key, _ []string) registry.View { return views[key] }
	lookups := engine.NewPendingLookups(10)
	problem := errors.New("access denied")
	if err := lookups.NotSynced(early, problem); !errors.Is(err, registry.ErrNotSynced) || !errors.Is(err, problem) {
		t.Errorf("error %v, want ErrNotSynced with the problem", err)
	}
	for _, key := range []mcs.Key{partly, all, more} {
		if got := lookups.Lookup(key, nil, view, statusFrom(view)); got.Incomplete != views[key].Incomplete || !slices.Equal(got.In(registry.Unknown), views[key].In(registry.Unknown)) {
			t.Errorf("lookup of %s: %+v, want %+v", key, got, views[key])
		}
	}
	wantChanged := func(when string, want ...mcs.Key) {
		t.Helper()
		changed := engine.Keys{}
		lookups.AddChanged(changed, statusFrom(view))
		if got := slices.Collect(maps.Keys(changed)); !slices.Equal(got, want) {
			t.Errorf("%s: changed %v, want %v", when, got, want)
		}
	}
	wantChanged("first read", early)
	wantChanged("no change")
	views[partly] = registrytest.With(registry.View{}, registry.Unknown, "cls3")
	wantChanged("one cluster more is known, which is not imported")
	views[partly] = registry.View{}
	wantChanged("all clusters are known", partly)
	wantChanged("no lookup since")
	views[more] = registry.View{}
	wantChanged("view is complete", more)
}

// TestPendingLookups_OfOneCluster has keys that name one cluster as imported, another one or none,
// while a third cluster is unknown.
func TestPendingLookups_OfOneCluster(t *testing.T) {
	unknown := []string{"cls2", "cls3", "cls4"}
	view := engine.ViewFunc(func(mcs.Key, []string) registry.View {
		return registrytest.With(registry.View{}, registry.Unknown, slices.Clone(unknown)...)
	})
	lookups := engine.NewPendingLookups(10)
	early := mcs.Key{Name: "early"}
	_ = lookups.NotSynced(early, nil)
	for name, imported := range map[string][]string{"of-cls2": {"cls2"}, "of-cls3": {"cls3"}, "of-both": {"cls3", "cls2"}, "new": nil} {
		lookups.Lookup(mcs.Key{Name: name}, imported, view, statusFrom(view))
	}
	wantChanged := func(when, clusterID string, want ...string) {
		t.Helper()
		changed := engine.Keys{}
		lookups.AddChangedOf(clusterID, changed, statusFrom(view))
		var got []string
		for key := range changed {
			got = append(got, key.Name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: changed %q, want %q", when, got, want)
		}
	}
	wantChanged("first read", "cls4", "early")
	unknown = []string{"cls3", "cls4"}
	wantChanged("cls4 was read again", "cls4")
	wantChanged("cls2 is known", "cls2", "of-both", "of-cls2")
	unknown = []string{"cls4"}
	wantChanged("cls3 is known", "cls3", "of-cls3")
	unknown = nil
	changed := engine.Keys{}
	if lookups.AddChanged(changed, statusFrom(view)); len(changed) != 1 {
		t.Errorf("changed %v when all clusters are known, want the key that names none", changed)
	}
}

// TestPendingLookups_AreBounded has services of ever new names while a cluster cannot be read. The
// imports are still notified of.
func TestPendingLookups_AreBounded(t *testing.T) {
	views := registrytest.With(registry.View{}, registry.Unknown, "cls2")
	view := func(mcs.Key, []string) registry.View { return views }
	const most, imports = 100, 20
	lookups := engine.NewPendingLookups(most)
	for i := range 10_000 {
		key, imported := mcs.Key{Name: fmt.Sprint("web-", i)}, []string(nil)
		if i < imports {
			imported = []string{"cls2"}
		}
		lookups.Lookup(key, imported, view, statusFrom(view))
		if lookups.Len() > most {
			t.Fatalf("%d lookups are recorded, want %d at most", lookups.Len(), most)
		}
	}
	views = registry.View{}
	changed := engine.Keys{}
	lookups.AddChanged(changed, statusFrom(view))
	for i := range imports {
		if _, ok := changed[mcs.Key{Name: fmt.Sprint("web-", i)}]; !ok {
			t.Errorf("import %d is not notified of", i)
		}
	}
}

// TestPendingLookups_SeveralCallers checks that a lookup without imported clusters, as the status
// endpoint makes it, does not replace the one of the import, which waits for a cluster that is
// unseen.
func TestPendingLookups_SeveralCallers(t *testing.T) {
	web := mcs.Key{Name: "web"}
	seen := map[string]bool{}
	view := func(_ mcs.Key, imported []string) registry.View {
		v := registrytest.With(registry.View{}, registry.Unknown, "cls2")
		v.SetUnseen(imported, func(id string) bool { return seen[id] })
		return v
	}
	lookups := engine.NewPendingLookups(10)
	if v := lookups.Lookup(web, []string{"cls3"}, view, statusFrom(view)); len(v.In(registry.Unseen)) != 1 {
		t.Fatalf("unseen %v, want cls3", v.In(registry.Unseen))
	}
	if v := lookups.Lookup(web, nil, view, statusFrom(view)); len(v.In(registry.Unseen)) != 0 {
		t.Fatalf("unseen %v without imported clusters", v.In(registry.Unseen))
	}
	changed := engine.Keys{}
	if lookups.AddChanged(changed, statusFrom(view)); len(changed) != 0 {
		t.Errorf("changed %v before cls3 is seen", changed)
	}
	seen["cls3"] = true
	if lookups.AddChanged(changed, statusFrom(view)); len(changed) != 1 {
		t.Error("the key is not notified when cls3 is seen")
	}
}

// TestPendingLookups_Incomplete has each reason alone for which a lookup is recorded.
func TestPendingLookups_Incomplete(t *testing.T) {
	web := mcs.Key{Name: "web"}
	for name, first := range map[string]registry.View{
		"unknown": registrytest.With(registry.View{}, registry.Unknown, "cls2"), "unseen": registrytest.With(registry.View{}, registry.Unseen, "cls2"),
		"incomplete": {Incomplete: true}, "complete": {},
	} {
		view := first
		current := engine.ViewFunc(func(mcs.Key, []string) registry.View { return view })
		lookups := engine.NewPendingLookups(10)
		lookups.Lookup(web, nil, current, statusFrom(current))
		if recorded, want := lookups.Len() == 1, name != "complete"; recorded != want {
			t.Errorf("%s: recorded %v, want %v", name, recorded, want)
		}
		view = registry.View{}
		changed := engine.Keys{}
		lookups.AddChanged(changed, statusFrom(current))
		if _, notified := changed[web]; notified != (name != "complete") {
			t.Errorf("%s: notified %v after the view is complete", name, notified)
		}
	}
}

// TestPendingLookups_Stale has two unknown clusters that become stale and recover, of which one is
// imported.
func TestPendingLookups_Stale(t *testing.T) {
	web := mcs.Key{Name: "web"}
	unknown := registrytest.With(registry.View{}, registry.Unknown, "cls2", "cls3")
	current := unknown
	view := engine.ViewFunc(func(mcs.Key, []string) registry.View { return current })
	lookups := engine.NewPendingLookups(10)
	for _, step := range []struct {
		stale []string
		want  int
	}{{[]string{"cls3"}, 0}, {[]string{"cls2", "cls3"}, 1}, {[]string{"cls2"}, 0}, {nil, 1}} {
		lookups.Lookup(web, []string{"cls2"}, view, statusFrom(view))
		current = registrytest.WithLiveness(unknown, registry.Stale, step.stale...)
		changed := engine.Keys{}
		if lookups.AddChanged(changed, statusFrom(view)); len(changed) != step.want {
			t.Errorf("stale are %v: %d keys changed, want %d", step.stale, len(changed), step.want)
		}
	}
}

// TestPendingLookups_ImportedOfAllCallers has two callers with different imported clusters, which
// both wait.
func TestPendingLookups_ImportedOfAllCallers(t *testing.T) {
	web := mcs.Key{Name: "web"}
	for _, first := range []string{"cls3", "cls4"} {
		seen := map[string]bool{}
		view := func(_ mcs.Key, imported []string) registry.View {
			var v registry.View
			v.SetUnseen(imported, func(id string) bool { return seen[id] })
			return v
		}
		lookups := engine.NewPendingLookups(10)
		lookups.Lookup(web, []string{"cls3"}, view, statusFrom(view))
		lookups.Lookup(web, []string{"cls4"}, view, statusFrom(view))
		lookups.Lookup(web, []string{"cls4"}, view, statusFrom(view))
		seen[first] = true
		changed := engine.Keys{}
		if lookups.AddChanged(changed, statusFrom(view)); len(changed) != 1 {
			t.Errorf("the key is not notified when %s is seen", first)
		}
	}
}

// statusFrom returns the function that has the status of a View.
func statusFrom(view engine.ViewFunc) engine.StatusFunc {
	return func(key mcs.Key, imported []string) engine.Status {
		return engine.StatusOf(view(key, imported), imported)
	}
}
