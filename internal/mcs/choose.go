package mcs

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Candidates is the input of Choose: the exports that a service was merged from, and every reason
// to prefer or avoid the endpoints of a cluster.
//
// Each reason to avoid the endpoints of a cluster in this cluster is an input here: a stale cluster
// is in Reserve or Excluded, depending on the policy. A cluster that cannot be reached belongs
// there as well. A drained cluster works, and is used before those.
type Candidates struct {
	Exports []Export
	// Reserve are the clusters whose endpoints are used for a port and family only if no other
	// cluster has a ready one. Excluded are the clusters whose endpoints are not used at all.
	Reserve, Excluded []string
	// Drains are the drained clusters.
	Drains map[string]Drain
	// Tiers are the results of the cluster selectors, best first. After the last one come all
	// clusters.
	Tiers []Tier
	// MinimumReady is the percentage of a tier's endpoints that must be ready or serving; 0 is one
	// endpoint.
	MinimumReady int32
}

// Choice is the result of Choose.
type Choice struct {
	// Exports are the exports with the chosen endpoints only.
	Exports []Export
	// Remaining are the clusters that have endpoints before the tiers are chosen. Drained are the
	// decisions about Drains.
	Remaining []string
	Drained   []DrainedExport
	// Served has the tier of each port and family, in the order of the ports and families of the
	// service. It is nil without tiers.
	Served []ServedUse
}

// ServedUse is the tier that serves a port in a family.
type ServedUse struct {
	Port   string
	Family corev1.IPFamily
	// Tier is an index of Tiers, or their number if all clusters serve.
	Tier int
	// Ready reports whether there is an endpoint that is ready or serving.
	Ready bool
}

// Choose decides which endpoints of the exports an importer uses. Each use, which is a port in a
// family, is decided separately and in three steps. First, the endpoints of clusters in Reserve are
// withdrawn if another cluster has a ready one. Second, the endpoints of drained clusters are
// withdrawn if a cluster that is not drained has a ready one. Third, of the remaining clusters the
// first tier with a ready or serving endpoint serves alone (KEP-5939); without such a tier, all
// remaining clusters serve. So a use that has a ready endpoint outside of Excluded and of forced
// drains has one after Choose.
//
// Tiers do not apply to headless services, whose clients use the addresses of all clusters, and not
// with internalTrafficPolicy Local: then the endpoints of other clusters are never eligible, so no
// tier could do anything but take away the local ones.
func (m Merged) Choose(c Candidates) Choice {
	out := Choice{Exports: slices.Clone(c.Exports)}
	for i, e := range out.Exports {
		if slices.Contains(c.Excluded, e.Cluster) || c.Drains[e.Cluster] == DrainForced {
			out.Exports[i].Backends = nil
		}
	}
	if len(c.Reserve) > 0 {
		others := slices.DeleteFunc(slices.Clone(out.Exports), func(e Export) bool { return slices.Contains(c.Reserve, e.Cluster) })
		served := m.servedUses(others)
		for i, e := range out.Exports {
			if slices.Contains(c.Reserve, e.Cluster) {
				out.Exports[i].Backends = m.backendsWithout(e, served)
			}
		}
	}
	if len(c.Drains) > 0 {
		m.drain(&out, c.Drains)
	}
	for _, e := range out.Exports {
		if e.EndpointCount() > 0 {
			out.Remaining = append(out.Remaining, e.Cluster)
		}
	}
	if len(c.Tiers) > 0 && m.usesTiers() {
		m.chooseTiers(&out, c)
	}
	return out
}

// usesTiers reports whether tiers apply to the service.
func (m Merged) usesTiers() bool {
	return m.Type == mcsv1beta1.ClusterSetIP && m.InternalTrafficPolicy != corev1.ServiceInternalTrafficPolicyLocal
}

// chooseTiers leaves in each use only the endpoints of the tier that serves it.
func (m Merged) chooseTiers(out *Choice, c Candidates) {
	counts := make([]map[use]tally, len(out.Exports))
	for i, e := range out.Exports {
		counts[i] = m.tallies(e)
	}
	without := make([]map[use]bool, len(out.Exports))
	families := m.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	for _, p := range m.Ports {
		for _, family := range families {
			u := use{port: p.Name, ipv4: family == corev1.IPv4Protocol}
			tier, ready := firstTier(out.Exports, counts, c, u)
			out.Served = append(out.Served, ServedUse{Port: p.Name, Family: family, Tier: tier, Ready: ready})
			if tier == len(c.Tiers) {
				continue
			}
			for i, e := range out.Exports {
				if !slices.Contains(c.Tiers[tier].Clusters, e.Cluster) && counts[i][u].known > 0 {
					if without[i] == nil {
						without[i] = map[use]bool{}
					}
					without[i][u] = true
				}
			}
		}
	}
	for i, e := range out.Exports {
		if len(without[i]) > 0 {
			out.Exports[i].Backends = m.backendsWithout(e, without[i])
		}
	}
}

// tally counts the endpoints of one cluster for one use. usable are those that are ready or
// serving.
type tally struct{ known, usable int }

func (m Merged) tallies(e Export) map[use]tally {
	out := map[use]tally{}
	for _, b := range m.Backends(e) {
		for _, ep := range b.Endpoints {
			for _, p := range b.Ports {
				u := use{port: p.Name, ipv4: ep.Address.Is4()}
				t := out[u]
				t.known++
				if ep.Ready || ep.Serving {
					t.usable++
				}
				out[u] = t
			}
		}
	}
	return out
}

// firstTier returns the first tier that has enough endpoints for u, or the number of tiers. ready
// reports whether any cluster has one.
func firstTier(exports []Export, counts []map[use]tally, c Candidates, u use) (tier int, ready bool) {
	for i := range exports {
		ready = ready || counts[i][u].usable > 0
	}
	for i, t := range c.Tiers {
		var sum tally
		for j, e := range exports {
			if slices.Contains(t.Clusters, e.Cluster) {
				sum.known += counts[j][u].known
				sum.usable += counts[j][u].usable
			}
		}
		if sum.usable > 0 && sum.usable*100 >= sum.known*int(c.MinimumReady) {
			return i, ready
		}
	}
	return len(c.Tiers), ready
}
