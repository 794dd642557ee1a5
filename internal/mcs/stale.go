package mcs

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// StalePolicy decides about the imported endpoints of a stale cluster, which has sent no heartbeat
// for some time. It is a setting of the importing cluster and concerns only endpoints: the exports
// of the stale cluster still take part in Merge.
type StalePolicy string

const (
	// StaleWithdraw removes them, but not the last endpoints of a service, of one of its ports or
	// of an IP family.
	StaleWithdraw StalePolicy = "withdraw"
	// StaleWithdrawAll removes them, also the last ones.
	StaleWithdrawAll StalePolicy = "withdraw-all"
	// StaleKeep keeps them.
	StaleKeep StalePolicy = "keep"
)

// StalePolicies returns all policies.
func StalePolicies() []string {
	return []string{string(StaleWithdraw), string(StaleWithdrawAll), string(StaleKeep)}
}

// StaleRule is a policy and the time without a heartbeat after which it applies.
type StaleRule struct {
	Policy StalePolicy
	After  time.Duration
}

// StaleExport is the decision about the endpoints of one stale cluster.
type StaleExport struct {
	Cluster string
	// Kept reports whether at least one of its endpoints is still used.
	Kept bool
}

// WithoutStale returns a copy of exports, from which m was merged, with the endpoints that the
// policy keeps, and the decision about each stale cluster among them.
//
// For a clusterset IP, each pair of port and family is decided separately: a stale endpoint stays
// in use for the ports for which no live cluster has a ready endpoint. Clients of a headless
// service use addresses with any port, so a ready endpoint of a live cluster replaces all stale
// ones of its family.
func (m Merged) WithoutStale(exports []Export, stale []string, policy StalePolicy) ([]Export, []StaleExport) {
	choice := m.Choose(Candidates{Exports: exports}.WithStale(stale, policy))
	return choice.Exports, choice.StaleExports(stale)
}

// WithStale returns c with the stale clusters where policy puts them.
func (c Candidates) WithStale(stale []string, policy StalePolicy) Candidates {
	switch policy {
	case StaleKeep:
	case StaleWithdrawAll:
		c.Excluded = slices.Concat(c.Excluded, stale)
	default:
		c.Reserve = slices.Concat(c.Reserve, stale)
	}
	return c
}

// StaleExports returns the decision about each stale cluster among the exports.
func (c Choice) StaleExports(stale []string) []StaleExport {
	var out []StaleExport
	for _, e := range c.Exports {
		if slices.Contains(stale, e.Cluster) {
			out = append(out, StaleExport{Cluster: e.Cluster, Kept: slices.Contains(c.Remaining, e.Cluster)})
		}
	}
	return out
}

// use is a use that clients have for an endpoint: a port in a family, or for a headless service
// only the family.
type use struct {
	port string
	ipv4 bool
}

// servedUses returns the uses for which exports have a ready endpoint.
func (m Merged) servedUses(exports []Export) map[use]bool {
	out := map[use]bool{}
	for _, e := range exports {
		for _, b := range m.Backends(e) {
			for _, ep := range b.Endpoints {
				if !ep.Ready {
					continue
				}
				ipv4 := ep.Address.Is4()
				if m.Type == mcsv1beta1.Headless {
					out[use{ipv4: ipv4}] = true
					continue
				}
				for _, p := range b.Ports {
					out[use{port: p.Name, ipv4: ipv4}] = true
				}
			}
		}
	}
	return out
}

// IsServed reports whether exports have a ready endpoint for every use that clients have for the
// service: each port in each of its IP families. Clients of a headless service use all addresses
// that they find, whatever its IP families are, so there it is each family in which lost, the
// exports that are to be replaced, have a ready endpoint.
func (m Merged) IsServed(exports, lost []Export) bool {
	served := m.servedUses(exports)
	if m.Type == mcsv1beta1.Headless {
		return !isMissingAny(served, m.servedUses(lost))
	}
	for _, family := range m.IPFamilies {
		for _, p := range m.Ports {
			if !served[use{port: p.Name, ipv4: family == corev1.IPv4Protocol}] {
				return false
			}
		}
	}
	return len(m.IPFamilies) > 0
}

// backendsWithout returns the backends of e for the uses that are not in without.
func (m Merged) backendsWithout(e Export, without map[use]bool) []Backends {
	return m.backendsOf(e, func(u use) bool { return !without[u] })
}

// backendsOf returns the backends of e for the uses that are wanted.
func (m Merged) backendsOf(e Export, isWanted func(use) bool) []Backends {
	names := m.portNames(e)
	var out []Backends
	for _, b := range e.Backends {
		for _, ipv4 := range []bool{true, false} {
			family := Backends{Endpoints: slices.DeleteFunc(slices.Clone(b.Endpoints), func(ep Endpoint) bool { return ep.Address.Is4() != ipv4 })}
			if m.Type == mcsv1beta1.Headless {
				if isWanted(use{ipv4: ipv4}) {
					family.Ports = b.Ports
					out = append(out, family)
				}
				continue
			}
			for _, p := range b.Ports {
				if name, used := names[p.Name]; used && isWanted(use{port: name, ipv4: ipv4}) {
					family.Ports = append(family.Ports, p)
				}
			}
			if len(family.Ports) > 0 {
				out = append(out, family)
			}
		}
	}
	return out
}

// ConditionStale is the type of the ServiceImport condition that reports whether exporting clusters
// are stale in this cluster. It is not part of mcs-api.
const ConditionStale = Domain + "/Stale"

// Reasons of ConditionStale.
const (
	StaleReasonNone          = "NoneStale"
	StaleReasonWithdrawn     = "Withdrawn"
	StaleReasonLastEndpoints = "LastEndpointsKept"
	StaleReasonKept          = "Kept"
)

// ImportStale returns the ServiceImport condition ConditionStale. Its message is constant while the
// same clusters are stale with the same decisions.
func ImportStale(staleExports []StaleExport, rule StaleRule) metav1.Condition {
	c := metav1.Condition{
		Type: ConditionStale, Status: conditionStatus(len(staleExports) > 0), Reason: StaleReasonNone,
		Message: "all exporting clusters send heartbeats",
	}
	if len(staleExports) == 0 {
		return c
	}
	var clusters []string
	kept := false
	for _, e := range staleExports {
		decision := "endpoints withdrawn"
		if e.Kept {
			decision, kept = "endpoints kept", true
		}
		clusters = append(clusters, fmt.Sprintf("%s (%s)", e.Cluster, decision))
	}
	c.Message = fmt.Sprintf("no heartbeat for more than %s from cluster %s", rule.After, enumerate(clusters))
	switch {
	case rule.Policy == StaleKeep:
		c.Reason = StaleReasonKept
		c.Message += ": --stale-cluster-policy=" + string(StaleKeep)
	case kept:
		c.Reason = StaleReasonLastEndpoints
		c.Message += ": no other cluster has ready endpoints for the service, one of its ports or one of its IP families"
	default:
		c.Reason = StaleReasonWithdrawn
	}
	return c
}
