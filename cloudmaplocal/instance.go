package cloudmaplocal

import (
	"cmp"
	"maps"
	"slices"
)

func (r *region) registerInstance(in registerInstanceInput) (operationStarted, error) {
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return operationStarted{}, err
	}
	if in.Attributes == nil {
		return operationStarted{}, invalidInput("Attributes: must not be empty")
	}
	ns := r.namespaces[svc.NamespaceID]
	if err := cmp.Or(instanceIDText.check(in.InstanceId), requestIDText.check(in.CreatorRequestId),
		checkInstanceAttributes(in.Attributes), checkAttributesFor(svc, ns.Kind, in.Attributes)); err != nil {
		return operationStarted{}, err
	}
	inst := &instance{
		ID: in.InstanceId, Attributes: in.Attributes, CreatorRequestID: in.CreatorRequestId, CreatedBy: r.creator(),
		Health: newHealth(svc, in.Attributes),
	}
	if existing := svc.Instances[in.InstanceId]; existing != nil && existing.repeatedBy(inst) {
		return operationStarted{OperationId: existing.OperationID}, nil
	}
	return started(r.submitRegistration(ns, svc, inst))
}

// repeatedBy reports whether other is what the request that made inst would make again.
func (inst *instance) repeatedBy(other *instance) bool {
	return inst.CreatorRequestID != "" && inst.CreatorRequestID == other.CreatorRequestID &&
		maps.Equal(inst.Attributes, other.Attributes)
}

// submitRegistration takes the registration in if the quotas allow. An instance counts from here on, so that no number of
// registrations in flight can exceed them.
func (r *region) submitRegistration(ns *namespace, svc *service, inst *instance) (string, error) {
	op := &operation{
		Type: opRegisterInstance, Instance: inst, CreatorRequestID: inst.CreatorRequestID,
		Targets: map[string]string{targetService: svc.ID, targetInstance: inst.ID},
	}
	isNew := svc.Instances[inst.ID] == nil && r.operations.subjects[op.subject()] == nil
	switch {
	case isNew && svc.booked >= maxInstancesPerService:
		return "", limitExceeded("The service %s has %d instances; a service can have %d.", svc.ID, svc.booked, maxInstancesPerService)
	case isNew && ns.booked >= r.opts.InstancesPerNamespace:
		return "", limitExceeded("The namespace %s has %d instances; its quota is %d.", ns.ID, ns.booked, r.opts.InstancesPerNamespace)
	}
	id, err := r.submit(op)
	if err != nil || id != op.ID {
		return id, err
	}
	svc.inFlight++
	if isNew {
		svc.booked++
		ns.booked++
	}
	return id, nil
}

func (r *region) setInstance(serviceID string, inst *instance, operationID string) {
	svc := r.services[serviceID]
	svc.inFlight--
	svc.Revision++
	inst.OperationID = operationID
	svc.Instances[inst.ID] = inst
	r.announce(change{kind: instanceSet, service: svc, instance: inst, revision: svc.Revision})
}

func (r *region) deregisterInstance(in instanceInput) (operationStarted, error) {
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return operationStarted{}, err
	}
	if err := instanceIDText.check(in.InstanceId); err != nil {
		return operationStarted{}, err
	}
	op := &operation{Type: opDeregisterInstance, Targets: map[string]string{targetService: svc.ID, targetInstance: in.InstanceId}}
	if svc.Instances[in.InstanceId] == nil && r.operations.subjects[op.subject()] == nil {
		return operationStarted{}, instanceNotFound(svc.ID, in.InstanceId)
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
	svc.booked--
	r.namespaces[svc.NamespaceID].booked--
	svc.Revision++
	delete(svc.Instances, id)
	r.announce(change{kind: instanceRemoved, service: svc, instance: inst, revision: svc.Revision})
}

type getInstanceOutput struct {
	Instance      instanceShape
	ResourceOwner string
}

func (r *region) getInstance(in instanceInput) (getInstanceOutput, error) {
	_, inst, err := r.instance(in.ServiceId, in.InstanceId)
	if err != nil {
		return getInstanceOutput{}, err
	}
	shape := r.instanceShape(inst)
	shape.CreatorRequestId = inst.CreatorRequestID
	return getInstanceOutput{Instance: shape, ResourceOwner: r.key.account}, nil
}

// instanceShape is an instance as ListInstances shows it.
func (r *region) instanceShape(inst *instance) instanceShape {
	return instanceShape{Id: inst.ID, Attributes: inst.Attributes, CreatedByAccount: r.createdBy(inst.CreatedBy)}
}

type listInstancesOutput struct {
	Instances     []instanceShape
	NextToken     string `json:",omitempty"`
	ResourceOwner string
}

// listInstances reads the replica: AWS's own answer lags as well.
func (r *region) listInstances(in listInstancesInput) (listInstancesOutput, error) {
	out := listInstancesOutput{ResourceOwner: r.key.account}
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return out, err
	}
	var seen []*instance
	if replicated := r.replica.services[svc.ID]; replicated != nil {
		seen = slices.Collect(maps.Values(r.req.fault.instances(replicated, r.now)))
	}
	seen, token, err := page(seen, func(inst *instance) string { return inst.ID }, in.paging)
	out.Instances, out.NextToken = mapSlice(seen, r.instanceShape), token
	return out, err
}
