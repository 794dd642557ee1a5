package cloudmaplocal

import (
	"slices"
	"time"
)

// Health statuses, as the API spells them.
const (
	healthy       = "HEALTHY"
	unhealthy     = "UNHEALTHY"
	healthUnknown = "UNKNOWN"
)

// health is an instance's health status and the one that will follow it.
type health struct {
	Status string
	Next   string    `json:",omitempty"`
	NextAt time.Time `json:",omitzero"`
}

// newHealth is that of an instance that was just registered. Without a health check nobody knows. Route 53's health checks
// do not exist here: whatever has one is healthy.
func newHealth(svc *service, attributes map[string]string) health {
	switch {
	case svc.HealthCheck == nil && svc.CustomHealth == nil:
		return health{Status: healthUnknown}
	case attributes[attrInitialHealth] != "":
		return health{Status: attributes[attrInitialHealth]}
	}
	return health{Status: healthy}
}

// at is the status at a time.
func (h *health) at(now time.Time) string {
	if h.Next != "" && !now.Before(h.NextAt) {
		return h.Next
	}
	return h.Status
}

func (r *region) updateCustomHealth(in customHealthInput) (noBody, error) {
	svc, inst, err := r.instance(in.ServiceId, in.InstanceId)
	if err != nil {
		return noBody{}, err
	}
	if err := checkOneOf("Status", in.Status, healthy, unhealthy); err != nil {
		return noBody{}, err
	}
	if svc.CustomHealth == nil {
		return noBody{}, failure("CustomHealthNotFound", "The service %s has no custom health check.", svc.ID)
	}
	inst.Health = health{Status: inst.Health.at(r.now), Next: in.Status, NextAt: r.now.Add(r.opts.HealthDelay)}
	return noBody{}, nil
}

type healthStatusOutput struct {
	NextToken string `json:",omitempty"`
	Status    map[string]string
}

func (r *region) healthStatus(in healthStatusInput) (healthStatusOutput, error) {
	out := healthStatusOutput{Status: map[string]string{}}
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
	ids, out.NextToken, err = page(slices.Compact(ids), func(id string) string { return id }, in.paging)
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
