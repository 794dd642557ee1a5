package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// MaxEndpoints is the default maximum of endpoints in a slice. It is the default of the Kubernetes
// EndpointSlice controller, a compromise between the number of objects and the cost of one change
// on every node.
const MaxEndpoints = 100

// SliceInput is the input of Slices for one service.
type SliceInput struct {
	Key mcs.Key
	// Merged is the merge of Exports. Without exports it is zero, and only the slices of Unknown
	// clusters stay.
	Merged mcs.Merged
	// Exports are the exports of all clusters.
	Exports []mcs.Export
	// Unknown are clusters that may export the service but cannot be read: their slices stay
	// unchanged.
	Unknown []string
	// LocalCluster is this cluster's ID. Only its endpoints have a node of this cluster.
	LocalCluster string
	// PortNames are the names of the ports in the slices, as Ports returns them.
	PortNames map[string][]string
	// Families are those of the derived Service, or of this cluster's Services if the import is
	// headless, nil if unknown.
	Families []corev1.IPFamily
	// Derived is the name of the derived Service; the default is mcs.DerivedName.
	Derived string
	// Owner refers to the ServiceImport.
	Owner metav1.OwnerReference
	// Existing are the existing EndpointSlices. Slices of other controllers and other services are
	// ignored.
	Existing []*discoveryv1.EndpointSlice
	// MaxEndpoints is the maximum of endpoints in a slice; the default is the constant
	// MaxEndpoints.
	MaxEndpoints int
}

// SliceChanges are the writes that bring the imported slices in sync, each list sorted by name.
// Steps returns them in the order of safety. Updates have the resource version of the existing
// slice.
type SliceChanges struct {
	Create, Update, Delete []*discoveryv1.EndpointSlice
}

// IsEmpty reports whether there are no changes.
func (c SliceChanges) IsEmpty() bool {
	return len(c.Create)+len(c.Update)+len(c.Delete) == 0
}

// RemovedSlices returns the changes that remove the existing slices.
func RemovedSlices(existing []*discoveryv1.EndpointSlice) (c SliceChanges) {
	for _, s := range existing {
		if s.DeletionTimestamp != nil {
			c.empty(s)
			continue
		}
		c.Delete = append(c.Delete, s)
	}
	return c
}

// empty removes the endpoints of s, which is being deleted. A finalizer of another client may keep
// it for a long time, and kube-proxy and CoreDNS use it as long as it exists.
func (c *SliceChanges) empty(s *discoveryv1.EndpointSlice) {
	if len(s.Endpoints) == 0 {
		return
	}
	emptied := s.DeepCopy()
	emptied.Endpoints = nil
	c.Update = append(c.Update, emptied)
}

// Slices returns the changes to the imported EndpointSlices of one service. Each source cluster and
// address family has a pool of slices. In each pool
//
//  1. existing endpoints stay in their slice, so that one change takes one write;
//  2. new endpoints go into slices that are written anyway, then into one slice that has room for
//     all of them, then into slices that have become free, then into new slices;
//  3. a slice that has shrunk to a quarter is dissolved into another slice that has room for its
//     endpoints;
//  4. empty slices are deleted. If the cluster has no endpoint at all, one empty slice stays.
//
// A slice that is being deleted is emptied, after its endpoints that stay are in other slices.
//
// Kubernetes does the same for a Service: scaling to zero and back is an update, and `kubectl get
// endpointslices` shows which clusters export a service without endpoints. DNS is not affected:
// CoreDNS answers NXDOMAIN for a headless service without a ready endpoint, with or without a
// slice.
//
// The name of a new slice follows from its pool and the existing names. Two reconciles that read
// the same slices, the second from a stale cache, therefore choose the same name, and the API
// server refuses the second Create instead of publishing every endpoint twice.
func Slices(in SliceInput) SliceChanges {
	in.MaxEndpoints = cmp.Or(in.MaxEndpoints, MaxEndpoints)
	pools := wantedPools(in)
	taken := map[string]bool{}
	var changes SliceChanges
	for _, s := range in.Existing {
		taken[s.Name] = true
		if !in.isManaged(s) {
			continue
		}
		if s.DeletionTimestamp != nil {
			changes.empty(s)
			continue
		}
		id := poolID{SourceCluster(s), s.AddressType}
		if pools[id] == nil {
			pools[id] = &pool{id: id}
		}
		pools[id].existing = append(pools[id].existing, s)
	}

	for _, id := range slices.SortedFunc(maps.Keys(pools), poolID.compare) {
		for _, d := range pools[id].planDrafts(in.MaxEndpoints) {
			in.addChange(&changes, id, d, taken)
		}
	}
	byName := func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(changes.Create, byName)
	slices.SortFunc(changes.Update, byName)
	slices.SortFunc(changes.Delete, byName)
	return changes
}

// isManaged reports whether Slices may change s.
func (in SliceInput) isManaged(s *discoveryv1.EndpointSlice) bool {
	return s.Namespace == in.Key.Namespace && IsImportedSlice(in.Key, s) &&
		!slices.Contains(in.Unknown, SourceCluster(s))
}

// addChange adds the change that d requires, if any.
func (in SliceInput) addChange(c *SliceChanges, id poolID, d *draft, taken map[string]bool) {
	switch {
	case d.from == nil:
		c.Create = append(c.Create, in.desiredSlice(id, d, taken))
	case d.unused:
		c.Delete = append(c.Delete, d.from.DeepCopy())
	default:
		if s := in.desiredSlice(id, d, taken); d.changed || !equalExceptEndpoints(s, d.from) {
			c.Update = append(c.Update, s)
		}
	}
}

// desiredSlice returns the EndpointSlice of d.
func (in SliceInput) desiredSlice(id poolID, d *draft, taken map[string]bool) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{}
	if d.from != nil {
		s.ObjectMeta = *d.from.ObjectMeta.DeepCopy()
	} else {
		s.Namespace, s.Name = in.Key.Namespace, newSliceName(in.derivedName(), id, taken)
	}
	s.Labels = withKeys(s.Labels, map[string]string{
		discoveryv1.LabelServiceName:  in.serviceName(),
		mcsv1beta1.LabelServiceName:   in.Key.Name,
		mcsv1beta1.LabelSourceCluster: id.cluster,
		LabelManagedBy:                ManagedBy,
	})
	delete(s.Labels, corev1.IsHeadlessService)
	if in.Merged.Type == mcsv1beta1.Headless {
		// as Kubernetes' own: kube-proxy does not watch slices that have it
		s.Labels[corev1.IsHeadlessService] = ""
	}
	s.OwnerReferences = withOwnerReference(s.OwnerReferences, in.Owner)
	s.AddressType = id.family
	s.Ports = d.ports
	s.Endpoints = d.endpoints
	return s
}

// serviceName returns the name of the Service that the slices belong to, by which kube-proxy finds
// those of the derived Service. A headless import has no Service, and a derived Service that holds
// its IPs must not serve. Its slices have the name of one that does not exist: CoreDNS 1.15.0 makes
// the name of an address from it, and without it answers no question for the names of these
// addresses, in any cluster (PTR).
func (in SliceInput) serviceName() string {
	if in.Merged.Type == mcsv1beta1.ClusterSetIP {
		return cmp.Or(in.Derived, mcs.DerivedName(in.Key))
	}
	return in.derivedName() + headlessSuffix
}

// derivedName returns the derived name of the import, with which the names of new slices begin. An
// import of an earlier version keeps its own, so that this version can be replaced by that one
// again: the derived Service has it, or if the import is headless the existing slices.
func (in SliceInput) derivedName() string {
	short := mcs.ShortDerivedName(in.Key)
	isShort := func(s *discoveryv1.EndpointSlice) bool {
		return DerivedNameOfSlice(s) == short && IsImportedSlice(in.Key, s)
	}
	if in.Derived == short || in.Merged.Type == mcsv1beta1.Headless && slices.ContainsFunc(in.Existing, isShort) {
		return short
	}
	return mcs.DerivedName(in.Key)
}

// headlessSuffix distinguishes the Service name in the slices of a headless import from that of the
// derived Service.
const headlessSuffix = "-headless"

// ExportsOf returns the endpoints in the existing slices of clusters, as exports of a service that
// was merged to m: for clusters whose slices stay as they are, because their exports are not known.
func ExportsOf(m mcs.Merged, existing []*discoveryv1.EndpointSlice, clusters []string) []mcs.Export {
	byCluster := map[string]*mcs.Export{}
	for _, s := range existing {
		cluster := SourceCluster(s)
		if !slices.Contains(clusters, cluster) || s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		if byCluster[cluster] == nil {
			byCluster[cluster] = &mcs.Export{Key: m.Key, Cluster: cluster, Type: m.Type, Ports: m.Ports}
		}
		byCluster[cluster].Backends = append(byCluster[cluster].Backends, mcs.BackendsOf(s))
	}
	var out []mcs.Export
	for _, cluster := range slices.Sorted(maps.Keys(byCluster)) {
		out = append(out, *byCluster[cluster])
	}
	return out
}

// WithExistingZones returns e with the zones that its endpoints have in the existing slices. New
// endpoints keep theirs.
func WithExistingZones(e mcs.Export, existing []*discoveryv1.EndpointSlice) mcs.Export {
	zones := map[endpointID]string{}
	for _, s := range existing {
		if SourceCluster(s) != e.Cluster {
			continue
		}
		for _, ep := range s.Endpoints {
			zones[idOf(ep)] = ptr.Deref(ep.Zone, "")
		}
	}
	return e.WithZones(func(ep mcs.Endpoint) string {
		if zone, ok := zones[endpointID{ep.Address.String(), ep.Hostname}]; ok {
			return zone
		}
		return ep.Zone
	})
}

// newSliceName returns the first free name of the pool, such as
// "imported-abcdefghij0123456789-cls1-ipv4-0": names sort by source cluster and family. A name has
// at most 29+1+63+1+4+1 characters and an index, well below the limit of 253.
func newSliceName(derived string, id poolID, taken map[string]bool) string {
	prefix := fmt.Sprintf("%s-%s-%s", derived, id.cluster, strings.ToLower(string(id.family)))
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if !taken[name] {
			taken[name] = true
			return name
		}
	}
}

// equalExceptEndpoints reports whether a and b differ in their endpoints at most.
func equalExceptEndpoints(a, b *discoveryv1.EndpointSlice) bool {
	return apiequality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		apiequality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) &&
		apiequality.Semantic.DeepEqual(a.Ports, b.Ports)
}
