package cloudmaplocal

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

func (r *region) registerInstance(in wire.RegisterInstanceInput) (wire.OperationStarted, error) {
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return wire.OperationStarted{}, err
	}
	if in.Attributes == nil {
		return wire.OperationStarted{}, invalidInput("Attributes: must not be empty")
	}
	ns := r.namespaces[svc.NamespaceID]
	if err := cmp.Or(instanceIDText.check(in.InstanceId), requestIDText.check(in.CreatorRequestId),
		checkInstanceAttributes(in.Attributes), checkAttributesFor(svc, ns.Kind, in.Attributes)); err != nil {
		return wire.OperationStarted{}, err
	}
	inst := &instance{
		ID: in.InstanceId, Attributes: in.Attributes, CreatorRequestID: in.CreatorRequestId, CreatedBy: r.recordedCreator(),
		Health: newHealth(svc, in.Attributes),
	}
	if existing := svc.Instances[in.InstanceId]; existing != nil && existing.isSameRequest(inst) {
		return wire.OperationStarted{OperationId: existing.OperationID}, nil
	}
	return started(r.submitRegistration(ns, svc, inst))
}

// isSameRequest reports whether other results from the same request as inst.
func (inst *instance) isSameRequest(other *instance) bool {
	return inst.CreatorRequestID != "" && inst.CreatorRequestID == other.CreatorRequestID &&
		maps.Equal(inst.Attributes, other.Attributes)
}

// submitRegistration submits the registration if the quotas allow it. An instance counts from here on, so that
// registrations in flight cannot exceed the quotas.
func (r *region) submitRegistration(ns *namespace, svc *service, inst *instance) (string, error) {
	op := &operation{
		Type: opRegisterInstance, Instance: inst, CreatorRequestID: inst.CreatorRequestID,
		Targets: map[string]string{targetService: svc.ID, targetInstance: inst.ID},
	}
	isNew := svc.Instances[inst.ID] == nil && r.operations.inFlightByTarget[op.targetKey()] == nil
	switch {
	case isNew && svc.reservedInstances >= maxInstancesPerService:
		return "", limitExceeded("The service %s has %d instances; a service can have %d.", svc.ID, svc.reservedInstances, maxInstancesPerService)
	case isNew && ns.reservedInstances >= r.opts.InstancesPerNamespace:
		return "", limitExceeded("The namespace %s has %d instances; its quota is %d.", ns.ID, ns.reservedInstances, r.opts.InstancesPerNamespace)
	}
	id, err := r.submit(op)
	if err != nil || id != op.ID {
		return id, err
	}
	svc.inFlight++
	if isNew {
		svc.reservedInstances++
		ns.reservedInstances++
	}
	return id, nil
}

func (r *region) setInstance(serviceID string, inst *instance, operationID string) {
	svc := r.services[serviceID]
	svc.inFlight--
	svc.Revision++
	inst.OperationID = operationID
	svc.Instances[inst.ID] = inst
	r.replicate(change{kind: instanceSet, service: svc, instance: inst, revision: svc.Revision})
}

func (r *region) deregisterInstance(in wire.InstanceInput) (wire.OperationStarted, error) {
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return wire.OperationStarted{}, err
	}
	if err := instanceIDText.check(in.InstanceId); err != nil {
		return wire.OperationStarted{}, err
	}
	op := &operation{Type: opDeregisterInstance, Targets: map[string]string{targetService: svc.ID, targetInstance: in.InstanceId}}
	if svc.Instances[in.InstanceId] == nil && r.operations.inFlightByTarget[op.targetKey()] == nil {
		return wire.OperationStarted{}, instanceNotFound(svc.ID, in.InstanceId)
	}
	id, err := r.submit(op)
	if err == nil {
		svc.inFlight++
	}
	return started(id, err)
}

func (r *region) removeInstance(serviceID, id string) {
	svc := r.services[serviceID]
	inst := svc.Instances[id]
	svc.inFlight--
	svc.reservedInstances--
	r.namespaces[svc.NamespaceID].reservedInstances--
	svc.Revision++
	delete(svc.Instances, id)
	r.replicate(change{kind: instanceRemoved, service: svc, instance: inst, revision: svc.Revision})
}

func (r *region) getInstance(in wire.InstanceInput) (wire.GetInstanceOutput, error) {
	_, inst, err := r.instance(in.ServiceId, in.InstanceId)
	if err != nil {
		return wire.GetInstanceOutput{}, err
	}
	shape := r.instanceShape(inst)
	shape.CreatorRequestId = inst.CreatorRequestID
	return wire.GetInstanceOutput{Instance: shape, ResourceOwner: r.key.account}, nil
}

// instanceShape returns an instance as ListInstances shows it.
func (r *region) instanceShape(inst *instance) wire.Instance {
	return wire.Instance{Id: inst.ID, Attributes: inst.Attributes, CreatedByAccount: r.creatorAccount(inst.CreatedBy)}
}

// listInstances reads the replica: AWS's own answer lags as well.
func (r *region) listInstances(in wire.ListInstancesInput) (wire.ListInstancesOutput, error) {
	out := wire.ListInstancesOutput{ResourceOwner: r.key.account}
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return out, err
	}
	var seen []*instance
	if replicated := r.replica.services[svc.ID]; replicated != nil {
		seen = slices.Collect(maps.Values(r.req.fault.visibleInstances(replicated, r.now)))
	}
	seen, token, err := page(seen, func(inst *instance) string { return inst.ID }, in.Paging)
	out.Instances, out.NextToken = mapSlice(seen, r.instanceShape), token
	return out, err
}
