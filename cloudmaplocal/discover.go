package cloudmaplocal

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Values of HealthStatus in DiscoverInstances besides those of an instance.
const (
	filterAll              = "ALL"
	filterHealthyOrElseAll = "HEALTHY_OR_ELSE_ALL"
)

// discoverInstances reads the replica. There is no second page: who has more than MaxResults gets a random choice.
func (r *region) discoverInstances(in discoverInput) (discoverOutput, error) {
	in.HealthStatus = cmp.Or(in.HealthStatus, filterHealthyOrElseAll)
	if err := cmp.Or(checkCount("MaxResults", in.MaxResults, maxDiscovered),
		checkOneOf("HealthStatus", in.HealthStatus, healthy, unhealthy, filterAll, filterHealthyOrElseAll)); err != nil {
		return discoverOutput{}, err
	}
	svc, err := r.discoverable(in.NamespaceName, in.ServiceName, in.OwnerAccount)
	if err != nil {
		return discoverOutput{}, err
	}
	limit := defaultDiscovered
	if in.MaxResults != nil {
		limit = *in.MaxResults
	}
	found := r.choose(svc, in)
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	found = found[:min(limit, len(found))]
	return discoverOutput{InstancesRevision: r.req.fault.revision(svc, r.now), Instances: mapSlice(found, func(inst *instance) discoveredInstance {
		return discoveredInstance{
			Attributes: inst.encoded, HealthStatus: inst.Health.at(r.now), InstanceId: inst.ID,
			NamespaceName: in.NamespaceName, ServiceName: svc.name.name,
		}
	})}, nil
}

func (r *region) discoverRevision(in discoverInput) (revisionOutput, error) {
	svc, err := r.discoverable(in.NamespaceName, in.ServiceName, in.OwnerAccount)
	if err != nil {
		return revisionOutput{}, err
	}
	return revisionOutput{InstancesRevision: r.req.fault.revision(svc, r.now)}, nil
}

// discoverable finds a service by the names that the data plane uses. What is not shared looks as if it were not there.
func (r *region) discoverable(namespace, service, owner string) (*replicaService, error) {
	if err := cmp.Or(namespaceNameText.check(namespace), (text{"ServiceName", 1, maxServiceNameLen, nil}).check(service)); err != nil {
		return nil, err
	}
	if !r.owns(owner) {
		return nil, namespaceNotFound(namespace)
	}
	if ns := r.namespaces[r.replica.namespaces[namespace]]; ns != nil && !r.shows(ns) {
		return nil, namespaceNotFound(namespace)
	}
	svc, err := r.replica.find(namespace, service)
	if err == nil && r.req.fault.hides(svc, r.now) {
		return nil, serviceNotFound(service)
	}
	return svc, err
}

// choose applies the filters: QueryParameters must match, then the health, then OptionalParameters if that leaves any.
func (r *region) choose(svc *replicaService, in discoverInput) []*instance {
	found := make([]*instance, 0, len(svc.instances))
	for _, inst := range r.req.fault.instances(svc, r.now) {
		if inst.has(in.QueryParameters) {
			found = append(found, inst)
		}
	}
	found = r.ofHealth(found, in.HealthStatus)
	return orElse(filterSlice(found, func(inst *instance) bool { return inst.has(in.OptionalParameters) }), found)
}

// ofHealth is the instances of a health status. Without a health check the status is unknown and the filter ignored.
func (r *region) ofHealth(all []*instance, status string) []*instance {
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
		return orElse(is(healthy), all)
	}
	return is(status)
}

// has reports whether the instance has all these attributes.
func (inst *instance) has(wanted map[string]string) bool {
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

func orElse[T any](items, fallback []T) []T {
	if len(items) == 0 {
		return fallback
	}
	return items
}
