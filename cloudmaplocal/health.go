package cloudmaplocal

import (
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// Health statuses, as the API spells them.
const (
	healthy       = "HEALTHY"
	unhealthy     = "UNHEALTHY"
	healthUnknown = "UNKNOWN"
)

// health is an instance's health status and the next one.
type health struct {
	Status string
	Next   string    `json:",omitempty"`
	NextAt time.Time `json:",omitzero"`
}

// newHealth returns the health of a newly registered instance. Without a health check it is unknown. Route 53 health
// checks do not exist here: instances with one are healthy.
func newHealth(svc *service, attributes map[string]string) health {
	switch {
	case svc.HealthCheck == nil && svc.CustomHealth == nil:
		return health{Status: healthUnknown}
	case attributes[attrInitialHealth] != "":
		return health{Status: attributes[attrInitialHealth]}
	}
	return health{Status: healthy}
}

// at returns the status at a time.
func (h *health) at(now time.Time) string {
	if h.Next != "" && !now.Before(h.NextAt) {
		return h.Next
	}
	return h.Status
}

func (r *region) updateCustomHealth(in wire.CustomHealthInput) (wire.NoBody, error) {
	svc, inst, err := r.instance(in.ServiceId, in.InstanceId)
	if err != nil {
		return wire.NoBody{}, err
	}
	if err := checkOneOf("Status", in.Status, healthy, unhealthy); err != nil {
		return wire.NoBody{}, err
	}
	if svc.CustomHealth == nil {
		return wire.NoBody{}, failure("CustomHealthNotFound", "The service %s has no custom health check.", svc.ID)
	}
	inst.Health = health{Status: inst.Health.at(r.now), Next: in.Status, NextAt: r.now.Add(r.opts.HealthDelay)}
	return wire.NoBody{}, nil
}

func (r *region) healthStatus(in wire.HealthStatusInput) (wire.HealthStatusOutput, error) {
	out := wire.HealthStatusOutput{Status: map[string]string{}}
	svc, err := r.service("ServiceId", in.ServiceId)
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
		out.Status[id] = inst.Health.at(r.now)
	}
	return out, nil
}
