package main

import (
	"reflect"
	"slices"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

func TestFleet_Missed(t *testing.T) {
	good := func() Fleet {
		steady := fleet.Load{Seconds: 60, CPU: 2, Top: 400, Calls: map[string]int{"DiscoverInstances": 12}}
		return Fleet{
			Result:      fleet.Result{Registry: clusterset.CloudMap, Clusters: 1000, HeartbeatSeconds: 40, ColdMS: 50_000, ObjectsMS: 20_000, Steady: steady},
			Propagation: Spread{P99: 2000},
		}
	}
	for name, tt := range map[string]struct {
		change func(*Fleet)
		want   int
	}{
		"all targets met":              {func(*Fleet) {}, 0},
		"memory":                       {func(f *Fleet) { f.Cold.Top = 620 }, 1},
		"a little too much memory":     {func(f *Fleet) { f.Cold.Top = 600 }, 0},
		"CPU":                          {func(f *Fleet) { f.Steady.CPU = 4 }, 1},
		"slow, and the writes are not": {func(f *Fleet) { f.ColdMS = 80_000 }, 1},
		"a little too slow":            {func(f *Fleet) { f.ColdMS = 61_000 }, 0},
		"slower than the writes":       {func(f *Fleet) { f.ColdMS, f.ObjectsMS = 120_000, 60_000 }, 1},
		"slow, as the writes are":      {func(f *Fleet) { f.ColdMS, f.ObjectsMS = 80_000, 60_000 }, 0},
		"reads":                        {func(f *Fleet) { f.Steady.Calls["DiscoverInstances"] = 80 }, 1},
		"heartbeats":                   {func(f *Fleet) { f.HeartbeatSeconds = 12 }, 1},
		"propagation":                  {func(f *Fleet) { f.Propagation.P99 = 4000 }, 1},
		"propagation on etcd":          {func(f *Fleet) { f.Registry = clusterset.Etcd }, 1},
	} {
		f := good()
		tt.change(&f)
		if misses := f.missed(0.2); len(misses) != tt.want {
			t.Errorf("%s: %q, want %d targets", name, misses, tt.want)
		}
	}
}

func TestConvergenceTargets(t *testing.T) {
	for name, tt := range map[string]struct {
		result Convergence
		want   []string
	}{
		"all met": {Convergence{Exports: 300, ImportedMS: 6000, CompleteMS: 9000, ObjectsMS: 6000, ReadyDelay: &Spread{P99: 5000}, Exporter: Usage{RSSMiB: 200}}, nil},
		"slow": {Convergence{Exports: 300, ImportedMS: 6100, CompleteMS: 9100, ObjectsMS: 6000, ReadyDelay: &Spread{P99: 6000}}, []string{
			"etcd: imported, s: 6.1, the target is 6", "etcd: ratio: 1.52, the target is 1.5", "etcd: ready delay, p99, s: 6, the target is 5",
		}},
		"many, in too much memory": {Convergence{Exports: 3000, ImportedMS: 60_000, Exporter: Usage{RSSMiB: 160}, Importer: Usage{RSSMiB: 150}}, []string{
			"etcd: memory of the exporter, MiB: 160, the target is 150",
		}},
	} {
		if got := missed(convergenceTargets, "etcd", tt.result, 0); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestMergeFleets(t *testing.T) {
	of := func(registry string, clusters int, version float64) Fleet {
		return Fleet{Result: fleet.Result{Registry: registry, Clusters: clusters, ColdMS: version}}
	}
	before := []Fleet{of(clusterset.CloudMap, 10, 1), of(clusterset.CloudMap, 100, 1), of(clusterset.Etcd, 10, 1)}
	got := mergeFleets(before, []Fleet{of(clusterset.CloudMap, 1000, 2), of(clusterset.CloudMap, 10, 2)})
	want := []Fleet{of(clusterset.CloudMap, 10, 2), of(clusterset.CloudMap, 100, 1), of(clusterset.CloudMap, 1000, 2), of(clusterset.Etcd, 10, 1)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
