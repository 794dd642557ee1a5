package engine_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

func TestPendingLookups(t *testing.T) {
	early, partly, all, more := mcs.Key{Name: "early"}, mcs.Key{Name: "partly"}, mcs.Key{Name: "all"}, mcs.Key{Name: "more"}
	views := map[mcs.Key]registry.View{partly: {Unknown: []string{"cls2", "cls3"}}, more: {Incomplete: true}}
	view := func(key mcs.Key, _ []string) registry.View { return views[key] }
	lookups := engine.PendingLookups{}
	problem := errors.New("access denied")
	if err := lookups.NotSynced(early, problem); !errors.Is(err, registry.ErrNotSynced) || !errors.Is(err, problem) {
		t.Errorf("error %v, want ErrNotSynced with the problem", err)
	}
	for _, key := range []mcs.Key{partly, all, more} {
		if got := lookups.Lookup(key, nil, view); got.Incomplete != views[key].Incomplete || !slices.Equal(got.Unknown, views[key].Unknown) {
			t.Errorf("lookup of %s: %+v, want %+v", key, got, views[key])
		}
	}
	wantChanged := func(when string, want ...mcs.Key) {
		t.Helper()
		changed := engine.Keys{}
		lookups.AddChanged(changed, view)
		if got := slices.Collect(maps.Keys(changed)); !slices.Equal(got, want) {
			t.Errorf("%s: changed %v, want %v", when, got, want)
		}
	}
	wantChanged("first read", early)
	wantChanged("no change")
	views[partly] = registry.View{Unknown: []string{"cls3"}}
	wantChanged("one cluster more is known", partly)
	views[partly] = registry.View{}
	wantChanged("no lookup since")
	views[more] = registry.View{}
	wantChanged("view is complete", more)
}
