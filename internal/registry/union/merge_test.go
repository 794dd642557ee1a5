package union

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

const handover = 2 * time.Minute

var (
	self  = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}
	began = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
)

// at returns the time some minutes after began.
func at(minutes float64) time.Time { return began.Add(time.Duration(minutes * float64(time.Minute))) }

// member returns a member that joined, and had its last heartbeat, so many minutes after began.
func member(id string, joined, heartbeat float64) registry.Member {
	return registry.Member{ClusterID: id, UID: "uid-of-" + id, Joined: at(joined), Heartbeat: at(heartbeat), LastSeen: at(heartbeat)}
}

func stale(m registry.Member) registry.Member {
	m.Stale = true
	return m
}

func withUID(m registry.Member, uid string) registry.Member {
	m.UID = uid
	return m
}

// export returns an export that differs from others of its cluster by its port.
func export(id string, port int32) mcs.Export {
	return mcs.Export{Key: mcs.Key{Namespace: "demo", Name: "web"}, Cluster: id, Ports: []mcs.Port{{Port: port}}}
}

func synced(view registry.View, members ...registry.Member) snapshot {
	return snapshot{synced: true, members: members, view: view}
}

func exports(list ...mcs.Export) registry.View { return registrytest.ViewOf(list...) }

func TestMergeViews(t *testing.T) {
	exported := registry.PublishStatus{State: registry.Exported}
	tests := []struct {
		name      string
		snapshots []snapshot
		want      registry.View
	}{
		{
			name: "different clusters in two registries",
			snapshots: []snapshot{
				synced(exports(export("cls3", 1)), member("cls3", 0, 9)),
				synced(exports(export("cls2", 2)), member("cls2", 0, 9)),
			},
			want: exports(export("cls2", 2), export("cls3", 1)),
		},
		{
			name: "the own status comes from the first registry, the own cluster is never imported",
			snapshots: []snapshot{
				synced(registry.View{Local: exported}, member("cls1", 0, 9)),
				synced(exports(export("cls1", 2)), withUID(member("cls1", 0, 1), "uid-1")),
				synced(registrytest.With(registry.View{}, registry.Unknown, "cls1"), withUID(member("cls1", 0, 1), "uid-1")),
			},
			want: registry.View{Local: exported},
		},
		{
			name: "a cluster moved: the export comes from the registry with the later heartbeat",
			snapshots: []snapshot{
				synced(exports(export("cls2", 1)), member("cls2", 0, 5)),
				synced(exports(export("cls2", 2)), member("cls2", 5, 6)),
			},
			want: exports(export("cls2", 2)),
		},
		{
			name: "during the handover, an export that is only in the previous registry is kept",
			snapshots: []snapshot{
				synced(exports(export("cls2", 1)), member("cls2", 0, 5)),
				synced(registry.View{}, member("cls2", 5, 6.9)),
			},
			want: exports(export("cls2", 1)),
		},
		{
			name: "after the handover, an export that is only in the previous registry is gone",
			snapshots: []snapshot{
				synced(exports(export("cls2", 1)), member("cls2", 0, 5)),
				synced(registry.View{}, member("cls2", 5, 7)),
			},
			want: registry.View{},
		},
		{
			name: "a cluster moved long after its last heartbeat: the handover begins when it joins",
			snapshots: []snapshot{
				synced(exports(export("cls2", 1)), member("cls2", 0, 5)),
				synced(registry.View{}, member("cls2", 600, 601)),
			},
			want: exports(export("cls2", 1)),
		},
		{
			name: "a cluster moved back",
			snapshots: []snapshot{
				synced(registry.View{}, member("cls2", 0, 20)),
				synced(exports(export("cls2", 2)), member("cls2", 5, 10)),
			},
			want: registry.View{},
		},
		{
			name: "stale in one registry, live in the other: no handover",
			snapshots: []snapshot{
				synced(registrytest.WithLiveness(exports(export("cls2", 1)), registry.Stale, "cls2"), stale(member("cls2", 0, 5))),
				synced(registry.View{}, member("cls2", 5, 6)),
			},
			want: registry.View{},
		},
		{
			name: "stale in both",
			snapshots: []snapshot{
				synced(registrytest.WithLiveness(exports(export("cls2", 1)), registry.Stale, "cls2"), stale(member("cls2", 0, 6))),
				synced(registrytest.WithLiveness(exports(export("cls2", 2)), registry.Stale, "cls2"), stale(member("cls2", 0, 5))),
			},
			want: registrytest.WithLiveness(exports(export("cls2", 1)), registry.Stale, "cls2"),
		},
		{
			name: "live in one registry, stale with a later heartbeat in the other",
			snapshots: []snapshot{
				synced(exports(export("cls2", 1)), member("cls2", 0, 5)),
				synced(registrytest.WithLiveness(exports(export("cls2", 2)), registry.Stale, "cls2"), stale(member("cls2", 0, 9))),
			},
			want: exports(export("cls2", 1)), // that of the live record
		},
		{
			name: "liveness unknown in the registry of the export",
			snapshots: []snapshot{
				synced(registry.View{}, member("cls2", 0, 5)),
				synced(registrytest.WithLiveness(exports(export("cls2", 1)), registry.Undecided, "cls2"), member("cls2", 0, 5)),
			},
			want: registrytest.WithLiveness(exports(export("cls2", 1)), registry.Undecided, "cls2"),
		},
		{
			name: "unknown in both, live in one",
			snapshots: []snapshot{
				synced(registrytest.WithLiveness(registrytest.With(registry.View{}, registry.Unknown, "cls2"), registry.Stale, "cls2"), stale(member("cls2", 0, 9))),
				synced(registrytest.With(registry.View{}, registry.Unknown, "cls2"), member("cls2", 0, 5)),
			},
			want: registrytest.With(registry.View{}, registry.Unknown, "cls2"),
		},
		{
			name: "unknown in both, live in the first",
			snapshots: []snapshot{
				synced(registrytest.With(registry.View{}, registry.Unknown, "cls2"), member("cls2", 0, 5)),
				synced(registrytest.WithLiveness(registrytest.With(registry.View{}, registry.Unknown, "cls2"), registry.Stale, "cls2"), stale(member("cls2", 0, 9))),
			},
			want: registrytest.With(registry.View{}, registry.Unknown, "cls2"),
		},
		{
			name: "unknown in one registry, exported in the other",
			snapshots: []snapshot{
				synced(registrytest.With(registry.View{}, registry.Unknown, "cls2"), member("cls2", 0, 6)),
				synced(exports(export("cls2", 2)), member("cls2", 0, 5)),
			},
			want: exports(export("cls2", 2)),
		},
		{
			name: "unknown in one registry, absent in the other",
			snapshots: []snapshot{
				synced(registrytest.With(registry.View{}, registry.Unknown, "cls2"), member("cls2", 0, 5)),
				synced(registry.View{}, member("cls2", 0, 6)),
			},
			want: registrytest.With(registry.View{}, registry.Unknown, "cls2"),
		},
		{
			name: "unknown in the previous registry, absent in the new one",
			snapshots: []snapshot{
				synced(registrytest.With(registry.View{}, registry.Unknown, "cls2"), member("cls2", 0, 5)),
				synced(registry.View{}, member("cls2", 0, 9)),
			},
			want: registry.View{},
		},
		{
			name: "unknown in the new registry, exported in the previous one",
			snapshots: []snapshot{
				synced(exports(export("cls2", 1)), member("cls2", 0, 5)),
				synced(registrytest.With(registry.View{}, registry.Unknown, "cls2"), member("cls2", 0, 9)),
			},
			want: registrytest.With(registry.View{}, registry.Unknown, "cls2"),
		},
		{
			name: "two clusters with one ID: only the exports of the one that joined first",
			snapshots: []snapshot{
				synced(registry.View{}, member("cls2", 1, 9)),
				synced(exports(export("cls2", 2)), withUID(member("cls2", 2, 9.1), "uid-of-another")),
			},
			want: registry.View{},
		},
		{
			name: "another cluster that joined earlier has our ID in another registry",
			snapshots: []snapshot{
				synced(registry.View{Local: exported}, withUID(member("cls1", 1, 9), "uid-1")),
				synced(exports(export("cls1", 2)), withUID(member("cls1", 0, 9), "uid-of-another")),
			},
			want: registry.View{Local: exported},
		},
		{
			name: "another cluster that joined later has our ID in another registry",
			snapshots: []snapshot{
				synced(registry.View{Local: exported}, withUID(member("cls1", 0, 9), "uid-1")),
				synced(exports(export("cls1", 2)), withUID(member("cls1", 1, 9), "uid-of-another")),
			},
			want: registry.View{Local: exported},
		},
		{
			name: "a registry without times does not count after the handover",
			snapshots: []snapshot{
				synced(registry.View{}, member("cls2", 0, 2)),
				synced(exports(export("cls2", 2)), registry.Member{ClusterID: "cls2", LastSeen: at(9)}),
			},
			want: registry.View{},
		},
		{
			name: "a registry without times counts during the handover",
			snapshots: []snapshot{
				synced(registry.View{}, member("cls2", 0, 1)),
				synced(exports(export("cls2", 2)), registry.Member{ClusterID: "cls2", LastSeen: at(9)}),
			},
			want: exports(export("cls2", 2)),
		},
		{
			name: "the second registry is not read yet",
			snapshots: []snapshot{
				synced(registry.View{Clusters: exports(export("cls2", 1)).Clusters, Local: exported}, member("cls2", 0, 5)),
				{},
			},
			want: registry.View{Clusters: exports(export("cls2", 1)).Clusters, Local: exported, Incomplete: true},
		},
		{
			name:      "the first registry is not read yet: the own status is pending",
			snapshots: []snapshot{{}, synced(exports(export("cls2", 1)), member("cls2", 0, 5))},
			want:      registry.View{Clusters: exports(export("cls2", 1)).Clusters, Local: registry.PublishStatus{State: registry.Pending}, Incomplete: true},
		},
		{
			name:      "an export of a cluster that is not a member yet",
			snapshots: []snapshot{synced(registry.View{}), synced(registrytest.With(exports(export("cls2", 1)), registry.Unknown, "cls3"))},
			want:      registrytest.With(exports(export("cls2", 1)), registry.Unknown, "cls3"),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := mergeViews(self, tt.snapshots, resolveSources(self, tt.snapshots, handover, nil), nil)
			if d := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("View (-want +got):\n%s", d)
			}
		})
	}
}

// TestEqualJoinTimes: clusters that joined at the same time are ordered by UID, whatever their
// heartbeats and registries are.
func TestEqualJoinTimes(t *testing.T) {
	first, second := withUID(member("cls2", 0, 5), "uid-a"), withUID(member("cls2", 0, 5.5), "uid-b")
	for _, tt := range []struct {
		name              string
		here, other       registry.Member
		order, duplicates []int
	}{
		{"smaller UID in the first registry", first, second, []int{0}, []int{1}},
		{"smaller UID in the other registry", second, first, []int{1}, []int{0}},
	} {
		snapshots := []snapshot{synced(registry.View{}, tt.here), synced(registry.View{}, tt.other)}
		want := map[string]clusterSources{"cls2": {order: tt.order, duplicates: tt.duplicates, ambiguous: true}}
		if d := cmp.Diff(want, resolveSources(self, snapshots, handover, nil), cmp.AllowUnexported(clusterSources{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

func TestMergeMembers(t *testing.T) {
	names := []string{"first", "other"}
	snapshots := []snapshot{
		synced(registry.View{},
			withProblem(member("cls2", 0, 5), "page 07 cannot be read"),
			member("cls3", 0, 5),
			withUID(member("cls4", 0, 5), "uid-a"),
			stale(member("cls5", 0, 1)),
			member("cls6", 0, 5)),
		synced(registry.View{},
			withProblem(member("cls2", 4, 6), "page 09 cannot be read"),
			withUID(member("cls4", 1, 5), "uid-b"),
			stale(member("cls5", 0, 2)),
			stale(member("cls6", 0, 4.5))), // alive in the other registry
	}
	got := mergeMembers(names, snapshots, resolveSources(self, snapshots, handover, nil))
	two := member("cls2", 4, 6)
	two.Problems = []string{"registry other: page 09 cannot be read", "page 07 cannot be read"}
	four := withUID(member("cls4", 0, 5), "uid-a")
	four.Problems = []string{"registry other has another cluster with this ID (its namespace kube-system has UID uid-b), " +
		"whose exports are ignored: give it another ID"}
	want := []registry.Member{two, member("cls3", 0, 5), four, stale(member("cls5", 0, 2)), member("cls6", 0, 5)}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("members (-want +got):\n%s", d)
	}
}

// TestMergeMembers_KeepsKindOfProblem: kubectl mcs check tells refused records and exports over
// budget from other problems, whichever registry has them.
func TestMergeMembers_KeepsKindOfProblem(t *testing.T) {
	refused := registry.RefusedProblem("page 07", errors.New("it has no signature"))
	over := registry.BudgetProblem(3, mcs.Key{Namespace: "demo", Name: "web"}, budget.Excess{Limit: 1})
	for i, name := range []string{"first", "other"} {
		snapshots := []snapshot{synced(registry.View{}), synced(registry.View{})}
		snapshots[i].members = []registry.Member{withProblem(member("cls2", 0, 5), refused), withProblem(member("cls3", 0, 5), over), withProblem(member("cls4", 0, 5), "page 07 is missing")}
		snapshots[i].members[1].OverBudget = mcs.OverBudget{Keys: []mcs.Key{{Namespace: "demo", Name: "web"}}}
		members := mergeMembers([]string{"first", "other"}, snapshots, resolveSources(self, snapshots, handover, nil))
		for j, want := range [][2]bool{{true, false}, {false, true}, {false, false}} {
			problem := members[j].Problems[0]
			if got := [2]bool{registry.IsRefused(problem), registry.IsOverBudget(problem)}; got != want {
				t.Errorf("registry %s: %q is a refused record, over budget: %v; want %v", name, problem, got, want)
			}
			if got := !members[j].OverBudget.IsEmpty(); got != want[1] {
				t.Errorf("registry %s: %s is over budget: %v, want %v", name, members[j].ClusterID, got, want[1])
			}
		}
	}
}

// TestMergeMembers_ReportsOwnIDInOtherRegistry: another cluster has this cluster's ID in another
// registry, with an earlier time and a later heartbeat. It is reported, and this cluster stays the
// member.
func TestMergeMembers_ReportsOwnIDInOtherRegistry(t *testing.T) {
	snapshots := []snapshot{
		synced(registry.View{Local: registry.PublishStatus{State: registry.Exported}}, withUID(member("cls1", 3, 5), self.UID)),
		synced(registry.View{}, withUID(member("cls1", 0, 9), "uid-other")),
	}
	got := mergeMembers([]string{"first", "other"}, snapshots, resolveSources(self, snapshots, handover, nil))
	if len(got) != 1 || got[0].UID != self.UID || len(got[0].Problems) != 1 || !strings.Contains(got[0].Problems[0], "uid-other") {
		t.Errorf("members %+v, want this cluster and the other one as its problem", got)
	}
	if local := mergeLocal(snapshots[0]); local.State != registry.Exported || local.Err != nil {
		t.Errorf("the own export is %+v, want Exported", local)
	}
}

// TestResolveSources_IgnoresUnsignedRecord: a registry with a refused record of a cluster is no
// source of it, also when the cluster is stale in its own one.
func TestResolveSources_IgnoresUnsignedRecord(t *testing.T) {
	forged := registry.Member{ClusterID: "cls2", UID: "uid-other", LastSeen: at(9), NoRecord: true}
	snapshots := []snapshot{
		synced(exports(export("cls2", 1)), stale(member("cls2", 0, 1))),
		synced(registry.View{}, forged),
	}
	view := mergeViews(self, snapshots, resolveSources(self, snapshots, handover, nil), []string{"cls2"})
	if len(view.Exports()) != 1 {
		t.Errorf("the view is %+v, want the export of the stale cluster", view)
	}
	if got := resolveSources(self, snapshots[1:], handover, nil)["cls2"]; !slices.Equal(got.order, []int{0}) {
		t.Errorf("the only registry is not its source: %+v", got)
	}
}

// TestMergeViews_UnsignedInstances: the instances of the legacy controller with the ID of a cluster
// that has signed records neither replace its exports nor end them, also while it is stale and
// while its records are missing.
func TestMergeViews_UnsignedInstances(t *testing.T) {
	instances := registry.Member{ClusterID: "cls2", LastSeen: at(60), Version: "legacy"}
	refused := registry.Member{ClusterID: "cls2", NoRecord: true}
	unseen, pinned := registrytest.With(registry.View{}, registry.Unseen, "cls2"), func(id string) bool { return id == "cls2" }
	signed, none := exports(export("cls2", 1)), registry.View{}
	legacy, others := synced(exports(export("cls2", 666)), instances), synced(none, instances)
	for _, tt := range []struct {
		name          string
		main, legacy  snapshot
		isSigned      func(string) bool
		wantPort      int32
		wantUnseen    bool
		wantAmbiguous bool
	}{
		{name: "no records: they count", main: synced(unseen), legacy: legacy, wantPort: 666},
		{name: "no records: without instances of this service its import ends", main: synced(unseen), legacy: others},
		{name: "a forged record alone", main: synced(unseen, refused), legacy: legacy, wantPort: 666, wantAmbiguous: true},
		{name: "the cluster has just joined", main: synced(none, member("cls2", 5, 6)), legacy: legacy, wantPort: 666, wantAmbiguous: true},
		{name: "its page comes first then", main: synced(signed, member("cls2", 5, 6)), legacy: legacy, wantPort: 1, wantAmbiguous: true},
		{name: "it has just joined and its records are a copy", main: synced(unseen, member("cls2", 5, 6)), legacy: others, wantUnseen: true, wantAmbiguous: true},
		{name: "the cluster is live", main: synced(signed, member("cls2", 5, 9)), legacy: legacy, wantPort: 1, wantAmbiguous: true},
		{name: "live, and it does not export the service", main: synced(none, member("cls2", 5, 9)), legacy: legacy, wantAmbiguous: true},
		{name: "the cluster is stale", main: synced(signed, stale(member("cls2", 5, 9))), legacy: legacy, wantPort: 1, wantAmbiguous: true},
		{name: "stale, and it does not export the service", main: synced(none, stale(member("cls2", 5, 9))), legacy: legacy, wantAmbiguous: true},
		{name: "stale, and instances of another service", main: synced(signed, stale(member("cls2", 5, 9))), legacy: others, wantPort: 1, wantAmbiguous: true},
		{name: "stale soon after it joined", main: synced(signed, stale(member("cls2", 5, 6))), legacy: legacy, wantPort: 1, wantAmbiguous: true},
		{name: "its record was deleted before this controller started", main: synced(unseen), legacy: legacy, isSigned: pinned, wantUnseen: true, wantAmbiguous: true},
		{name: "the same, and instances of another service", main: synced(unseen), legacy: others, isSigned: pinned, wantUnseen: true, wantAmbiguous: true},
		{name: "its record was replaced before this controller started", main: synced(unseen, refused), legacy: legacy, isSigned: pinned, wantUnseen: true, wantAmbiguous: true},
	} {
		snapshots := []snapshot{tt.main, tt.legacy}
		sources := resolveSources(self, snapshots, handover, tt.isSigned)
		view := mergeViews(self, snapshots, sources, []string{"cls2"})
		var port int32
		for _, exp := range view.Exports() {
			port += exp.Ports[0].Port
		}
		if port != tt.wantPort || (len(view.In(registry.Unseen)) > 0) != tt.wantUnseen || len(view.In(registry.Unknown)) > 0 || sources["cls2"].ambiguous != tt.wantAmbiguous {
			t.Errorf("%s: the view is %+v of %+v, want port %d, unseen: %t", tt.name, view, sources["cls2"], tt.wantPort, tt.wantUnseen)
		}
	}
}

// TestMergeMembers_ReportsUnsignedInstances: a silent cluster with instances of the legacy
// controller may run that one again, which only an administrator knows.
func TestMergeMembers_ReportsUnsignedInstances(t *testing.T) {
	instances := registry.Member{ClusterID: "cls2", LastSeen: at(60), Version: "legacy"}
	pinned := func(id string) bool { return id == "cls2" }
	for _, tt := range []struct {
		name                string
		main                snapshot
		isSigned            func(string) bool
		wantStale, reported bool
	}{
		{name: "no records", main: synced(registry.View{})},
		{name: "live", main: synced(registry.View{}, member("cls2", 5, 9))},
		{name: "stale", main: synced(registry.View{}, stale(member("cls2", 5, 9))), wantStale: true, reported: true},
		{name: "its record was deleted before this controller started", main: synced(registry.View{}), isSigned: pinned, wantStale: true, reported: true},
		{name: "the records were not read yet", isSigned: pinned},
	} {
		snapshots := []snapshot{tt.main, synced(registry.View{}, instances)}
		got := mergeMembers([]string{"main", "legacy"}, snapshots, resolveSources(self, snapshots, handover, tt.isSigned))
		if len(got) != 1 || got[0].Stale != tt.wantStale || (len(got[0].Problems) > 0) != tt.reported || tt.reported && !strings.Contains(got[0].Problems[0], "kubectl mcs forget cls2") {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func withProblem(m registry.Member, problem string) registry.Member {
	m.Problems = []string{problem}
	return m
}

// TestMergeProperties: for any content of the registries, each cluster counts once, no export is
// lost, and the result does not depend on the order of the registries.
func TestMergeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		snapshots := drawSnapshots(t)
		got := mergeViews(self, snapshots, resolveSources(self, snapshots, handover, nil), nil)
		checkStates(t, got)
		checkComplete(t, snapshots, got)

		// The order of the others does not matter: only the first has a special role, for the own
		// export.
		shuffled := append(slices.Clone(snapshots[:1]), rapid.Permutation(snapshots[1:]).Draw(t, "order")...)
		if again := mergeViews(self, shuffled, resolveSources(self, shuffled, handover, nil), nil); !cmp.Equal(got, again, cmpopts.EquateEmpty()) {
			t.Fatalf("in another order:\n%s", cmp.Diff(got, again))
		}
		other := mcs.Identity{ClusterID: "cls9", UID: "uid-9"}
		theirs := rapid.Permutation(snapshots).Draw(t, "their order")
		mine, yours := mergeViews(other, snapshots, resolveSources(other, snapshots, handover, nil), nil), mergeViews(other, theirs, resolveSources(other, theirs, handover, nil), nil)
		mine.Local, yours.Local = registry.PublishStatus{}, registry.PublishStatus{}
		if !cmp.Equal(mine, yours, cmpopts.EquateEmpty()) {
			t.Fatalf("another cluster with another first registry has another result:\n%s", cmp.Diff(mine, yours))
		}
	})
}

// drawSnapshots draws the content of registries with a few clusters. All records have different
// times, because a cluster writes to one registry at a time.
func drawSnapshots(t *rapid.T) []snapshot {
	snapshots := make([]snapshot, rapid.IntRange(1, 4).Draw(t, "registries"))
	for i := range snapshots {
		if snapshots[i].synced = rapid.Float64Range(0, 1).Draw(t, "synced") < 0.9; !snapshots[i].synced {
			continue
		}
		for _, id := range []string{"cls1", "cls2", "cls3"} {
			if rapid.Bool().Draw(t, "member") {
				snapshots[i].draw(t, id, time.Duration(i))
			}
		}
	}
	return snapshots
}

func (s *snapshot) draw(t *rapid.T, id string, offset time.Duration) {
	joined := rapid.Float64Range(0, 5).Draw(t, "joined")
	m := member(id, joined, joined+rapid.Float64Range(0, 5).Draw(t, "heartbeat"))
	m.Joined, m.Heartbeat = m.Joined.Truncate(time.Second).Add(offset), m.Heartbeat.Truncate(time.Second).Add(offset)
	m.UID = rapid.SampledFrom([]string{"uid-a", "uid-a", "uid-a", "uid-b"}).Draw(t, "uid")
	m.Stale = rapid.Bool().Draw(t, "stale")
	s.members = append(s.members, m)
	switch rapid.SampledFrom([]string{"export", "absent", "unknown"}).Draw(t, "view") {
	case "export":
		c := registry.ClusterView{State: registry.Exports, Export: new(export(id, rapid.Int32Range(1, 1<<30).Draw(t, "port")))}
		if m.Stale {
			c.Liveness = registry.Stale
		}
		s.view.Set(id, c)
	case "unknown":
		s.view.Set(id, registry.ClusterView{State: registry.Unknown})
	}
}

// TestMergeViews_Unseen: a cluster is unseen only if no registry knows it. A registry that is empty
// or was not read shows nothing.
func TestMergeViews_Unseen(t *testing.T) {
	unseen := func(ids ...string) registry.View { return registrytest.With(registry.View{}, registry.Unseen, ids...) }
	tests := []struct {
		name      string
		snapshots []snapshot
		want      []string
	}{
		{"known to both", []snapshot{synced(registry.View{}), synced(registry.View{})}, nil},
		{"known to one", []snapshot{synced(unseen("cls2")), synced(registry.View{})}, nil},
		{"known to none", []snapshot{synced(unseen("cls2", "cls3")), synced(unseen("cls2"))}, []string{"cls2"}},
		{"unknown to the one that was read", []snapshot{synced(unseen("cls2")), {}}, []string{"cls2"}},
		{"known to the one that was read", []snapshot{{}, synced(registry.View{})}, nil},
		{"exported to one", []snapshot{synced(unseen("cls2")), synced(exports(export("cls2", 1)))}, nil},
		{"unknown in one", []snapshot{synced(unseen("cls2")), synced(registrytest.With(registry.View{}, registry.Unknown, "cls2"))}, nil},
		{"the own cluster", []snapshot{synced(unseen("cls1"))}, nil},
	}
	for _, tt := range tests {
		got := mergeViews(self, tt.snapshots, resolveSources(self, tt.snapshots, handover, nil), []string{"cls1", "cls2", "cls3"})
		if !slices.Equal(got.In(registry.Unseen), tt.want) {
			t.Errorf("%s: unseen %v, want %v", tt.name, got.In(registry.Unseen), tt.want)
		}
	}
}

// checkStates checks that each cluster but the own one has a state, and the export of the cluster
// if it has one.
func checkStates(t *rapid.T, view registry.View) {
	for id, c := range view.Clusters {
		if id == self.ClusterID || c.State == registry.None || (c.Export != nil) != (c.State == registry.Exports) || c.Export != nil && c.Export.Cluster != id {
			t.Fatalf("cluster %s is %+v", id, c)
		}
	}
}

// checkComplete checks that a cluster that is a member of only one registry has the result of that
// registry.
func checkComplete(t *rapid.T, snapshots []snapshot, got registry.View) {
	count := map[string]int{}
	for _, s := range snapshots {
		for _, m := range s.members {
			count[m.ClusterID]++
		}
	}
	for _, s := range snapshots {
		for _, m := range s.members {
			if count[m.ClusterID] != 1 || m.ClusterID == self.ClusterID {
				continue
			}
			if state, want := got.Clusters[m.ClusterID].State, s.view.Clusters[m.ClusterID].State; state != want {
				t.Fatalf("cluster %s is %v, want %v", m.ClusterID, state, want)
			}
		}
	}
}

// TestMergeViews_Ignored: an export that a registry ignores counts unless another registry shows
// more.
func TestMergeViews_Ignored(t *testing.T) {
	ignored, unseen := registrytest.With(registry.View{}, registry.Ignored, "cls2"), registrytest.With(registry.View{}, registry.Unseen, "cls2")
	tests := []struct {
		name      string
		snapshots []snapshot
		want      registry.ClusterState
	}{
		{"in one of two", []snapshot{synced(ignored), synced(registry.View{})}, registry.Ignored},
		{"exported to the other", []snapshot{synced(ignored), synced(exports(export("cls2", 1)))}, registry.Exports},
		{"unknown to the other", []snapshot{synced(ignored), synced(registrytest.With(registry.View{}, registry.Unknown, "cls2"))}, registry.Unknown},
		{"unseen by the other", []snapshot{synced(ignored), synced(unseen)}, registry.Ignored},
		{"in one that was not read completely", []snapshot{{view: ignored}, synced(unseen)}, registry.Unseen},
	}
	for _, tt := range tests {
		got := mergeViews(self, tt.snapshots, resolveSources(self, tt.snapshots, handover, nil), []string{"cls2"})
		if state := got.Clusters["cls2"].State; state != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, state, tt.want)
		}
	}
}
