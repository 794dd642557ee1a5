package imports

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// importFacts is everything that decides the import of one service. The objects are nil if they do
// not exist, and must not be changed.
type importFacts struct {
	key mcs.Key
	// cluster is this cluster's ID, clusterSet that of its clusterset.
	cluster, clusterSet string
	// namespace reports whether the namespace exists and is not being deleted.
	namespace bool
	// excluded reports whether the administrator excludes the namespace from imports, and denial is
	// how.
	excluded bool
	denial   string
	imp      *mcsv1beta1.ServiceImport
	derived  *corev1.Service
	slices   []*discoveryv1.EndpointSlice
	// held are the Services that only hold the service's IPs; derived is one of them if there is no
	// other.
	held []*corev1.Service
	// derivedName is the name of the derived Service, whether or not it exists.
	derivedName string
	takeover    TakeoverObjects
	// local is this cluster's own export, read from its objects and not from the registry.
	local *mcs.Export
	// view is the registry's answer for the other clusters. It is empty while synced is false.
	view   registry.View
	synced bool
	// starting reports whether a registry may still show more exports: not all were read, and the
	// session has just begun.
	starting bool
	// lost reports whether the unseen clusters count as stale: the registry has been read for as
	// long as the stale rule allows. lostIn is the time until then, 0 if there is none.
	lost   bool
	lostIn time.Duration
	// staleRule is the administrator's rule for the endpoints of stale clusters.
	staleRule mcs.StaleRule
	// refusals are the parts of the exports that the import policy refuses, which view does not
	// have.
	refusals []policy.Refusal
	// metadata selects the exported labels and annotations that are imported.
	metadata mcs.KeyFilter
	// properties are the ClusterProperties of the clusters in view and of this one, nil if they are
	// not known.
	properties map[string]mcs.Properties
	// drains are the drained clusters among the exports.
	drains map[string]mcs.Drain
	// paths has the states of the paths to the other clusters, and pathMode is the policy for
	// unreachable clusters.
	paths    pathhealth.Verdict
	pathMode mcs.PathHealth
	now      time.Time
}

// newImportDelay is the time for which a new import waits for all registries to be read, so that it
// begins with all exports. One that does not answer must not prevent imports from the others.
const newImportDelay = 10 * time.Second

// isComplete reports whether the registry has been read completely. It matters only for imports
// that do not exist yet: an existing import depends only on the clusters that it names.
func (f importFacts) isComplete() bool { return f.synced && !f.view.Incomplete }

// isOwn reports whether the ServiceImport exists and is this controller's.
func (f importFacts) isOwn() bool { return f.imp != nil && plan.IsOwnImport(f.imp, f.slices) }

// isForeign reports whether the ServiceImport exists and is not this controller's.
func (f importFacts) isForeign() bool { return f.imp != nil && !f.isOwn() }

// mayWait reports whether the import waits for its namespace to change: it does not exist or
// excludes imports, and another cluster may export the service. The registry notifies of new
// exports.
func (f importFacts) mayWait() bool {
	if f.namespace && !f.excluded {
		return false
	}
	return !f.isComplete() || len(f.view.Clusters) > 0
}

// hasLeftovers reports whether there is something to remove if no import is wanted: our
// ServiceImport, or our derived Service or slices without one.
func (f importFacts) hasLeftovers() bool {
	if f.imp == nil {
		return f.isOrphaned() || len(f.slices) > 0
	}
	return f.isOwn()
}

// unusedHeld returns the held Services that d does not use.
func (f importFacts) unusedHeld(d importDecision) []*corev1.Service {
	return slices.DeleteFunc(slices.Clone(f.held), func(svc *corev1.Service) bool {
		return d.verdict == verdictApply && f.derived != nil && svc.UID == f.derived.UID && d.merged.Type == mcsv1beta1.ClusterSetIP
	})
}

// isOrphaned reports whether our derived Service exists without a ServiceImport and without the
// mark of one that is held.
func (f importFacts) isOrphaned() bool {
	return f.imp == nil && f.derived != nil && plan.IsDerivedService(f.key, f.derived) && !plan.IsHeld(f.derived)
}

// hasForeignDerived reports whether the Service with the derived Service's name belongs to another
// owner.
func (f importFacts) hasForeignDerived() bool {
	return f.derived != nil && !plan.IsDerivedService(f.key, f.derived) && !f.takeover.TakesDerived
}

// importedClusters returns the other clusters, sorted, that the import contains.
func (f importFacts) importedClusters() []string {
	return slices.DeleteFunc(f.clusters(), func(c string) bool { return c == f.cluster })
}

// clusters returns the clusters, sorted, that the import contains: in its status, or in the slices,
// which are written before it.
func (f importFacts) clusters() []string {
	var out []string
	if f.imp != nil {
		for _, c := range f.imp.Status.Clusters {
			out = append(out, c.Cluster)
		}
	}
	for _, s := range f.slices {
		out = append(out, plan.SourceCluster(s))
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(c string) bool { return c == "" })
}

// unknownClusters returns the clusters, sorted, that may export the service although the view does
// not have their export.
func (f importFacts) unknownClusters() []string {
	if !f.synced {
		return f.importedClusters()
	}
	return f.view.MayExport()
}

// containsAny reports whether status or slices of the import contain one of clusters.
func (f importFacts) containsAny(clusters []string) bool {
	return slices.ContainsFunc(f.importedClusters(), func(c string) bool { return slices.Contains(clusters, c) })
}

// showsAny reports whether the ServiceImport exists and contains one of clusters.
func (f importFacts) showsAny(clusters []string) bool { return f.imp != nil && f.containsAny(clusters) }

// staleExporters returns the clusters, sorted, that are stale and whose export is known.
func (f importFacts) staleExporters() []string {
	return slices.DeleteFunc(f.view.WithLiveness(registry.Stale), func(c string) bool { return slices.Contains(f.view.MayExport(), c) })
}

// staleClusters returns staleExporters, and the clusters that were stale for the previous process
// and have sent no heartbeat since.
func (f importFacts) staleClusters(unknown []string) []string {
	stale := f.staleExporters()
	for _, c := range plan.StaleClusters(f.imp) {
		if f.view.Clusters[c].Liveness == registry.Undecided || slices.Contains(unknown, c) {
			stale = append(stale, c)
		}
	}
	slices.Sort(stale)
	return stale
}

// unreachableRule returns the rule for the endpoints of unreachable clusters.
func (f importFacts) unreachableRule() mcs.UnreachableRule {
	return mcs.UnreachableRule{Mode: f.pathMode, FaultHere: f.paths.FaultHere}
}

// unreachableClusters returns the clusters, sorted, that this cluster cannot reach, or that were
// withdrawn and are undecided: a previous process withdrew them, or they had nothing to probe for a
// moment.
func (f importFacts) unreachableClusters() []string {
	unreachable := f.paths.Unreachable()
	if f.unreachableRule().Withdraws() {
		for _, c := range plan.UnreachableClusters(f.imp) {
			if f.paths.State(c) == pathhealth.Undecided {
				unreachable = append(unreachable, c)
			}
		}
	}
	slices.Sort(unreachable)
	return slices.DeleteFunc(unreachable, func(c string) bool {
		return f.view.Clusters[c].State != registry.Exports && !slices.Contains(f.importedClusters(), c)
	})
}

// verdict is the decision about an import.
type verdict int

const (
	// verdictNone: do nothing.
	verdictNone verdict = iota
	// verdictNotOwned: the ServiceImport, or the Service with the derived Service's name, belongs
	// to another owner.
	verdictNotOwned
	// verdictRemove: no cluster exports the service, or its namespace is excluded.
	verdictRemove
	// verdictApply: write the objects of importDecision.
	verdictApply
)

// importDecision is the desired state of the import.
type importDecision struct {
	verdict verdict
	merged  mcs.Merged
	exports []mcs.Export
	// unknown are the clusters whose export is unknown: their imported endpoints stay.
	unknown []string
	// stale are the exporting clusters that are stale; staleness is the condition about them, nil
	// if it stays as it is.
	stale     []string
	staleness *metav1.Condition
	// endpoints are the exports that slices are made of, without the withdrawn endpoints of stale
	// clusters. The slices of the clusters in untouched stay as they are, but for the endpoints in
	// reduced, which are then those of some of these clusters without the addresses that belong to
	// another one.
	endpoints []mcs.Export
	untouched []string
	reduced   []mcs.Export
	// tiers are the results of the cluster selectors, and selection is the condition about them.
	tiers     []mcs.Tier
	selection metav1.Condition
	// drained is the condition about drained clusters.
	drained metav1.Condition
	// created has the creation times by which the exports take precedence, and times is their text
	// for plan.SetExportTimes.
	created map[string]time.Time
	// properties are the ClusterProperties of the exporting clusters.
	properties map[string]mcs.Properties
	times      string
	// notImported are the keys of exported labels and annotations that this cluster does not
	// import, nil if the list in the ServiceImport stays.
	notImported []string
	// refusals are the parts of the exports that this cluster refuses, shared those of which the
	// addresses belong to another cluster, and refused is the condition about both, nil if it stays
	// as it is: what was refused of a cluster that is unknown now may still be.
	refusals []policy.Refusal
	shared   []mcs.SharedAddresses
	refused  *metav1.Condition
	// unreachable are the exporting clusters that this cluster cannot reach, and unreachability is
	// the condition about them.
	unreachable    []string
	unreachability metav1.Condition
}

// decideImport keeps the promise that unknown is not empty: an import is removed only when every
// cluster that it contains is known not to export the service. While a cluster that the import
// contains is unknown, only the endpoints of the known clusters change, and ports of theirs are
// added. The zones of all endpoints have their names in this cluster.
func decideImport(f importFacts) importDecision {
	d := importDecision{exports: f.namedExports(), unknown: f.unknownClusters()}
	if f.local != nil {
		d.exports = append(d.exports, *f.local)
	}
	d.verdict = decideVerdict(f, d)
	d.refusals = f.refusals
	if d.verdict != verdictApply {
		return d
	}
	precedence := plan.DecidePrecedence(plan.PrecedenceInput{Import: f.imp, Exports: d.exports, Unknown: d.unknown, Order: f.view.Order, Properties: f.properties, Now: f.now})
	d.exports, d.created, d.times, d.properties = precedence.Exports, precedence.Created, precedence.Times, precedence.Properties
	switch {
	case len(d.exports) == 0, f.showsAny(d.unknown):
		d.merged = plan.MergedFromServiceImport(f.imp, d.exports)
		d.merged.AddPorts(d.exports) // a cluster that is unknown keeps no port of another one out
		f.metadata.Apply(&d.merged)
	default:
		d.merged = mcs.Merge(d.exports)
		d.notImported = append([]string{}, f.metadata.Apply(&d.merged)...)
		for _, cluster := range precedence.Late {
			d.refusals = append(slices.Clone(d.refusals), policy.Refusal{Cluster: cluster, Reason: policy.ReasonPrecedence, Message: precedence.Message()})
		}
	}
	d.decideTiers(f)
	d.decideEndpoints(f)
	return d
}

// namedExports returns the exports of the other clusters with this cluster's names of zones. While
// the zones of one of both clusters are not known, those of existing endpoints stay as they are.
func (f importFacts) namedExports() []mcs.Export {
	exports := mcs.NameZones(f.view.Exports(), f.cluster, f.properties)
	for i, e := range exports {
		if _, known := f.properties[e.Cluster]; !known {
			exports[i] = plan.WithExistingZones(e, f.slices)
		}
	}
	return exports
}

// allRefusals returns the refusals, with those of endpoints whose addresses belong to another
// cluster, and of ports that are too many.
func (d importDecision) allRefusals() []policy.Refusal {
	return slices.Concat(d.refusals, policy.OfShared(d.shared), policy.OfPorts(d.merged))
}

// reach returns what clients of this cluster, whose Services have the IP families supported, reach
// with the endpoints in use.
func (d importDecision) reach(f importFacts, supported []corev1.IPFamily) mcs.Reach {
	return d.merged.Reach(slices.Concat(d.wanted(), plan.ExportsOf(d.merged, f.slices, d.unchanged())), f.cluster, supported)
}

// wanted returns the exports that slices are made of, and unchanged the clusters whose slices stay
// exactly as they are.
func (d importDecision) wanted() []mcs.Export { return slices.Concat(d.endpoints, d.reduced) }

func (d importDecision) unchanged() []string {
	return slices.DeleteFunc(slices.Clone(d.untouched), func(c string) bool {
		return slices.ContainsFunc(d.reduced, func(e mcs.Export) bool { return e.Cluster == c })
	})
}

// withdrawn returns the clusters that are in reserve because this cluster cannot reach them.
func (d importDecision) withdrawn(f importFacts) []string {
	if !f.unreachableRule().Withdraws() {
		return nil
	}
	return d.unreachable
}

// probed returns the exports of other clusters whose endpoints may be probed: those that are
// imported, whether or not they are in use.
func (d importDecision) probed(f importFacts) []mcs.Export {
	if d.verdict != verdictApply {
		return nil
	}
	return f.view.Exports()
}

// canWait reports whether the import is a new one of a service that only this cluster exports: its
// clients have the Service itself meanwhile.
func (d importDecision) canWait(f importFacts) bool {
	return d.verdict == verdictApply && f.imp == nil && !f.view.Has(registry.Exports)
}

// decideVerdict decides what to do with the import.
func decideVerdict(f importFacts, d importDecision) verdict {
	unused := len(d.exports) == 0
	switch {
	case !f.namespace:
		return verdictNone
	case f.excluded:
		return decideExcluded(f)
	case f.imp == nil && (!f.synced || f.starting):
		// The first read of the registry decides within moments. An import of the local export
		// alone might have another type, such as headless.
		return verdictNone
	case unused && f.canRemove(d.unknown):
		return verdictRemove
	case unused && (f.imp == nil || f.isForeign()):
		return verdictNone
	}
	return decideOwnership(f, d)
}

// canRemove reports whether there is something to remove, if no cluster is known to export the
// service, and no imported cluster is unknown. A Service without a ServiceImport stays until
// everything is known: the service that it was created for may not have been read yet.
func (f importFacts) canRemove(unknown []string) bool {
	if f.isOrphaned() {
		return f.isComplete() && len(unknown) == 0
	}
	return f.synced && !f.containsAny(unknown) && f.hasLeftovers()
}

// decideOwnership decides about an import that is wanted. An import of another controller works as
// it is: it is taken over when everything is known.
func decideOwnership(f importFacts, d importDecision) verdict {
	switch {
	case f.takeover.TakesImport && (!f.isComplete() || len(d.unknown) > 0):
		return verdictNone
	case f.isForeign() && !f.takeover.TakesImport, f.hasForeignDerived():
		return verdictNotOwned
	}
	return verdictApply
}

// decideExcluded decides about an excluded namespace. The registry does not matter here, whether or
// not it has been read.
func decideExcluded(f importFacts) verdict {
	if f.hasLeftovers() {
		return verdictRemove
	}
	return verdictNone
}

// decideTiers evaluates the cluster selectors. While the properties are not known, or a part of the
// exports, the results stay as they are.
func (d *importDecision) decideTiers(f importFacts) {
	switch {
	case d.merged.ClusterSelectors == "":
	case f.properties == nil, f.imp != nil && f.lacksProperties(d.unknown):
		d.tiers = plan.Tiers(f.imp)
	default:
		clusters := map[string]mcs.Properties{}
		for _, id := range d.merged.Clusters {
			clusters[id] = f.properties[id]
		}
		for _, id := range f.importedClusters() {
			if slices.Contains(d.unknown, id) {
				clusters[id] = f.properties[id]
			}
		}
		for id, properties := range clusters {
			clusters[id] = properties.OfCluster(id, f.clusterSet)
		}
		d.tiers = d.merged.ClusterSelectors.Tiers(f.properties[f.cluster].OfCluster(f.cluster, f.clusterSet), clusters)
	}
}

// lacksProperties reports whether the properties of a cluster that is imported and unknown are not
// known.
func (f importFacts) lacksProperties(unknown []string) bool {
	return slices.ContainsFunc(f.importedClusters(), func(id string) bool {
		_, known := f.properties[id]
		return !known && slices.Contains(unknown, id)
	})
}

// decideEndpoints decides which endpoints are used. While a cluster that the import contains is
// unknown, it is also unknown which endpoints are the last ones, and the endpoints of stale
// clusters stay as they are.
func (d *importDecision) decideEndpoints(f importFacts) {
	d.stale, d.unreachable = f.staleClusters(d.unknown), f.unreachableClusters()
	d.untouched, d.endpoints = d.unknown, d.exports
	if !f.showsAny(d.unknown) {
		d.choose(f, nil, nil)
		return
	}
	d.untouched = slices.Concat(d.unknown, d.stale)
	d.endpoints = slices.DeleteFunc(slices.Clone(d.exports), func(e mcs.Export) bool { return slices.Contains(d.stale, e.Cluster) })
	d.decideLost(f)
	d.choose(f, plan.ExportsOf(d.merged, f.slices, d.untouched), nil)
}

// withRefused returns the decision if the slices of some clusters cannot be written. They stay as
// they are in current, and endpoints are withdrawn only if others replace them that are in the
// slices.
func (d importDecision) withRefused(f importFacts, refused []string, current []*discoveryv1.EndpointSlice) importDecision {
	d.untouched = slices.Concat(d.untouched, refused)
	d.endpoints = slices.DeleteFunc(slices.Clone(d.exports), func(e mcs.Export) bool { return slices.Contains(d.untouched, e.Cluster) })
	d.choose(f, plan.ExportsOf(d.merged, current, d.untouched), refused)
	return d
}

// choose leaves in d.endpoints the endpoints that are used and that their clusters own, and sets
// d.reduced and the conditions about that. The endpoints of others, the exports whose slices stay
// as they are, are candidates, too. Those of stale clusters do not replace endpoints of other
// clusters. The slices of the clusters in fixed cannot be written.
func (d *importDecision) choose(f importFacts, others []mcs.Export, fixed []string) {
	n := len(d.endpoints)
	choice, owned := d.chooseOwned(mcs.Candidates{
		Exports: slices.Concat(d.endpoints, others), Drains: f.drains, Tiers: d.tiers, MinimumReady: d.merged.MinimumReady,
	}.WithUnreachable(d.unreachable, f.unreachableRule()).WithStale(d.stale, f.staleRule.Policy), n)
	if !f.showsAny(d.unknown) {
		condition := mcs.ImportStale(choice.StaleExports(d.stale), f.staleRule)
		d.staleness = &condition
	}
	d.endpoints, d.reduced = owned[:n], nil
	for i, e := range others {
		if owned[n+i].EndpointCount() < e.EndpointCount() && !slices.Contains(fixed, e.Cluster) {
			d.reduced = append(d.reduced, owned[n+i])
		}
	}
	if refusals := d.allRefusals(); len(refusals) > 0 || !f.showsAny(d.unknown) {
		condition := policy.Condition(refusals)
		d.refused = &condition
	}
	d.selection, d.drained = mcs.ImportSelection(d.merged, d.tiers, choice.Served), mcs.ImportDrained(choice.Drained)
	d.unreachability = mcs.ImportUnreachable(choice, d.unreachable, f.unreachableRule())
}

// maxOwnRounds is the number of choices of chooseOwned. The second one makes up for the endpoints
// that were left out. It may use others that are left out in turn, as in a chain of clusters that
// export each other's addresses; the third one is the last.
const maxOwnRounds = 3

// chooseOwned returns the choice of the first n exports of c, and these and the others without the
// endpoints that other clusters own, which it leaves in d.shared. Only endpoints that are used
// claim their addresses: those of a cluster that is stale, and replaced, do not. An endpoint that
// is left out serves nothing, so it must not keep others from serving.
func (d *importDecision) chooseOwned(c mcs.Candidates, n int) (choice mcs.Choice, owned []mcs.Export) {
	d.shared = nil
	for range maxOwnRounds {
		choice = d.merged.Choose(c)
		chosen := slices.Concat(choice.Exports[:n], c.Exports[n:])
		for i := range chosen[n:] {
			chosen[n+i].Created = d.created[chosen[n+i].Cluster]
		}
		var shared []mcs.SharedAddresses
		if owned, shared = mcs.OwnAddresses(d.merged.Type, chosen, d.properties); len(shared) == 0 {
			break
		}
		d.shared = mcs.JoinShared(d.shared, shared)
		c.Exports = mcs.LeaveOut(d.merged.Type, c.Exports, chosen, owned)
	}
	return choice, owned
}

// isLost reports whether a cluster whose export is not known is stale: its record shows no
// heartbeat, or there was no record since the start, for as long as the stale rule allows.
func (f importFacts) isLost(cluster string) bool {
	in := f.view.Clusters[cluster]
	return in.State == registry.Unknown && in.Liveness == registry.Stale || in.State == registry.Unseen && f.lost
}

// decideLost decides about the endpoints of lost clusters, and of the stale ones beside them. The
// ports of the lost ones are not known, so all are withdrawn together or not at all: if the other
// clusters serve every port. While another imported cluster may be read or seen, they stay.
func (d *importDecision) decideLost(f importFacts) {
	missing := slices.DeleteFunc(f.view.In(registry.Unknown, registry.Unseen), func(c string) bool { return !slices.Contains(f.importedClusters(), c) })
	if len(missing) == 0 || !f.isComplete() || slices.ContainsFunc(missing, func(c string) bool { return !f.isLost(c) }) {
		return
	}
	lost := slices.Sorted(slices.Values(slices.Concat(missing, f.staleExporters())))
	kept := f.staleRule.Policy == mcs.StaleKeep || f.staleRule.Policy != mcs.StaleWithdrawAll && !d.merged.IsServed(d.endpoints, plan.ExportsOf(d.merged, f.slices, lost))
	var stale []mcs.StaleExport
	for _, c := range lost {
		stale = append(stale, mcs.StaleExport{Cluster: c, Kept: kept})
	}
	d.stale = slices.Compact(slices.Sorted(slices.Values(slices.Concat(d.stale, lost))))
	if !kept {
		d.untouched = slices.DeleteFunc(d.untouched, func(c string) bool { return slices.Contains(lost, c) })
	}
	condition := mcs.ImportStale(stale, f.staleRule)
	d.staleness = &condition
}
