package cloudmaplocal

import (
	"cmp"
	"encoding/json"
	"math/rand/v2"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// discoveryHandler has the operations on instances by the names of services.
type discoveryHandler struct{ *apiCall }

// Values of HealthStatus that only DiscoverInstances accepts, in addition to those of an instance.
const (
	filterAll              = "ALL"
	filterHealthyOrElseAll = "HEALTHY_OR_ELSE_ALL"
)

// discoverInstances reads the replica. There is no second page: with more than MaxResults instances
// the answer is a random choice.
func (h discoveryHandler) discoverInstances(in wire.DiscoverInput) (wire.DiscoverOutput, error) {
	in.HealthStatus = cmp.Or(in.HealthStatus, filterHealthyOrElseAll)
	if err := cmp.Or(checkCount("MaxResults", in.MaxResults, maxDiscovered),
		checkOneOf("HealthStatus", in.HealthStatus, healthy, unhealthy, filterAll, filterHealthyOrElseAll)); err != nil {
		return wire.DiscoverOutput{}, err
	}
	svc, err := h.findDiscoverable(in.NamespaceName, in.ServiceName, in.OwnerAccount)
	if err != nil {
		return wire.DiscoverOutput{}, err
	}
	limit := defaultDiscovered
	if in.MaxResults != nil {
		limit = *in.MaxResults
	}
	found := h.filterInstances(svc, in)
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	found = found[:min(limit, len(found))]
	shown := mapSlice(found, func(inst *instance) wire.DiscoveredInstance {
		return wire.DiscoveredInstance{
			Attributes: inst.encoded, HealthStatus: inst.Health.at(h.now), InstanceId: inst.ID,
			NamespaceName: in.NamespaceName, ServiceName: svc.name.name,
		}
	})
	return wire.DiscoverOutput{
		InstancesRevision: h.req.fault.visibleRevision(svc, h.now), Instances: firstThatFit(shown, h.opts.Behaviors.MaxAnswerBytes),
	}, nil
}

// firstThatFit returns the first instances whose JSON fits into a number of bytes; 0 is no limit.
func firstThatFit(all []wire.DiscoveredInstance, limit int) []wire.DiscoveredInstance {
	if limit == 0 {
		return all
	}
	size := 0
	for i, inst := range all {
		raw, _ := json.Marshal(inst) // strings always can
		if size += len(raw); size > limit {
			return all[:i]
		}
	}
	return all
}

func (h discoveryHandler) discoverRevision(in wire.DiscoverInput) (wire.RevisionOutput, error) {
	svc, err := h.findDiscoverable(in.NamespaceName, in.ServiceName, in.OwnerAccount)
	if err != nil {
		return wire.RevisionOutput{}, err
	}
	return wire.RevisionOutput{InstancesRevision: h.req.fault.visibleRevision(svc, h.now)}, nil
}

// findDiscoverable finds a service by the names of the data plane. A service that is not shared
// with the caller is not found.
func (h discoveryHandler) findDiscoverable(namespace, service, owner string) (*replicaService, error) {
	if err := cmp.Or(namespaceNameText.check(namespace), (textConstraint{"ServiceName", 1, maxServiceNameLen, nil}).check(service)); err != nil {
		return nil, err
	}
	if !h.isOwnerAccount(owner) {
		return nil, namespaceNotFound(namespace)
	}
	if ns := h.store.namespaces[h.replica.namespaces[namespace]]; ns != nil && !h.isVisible(ns) {
		return nil, namespaceNotFound(namespace)
	}
	svc, err := h.replica.findService(namespace, service)
	if err == nil && h.req.fault.isHidden(svc, h.now) {
		return nil, serviceNotFound(service)
	}
	return svc, err
}

// filterInstances applies the filters: QueryParameters, then the health status, then
// OptionalParameters if any instance matches them.
func (h discoveryHandler) filterInstances(svc *replicaService, in wire.DiscoverInput) []*instance {
	found := make([]*instance, 0, len(svc.instances))
	for _, inst := range h.req.fault.visibleInstances(svc, h.now) {
		if inst.hasAttributes(in.QueryParameters) {
			found = append(found, inst)
		}
	}
	found = h.filterByHealth(found, in.HealthStatus)
	return nonEmptyOr(filterSlice(found, func(inst *instance) bool { return inst.hasAttributes(in.OptionalParameters) }), found)
}

// filterByHealth returns the instances with a health status. Instances without a health check match
// every status.
func (h discoveryHandler) filterByHealth(all []*instance, status string) []*instance {
	is := func(wanted string) []*instance {
		return filterSlice(all, func(inst *instance) bool {
			have := inst.Health.at(h.now)
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
