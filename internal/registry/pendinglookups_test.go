package registry_test

import (
	"slices"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func TestAsked(t *testing.T) {
	early, partly, all, more := mcs.Key{Name: "early"}, mcs.Key{Name: "partly"}, mcs.Key{Name: "all"}, mcs.Key{Name: "more"}
	views := map[mcs.Key]registry.View{partly: {Unknown: []string{"cls2", "cls3"}}, more: {Incomplete: true}}
	asked := registry.PendingLookups{}
	asked.NotSynced(early)
	for _, key := range []mcs.Key{partly, all, more} {
		asked.Record(key, views[key])
	}
	news := func(what string, want ...mcs.Key) {
		t.Helper()
		got := asked.Changed(func(key mcs.Key) registry.View { return views[key] })
		if !slices.Equal(got, want) {
			t.Errorf("%s: news of %v, want of %v", what, got, want)
		}
	}
	news("the first read", early)
	news("nothing else is known")
	views[partly] = registry.View{Unknown: []string{"cls3"}}
	news("one cluster more is known", partly)
	views[partly] = registry.View{}
	news("nobody has asked since")
	views[more] = registry.View{}
	news("all clusters are known by name", more)
}

func TestCheckIdentity(t *testing.T) {
	good := mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}
	tests := map[string]struct {
		change func(*mcs.Identity)
		ok     bool
	}{
		"good":             {func(*mcs.Identity) {}, true},
		"no cluster ID":    {func(i *mcs.Identity) { i.ClusterID = "" }, false},
		"no clusterset ID": {func(i *mcs.Identity) { i.ClusterSetID = "" }, false},
		"dots":             {func(i *mcs.Identity) { i.ClusterID = "a.b" }, false},
		"no UID":           {func(i *mcs.Identity) { i.UID = "" }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			identity := good
			tt.change(&identity)
			if err := registry.CheckIdentity(identity); (err == nil) != tt.ok {
				t.Errorf("error %v, want none: %t", err, tt.ok)
			}
		})
	}
}
