package controller

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

// importFacts is all that is known of one service of the clusterset when its import is decided. The objects are nil
// when they are not there, and must not be changed.
type importFacts struct {
	key mcs.Key
	// cluster is this cluster's ID.
	cluster string
	// namespace says whether the namespace is there and stays.
	namespace bool
	// forbidden says that the administrator does not let anything be imported into the namespace.
	forbidden bool
	imp       *mcsv1beta1.ServiceImport
	derived   *corev1.Service
	slices    []*discoveryv1.EndpointSlice
	// derivedName is what the derived Service is called.
	derivedName string
	old         oldObjects
	// local is this cluster's own export, from its own state: the registry has no part in it.
	local *mcs.Export
	// view is what the registry knows of the others. It is empty while synced is false.
	view   registry.View
	synced bool
	// staleRule is the administrator's, for what becomes of stale clusters' endpoints.
	staleRule mcs.StaleRule
}

// complete says whether all that the view is made from has been read.
func (f importFacts) complete() bool { return f.synced && !f.view.Incomplete }

// leftOver says whether there is something of ours to remove when there is to be no import: the ServiceImport, or a derived Service
// for which an earlier life did not get to make it.
func (f importFacts) leftOver() bool {
	if f.imp == nil {
		return f.derived != nil && plan.IsManaged(f.derived)
	}
	return plan.IsManaged(f.imp)
}

// oldObjects are those of the AWS Cloud Map MCS Controller for K8s in this cluster.
type oldObjects struct {
	// imp says that it made the ServiceImport, derived that it made the derived Service, and that they may be taken over.
	imp, derived bool
	// superfluous are further derived Services, slices their EndpointSlices, by Service.
	superfluous []*corev1.Service
	slices      map[string][]*discoveryv1.EndpointSlice
}

// verdict is what becomes of an import.
type verdict int

const (
	// verdictNone: nothing is to be done.
	verdictNone verdict = iota
	// verdictForeign: the ServiceImport, or what would be the derived Service, belongs to somebody else.
	verdictForeign
	// verdictRemove: no cluster exports the service any more, or it may not be imported here.
	verdictRemove
	// verdictKeep: the import is made to be as importDecision says.
	verdictKeep
)

// importDecision is what the import should be.
type importDecision struct {
	verdict verdict
	merged  mcs.Merged
	exports []mcs.Export
	// unknown are the clusters of which nothing is known: what was imported from them stays.
	unknown []string
	// stale are the exporting clusters that are stale, staleness is the condition about them; nil if it stays as it is.
	stale     []string
	staleness *metav1.Condition
	// endpoints are what the slices are made of: the exports without what is withdrawn of stale clusters. The slices of the
	// clusters in untouched stay as they are.
	endpoints []mcs.Export
	untouched []string
}

// decideImport is the rule of promise 1, unknown is not empty: an import goes only when every cluster is known not to
// export the service, and while a cluster that takes part in it is unknown, it stays what it is but for the endpoints of
// the known ones.
func decideImport(f importFacts) importDecision {
	d := importDecision{exports: slices.Clone(f.view.Exports), unknown: f.view.Unknown}
	if f.local != nil {
		d.exports = append(d.exports, *f.local)
	}
	if !f.complete() {
		d.unknown = append(slices.Clone(d.unknown), silentClusters(f)...)
	}
	d.verdict = decideVerdict(f, d)
	switch {
	case d.verdict != verdictKeep:
	case len(d.exports) == 0, f.takesPart(d.unknown):
		d.merged = plan.MergedFromServiceImport(f.imp, d.exports)
	default:
		d.merged = mcs.Merge(d.exports)
	}
	if d.verdict == verdictKeep {
		d.decideStale(f)
	}
	return d
}

// decideStale decides what becomes of the endpoints of stale clusters. While a cluster that takes part in the import is
// unknown it cannot be told which endpoints are the last ones, and theirs stay as they are.
func (d *importDecision) decideStale(f importFacts) {
	d.stale = staleClusters(f, d.unknown)
	d.endpoints, d.untouched = d.exports, d.unknown
	if f.takesPart(d.unknown) {
		d.untouched = slices.Concat(d.unknown, d.stale)
		d.endpoints = slices.DeleteFunc(slices.Clone(d.exports), func(e mcs.Export) bool { return slices.Contains(d.stale, e.Cluster) })
		return
	}
	var fates []mcs.StaleExport
	d.endpoints, fates = d.merged.WithoutStale(d.exports, d.stale, f.staleRule.Policy)
	condition := mcs.ImportStale(fates, f.staleRule)
	d.staleness = &condition
}

// staleClusters are the clusters, sorted, that are stale, or were when an earlier life of this controller looked and
// nothing has been heard of since.
func staleClusters(f importFacts, unknown []string) []string {
	stale := slices.Clone(f.view.Stale)
	for _, c := range plan.StaleClusters(f.imp) {
		if slices.Contains(f.view.LivenessUnknown, c) || slices.Contains(unknown, c) {
			stale = append(stale, c)
		}
	}
	slices.Sort(stale)
	return stale
}

func decideVerdict(f importFacts, d importDecision) verdict {
	unused := len(d.exports) == 0
	switch {
	case !f.namespace:
		return verdictNone
	case f.forbidden:
		return decideForbidden(f)
	case f.imp == nil && !f.synced:
		// The first read decides within moments. What this cluster alone would make of the service might be something
		// else, such as headless, and then an IP would come and go.
		return verdictNone
	case unused && f.complete() && len(d.unknown) == 0 && f.leftOver():
		return verdictRemove
	case unused && (f.imp == nil || importForeign(f.imp)):
		return verdictNone
	}
	return decideKeep(f, d)
}

// decideKeep decides for an import that there is to be. One of the AWS Cloud Map MCS Controller for K8s works as it is: it waits until
// everything is known.
func decideKeep(f importFacts, d importDecision) verdict {
	switch {
	case f.old.imp && (!f.complete() || len(d.unknown) > 0):
		return verdictNone
	case importForeign(f.imp) && !f.old.imp, derivedForeign(f):
		return verdictForeign
	}
	return verdictKeep
}

// decideForbidden decides for a namespace that may not import. What the registry says, or cannot say, has no part in it.
func decideForbidden(f importFacts) verdict {
	if f.leftOver() {
		return verdictRemove
	}
	return verdictNone
}

func importForeign(imp *mcsv1beta1.ServiceImport) bool { return imp != nil && !plan.IsManaged(imp) }

func derivedForeign(f importFacts) bool {
	return f.derived != nil && !plan.IsManaged(f.derived) && !f.old.derived
}

// silentClusters are the other clusters that the import shows, in its status or by their slices, and the view does not.
func silentClusters(f importFacts) []string {
	var out []string
	heard := map[string]bool{f.cluster: true}
	for _, e := range f.view.Exports {
		heard[e.Cluster] = true
	}
	for _, c := range f.view.Unknown {
		heard[c] = true
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
	return slices.DeleteFunc(out, func(c string) bool { return heard[c] })
}

// takesPart says whether the import, if there is one, shows one of clusters: in its status, or by their slices, which are there before it.
func (f importFacts) takesPart(clusters []string) bool {
	if f.imp == nil {
		return false
	}
	return slices.ContainsFunc(f.imp.Status.Clusters, func(c mcsv1beta1.ClusterStatus) bool {
		return slices.Contains(clusters, c.Cluster)
	}) || slices.ContainsFunc(f.slices, func(s *discoveryv1.EndpointSlice) bool {
		return slices.Contains(clusters, s.Labels[mcsv1beta1.LabelSourceCluster])
	})
}
