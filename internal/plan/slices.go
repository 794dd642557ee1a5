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
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// MaxEndpoints is how many endpoints a slice holds unless told otherwise: as many as Kubernetes' own controller puts
// there, a compromise between the number of objects and what one change costs every node.
const MaxEndpoints = 100

// SliceInput is all that decides the imported EndpointSlices of one service.
type SliceInput struct {
	Key mcs.Key
	// Merged is what the service is; without exports it is zero, and only the slices of Unknown clusters stay.
	Merged mcs.Merged
	// Exports are all clusters' exports of the service, those that Merged was made of.
	Exports []mcs.Export
	// Unknown are clusters of which it is not known whether they export the service: their slices stay as they are.
	Unknown []string
	// LocalCluster is this cluster's ID. Only its endpoints have a node that means something here.
	LocalCluster string
	// Families are the derived Service's, nil while they are not known.
	Families []corev1.IPFamily
	// Derived is the name of the derived Service; "" stands for the usual one, mcs.DerivedName.
	Derived string
	// Owner refers to the ServiceImport.
	Owner metav1.OwnerReference
	// Existing are the EndpointSlices that are there. Those that are not ours, or not of this service, are ignored.
	Existing []*discoveryv1.EndpointSlice
	// MaxEndpoints is how many endpoints a slice may hold; 0 stands for the constant of that name.
	MaxEndpoints int
}

// SliceChanges are the writes that bring the imported slices in step, each sorted by name. Applied in the order Create,
// Update, Delete, no endpoint that stays is ever missing. Updates carry the resource version they were made from.
type SliceChanges struct {
	Create, Update, Delete []*discoveryv1.EndpointSlice
}

// Empty says whether there is nothing to do.
func (c SliceChanges) Empty() bool {
	return len(c.Create)+len(c.Update)+len(c.Delete) == 0
}

// Slices plans the imported EndpointSlices of one service. There is a pool of slices for each source cluster and
// address family. In each pool
//
//  1. endpoints that are there stay in the slice where they are, so that one change means one write;
//  2. new endpoints go into slices that are written anyway, then into one slice that has room for all of them, then
//     into slices that have become free, then into new ones;
//  3. a slice that has shrunk to a quarter is dissolved into another one that has room for what is left of it;
//  4. slices that are empty after that go. If the cluster has no endpoint at all, one slice stays without any.
//
// The last is as Kubernetes does it for a Service: scaling to zero and back is an update, and `kubectl get
// endpointslices` shows which clusters export a service even if they have nothing behind it. DNS is not affected: CoreDNS
// answers NXDOMAIN for a headless service without a ready endpoint, with a slice or without.
//
// A new slice's name follows from its pool and the names taken there. Two passes that see the same slices, the second one
// in a stale cache, therefore choose the same name, and the API server refuses the second Create instead of
// publishing every endpoint twice.
func Slices(in SliceInput) SliceChanges {
	in.MaxEndpoints = cmp.Or(in.MaxEndpoints, MaxEndpoints)
	pools := wantedPools(in)
	taken := map[string]bool{}
	for _, s := range in.Existing {
		taken[s.Name] = true
		if !in.manages(s) {
			continue
		}
		id := poolID{s.Labels[mcsv1beta1.LabelSourceCluster], s.AddressType}
		if pools[id] == nil {
			pools[id] = &pool{id: id}
		}
		pools[id].existing = append(pools[id].existing, s)
	}

	var changes SliceChanges
	for _, id := range slices.SortedFunc(maps.Keys(pools), poolID.compare) {
		for _, d := range pools[id].plan(in.MaxEndpoints) {
			in.add(&changes, id, d, taken)
		}
	}
	byName := func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(changes.Create, byName)
	slices.SortFunc(changes.Update, byName)
	slices.SortFunc(changes.Delete, byName)
	return changes
}

// manages says whether s is for this plan to change.
func (in SliceInput) manages(s *discoveryv1.EndpointSlice) bool {
	return IsManaged(s) && s.DeletionTimestamp == nil && s.Namespace == in.Key.Namespace &&
		s.Labels[mcsv1beta1.LabelServiceName] == in.Key.Name &&
		!slices.Contains(in.Unknown, s.Labels[mcsv1beta1.LabelSourceCluster])
}

// add turns a draft into the change that it takes, if any.
func (in SliceInput) add(c *SliceChanges, id poolID, d *draft, taken map[string]bool) {
	switch {
	case d.from == nil:
		c.Create = append(c.Create, in.slice(id, d, taken))
	case d.unused:
		c.Delete = append(c.Delete, d.from.DeepCopy())
	default:
		if s := in.slice(id, d, taken); d.changed || !sameObject(s, d.from) {
			c.Update = append(c.Update, s)
		}
	}
}

// slice is the object that d describes.
func (in SliceInput) slice(id poolID, d *draft, taken map[string]bool) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{}
	if d.from != nil {
		s.ObjectMeta = *d.from.ObjectMeta.DeepCopy()
	} else {
		s.Namespace, s.Name = in.Key.Namespace, sliceName(in.Key, id, taken)
	}
	derived := ""
	if in.Merged.Type == mcsv1beta1.ClusterSetIP {
		derived = cmp.Or(in.Derived, mcs.DerivedName(in.Key))
	}
	s.Labels = withKeys(s.Labels, map[string]string{
		discoveryv1.LabelServiceName:  derived, // by this kube-proxy finds the slices of the derived Service
		mcsv1beta1.LabelServiceName:   in.Key.Name,
		mcsv1beta1.LabelSourceCluster: id.cluster,
		LabelManagedBy:                ManagedBy,
	})
	s.OwnerReferences = withOwner(s.OwnerReferences, in.Owner)
	s.AddressType = id.family
	s.Ports = d.ports
	s.Endpoints = d.endpoints
	return s
}

// sliceName is the first name of the pool that is free, "imported-abcdefghij-cls1-ipv4-0": it sorts by source cluster
// and family, and shows both. It is at most 19+1+63+1+4+1 characters and an index long, well below the 253 allowed.
func sliceName(key mcs.Key, id poolID, taken map[string]bool) string {
	prefix := fmt.Sprintf("%s-%s-%s", mcs.DerivedName(key), id.cluster, strings.ToLower(string(id.family)))
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if !taken[name] {
			taken[name] = true
			return name
		}
	}
}

// sameObject says whether a and b differ in nothing but their endpoints.
func sameObject(a, b *discoveryv1.EndpointSlice) bool {
	return apiequality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		apiequality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) &&
		apiequality.Semantic.DeepEqual(a.Ports, b.Ports)
}
