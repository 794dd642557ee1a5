package cloudmaplocal

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// instanceHandler has the operations on instances and their health.
type instanceHandler struct{ *apiCall }

func (h instanceHandler) registerInstance(in wire.RegisterInstanceInput) (wire.OperationStarted, error) {
	svc, err := h.findService("ServiceId", in.ServiceId)
	if err != nil {
		return h.registerNowhere(in, err)
	}
	if in.Attributes == nil {
		return wire.OperationStarted{}, invalidInput("Attributes: must not be empty")
	}
	ns := h.store.namespaceOf(svc)
	if err := cmp.Or(instanceIDText.check(in.InstanceId), requestIDText.check(in.CreatorRequestId),
		checkInstanceAttributes(in.Attributes), checkAttributesFor(svc, ns.Kind, in.Attributes), checkInstanceIDFor(svc, in.InstanceId)); err != nil {
		return wire.OperationStarted{}, err
	}
	inst := &instance{
		ID: in.InstanceId, Attributes: withEC2Address(in.Attributes), CreatorRequestID: in.CreatorRequestId, CreatedBy: h.recordedCreator(),
		Health: newHealth(svc, in.Attributes),
	}
	if existing := svc.Instances[in.InstanceId]; existing != nil && existing.isSameRequest(inst) {
		return wire.OperationStarted{OperationId: existing.OperationID}, nil
	}
	return started(h.submitRegistration(ns, svc, inst))
}

// registerNowhere answers a registration in a service that is not found.
func (h instanceHandler) registerNowhere(in wire.RegisterInstanceInput, notFound error) (wire.OperationStarted, error) {
	id := h.store.resourceID("service", in.ServiceId)
	if h.opts.Behaviors.MissingService == MissingRefuse || id == "" || h.store.services[id] != nil {
		return wire.OperationStarted{}, notFound
	}
	if err := instanceIDText.check(in.InstanceId); err != nil {
		return wire.OperationStarted{}, err
	}
	return started(h.submitOperation(&operation{
		Type: opRegisterInstance, CreatorRequestID: in.CreatorRequestId,
		Fails:   &operationError{Code: opInternal, Message: notFound.Error()},
		Targets: map[string]string{targetService: id, targetInstance: in.InstanceId},
	}))
}

// withEC2Address returns the attributes with the address of an instance that is registered by the
// ID of an EC2 instance. AWS fills in the primary private IPv4 address. There are no EC2 instances
// here, so it is an address in 10.0.0.0/8 that depends on the ID alone.
func withEC2Address(attributes map[string]string) map[string]string {
	id := attributes[attrEC2]
	if id == "" {
		return attributes
	}
	hash := hashOf(id)
	filled := maps.Clone(attributes)
	filled[attrIPv4] = netip.AddrFrom4([4]byte{10, byte(hash >> 16), byte(hash >> 8), 1 + byte(hash%254)}).String()
	return filled
}

// newHealth returns the health of a newly registered instance. Without a health check it is
// unknown. Route 53 health checks do not exist here: instances with one are healthy.
func newHealth(svc *service, attributes map[string]string) health {
	switch {
	case svc.HealthCheck == nil && svc.CustomHealth == nil:
		return health{Status: healthUnknown}
	case attributes[attrInitialHealth] != "":
		return health{Status: attributes[attrInitialHealth]}
	}
	return health{Status: healthy}
}

// submitRegistration submits the registration if the quotas allow it. An instance counts from here
// on, so that registrations in flight cannot exceed the quotas.
func (h instanceHandler) submitRegistration(ns *namespace, svc *service, inst *instance) (string, error) {
	op := &operation{
		Type: opRegisterInstance, Instance: inst, CreatorRequestID: inst.CreatorRequestID,
		Targets: map[string]string{targetService: svc.ID, targetInstance: inst.ID},
	}
	isNew := svc.Instances[inst.ID] == nil && h.operations.inFlightByTarget[op.targetKey()] == nil
	switch {
	case isNew && svc.reservedInstances >= maxInstancesPerService:
		return "", limitExceeded("The service %s has %d instances; a service can have %d.", svc.ID, svc.reservedInstances, maxInstancesPerService)
	case isNew && ns.reservedInstances >= h.opts.InstancesPerNamespace:
		return "", limitExceeded("The namespace %s has %d instances; its quota is %d.", ns.ID, ns.reservedInstances, h.opts.InstancesPerNamespace)
	}
	id, err := h.submitOperation(op)
	if err != nil || id != op.ID {
		return id, err
	}
	svc.inFlight++
	if isNew {
		h.store.reserveInstance(svc)
	}
	return id, nil
}

func (h instanceHandler) deregisterInstance(in wire.InstanceInput) (wire.OperationStarted, error) {
	svc, err := h.findService("ServiceId", in.ServiceId)
	if err != nil {
		return wire.OperationStarted{}, err
	}
	if err := instanceIDText.check(in.InstanceId); err != nil {
		return wire.OperationStarted{}, err
	}
	op := &operation{Type: opDeregisterInstance, Targets: map[string]string{targetService: svc.ID, targetInstance: in.InstanceId}}
	if svc.Instances[in.InstanceId] == nil && h.operations.inFlightByTarget[op.targetKey()] == nil {
		return wire.OperationStarted{}, instanceNotFound(svc.ID, in.InstanceId)
	}
	id, err := h.submitOperation(op)
	if err == nil {
		svc.inFlight++
	}
	return started(id, err)
}

func (h instanceHandler) getInstance(in wire.InstanceInput) (wire.GetInstanceOutput, error) {
	_, inst, err := h.findInstance(in.ServiceId, in.InstanceId)
	if err != nil {
		return wire.GetInstanceOutput{}, err
	}
	shape := h.store.instanceShape(inst)
	shape.CreatorRequestId = inst.CreatorRequestID
	return wire.GetInstanceOutput{Instance: shape, ResourceOwner: h.key.account}, nil
}

// listInstances reads the replica: AWS's own answer lags as well.
func (h instanceHandler) listInstances(in wire.ListInstancesInput) (wire.ListInstancesOutput, error) {
	out := wire.ListInstancesOutput{ResourceOwner: h.key.account}
	svc, err := h.findService("ServiceId", in.ServiceId)
	if err != nil {
		return out, err
	}
	var seen []*instance
	if replicated := h.replica.services[svc.ID]; replicated != nil {
		seen = slices.Collect(maps.Values(h.req.fault.visibleInstances(replicated, h.now)))
	}
	seen, token, err := page(seen, func(inst *instance) string { return inst.ID }, in.Paging)
	out.Instances, out.NextToken = mapSlice(seen, h.store.instanceShape), token
	return out, err
}
