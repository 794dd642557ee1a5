package imports

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// importFacts is everything that decides the import of one service. The objects are nil if they do not exist, and must not be
// changed.
type importFacts struct {
	key mcs.Key
	// cluster is this cluster's ID.
	cluster string
	// namespace reports whether the namespace exists and is not being deleted.
	namespace bool
	// excluded reports whether the administrator excludes the namespace from imports.
	excluded bool
	imp      *mcsv1beta1.ServiceImport
	derived  *corev1.Service
	slices   []*discoveryv1.EndpointSlice
	// derivedName is the name of the derived Service, whether or not it exists.
	derivedName string
	takeover    TakeoverObjects
	// local is this cluster's own export, read from its objects and not from the registry.
	local *mcs.Export
	// view is the registry's answer for the other clusters. It is empty while synced is false.
	view   registry.View
	synced bool
	// staleRule is the administrator's rule for the endpoints of stale clusters.
	staleRule mcs.StaleRule
}

// isComplete reports whether everything that the view is made from has been read.
func (f importFacts) isComplete() bool { return f.synced && !f.view.Incomplete }

// hasLeftovers reports whether there is something to remove if no import is wanted: our ServiceImport, or our derived Service
// whose ServiceImport a previous process did not get to create.
func (f importFacts) hasLeftovers() bool {
	if f.imp == nil {
		return f.derived != nil && plan.IsManaged(f.derived)
	}
	return plan.IsManaged(f.imp)
}

// hasForeignDerived reports whether the Service with the derived Service's name belongs to another owner.
func (f importFacts) hasForeignDerived() bool {
	return f.derived != nil && !plan.IsManaged(f.derived) && !f.takeover.TakesDerived
}

// showsAny reports whether the import, if it exists, contains one of clusters: in its status, or in the slices, which are
// written before it.
func (f importFacts) showsAny(clusters []string) bool {
	if f.imp == nil {
		return false
	}
	return slices.ContainsFunc(f.imp.Status.Clusters, func(c mcsv1beta1.ClusterStatus) bool {
		return slices.Contains(clusters, c.Cluster)
	}) || slices.ContainsFunc(f.slices, func(s *discoveryv1.EndpointSlice) bool {
		return slices.Contains(clusters, s.Labels[mcsv1beta1.LabelSourceCluster])
	})
}

// unseenClusters returns the other clusters that the import contains, in its status or slices, and the view does not.
func (f importFacts) unseenClusters() []string {
	var out []string
	seen := map[string]bool{f.cluster: true}
	for _, e := range f.view.Exports {
		seen[e.Cluster] = true
	}
	for _, c := range f.view.Unknown {
		seen[c] = true
	}
	if f.imp != nil {
		for _, c := range f.imp.Status.Clusters {
			out = append(out, c.Cluster)
		}
	}
	for _, s := range f.slices {
		out = append(out, s.Labels[mcsv1beta1.LabelSourceCluster])
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return slices.DeleteFunc(out, func(c string) bool { return seen[c] })
}

// staleClusters returns the clusters, sorted, that are stale, or were stale for the previous process and have sent no
// heartbeat since.
func (f importFacts) staleClusters(unknown []string) []string {
	stale := slices.Clone(f.view.Stale)
	for _, c := range plan.StaleClusters(f.imp) {
		if slices.Contains(f.view.LivenessUnknown, c) || slices.Contains(unknown, c) {
			stale = append(stale, c)
		}
	}
	slices.Sort(stale)
	return stale
}

// isForeign reports whether imp exists and this controller did not create it.
func isForeign(imp *mcsv1beta1.ServiceImport) bool { return imp != nil && !plan.IsManaged(imp) }

// verdict is the decision about an import.
type verdict int

const (
	// verdictNone: do nothing.
	verdictNone verdict = iota
	// verdictNotOwned: the ServiceImport, or the Service with the derived Service's name, belongs to another owner.
	verdictNotOwned
	// verdictRemove: no cluster exports the service, or its namespace is excluded.
	verdictRemove
	// verdictApply: write what importDecision says.
	verdictApply
)

// importDecision is the desired state of the import.
type importDecision struct {
	verdict verdict
	merged  mcs.Merged
	exports []mcs.Export
	// unknown are the clusters whose export is unknown: what was imported from them stays.
	unknown []string
	// stale are the exporting clusters that are stale; staleness is the condition about them, nil if it stays as it is.
	stale     []string
	staleness *metav1.Condition
	// endpoints are the exports that slices are made of, without the withdrawn endpoints of stale clusters. The slices of the
	// clusters in untouched stay as they are.
	endpoints []mcs.Export
	untouched []string
}

// decideImport keeps the promise that unknown is not empty: an import is removed only when every cluster is known not to
// export the service. While a cluster that the import contains is unknown, only the endpoints of the known clusters change.
func decideImport(f importFacts) importDecision {
	d := importDecision{exports: slices.Clone(f.view.Exports), unknown: f.view.Unknown}
	if f.local != nil {
		d.exports = append(d.exports, *f.local)
	}
	if !f.isComplete() {
		d.unknown = append(slices.Clone(d.unknown), f.unseenClusters()...)
	}
	d.verdict = decideVerdict(f, d)
	switch {
	case d.verdict != verdictApply:
	case len(d.exports) == 0, f.showsAny(d.unknown):
		d.merged = plan.MergedFromServiceImport(f.imp, d.exports)
	default:
		d.merged = mcs.Merge(d.exports)
	}
	if d.verdict == verdictApply {
		d.decideStale(f)
	}
	return d
}

// canWait reports whether the import is a new one of a service that only this cluster exports: its clients have the Service
// itself meanwhile.
func (d importDecision) canWait(f importFacts) bool {
	return d.verdict == verdictApply && f.imp == nil && len(f.view.Exports) == 0
}

// decideVerdict decides what to do with the import.
func decideVerdict(f importFacts, d importDecision) verdict {
	unused := len(d.exports) == 0
	switch {
	case !f.namespace:
		return verdictNone
	case f.excluded:
		return decideExcluded(f)
	case f.imp == nil && !f.synced:
		// The first read of the registry decides within moments. An import of the local export alone might have another type,
		// such as headless, and its IP would come and go.
		return verdictNone
	case unused && f.isComplete() && len(d.unknown) == 0 && f.hasLeftovers():
		return verdictRemove
	case unused && (f.imp == nil || isForeign(f.imp)):
		return verdictNone
	}
	return decideOwnership(f, d)
}

// decideOwnership decides about an import that is wanted. An import of another controller works as it is: it is taken over
// when everything is known.
func decideOwnership(f importFacts, d importDecision) verdict {
	switch {
	case f.takeover.TakesImport && (!f.isComplete() || len(d.unknown) > 0):
		return verdictNone
	case isForeign(f.imp) && !f.takeover.TakesImport, f.hasForeignDerived():
		return verdictNotOwned
	}
	return verdictApply
}

// decideExcluded decides about an excluded namespace. The registry does not matter here, whether or not it has been read.
func decideExcluded(f importFacts) verdict {
	if f.hasLeftovers() {
		return verdictRemove
	}
	return verdictNone
}

// decideStale decides about the endpoints of stale clusters. While a cluster that the import contains is unknown, it is also
// unknown which endpoints are the last ones, and the endpoints of stale clusters stay as they are.
func (d *importDecision) decideStale(f importFacts) {
	d.stale = f.staleClusters(d.unknown)
	d.endpoints, d.untouched = d.exports, d.unknown
	if f.showsAny(d.unknown) {
		d.untouched = slices.Concat(d.unknown, d.stale)
		d.endpoints = slices.DeleteFunc(slices.Clone(d.exports), func(e mcs.Export) bool { return slices.Contains(d.stale, e.Cluster) })
		return
	}
	var stale []mcs.StaleExport
	d.endpoints, stale = d.merged.WithoutStale(d.exports, d.stale, f.staleRule.Policy)
	condition := mcs.ImportStale(stale, f.staleRule)
	d.staleness = &condition
}
