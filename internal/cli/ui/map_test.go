package ui

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A world has the clusters a, b and c, and their controllers by context.
type world struct {
	members  []status.Member
	contexts map[string]*status.Status
	services map[string][]status.Service
	problems map[string]string // of reading the services
}

// newWorld returns three clusters that export one service each. The contexts are a and b, which
// reach all others.
func newWorld() *world {
	w := &world{contexts: map[string]*status.Status{}, services: map[string][]status.Service{}, problems: map[string]string{}}
	for _, id := range []string{"a", "b", "c"} {
		w.members = append(w.members, status.Member{ClusterID: id, UID: "uid-" + id, Version: "v1", Exports: 1})
	}
	for id, others := range map[string][]string{"a": {"b", "c"}, "b": {"a", "c"}} {
		s := &status.Status{Leader: true, Synced: true, Identity: &mcs.Identity{ClusterID: id, ClusterSetID: "set", UID: "uid-" + id}}
		for _, to := range others {
			s.Paths = append(s.Paths, status.Path{ClusterID: to, State: status.PathReachable})
		}
		w.contexts[id] = s
	}
	return w
}

// path returns the path between two clusters.
func (w *world) path(from, to string) *status.Path {
	paths := w.contexts[from].Paths
	return &paths[slices.IndexFunc(paths, func(p status.Path) bool { return p.ClusterID == to })]
}

// knows makes a controller know a service that its cluster imports from others.
func (w *world) knows(id, name string, from ...string) *status.Service {
	w.services[id] = append(w.services[id], status.Service{Key: mcs.Key{Namespace: "ns", Name: name}, ImportedFrom: append([]string{}, from...)})
	return &w.services[id][len(w.services[id])-1]
}

// exports makes a controller export a service that others report to import.
func (w *world) exports(id, name string, importers mcs.Importers) {
	s := w.knows(id, name)
	s.Own, s.Importers = &mcs.Export{Key: s.Key, Cluster: id}, &importers
}

func (w *world) read() (statuses []show.ClusterStatus, lists []show.ContextServices) {
	for _, id := range []string{"a", "b", "c"} {
		if s := w.contexts[id]; s != nil {
			s.Members = w.members
			statuses = append(statuses, show.ClusterStatus{Context: id, Status: s})
			lists = append(lists, show.ContextServices{Context: id, Services: w.services[id], Problem: w.problems[id]})
		}
	}
	return statuses, lists
}

func TestNewMap(t *testing.T) {
	arrow := func(from, to string, services int, state string) Arrow {
		return Arrow{ClusterSetID: "set", From: from, To: to, Services: services, State: state}
	}
	tests := map[string]struct {
		change                 func(*world)
		want                   []Arrow
		wantUnread, wantSilent []string
	}{
		"nothing is imported": {func(*world) {}, nil, nil, nil},
		"ServiceImports say from which clusters": {func(w *world) {
			w.knows("b", "web", "a", "c")
			w.knows("b", "db", "a")
		}, []Arrow{arrow("a", "b", 2, "ok"), arrow("c", "b", 1, "ok")}, nil, nil},
		"a cluster does not serve itself": {func(w *world) { w.knows("b", "web", "b") }, nil, nil, nil},
		"a cluster without context reports to the exporter, and its path is unknown": {func(w *world) {
			w.exports("a", "web", mcs.Importers{Importing: []string{"c"}})
		}, []Arrow{arrow("a", "c", 1, "path unknown")}, nil, nil},
		"a ServiceImport counts for more than an older report": {func(w *world) {
			w.exports("a", "web", mcs.Importers{Importing: []string{"b"}})
			w.knows("b", "web")
		}, nil, nil, nil},
		"a report counts if an older controller does not tell its ServiceImports": {func(w *world) {
			w.exports("a", "web", mcs.Importers{Importing: []string{"b"}})
			w.knows("b", "web").ImportedFrom = nil
		}, []Arrow{arrow("a", "b", 1, "ok")}, nil, nil},
		"a cluster that does not report may import": {func(w *world) {
			w.exports("a", "web", mcs.Importers{NotReporting: []string{"b", "c"}})
			w.knows("b", "web")
		}, nil, nil, []string{"c"}},
		"a cluster that reports the namespace may import": {func(w *world) {
			w.exports("a", "web", mcs.Importers{ImportingNamespace: []string{"c"}})
		}, nil, nil, []string{"c"}},
		"two clusters without context may import from each other": {func(w *world) {
			delete(w.contexts, "b")
			w.members[1].Exports = 0
		}, nil, []string{"c"}, nil},
		"all importers of the only cluster without context are known": {func(w *world) { w.knows("b", "web", "c") }, []Arrow{arrow("c", "b", 1, "ok")}, nil, nil},
		"the pseudo-cluster of mapped services imports nothing":       {func(w *world) { w.members = append(w.members, status.Member{ClusterID: "ecs", Mapped: true}) }, nil, nil, nil},
		"services of a context that cannot be read": {func(w *world) {
			w.problems["b"] = "no answer"
			w.knows("b", "web", "a")
		}, nil, []string{"b", "c"}, nil},
		"services before the registry was read": {func(w *world) {
			w.contexts["b"].Synced = false
			w.knows("b", "web", "a")
		}, nil, []string{"b", "c"}, nil},
		"the importer cannot reach the exporter": {func(w *world) {
			w.knows("b", "web", "a")
			w.path("b", "a").State = status.PathUnreachable
		}, []Arrow{arrow("a", "b", 1, "unreachable")}, nil, nil},
		"the path back does not matter": {func(w *world) {
			w.knows("b", "web", "a")
			w.path("a", "b").State = status.PathUnreachable
		}, []Arrow{arrow("a", "b", 1, "ok")}, nil, nil},
		"no endpoint answers": {func(w *world) {
			w.knows("b", "web", "a")
			w.path("b", "a").Endpoints = status.PathProbes{Targets: 3}
		}, []Arrow{arrow("a", "b", 1, "no endpoint answers")}, nil, nil},
		"the exporter is stale": {func(w *world) {
			w.knows("b", "web", "c")
			w.members[2].Stale = true
		}, []Arrow{arrow("c", "b", 1, "stale")}, nil, nil},
		"the exporter is stale and cannot be reached": {func(w *world) {
			w.knows("b", "web", "c")
			w.members[2].Stale, w.path("b", "c").State = true, status.PathUnreachable
		}, []Arrow{arrow("c", "b", 1, "unreachable")}, nil, nil},
		"the exporter is drained": {func(w *world) {
			w.knows("b", "web", "a")
			w.members[0].Drain = "100%"
		}, []Arrow{arrow("a", "b", 1, "drained")}, nil, nil},
		"the path is not decided": {func(w *world) {
			w.knows("b", "web", "a")
			w.path("b", "a").State = ""
		}, []Arrow{arrow("a", "b", 1, "path unknown")}, nil, nil},
		"path health is off": {func(w *world) {
			w.knows("b", "web", "a")
			w.contexts["b"].Paths = nil
		}, []Arrow{arrow("a", "b", 1, "path unknown")}, nil, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			tt.change(w)
			statuses, lists := w.read()
			want := Map{Arrows: append([]Arrow{}, tt.want...), Unread: append([]string{}, tt.wantUnread...), NotReporting: append([]string{}, tt.wantSilent...)}
			if d := cmp.Diff(want, newMap(statuses, lists, show.MergeMembers(statuses))); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestNewPaths(t *testing.T) {
	w := newWorld()
	w.path("b", "a").State, w.path("b", "c").State = "", status.PathUnreachable
	w.contexts["b"].FaultHere = true
	w.path("a", "b").Endpoints = status.PathProbes{Targets: 3}
	statuses, _ := w.read()
	slices.Reverse(statuses)
	statuses = append(statuses, show.ClusterStatus{Context: "c", State: "unreachable"}, show.ClusterStatus{Context: "d", Status: &status.Status{Leader: true}})
	want := []PathsFrom{
		{ClusterSetID: "set", From: "a", To: map[string]string{"b": "no endpoint answers", "c": "ok"}},
		{ClusterSetID: "set", From: "b", To: map[string]string{"a": "unknown", "c": "unreachable"}, FaultHere: true},
	}
	if d := cmp.Diff(want, newPaths(statuses)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestContexts(t *testing.T) {
	w := newWorld()
	w.contexts["a"].ReadProblem = "reading the registry: no answer"
	w.contexts["b"].Leader = false
	statuses, lists := w.read()
	statuses = append(statuses, show.ClusterStatus{Context: "c", State: "no permission", Problem: "no permission to list pods in namespace x", Remedy: "see the page"})
	statuses = append(statuses, show.ClusterStatus{Context: "d", State: "unreachable", Problem: "connection refused"})
	lists = append(lists, show.ContextServices{Context: "c"}, show.ContextServices{Context: "d"})
	check := "find the reason: kubectl mcs check --context "
	want := []ContextState{
		{Context: "a", State: "registry failing", Problem: "reading the registry: no answer", Remedy: check + "a", HasCluster: true},
		{Context: "b", State: "no leader", Problem: status.NoLeader, Remedy: check + "b", HasCluster: true},
		{Context: "c", State: "no permission", Problem: "no permission to list pods in namespace x", Remedy: "see the page"},
		{Context: "d", State: "unreachable", Problem: "connection refused", Remedy: check + "d"},
	}
	if d := cmp.Diff(want, newClusterset(today, statuses, lists).Contexts); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
