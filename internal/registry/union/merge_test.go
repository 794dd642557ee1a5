package union

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

const handover = 2 * time.Minute

var (
	self  = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}
	began = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
)

// at is some minutes after began.
func at(minutes float64) time.Time { return began.Add(time.Duration(minutes * float64(time.Minute))) }

// member has joined and last given a sign of life so many minutes after began.
func member(id string, joined, beat float64) registry.Member {
	return registry.Member{ClusterID: id, UID: "uid-of-" + id, Joined: at(joined), Heartbeat: at(beat), LastSeen: at(beat)}
}

func stale(m registry.Member) registry.Member {
	m.Stale = true
	return m
}

func withUID(m registry.Member, uid string) registry.Member {
	m.UID = uid
	return m
}

// export is told from other exports of its cluster by its port.
func export(id string, port int32) mcs.Export {
	return mcs.Export{Key: mcs.Key{Namespace: "demo", Name: "web"}, Cluster: id, Ports: []mcs.Port{{Port: port}}}
}

func seen(view registry.View, members ...registry.Member) sight {
	return sight{synced: true, members: members, view: view}
}

func exports(list ...mcs.Export) registry.View { return registry.View{Exports: list} }

func TestMergeViews(t *testing.T) {
	exported := registry.PublishStatus{State: registry.Exported}
	tests := []struct {
		name   string
		sights []sight
		want   registry.View
	}{
		{
			name: "different clusters in two registries",
			sights: []sight{
				seen(exports(export("cls3", 1)), member("cls3", 0, 9)),
				seen(exports(export("cls2", 2)), member("cls2", 0, 9)),
			},
			want: exports(export("cls2", 2), export("cls3", 1)),
		},
		{
			name: "the own publication is the first registry's, the own cluster is never imported",
			sights: []sight{
				seen(registry.View{Local: exported}, member("cls1", 0, 9)),
				seen(registry.View{Exports: []mcs.Export{export("cls1", 2)}, Unknown: []string{"cls1"}}, withUID(member("cls1", 0, 1), "uid-1")),
			},
			want: registry.View{Local: exported},
		},
		{
			name: "a cluster that moved: where it speaks later counts",
			sights: []sight{
				seen(exports(export("cls2", 1)), member("cls2", 0, 5)),
				seen(exports(export("cls2", 2)), member("cls2", 5, 6)),
			},
			want: exports(export("cls2", 2)),
		},
		{
			name: "a cluster that moves: what it has not said yet where it goes to counts where it was",
			sights: []sight{
				seen(exports(export("cls2", 1)), member("cls2", 0, 5)),
				seen(registry.View{}, member("cls2", 5, 6.9)),
			},
			want: exports(export("cls2", 1)),
		},
		{
			name: "a cluster that moved: after the handover what it does not say is not there",
			sights: []sight{
				seen(exports(export("cls2", 1)), member("cls2", 0, 5)),
				seen(registry.View{}, member("cls2", 5, 7)),
			},
			want: registry.View{},
		},
		{
			name: "a cluster that moved long after it had ended: the handover begins when it joins",
			sights: []sight{
				seen(exports(export("cls2", 1)), member("cls2", 0, 5)),
				seen(registry.View{}, member("cls2", 600, 601)),
			},
			want: exports(export("cls2", 1)),
		},
		{
			name: "a cluster that moved back",
			sights: []sight{
				seen(registry.View{}, member("cls2", 0, 20)),
				seen(exports(export("cls2", 2)), member("cls2", 5, 10)),
			},
			want: registry.View{},
		},
		{
			name: "stale in one registry, not in the other: no handover",
			sights: []sight{
				seen(registry.View{Exports: []mcs.Export{export("cls2", 1)}, Stale: []string{"cls2"}}, stale(member("cls2", 0, 5))),
				seen(registry.View{}, member("cls2", 5, 6)),
			},
			want: registry.View{},
		},
		{
			name: "stale in both is stale",
			sights: []sight{
				seen(registry.View{Exports: []mcs.Export{export("cls2", 1)}, Stale: []string{"cls2"}}, stale(member("cls2", 0, 6))),
				seen(registry.View{Exports: []mcs.Export{export("cls2", 2)}, Stale: []string{"cls2"}}, stale(member("cls2", 0, 5))),
			},
			want: registry.View{Exports: []mcs.Export{export("cls2", 1)}, Stale: []string{"cls2"}},
		},
		{
			name: "a leftover that does not look stale keeps nothing alive",
			sights: []sight{
				seen(exports(export("cls2", 1)), member("cls2", 0, 5)),
				seen(registry.View{Exports: []mcs.Export{export("cls2", 2)}, Stale: []string{"cls2"}}, stale(member("cls2", 0, 9))),
			},
			want: exports(export("cls2", 1)), // of the two it is the one that lives
		},
		{
			name: "unheard of where the export is from",
			sights: []sight{
				seen(registry.View{}, member("cls2", 0, 5)),
				seen(registry.View{Exports: []mcs.Export{export("cls2", 1)}, LivenessUnknown: []string{"cls2"}}, member("cls2", 0, 5)),
			},
			want: registry.View{Exports: []mcs.Export{export("cls2", 1)}, LivenessUnknown: []string{"cls2"}},
		},
		{
			name: "unknown in one registry, known in the other",
			sights: []sight{
				seen(registry.View{Unknown: []string{"cls2"}}, member("cls2", 0, 6)),
				seen(exports(export("cls2", 2)), member("cls2", 0, 5)),
			},
			want: exports(export("cls2", 2)),
		},
		{
			name: "unknown in one registry, absent in the other",
			sights: []sight{
				seen(registry.View{Unknown: []string{"cls2"}}, member("cls2", 0, 5)),
				seen(registry.View{}, member("cls2", 0, 6)),
			},
			want: registry.View{Unknown: []string{"cls2"}},
		},
		{
			name: "unknown where it was, absent where it is",
			sights: []sight{
				seen(registry.View{Unknown: []string{"cls2"}}, member("cls2", 0, 5)),
				seen(registry.View{}, member("cls2", 0, 9)),
			},
			want: registry.View{},
		},
		{
			name: "unknown where it is: what it left elsewhere does not count",
			sights: []sight{
				seen(exports(export("cls2", 1)), member("cls2", 0, 5)),
				seen(registry.View{Unknown: []string{"cls2"}}, member("cls2", 0, 9)),
			},
			want: registry.View{Unknown: []string{"cls2"}},
		},
		{
			name: "two clusters with one ID: the older one counts, whole",
			sights: []sight{
				seen(registry.View{}, member("cls2", 1, 9)),
				seen(exports(export("cls2", 2)), withUID(member("cls2", 2, 9.1), "uid-of-another")),
			},
			want: registry.View{},
		},
		{
			name: "another cluster, older, has our ID elsewhere",
			sights: []sight{
				seen(registry.View{Local: exported}, withUID(member("cls1", 1, 9), "uid-1")),
				seen(exports(export("cls1", 2)), withUID(member("cls1", 0, 9), "uid-of-another")),
			},
			want: registry.View{Local: registry.PublishStatus{
				State: registry.Pending, Err: &registry.DuplicateIDError{ClusterID: "cls1", OtherUID: "uid-of-another"},
			}},
		},
		{
			name: "another cluster, younger, has our ID elsewhere",
			sights: []sight{
				seen(registry.View{Local: exported}, withUID(member("cls1", 0, 9), "uid-1")),
				seen(exports(export("cls1", 2)), withUID(member("cls1", 1, 9), "uid-of-another")),
			},
			want: registry.View{Local: exported},
		},
		{
			name: "a registry that keeps no times is overruled by one that does, after the handover",
			sights: []sight{
				seen(registry.View{}, member("cls2", 0, 2)),
				seen(exports(export("cls2", 2)), registry.Member{ClusterID: "cls2", LastSeen: at(9)}),
			},
			want: registry.View{},
		},
		{
			name: "a registry that keeps no times counts during the handover",
			sights: []sight{
				seen(registry.View{}, member("cls2", 0, 1)),
				seen(exports(export("cls2", 2)), registry.Member{ClusterID: "cls2", LastSeen: at(9)}),
			},
			want: exports(export("cls2", 2)),
		},
		{
			name: "a further registry is not read yet",
			sights: []sight{
				seen(registry.View{Exports: []mcs.Export{export("cls2", 1)}, Local: exported}, member("cls2", 0, 5)),
				{},
			},
			want: registry.View{Exports: []mcs.Export{export("cls2", 1)}, Local: exported, Incomplete: true},
		},
		{
			name:   "the first registry is not read yet: it is not known where the own export stands",
			sights: []sight{{}, seen(exports(export("cls2", 1)), member("cls2", 0, 5))},
			want:   registry.View{Exports: []mcs.Export{export("cls2", 1)}, Local: registry.PublishStatus{State: registry.Pending}, Incomplete: true},
		},
		{
			name:   "an export of a cluster that is no member yet",
			sights: []sight{seen(registry.View{}), seen(registry.View{Exports: []mcs.Export{export("cls2", 1)}, Unknown: []string{"cls3"}})},
			want:   registry.View{Exports: []mcs.Export{export("cls2", 1)}, Unknown: []string{"cls3"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := mergeViews(self, tt.sights, standings(tt.sights, handover))
			if d := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("View (-want +got):\n%s", d)
			}
		})
	}
}

func TestMergeMembers(t *testing.T) {
	names := []string{"here", "there"}
	sights := []sight{
		seen(registry.View{},
			withProblem(member("cls2", 0, 5), "page 07 cannot be read"),
			member("cls3", 0, 5),
			withUID(member("cls4", 0, 5), "uid-a"),
			stale(member("cls5", 0, 1))),
		seen(registry.View{},
			withProblem(member("cls2", 4, 6), "page 09 cannot be read"),
			withUID(member("cls4", 1, 5), "uid-b"),
			stale(member("cls5", 0, 2))),
	}
	got := mergeMembers(names, sights, standings(sights, handover))
	two := member("cls2", 4, 6)
	two.Problems = []string{"registry there: page 09 cannot be read", "page 07 cannot be read"}
	four := withUID(member("cls4", 0, 5), "uid-a")
	four.Problems = []string{"registry there has another cluster with this ID (its namespace kube-system has UID uid-b), " +
		"whose exports are ignored: give it another ID"}
	want := []registry.Member{two, member("cls3", 0, 5), four, stale(member("cls5", 0, 2))}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("members (-want +got):\n%s", d)
	}
}

func withProblem(m registry.Member, problem string) registry.Member {
	m.Problems = []string{problem}
	return m
}

// TestMergeProperties: whatever registries show, each cluster counts once, none of what is known is lost, and the order in
// which registries are named does not matter.
func TestMergeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sights := drawSights(t)
		got := mergeViews(self, sights, standings(sights, handover))
		checkOnce(t, got)
		checkNothingLost(t, sights, got)

		// Only the first registry has a special part, for the own export.
		shuffled := append(slices.Clone(sights[:1]), rapid.Permutation(sights[1:]).Draw(t, "order")...)
		if again := mergeViews(self, shuffled, standings(shuffled, handover)); !cmp.Equal(got, again, cmpopts.EquateEmpty()) {
			t.Fatalf("in another order:\n%s", cmp.Diff(got, again))
		}
		other := mcs.Identity{ClusterID: "cls9", UID: "uid-9"}
		theirs := rapid.Permutation(sights).Draw(t, "their order")
		mine, yours := mergeViews(other, sights, standings(sights, handover)), mergeViews(other, theirs, standings(theirs, handover))
		mine.Local, yours.Local = registry.PublishStatus{}, registry.PublishStatus{}
		if !cmp.Equal(mine, yours, cmpopts.EquateEmpty()) {
			t.Fatalf("another cluster, whose first registry is another, sees something else:\n%s", cmp.Diff(mine, yours))
		}
	})
}

// drawSights draws what registries show of a few clusters. No two records have the same times: a cluster does one thing at
// a time.
func drawSights(t *rapid.T) []sight {
	sights := make([]sight, rapid.IntRange(1, 4).Draw(t, "registries"))
	for i := range sights {
		if sights[i].synced = rapid.Float64Range(0, 1).Draw(t, "synced") < 0.9; !sights[i].synced {
			continue
		}
		for _, id := range []string{"cls1", "cls2", "cls3"} {
			if rapid.Bool().Draw(t, "member") {
				sights[i].draw(t, id, time.Duration(i))
			}
		}
	}
	return sights
}

func (s *sight) draw(t *rapid.T, id string, apart time.Duration) {
	joined := rapid.Float64Range(0, 5).Draw(t, "joined")
	m := member(id, joined, joined+rapid.Float64Range(0, 5).Draw(t, "beat"))
	m.Joined, m.Heartbeat = m.Joined.Truncate(time.Second).Add(apart), m.Heartbeat.Truncate(time.Second).Add(apart)
	m.UID = rapid.SampledFrom([]string{"uid-a", "uid-a", "uid-a", "uid-b"}).Draw(t, "uid")
	m.Stale = rapid.Bool().Draw(t, "stale")
	s.members = append(s.members, m)
	switch rapid.SampledFrom([]string{"export", "absent", "unknown"}).Draw(t, "view") {
	case "export":
		s.view.Exports = append(s.view.Exports, export(id, rapid.Int32Range(1, 1<<30).Draw(t, "port")))
		if m.Stale {
			s.view.Stale = append(s.view.Stale, id)
		}
	case "unknown":
		s.view.Unknown = append(s.view.Unknown, id)
	}
}

func checkOnce(t *rapid.T, view registry.View) {
	var all []string
	for _, exp := range view.Exports {
		all = append(all, exp.Cluster)
	}
	if !slices.IsSorted(all) || !slices.IsSorted(view.Unknown) {
		t.Fatalf("not sorted: %v, %v", all, view.Unknown)
	}
	all = append(all, view.Unknown...)
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) || slices.Contains(all, self.ClusterID) {
		t.Fatalf("a cluster counts twice, or the own one is imported: %v", all)
	}
}

// checkNothingLost: a cluster that one registry alone has as a member is as that registry shows it.
func checkNothingLost(t *rapid.T, sights []sight, got registry.View) {
	count := map[string]int{}
	for _, s := range sights {
		for _, m := range s.members {
			count[m.ClusterID]++
		}
	}
	has := func(v registry.View, id string) (string, bool) {
		i := slices.IndexFunc(v.Exports, func(e mcs.Export) bool { return e.Cluster == id })
		state := strings.Repeat("unknown", len(slices.DeleteFunc(slices.Clone(v.Unknown), func(u string) bool { return u != id })))
		return state, i >= 0
	}
	for _, s := range sights {
		for _, m := range s.members {
			if count[m.ClusterID] != 1 || m.ClusterID == self.ClusterID {
				continue
			}
			wantState, wantExport := has(s.view, m.ClusterID)
			if state, exported := has(got, m.ClusterID); state != wantState || exported != wantExport {
				t.Fatalf("cluster %s is %q %v, want %q %v", m.ClusterID, state, exported, wantState, wantExport)
			}
		}
	}
}
