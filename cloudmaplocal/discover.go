package cloudmaplocal

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// Values of HealthStatus that only DiscoverInstances accepts, in addition to those of an instance.
const (
	filterAll              = "ALL"
	filterHealthyOrElseAll = "HEALTHY_OR_ELSE_ALL"
)

// discoverInstances reads the replica. There is no second page: with more than MaxResults instances the answer is a
// random choice.
func (r *region) discoverInstances(in wire.DiscoverInput) (wire.DiscoverOutput, error) {
	in.HealthStatus = cmp.Or(in.HealthStatus, filterHealthyOrElseAll)
	if err := cmp.Or(checkCount("MaxResults", in.MaxResults, maxDiscovered),
		checkOneOf("HealthStatus", in.HealthStatus, healthy, unhealthy, filterAll, filterHealthyOrElseAll)); err != nil {
		return wire.DiscoverOutput{}, err
	}
	svc, err := r.findDiscoverable(in.NamespaceName, in.ServiceName, in.OwnerAccount)
	if err != nil {
		return wire.DiscoverOutput{}, err
	}
	limit := defaultDiscovered
	if in.MaxResults != nil {
		limit = *in.MaxResults
	}
	found := r.filterInstances(svc, in)
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	found = found[:min(limit, len(found))]
	return wire.DiscoverOutput{InstancesRevision: r.req.fault.visibleRevision(svc, r.now), Instances: mapSlice(found, func(inst *instance) wire.DiscoveredInstance {
		return wire.DiscoveredInstance{
			Attributes: inst.encoded, HealthStatus: inst.Health.at(r.now), InstanceId: inst.ID,
			NamespaceName: in.NamespaceName, ServiceName: svc.name.name,
		}
	})}, nil
}

func (r *region) discoverRevision(in wire.DiscoverInput) (wire.RevisionOutput, error) {
	svc, err := r.findDiscoverable(in.NamespaceName, in.ServiceName, in.OwnerAccount)
	if err != nil {
		return wire.RevisionOutput{}, err
	}
	return wire.RevisionOutput{InstancesRevision: r.req.fault.visibleRevision(svc, r.now)}, nil
}

// findDiscoverable finds a service by the names of the data plane. A service that is not shared with the caller is not
// found.
func (r *region) findDiscoverable(namespace, service, owner string) (*replicaService, error) {
	if err := cmp.Or(namespaceNameText.check(namespace), (text{"ServiceName", 1, maxServiceNameLen, nil}).check(service)); err != nil {
		return nil, err
	}
	if !r.isOwnerAccount(owner) {
		return nil, namespaceNotFound(namespace)
	}
	if ns := r.namespaces[r.replica.namespaces[namespace]]; ns != nil && !r.isVisible(ns) {
		return nil, namespaceNotFound(namespace)
	}
	svc, err := r.replica.find(namespace, service)
	if err == nil && r.req.fault.isHidden(svc, r.now) {
		return nil, serviceNotFound(service)
	}
	return svc, err
}

// filterInstances applies the filters: QueryParameters, then the health status, then OptionalParameters if any instance
// matches them.
func (r *region) filterInstances(svc *replicaService, in wire.DiscoverInput) []*instance {
	found := make([]*instance, 0, len(svc.instances))
	for _, inst := range r.req.fault.visibleInstances(svc, r.now) {
		if inst.hasAttributes(in.QueryParameters) {
			found = append(found, inst)
		}
	}
	found = r.filterByHealth(found, in.HealthStatus)
	return nonEmptyOr(filterSlice(found, func(inst *instance) bool { return inst.hasAttributes(in.OptionalParameters) }), found)
}

// filterByHealth returns the instances with a health status. Instances without a health check match every status.
func (r *region) filterByHealth(all []*instance, status string) []*instance {
	is := func(wanted string) []*instance {
		return filterSlice(all, func(inst *instance) bool {
			have := inst.Health.at(r.now)
			return have == wanted || have == healthUnknown
		})
	}
	switch status {
	case filterAll:
		return all
	case filterHealthyOrElseAll:
		return nonEmptyOr(is(healthy), all)
	}
	return is(status)
}

// hasAttributes reports whether the instance has all these attributes.
func (inst *instance) hasAttributes(wanted map[string]string) bool {
	for key, value := range wanted {
		if have, set := inst.Attributes[key]; !set || have != value {
			return false
		}
	}
	return true
}

func filterSlice[T any](items []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(items), func(item T) bool { return !keep(item) })
}

func nonEmptyOr[T any](items, fallback []T) []T {
	if len(items) == 0 {
		return fallback
	}
	return items
}
