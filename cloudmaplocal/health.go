package cloudmaplocal

import (
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

func (h instanceHandler) updateCustomHealth(in wire.CustomHealthInput) (wire.EmptyBody, error) {
	svc, inst, err := h.findInstance(in.ServiceId, in.InstanceId)
	if err != nil {
		return wire.EmptyBody{}, err
	}
	if err := checkOneOf("Status", in.Status, healthy, unhealthy); err != nil {
		return wire.EmptyBody{}, err
	}
	if svc.CustomHealth == nil {
		return wire.EmptyBody{}, failure("CustomHealthNotFound", "The service %s has no custom health check.", svc.ID)
	}
	inst.Health = health{Status: inst.Health.at(h.now), Next: in.Status, NextAt: h.now.Add(time.Duration(h.opts.Behaviors.HealthDelay))}
	return wire.EmptyBody{}, nil
}

func (h instanceHandler) healthStatus(in wire.HealthStatusInput) (wire.HealthStatusOutput, error) {
	out := wire.HealthStatusOutput{Status: map[string]string{}}
	svc, err := h.findService("ServiceId", in.ServiceId)
	if err != nil {
		return out, err
	}
	ids := slices.Clone(in.Instances)
	if in.Instances == nil {
		ids = sortedKeys(svc.Instances)
	} else if len(ids) == 0 {
		return out, invalidInput("Instances: must not be empty when given")
	}
	slices.Sort(ids)
	ids, out.NextToken, err = page(slices.Compact(ids), func(id string) string { return id }, in.Paging)
	if err != nil {
		return out, err
	}
	for _, id := range ids {
		inst := svc.Instances[id]
		if inst == nil {
			return out, instanceNotFound(svc.ID, id)
		}
		out.Status[id] = inst.Health.at(h.now)
	}
	return out, nil
}
