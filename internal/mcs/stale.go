package mcs

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// StalePolicy says what becomes of the imported endpoints of a cluster that is stale: it has shown no sign of life for a
// time. It is the importing cluster's own, and only about endpoints: what the cluster exported still takes part in Merge.
type StalePolicy string

const (
	// StaleWithdraw takes them away where others are left: never the last ones of a service, of one of its ports or of an IP
	// family.
	StaleWithdraw StalePolicy = "withdraw"
	// StaleWithdrawAll takes them away, the last ones too.
	StaleWithdrawAll StalePolicy = "withdraw-all"
	// StaleKeep leaves them where they are.
	StaleKeep StalePolicy = "keep"
)

// StalePolicies are all there are.
func StalePolicies() []string {
	return []string{string(StaleWithdraw), string(StaleWithdrawAll), string(StaleKeep)}
}

// StaleRule is a policy and the time without a sign of life after which it applies.
type StaleRule struct {
	Policy StalePolicy
	After  time.Duration
}

// StaleExport says what became of the endpoints of one stale cluster.
type StaleExport struct {
	Cluster string
	// Kept says that at least one of them is still used for something.
	Kept bool
}

// WithoutStale is exports, those that m was made of, with the endpoints that the policy leaves, and what became of each of
// the stale clusters among them. exports are not changed.
//
// Of a clusterset IP's ports each is judged by itself, in each family: a stale endpoint stays in use for just the ports that
// no cluster which lives has a ready endpoint for. Headless clients get addresses, whatever port they connect to, so there a
// ready endpoint that lives replaces all stale ones of its family.
func (m Merged) WithoutStale(exports []Export, stale []string, policy StalePolicy) ([]Export, []StaleExport) {
	var fates []StaleExport
	out := slices.Clone(exports)
	live := m.served(slices.DeleteFunc(slices.Clone(exports), func(e Export) bool { return slices.Contains(stale, e.Cluster) }))
	for i, e := range out {
		if !slices.Contains(stale, e.Cluster) {
			continue
		}
		switch policy {
		case StaleKeep:
		case StaleWithdrawAll:
			out[i].Backends = nil
		default:
			out[i].Backends = m.lastOf(e, live)
		}
		fates = append(fates, StaleExport{Cluster: e.Cluster, Kept: out[i].EndpointCount() > 0})
	}
	return out, fates
}

// use is what clients can use an endpoint for: a port in a family, or, headless, just the family.
type use struct {
	port string
	ipv4 bool
}

// served is all that has a ready endpoint in exports.
func (m Merged) served(exports []Export) map[use]bool {
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

// lastOf are the backends of e for what live does not serve.
func (m Merged) lastOf(e Export, live map[use]bool) []Backends {
	names := m.portNames(e)
	var out []Backends
	for _, b := range e.Backends {
		for _, ipv4 := range []bool{true, false} {
			family := Backends{Endpoints: slices.DeleteFunc(slices.Clone(b.Endpoints), func(ep Endpoint) bool { return ep.Address.Is4() != ipv4 })}
			if m.Type == mcsv1beta1.Headless {
				if !live[use{ipv4: ipv4}] {
					family.Ports = b.Ports
					out = append(out, family)
				}
				continue
			}
			for _, p := range b.Ports {
				if name, used := names[p.Name]; used && !live[use{port: name, ipv4: ipv4}] {
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

// ConditionStale is the type of the ServiceImport condition that says whether clusters that export the service are stale
// here. It is our own.
const ConditionStale = "multicluster.k8s.aws/Stale"

// Reasons of ConditionStale.
const (
	StaleReasonNone          = "NoneStale"
	StaleReasonWithdrawn     = "Withdrawn"
	StaleReasonLastEndpoints = "LastEndpointsKept"
	StaleReasonKept          = "Kept"
)

// ImportStale is that condition. Its text does not change while the same clusters are stale and the same is done about it.
func ImportStale(fates []StaleExport, rule StaleRule) metav1.Condition {
	c := metav1.Condition{
		Type: ConditionStale, Status: status(len(fates) > 0), Reason: StaleReasonNone,
		Message: "every cluster that exports the service shows signs of life",
	}
	if len(fates) == 0 {
		return c
	}
	var clusters []string
	kept := false
	for _, f := range fates {
		fate := "endpoints withdrawn"
		if f.Kept {
			fate, kept = "endpoints kept", true
		}
		clusters = append(clusters, fmt.Sprintf("%s (%s)", f.Cluster, fate))
	}
	c.Message = fmt.Sprintf("no sign of life for more than %s from cluster %s", rule.After, enumerate(clusters))
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
