package instances

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// Exporters is what this cluster knows of the clusters that export a service.
type Exporters struct {
	// Exports are those of all clusters, this one included, with the drains of their clusters, as
	// the clusters signed them.
	Exports []mcs.Export
	// Stale are the clusters without a heartbeat for long enough, Unknown those of which that is
	// not known yet.
	Stale, Unknown []string
	// IsOpen: other clusters may export it too, because not all that they export was read.
	IsOpen bool
}

// staleHealth returns the instances of stale clusters to which policy gives another health than a
// read of the service shows, with that health, sorted by ID. isByAddress reports whether one
// instance may stand for all ports of an address.
//
// The policy is that of imports (mcs.Candidates.WithStale). An endpoint of a live cluster counts as
// ready only if the read shows healthy instances of it, because others are of no use for the
// consumers of the instances. An instance of a stale cluster is concerned only if it shows an
// endpoint that the cluster has signed, and says that the cluster sets its health: otherwise the
// cluster would not restore it.
func staleHealth(e Exporters, policy mcs.StalePolicy, clusterSetID string, isByAddress bool, have []api.Instance) (changes []api.Instance) {
	merged := mcs.Merge(e.Exports)
	candidates := mcs.Candidates{Exports: slices.Clone(e.Exports)}
	shown := make([]shownInstances, len(e.Exports))
	for i, exp := range e.Exports {
		shown[i] = shownOf(have, exp.Cluster, clusterSetID, isByAddress)
		if !slices.Contains(e.Stale, exp.Cluster) {
			candidates.Exports[i] = shown[i].onlyHealthy(exp)
		}
	}
	choice := merged.Choose(candidates.WithStale(slices.Concat(e.Stale, e.Unknown), policy))
	for i, exp := range e.Exports {
		if slices.Contains(e.Stale, exp.Cluster) {
			changes = append(changes, shown[i].changes(exp, merged.Backends(exp), choice.Exports[i].Backends)...)
		}
	}
	slices.SortFunc(changes, func(a, b api.Instance) int { return strings.Compare(a.ID, b.ID) })
	return changes
}

// shownInstances are the instances of one cluster in a read of a service.
type shownInstances struct {
	byID map[string]api.Instance
	// byAddress is nil if each instance stands for one port.
	byAddress map[netip.Addr][]api.Instance
}

// shownOf returns the instances whose health a cluster sets.
func shownOf(have []api.Instance, clusterID, clusterSetID string, isByAddress bool) shownInstances {
	s := shownInstances{byID: map[string]api.Instance{}}
	if isByAddress {
		s.byAddress = map[netip.Addr][]api.Instance{}
	}
	isOf := OwnedBy(clusterID, clusterSetID)
	for _, instance := range have {
		if instance.Health == "" || !isOf(instance.Attributes) || !setsHealth(instance) {
			continue
		}
		s.byID[instance.ID] = instance
		for _, attr := range []string{AttrIPv4, AttrIPv6} {
			if address, err := netip.ParseAddr(instance.Attributes[attr]); err == nil && isByAddress {
				s.byAddress[address] = append(s.byAddress[address], instance)
			}
		}
	}
	return s
}

// setsHealth reports whether the cluster that wrote an instance sets its health.
func setsHealth(instance api.Instance) bool {
	return slices.Contains(strings.Split(instance.Attributes[AttrNames], nameSeparator), api.AttrInitialHealth)
}

// find returns the instance that shows an endpoint's port.
func (s shownInstances) find(address netip.Addr, port mcs.BackendPort) (api.Instance, bool) {
	if instance, ok := s.byID[instanceID(port, address)]; ok {
		return instance, true
	}
	if all := s.byAddress[address]; len(all) == 1 { // several are of one port each
		return all[0], true
	}
	return api.Instance{}, false
}

// onlyHealthy returns exp with those endpoints ready that have healthy instances for all ports.
func (s shownInstances) onlyHealthy(exp mcs.Export) mcs.Export {
	isExposed := func(p mcs.BackendPort) bool {
		return exp.Type == mcsv1beta1.Headless || slices.ContainsFunc(exp.Ports, func(port mcs.Port) bool { return port.Name == p.Name })
	}
	exp.Backends = slices.Clone(exp.Backends)
	for i, group := range exp.Backends {
		exp.Backends[i].Endpoints = slices.Clone(group.Endpoints)
		for j, ep := range group.Endpoints {
			isHealthy := slices.ContainsFunc(group.Ports, isExposed) && !slices.ContainsFunc(group.Ports, func(p mcs.BackendPort) bool {
				instance, ok := s.find(ep.Address, p)
				return isExposed(p) && (!ok || instance.Health != api.HealthHealthy)
			})
			exp.Backends[i].Endpoints[j].Ready = ep.Ready && isHealthy
		}
	}
	return exp
}

// backendUse is a port of an endpoint.
type backendUse struct {
	address  netip.Addr
	protocol corev1.Protocol
	number   int32
}

// changes returns the health of the instances of a stale cluster's export, where it changes. used
// are its backends that clients use, kept those of them that the policy keeps: an instance with one
// of them is as healthy as the cluster has signed, others are unhealthy.
func (s shownInstances) changes(exp mcs.Export, used, kept []mcs.Backends) (changes []api.Instance) {
	isKept := map[backendUse]bool{}
	for use := range eachUse(kept) {
		isKept[use] = true
	}
	health := map[string]string{}
	for use, ep := range eachUse(used) {
		instance, ok := s.find(use.address, mcs.BackendPort{Protocol: use.protocol, Port: use.number})
		switch {
		case !ok:
		case isKept[use] && ep.Ready && exp.Drain.Percent() < 100:
			health[instance.ID] = api.HealthHealthy
		case isKept[use] && health[instance.ID] != api.HealthHealthy:
			health[instance.ID] = "" // the cluster has made it unhealthy
		case !isKept[use]:
			if _, known := health[instance.ID]; !known {
				health[instance.ID] = api.HealthUnhealthy
			}
		}
	}
	return s.differing(health)
}

// differing returns the instances with another health than wanted, with the wanted one. "" is any.
func (s shownInstances) differing(health map[string]string) (changes []api.Instance) {
	for id, want := range health {
		if want != "" && want != s.byID[id].Health {
			changes = append(changes, api.Instance{ID: id, Attributes: s.byID[id].Attributes, Health: want})
		}
	}
	return changes
}

// eachUse yields each port of each endpoint.
func eachUse(backends []mcs.Backends) func(yield func(backendUse, mcs.Endpoint) bool) {
	return func(yield func(backendUse, mcs.Endpoint) bool) {
		for _, group := range backends {
			for _, ep := range group.Endpoints {
				for _, p := range group.Ports {
					if !yield(backendUse{ep.Address, p.Protocol, p.Port}, ep) {
						return
					}
				}
			}
		}
	}
}
