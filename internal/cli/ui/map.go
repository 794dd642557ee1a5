package ui

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A Map says which cluster serves which one.
type Map struct {
	// Arrows are sorted by clusterset, From and To.
	Arrows []Arrow `json:"arrows"`
	// Unread are the clusters that export services and whose controller was not read, if there is
	// another such cluster: whether that imports from them is not known.
	Unread []string `json:"unread"`
	// NotReporting are the clusters that were not read and do not report all of their imports.
	NotReporting []string `json:"notReporting"`
}

// An Arrow says that a cluster imports services from another one.
type Arrow struct {
	ClusterSetID string `json:"clusterSetID"`
	From         string `json:"from"`
	To           string `json:"to"`
	Services     int    `json:"services"`
	// State is unreachable or no endpoint answers (the pods of From, for those of To), stale or
	// drained (From), path unknown, or ok: the first that applies.
	State string `json:"state"`
}

// statePathUnknown is the state of an arrow without a path whose state is known.
const statePathUnknown = "path unknown"

// ends are the two clusters of an arrow or a path.
type ends struct{ set, from, to string }

// compareEnds orders by clusterset, from and to.
func compareEnds(a, b ends) int {
	return cmp.Or(strings.Compare(a.set, b.set), strings.Compare(a.from, b.from), strings.Compare(a.to, b.to))
}

// newMap returns the map. Members are those of the statuses, and lists of the same contexts.
func newMap(statuses []show.ClusterStatus, lists []show.ContextServices, members []show.Member) Map {
	b := &mapBuilder{services: map[ends]int{}, imports: map[string]map[mcs.Key]bool{}, read: map[string]bool{}, silent: map[string]bool{}}
	for i, c := range statuses {
		if isRead(c, lists[i]) {
			b.addImports(c.Status.Identity, lists[i].Services)
		}
	}
	for i, c := range statuses {
		if isRead(c, lists[i]) {
			b.addReports(c.Status, lists[i].Services)
		}
	}
	m := Map{Arrows: []Arrow{}, Unread: []string{}, NotReporting: slices.AppendSeq([]string{}, maps.Keys(b.silent))}
	slices.Sort(m.NotReporting)
	states := arrowStates(members)
	for _, e := range slices.SortedFunc(maps.Keys(b.services), compareEnds) {
		m.Arrows = append(m.Arrows, Arrow{ClusterSetID: e.set, From: e.from, To: e.to, Services: b.services[e], State: states(e)})
	}
	m.Unread = append(m.Unread, b.unreadExporters(members)...)
	return m
}

// unreadExporters returns the clusters that export, and whose importers are not all known: neither
// their controller was read, nor that of another cluster that may import from them.
func (b *mapBuilder) unreadExporters(members []show.Member) (unread []string) {
	importers := map[string]int{}
	for _, member := range members {
		if !b.isRead(member) && !member.Mapped {
			importers[member.ClusterSetID]++
		}
	}
	for _, member := range members {
		others := importers[member.ClusterSetID]
		if !member.Mapped {
			others--
		}
		if member.Exports > 0 && !b.isRead(member) && others > 0 {
			unread = append(unread, member.ClusterID)
		}
	}
	return unread
}

// isRead reports whether the services of a context are known.
func isRead(c show.ClusterStatus, l show.ContextServices) bool {
	return c.Status != nil && c.Status.Identity != nil && c.Status.Synced && l.Problem == ""
}

// A mapBuilder counts the services of the arrows.
type mapBuilder struct {
	services map[ends]int
	// imports are the services of which it is known whether a cluster imports them, by clusterset
	// and cluster.
	imports map[string]map[mcs.Key]bool
	// read are the clusters whose controller was read, silent those that do not report.
	read   map[string]bool
	silent map[string]bool
}

func (b *mapBuilder) isRead(m show.Member) bool { return b.read[m.ClusterSetID+"/"+m.ClusterID] }

// addImports adds the ServiceImports of a cluster.
func (b *mapBuilder) addImports(id *mcs.Identity, services []status.Service) {
	cluster := id.ClusterSetID + "/" + id.ClusterID
	b.read[cluster], b.imports[cluster] = true, map[mcs.Key]bool{}
	for _, svc := range services {
		if svc.ImportedFrom == nil {
			continue
		}
		b.imports[cluster][svc.Key] = true
		for _, from := range svc.ImportedFrom {
			if from != id.ClusterID {
				b.services[ends{id.ClusterSetID, from, id.ClusterID}]++
			}
		}
	}
}

// addReports adds what other clusters report about the exports of one. It is as old as their last
// heartbeat, so the ServiceImports of those that were read count for more.
func (b *mapBuilder) addReports(c *status.Status, services []status.Service) {
	for _, svc := range services {
		if svc.Own == nil {
			continue
		}
		importers := svc.Importers
		if importers == nil {
			importers = new(c.ImportersOf(*svc.Own))
		}
		for _, to := range importers.Importing {
			if !b.imports[c.Identity.ClusterSetID+"/"+to][svc.Key] {
				b.services[ends{c.Identity.ClusterSetID, c.Identity.ClusterID, to}]++
			}
		}
		for _, to := range slices.Concat(importers.ImportingNamespace, importers.NotReporting) {
			if !b.imports[c.Identity.ClusterSetID+"/"+to][svc.Key] {
				b.silent[to] = true
			}
		}
	}
}

// arrowStates returns a function that returns the state of an arrow.
func arrowStates(members []show.Member) func(ends) string {
	paths, states := map[ends]string{}, map[ends]string{}
	for _, m := range members {
		exporter := ends{set: m.ClusterSetID, from: m.ClusterID}
		switch {
		case m.Stale:
			states[exporter] = "stale"
		case m.Drain != "":
			states[exporter] = "drained"
		}
		for _, p := range m.Paths {
			paths[ends{m.ClusterSetID, p.From, m.ClusterID}] = show.PathState(p.Path)
		}
	}
	return func(e ends) string {
		// importers connect to exporters
		path, exporter := paths[ends{e.set, e.to, e.from}], states[ends{set: e.set, from: e.from}]
		switch {
		case path == show.PathUnreachable, path == show.PathNoAnswer:
			return path
		case exporter != "":
			return exporter
		case path != show.PathOK:
			return statePathUnknown
		}
		return path
	}
}

// A PathsFrom has the paths from one cluster to the others.
type PathsFrom struct {
	ClusterSetID string `json:"clusterSetID"`
	From         string `json:"from"`
	// To has the states of the paths, ok, no endpoint answers, unreachable or unknown, by cluster.
	// A cluster that is missing is unknown too.
	To map[string]string `json:"to"`
	// FaultHere reports whether most of the paths fail, so that the fault is probably in From.
	FaultHere bool `json:"faultHere,omitempty"`
}

// newPaths returns the paths from the clusters of the contexts, sorted. A cluster of which no
// controller was read has none: its paths are unknown.
func newPaths(statuses []show.ClusterStatus) []PathsFrom {
	paths := []PathsFrom{}
	for _, c := range statuses {
		if c.Status == nil || c.Status.Identity == nil {
			continue
		}
		from := PathsFrom{ClusterSetID: c.Status.Identity.ClusterSetID, From: c.Status.Identity.ClusterID, To: map[string]string{}, FaultHere: c.Status.FaultHere}
		for _, p := range c.Status.Paths {
			from.To[p.ClusterID] = show.PathState(p)
		}
		paths = append(paths, from)
	}
	slices.SortStableFunc(paths, func(a, b PathsFrom) int {
		return compareEnds(ends{set: a.ClusterSetID, from: a.From}, ends{set: b.ClusterSetID, from: b.From})
	})
	return paths
}
