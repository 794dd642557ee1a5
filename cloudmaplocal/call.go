package cloudmaplocal

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// request is a request with its caller and its fault.
type request struct {
	operation string
	caller    principal
	body      []byte
	fault     fault
	// shared are the resources that other accounts share with the caller, for list operations.
	shared visibleResources
}

// apiCall is a request that runs in a locked region. now is the time of the whole request.
type apiCall struct {
	*region
	access
	req request
	now time.Time
	// denial makes the operation of the request fail; nil if the caller has the rights in other
	// services.
	denial *operationError
}

// findNamespace finds a namespace by id or ARN.
func (c *apiCall) findNamespace(member, ref string) (*namespace, error) {
	if err := (textConstraint{member, 1, maxReferenceLen, nil}).check(ref); err != nil {
		return nil, err
	}
	if ns := c.store.namespaces[c.store.resourceID("namespace", ref)]; ns != nil && c.isVisible(ns) {
		return ns, nil
	}
	return nil, namespaceNotFound(ref)
}

// findService finds a service by id or ARN.
func (c *apiCall) findService(member, ref string) (*service, error) {
	if err := (textConstraint{member, 1, maxReferenceLen, nil}).check(ref); err != nil {
		return nil, err
	}
	if svc := c.store.services[c.store.resourceID("service", ref)]; svc != nil && c.isVisible(c.store.namespaceOf(svc)) {
		return svc, nil
	}
	return nil, serviceNotFound(ref)
}

// findInstance finds an instance of a service.
func (c *apiCall) findInstance(serviceRef, id string) (*service, *instance, error) {
	svc, err := c.findService("ServiceId", serviceRef)
	if err != nil {
		return nil, nil, err
	}
	if err := instanceIDText.check(id); err != nil {
		return nil, nil, err
	}
	if inst := svc.Instances[id]; inst != nil {
		return svc, inst, nil
	}
	return nil, nil, instanceNotFound(svc.ID, id)
}

// submitOperation queues an operation and returns its ID. If one on the same resource is in flight,
// the caller gets the ID of that one if the request is the same, and DuplicateRequest otherwise.
func (c *apiCall) submitOperation(op *operation) (string, error) {
	if other := c.operations.inFlightByTarget[op.targetKey()]; other != nil {
		if other.isSameRequest(op) {
			return other.ID, nil
		}
		return "", duplicateRequest(other.ID)
	}
	op.Created = c.now
	op.Due = c.now.Add(time.Duration(c.opts.Behaviors.OperationDelay))
	if c.denial != nil {
		op.Fails = c.denial
	}
	c.req.fault.applyTo(op)
	c.operations.startOperation(op)
	return op.ID, nil
}

// started returns the response of every asynchronous operation.
func started(id string, err error) (wire.OperationStarted, error) {
	return wire.OperationStarted{OperationId: id}, err
}
