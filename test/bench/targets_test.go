package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/bench/rules"
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
		"a little too much memory":     {func(f *Fleet) { f.Cold.Top = 513 }, 1},
		"CPU":                          {func(f *Fleet) { f.Steady.CPU = 4 }, 1},
		"slow, and the writes are not": {func(f *Fleet) { f.ColdMS = 80_000 }, 1},
		"a little too slow":            {func(f *Fleet) { f.ColdMS = 61_000 }, 1},
		"slower than the writes":       {func(f *Fleet) { f.ColdMS, f.ObjectsMS = 120_000, 60_000 }, 1},
		"slow, as the writes are":      {func(f *Fleet) { f.ColdMS, f.ObjectsMS = 80_000, 60_000 }, 0},
		"reads":                        {func(f *Fleet) { f.Steady.Calls["DiscoverInstances"] = 80 }, 1},
		"heartbeats":                   {func(f *Fleet) { f.HeartbeatSeconds = 12 }, 1},
		"propagation":                  {func(f *Fleet) { f.Propagation.P99 = 4000 }, 1},
		"propagation on etcd":          {func(f *Fleet) { f.Registry = clusterset.Etcd }, 1},
	} {
		f := good()
		tt.change(&f)
		r := &Results{Rows: Rows{Fleet: []Fleet{f}}}
		if misses := sectionOf(fleetSection).table.missed(r, fleetSection); len(misses) != tt.want {
			t.Errorf("%s: %q, want %d targets", name, misses, tt.want)
		}
	}
}

func TestMissed(t *testing.T) {
	for name, tt := range map[string]struct {
		section string
		rows    Rows
		want    []string
	}{
		"convergence, all met": {"convergence", Rows{Convergence: []Convergence{
			{Registry: "etcd", Exports: 300, ImportedMS: 6000, CompleteMS: 9000, ObjectsMS: 6000, ReadyDelay: &Spread{P99: 5000}, Exporter: Usage{RSSMiB: 200}},
		}}, nil},
		"convergence, slow": {"convergence", Rows{Convergence: []Convergence{
			{Registry: "etcd", Exports: 300, ImportedMS: 6100, CompleteMS: 9100, ObjectsMS: 6000, ReadyDelay: &Spread{P99: 6000}},
		}}, []string{
			"etcd, 300 exports, 300 imported, s: 6.1 (6)", "etcd, 300 exports, ratio: 1.52 (1.5)", "etcd, 300 exports, ready delay of 300, p99, s: 6 (5)",
		}},
		"convergence, many in too much memory": {"convergence", Rows{Convergence: []Convergence{
			{Registry: "etcd", Exports: 3000, ImportedMS: 60_000, Exporter: Usage{RSSMiB: 160}, Importer: Usage{RSSMiB: 150}},
		}}, []string{"etcd, 3000 exports, memory at 3,000, MiB: 160 (150)"}},
		"calls": {"steady", Rows{Steady: []Steady{
			{Exports: 1, Clusters: 2, Notifications: true, PerMinute: 6}, {Exports: 1, Clusters: 2, Notifications: true, PerMinute: 6.5}, {PerMinute: 75}, {PerMinute: 76},
		}}, []string{
			"1 exports, 2 clusters, notifications true, with peer notifications: 6.5 (6)", "0 exports, 0 clusters, notifications false, without: 76 (75)",
		}},
		"propagation": {"propagation", Rows{Propagation: []Propagation{
			{Registry: "cloudmap", Notifications: true, AtOnce: 8, Change: "add", Spread: Spread{P50: 60, P99: 300}},
			{Registry: "cloudmap", DelayMS: 500, Notifications: true, AtOnce: 8, Change: "add", Spread: Spread{P50: 61, P99: 301}},
			{Registry: "cloudmap", AtOnce: 8, Change: "add", Spread: Spread{P99: 1600}},
			{Registry: "cloudmap", DelayMS: 500, AtOnce: 8, Change: "add", Spread: Spread{P99: 2100}},
			{Registry: "etcd", AtOnce: 8, Change: "add", Spread: Spread{P99: 300}},
		}}, []string{
			"cloudmap, delay 500 ms, notifications true, 8 at once, add, p50, delay: 61 (60)",
			"cloudmap, delay 500 ms, notifications true, 8 at once, add, p99, delay: 301 (300)",
			"cloudmap, delay 0 ms, notifications false, 8 at once, add, p99, blocked: 1.6e+03 (1500)", "etcd, delay 0 ms, notifications false, 8 at once, add, p99, etcd: 300 (250)",
		}},
		"steps": {latencySection, Rows{Latency: []Latency{
			{Registry: "cloudmap", Step: fleet.TotalStep, Spread: Spread{P50: 16, P99: 60}}, {Registry: "etcd", Step: fleet.TotalStep, Spread: Spread{P50: 16, P99: 60}},
			{Registry: "etcd", Step: "another step", Spread: Spread{P99: 60}},
		}}, []string{"cloudmap, all steps, p50 on Cloud Map, ms: 16 (15)", "etcd, all steps, p99 on etcd, ms: 60 (50)"}},
		"hot code": {"micro", Rows{Micro: []Micro{
			{Name: "registry/cloudmap/state Poll/clusters=1000", Nanoseconds: 51e6}, {Name: "mcs Merge", Nanoseconds: 60e6},
		}}, []string{"registry/cloudmap/state Poll/clusters=1000, poll of 1,000 clusters, ms: 51 (50)"}},
	} {
		if got := sectionOf(tt.section).table.missed(&Results{Rows: tt.rows}, tt.section); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Every section has targets, and each has its limit in targets.json.
func TestTargets_HaveLimits(t *testing.T) {
	list, err := parseLimits(limits)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range list {
		got = append(got, l.Section+": "+l.Name)
	}
	var want []string
	for _, s := range sections {
		names := s.table.targetNames()
		if len(names) == 0 {
			t.Errorf("section %s has no target", s.name)
		}
		for _, name := range names {
			want = append(want, s.name+": "+name)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("targets.json has other targets than the sections (-sections +targets.json):\n%s", d)
	}
}

func TestTargetProblems(t *testing.T) {
	of := func(name string, most float64, reason string) limit {
		return limit{Section: "steady", Name: name, Limit: most, Reason: reason}
	}
	before := []limit{of("a", 6, "old"), of("b", 7, "")}
	alone := []string{"test/bench/targets.json", "test/bench/targets_test.go", "docs/benchmarks/README.md"}
	for name, tt := range map[string]struct {
		after []limit
		files []string
		want  []string
	}{
		"another order":     {[]limit{before[1], before[0]}, []string{"test/bench/targets.json", "internal/mcs/merge.go"}, nil},
		"with a reason":     {[]limit{of("a", 5, "new"), before[1]}, alone, nil},
		"a target is gone":  {[]limit{before[0]}, alone, nil},
		"without a reason":  {[]limit{before[0], of("b", 8, "")}, alone, []string{"steady, b: 8 instead of 7 needs a reason of its own"}},
		"with the old one":  {[]limit{of("a", 5, "old"), before[1]}, alone, []string{"steady, a: 5 instead of 6 needs a reason of its own"}},
		"a new target":      {append(before, of("c", 1, "")), alone, []string{"steady, c: 1 instead of 0 needs a reason of its own"}},
		"with code":         {[]limit{before[0], of("b", 8, "new")}, append(alone, "internal/mcs/merge.go"), []string{"it also changes internal/mcs/merge.go"}},
		"with figures":      {[]limit{before[0], of("b", 8, "new")}, append(alone, "docs/benchmarks/results.json"), []string{"it also changes docs/benchmarks/results.json"}},
		"gone with figures": {[]limit{before[0]}, append(alone, "docs/benchmarks/results.json"), []string{"it also changes docs/benchmarks/results.json"}},
	} {
		if got := targetProblems(before, tt.after, tt.files); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A target changes in a commit of its own with the reason on the page, so that nothing can meet it
// by moving it.
func TestTargetsOfHistory(t *testing.T) {
	t.Chdir("../..")
	const path = "test/bench/targets.json"
	if _, err := rules.Ahead(nil); errors.Is(err, rules.ErrShallow) {
		t.Skip(err)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := git(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	added := strings.Fields(run("log", "--diff-filter=A", "--format=%H", "--", path))
	if len(added) == 0 {
		t.Skip("targets.json is not committed")
	}
	for _, commit := range strings.Fields(run("log", "--no-merges", "--diff-filter=M", "--format=%H", added[0]+"..HEAD", "--", path)) {
		before, errBefore := parseLimits([]byte(run("show", commit+"^:"+path)))
		after, errAfter := parseLimits([]byte(run("show", commit+":"+path)))
		if err := errors.Join(errBefore, errAfter); err != nil {
			t.Fatal(err)
		}
		for _, problem := range targetProblems(before, after, strings.Fields(run("show", "--name-only", "--format=", commit))) {
			t.Errorf("commit %.8s changes a target: %s", commit, problem)
		}
	}
}
