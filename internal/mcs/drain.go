package mcs

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Drain is the part of a cluster's endpoints that the other clusters do not use: "" for none, a
// percentage such as "30%", DrainAll or DrainForced. Equal drains have equal text.
type Drain string

const (
	// DrainAll is for all endpoints, but the last ones of a port or an IP family stay in use.
	DrainAll Drain = "100%"
	// DrainForced is for all endpoints, including the last ones.
	DrainForced Drain = "force"
)

const (
	// AnnotationDrain is the annotation with a Drain: of the ClusterProperty with the cluster's ID
	// for all exports of the cluster, of a ServiceExport for one.
	AnnotationDrain = Domain + "/drain"
	// PropertyDrain is the ClusterProperty by which the other clusters know that a cluster is
	// drained.
	PropertyDrain = "drain.multicluster.k8s.aws"
)

// ParseDrain returns the canonical form of a drain that a user or another cluster wrote.
func ParseDrain(text string) (Drain, error) {
	if Drain(text) == DrainForced {
		return DrainForced, nil
	}
	percent, err := ParsePercentage(text)
	if err != nil {
		return "", fmt.Errorf("%w, and not %q", err, DrainForced)
	}
	return Drain(FormatPercentage(percent)), nil
}

// Percent returns the percentage of the endpoints that are not used, 0 for a drain that is not
// valid.
func (d Drain) Percent() int32 {
	if d == DrainForced {
		return 100
	}
	percent, err := ParsePercentage(string(d))
	if err != nil {
		return 0
	}
	return percent
}

// Max returns the drain that leaves fewer endpoints in use.
func (d Drain) Max(o Drain) Drain {
	if d != DrainForced && (o == DrainForced || o.Percent() > d.Percent()) {
		return o
	}
	return d
}

// Drain returns the drain of a cluster with these properties, "" if it is not valid.
func (p Properties) Drain() Drain {
	d, err := ParseDrain(p[PropertyDrain])
	if err != nil {
		return ""
	}
	return d
}

// Drains returns the drained clusters of exports for an importer: by the properties of the cluster,
// or by its export. The importer always uses its own endpoints.
func Drains(exports []Export, properties map[string]Properties, importer string) map[string]Drain {
	out := map[string]Drain{}
	for _, e := range exports {
		if d := properties[e.Cluster].Drain().Max(e.Drain); e.Cluster != importer && d.Percent() > 0 {
			out[e.Cluster] = d
		}
	}
	return out
}

// DrainedExport is the decision about the endpoints of a drained cluster.
type DrainedExport struct {
	Cluster string
	Drain   Drain
	// Kept reports whether endpoints stay in use despite the drain, because no other cluster has a
	// ready one.
	Kept bool
}

// drain removes the drained endpoints from out. It removes all endpoints of a fully drained cluster
// from each use for which a cluster that is not fully drained has a ready endpoint. It removes a
// part of the endpoints of a partly drained cluster from each use for which a cluster that is not
// drained at all has one.
func (m Merged) drain(out *Choice, drains map[string]Drain) {
	before := slices.Clone(out.Exports)
	others := func(limit int32) map[use]bool {
		return m.servedUses(slices.DeleteFunc(slices.Clone(before), func(e Export) bool { return drains[e.Cluster].Percent() >= limit }))
	}
	partly, undrained := others(100), others(1)
	for i, e := range before {
		d, drained := drains[e.Cluster]
		if !drained {
			continue
		}
		served := undrained
		switch {
		case d == DrainForced:
			out.Drained = append(out.Drained, DrainedExport{Cluster: e.Cluster, Drain: d})
			continue // Choose has removed its endpoints
		case d.Percent() == 100:
			served = partly
			out.Exports[i].Backends = m.backendsWithout(e, served)
		default:
			out.Exports[i].Backends = m.reduce(e, served, d.Percent())
		}
		out.Drained = append(out.Drained, DrainedExport{Cluster: e.Cluster, Drain: d, Kept: isMissingAny(served, m.servedUses([]Export{e}))})
	}
}

// isMissingAny reports whether served lacks one of uses.
func isMissingAny(served, uses map[use]bool) bool {
	for u := range uses {
		if !served[u] {
			return true
		}
	}
	return false
}

// reduce returns the backends of e, with a part of the ready endpoints for the uses in served, and
// with all endpoints for the others.
func (m Merged) reduce(e Export, served map[use]bool, percent int32) []Backends {
	reduced := m.servedUses([]Export{e})
	maps.DeleteFunc(reduced, func(u use, _ bool) bool { return !served[u] })
	if len(reduced) == 0 {
		return e.Backends
	}
	part := m.backendsOf(e, func(u use) bool { return reduced[u] })
	if m.Type == mcsv1beta1.Headless {
		keepFamilyShares(part, 100-percent)
	} else {
		for i, b := range part {
			part[i].Endpoints = keepShare(b.Endpoints, 100-percent)
		}
	}
	return append(m.backendsWithout(e, reduced), part...)
}

// keepFamilyShares keeps percent of the addresses of each family in backends, whatever their ports
// are.
func keepFamilyShares(backends []Backends, percent int32) {
	families := map[bool][]Endpoint{}
	for _, b := range backends {
		for _, ep := range b.Endpoints {
			families[ep.Address.Is4()] = append(families[ep.Address.Is4()], ep)
		}
	}
	for isIPv4, endpoints := range families {
		surplus := surplusAddresses(endpoints, percent)
		for i, b := range backends {
			backends[i].Endpoints = withoutReady(b.Endpoints, func(a netip.Addr) bool { return a.Is4() == isIPv4 && surplus(a) })
		}
	}
}

// keepShare returns endpoints without some of the ready ones: it keeps percent of their addresses,
// at least one. All clusters keep the same ones. With a smaller percentage, they keep a subset of
// them.
func keepShare(endpoints []Endpoint, percent int32) []Endpoint {
	return withoutReady(endpoints, surplusAddresses(endpoints, percent))
}

// surplusAddresses reports which addresses of ready endpoints are not among the percent of them
// that are kept: those that come last by rank.
func surplusAddresses(endpoints []Endpoint, percent int32) func(netip.Addr) bool {
	var ranked []rankedAddress
	for _, ep := range endpoints {
		if ep.Ready {
			ranked = append(ranked, rank(ep.Address))
		}
	}
	slices.SortFunc(ranked, rankedAddress.compare)
	ranked = slices.Compact(ranked)
	kept := (len(ranked)*int(percent) + 99) / 100
	return func(a netip.Addr) bool { return kept < len(ranked) && rank(a).compare(ranked[kept]) >= 0 }
}

// withoutReady returns endpoints without the ready ones of the addresses that isSurplus reports.
func withoutReady(endpoints []Endpoint, isSurplus func(netip.Addr) bool) []Endpoint {
	return slices.DeleteFunc(slices.Clone(endpoints), func(ep Endpoint) bool { return ep.Ready && isSurplus(ep.Address) })
}

// rankedAddress is an address with its hash, so that its rank does not follow the order of the
// addresses.
type rankedAddress struct {
	hash    uint64
	address netip.Addr
}

// rank returns an address with its hash, FNV-1a, which is the same in all versions.
func rank(address netip.Addr) rankedAddress {
	hash := fnv.New64a()
	_, _ = hash.Write(address.AsSlice()) // never fails
	return rankedAddress{hash.Sum64(), address}
}

func (a rankedAddress) compare(b rankedAddress) int {
	return cmp.Or(cmp.Compare(a.hash, b.hash), a.address.Compare(b.address))
}

// ConditionDrained is the type of the ServiceImport condition that reports whether exporting
// clusters are drained. It is not part of mcs-api.
const ConditionDrained = Domain + "/Drained"

// Reasons of ConditionDrained.
const (
	DrainReasonNone          = "NoneDrained"
	DrainReasonDrained       = "Drained"
	DrainReasonLastEndpoints = "LastEndpointsKept"
)

// ImportDrained returns the ServiceImport condition ConditionDrained. Its message is constant while
// the same clusters are drained with the same decisions.
func ImportDrained(drained []DrainedExport) metav1.Condition {
	c := metav1.Condition{
		Type: ConditionDrained, Status: conditionStatus(len(drained) > 0), Reason: DrainReasonNone, Message: "no exporting cluster is drained",
	}
	if len(drained) == 0 {
		return c
	}
	c.Reason = DrainReasonDrained
	var clusters []string
	for _, d := range drained {
		decision := "endpoints not used"
		switch {
		case d.Kept:
			c.Reason, decision = DrainReasonLastEndpoints, "its last endpoints stay in use"
		case d.Drain.Percent() < 100:
			decision = string(d.Drain) + " of its endpoints not used"
		}
		clusters = append(clusters, fmt.Sprintf("%s (%s)", d.Cluster, decision))
	}
	c.Message = "drained: cluster " + enumerate(clusters)
	if c.Reason == DrainReasonLastEndpoints {
		c.Message += ": no other cluster has ready endpoints for the service, one of its ports or one of its IP families"
	}
	return c
}
