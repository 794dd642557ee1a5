package cloudmaplocal

import (
	"fmt"
	"strings"
	"time"
)

// store has the resources of a region: its namespaces, and its services with their instances, attributes and tags. A method
// that changes them returns the change for the replica.
//
// Maps of strings (attributes, tags) are immutable once they are stored: answers may refer to them after the lock is
// released.
type store struct {
	key        regionKey
	namespaces map[string]*namespace
	services   map[string]*service
}

func newStore(key regionKey) *store {
	return &store{key: key, namespaces: map[string]*namespace{}, services: map[string]*service{}}
}

// arn returns the ARN of a resource: kind "namespace" or "service".
func (s *store) arn(kind, id string) string {
	return s.arnPrefix() + kind + "/" + id
}

func (s *store) arnPrefix() string {
	return fmt.Sprintf("arn:%s:servicediscovery:%s:%s:", s.partition(), s.key.region, s.key.account)
}

// partition returns the group of Regions that ARNs name.
func (s *store) partition() string {
	switch {
	case strings.HasPrefix(s.key.region, "cn-"):
		return "aws-cn"
	case strings.HasPrefix(s.key.region, "us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}

// resourceID returns the ID of a reference, an ID or an ARN. ARNs of another account, Region or kind have none here.
func (s *store) resourceID(kind, ref string) string {
	if strings.HasPrefix(ref, "arn:") {
		id, _ := strings.CutPrefix(ref, s.arn(kind, ""))
		return id
	}
	return ref
}

// creatorAccount returns the account that created a resource. It is stored only if it is not the owner's.
func (s *store) creatorAccount(account string) string {
	if account == "" {
		return s.key.account
	}
	return account
}

// namespaceOf returns the namespace of a service.
func (s *store) namespaceOf(svc *service) *namespace { return s.namespaces[svc.NamespaceID] }

// findServiceByName finds a service by name. Names are case-insensitive in DNS and case-sensitive in the API.
func (s *store) findServiceByName(ns *namespace, name string) *service {
	for _, svc := range s.services {
		if svc.NamespaceID != ns.ID {
			continue
		}
		if svc.Name == name || ns.Kind != kindHTTP && strings.EqualFold(svc.Name, name) {
			return svc
		}
	}
	return nil
}

func (s *store) findDuplicateNamespace(ns *namespace) *namespace {
	for _, existing := range s.namespaces {
		if existing.uniqueName() == ns.uniqueName() {
			return existing
		}
	}
	return nil
}

// addNamespace completes a creation. HttpName must be unique, so the second namespace of a name gets a suffix there.
func (s *store) addNamespace(ns *namespace, operationID string, now time.Time) change {
	ns.Created, ns.OperationID, ns.HTTPName = now, operationID, ns.Name
	for _, other := range s.namespaces {
		if other.HTTPName == ns.Name {
			ns.HTTPName = ns.Name + "-" + random(lower, operationIDTailLen)
		}
	}
	s.namespaces[ns.ID] = ns
	return change{kind: namespaceCreated, namespace: ns}
}

func (s *store) removeNamespace(id string) change {
	ns := s.namespaces[id]
	delete(s.namespaces, id)
	return change{kind: namespaceDeleted, namespace: ns}
}

func (s *store) addService(ns *namespace, svc *service, now time.Time) change {
	svc.Created = now
	ns.services++
	s.services[svc.ID] = svc
	return change{kind: serviceCreated, service: svc}
}

func (s *store) removeService(svc *service) change {
	s.namespaceOf(svc).services--
	delete(s.services, svc.ID)
	return change{kind: serviceDeleted, service: svc}
}

// reserveInstance counts a registration of a new instance, so that registrations in flight cannot exceed the quotas.
func (s *store) reserveInstance(svc *service) {
	svc.reservedInstances++
	s.namespaceOf(svc).reservedInstances++
}

// releaseInstance ends a reservation.
func (s *store) releaseInstance(svc *service) {
	svc.reservedInstances--
	s.namespaceOf(svc).reservedInstances--
}

// releaseReservation releases the quota that an operation without effect reserved.
func (s *store) releaseReservation(op *operation) {
	svc := s.services[op.Targets[targetService]]
	if svc == nil || op.Targets[targetInstance] == "" {
		return
	}
	svc.inFlight--
	if op.Type == opRegisterInstance && svc.Instances[op.Targets[targetInstance]] == nil {
		s.releaseInstance(svc)
	}
}

func (s *store) setInstance(serviceID string, inst *instance, operationID string) change {
	svc := s.services[serviceID]
	svc.inFlight--
	svc.Revision++
	inst.OperationID = operationID
	svc.Instances[inst.ID] = inst
	return change{kind: instanceSet, service: svc, instance: inst, revision: svc.Revision}
}

func (s *store) removeInstance(serviceID, id string) change {
	svc := s.services[serviceID]
	inst := svc.Instances[id]
	svc.inFlight--
	s.releaseInstance(svc)
	svc.Revision++
	delete(svc.Instances, id)
	return change{kind: instanceRemoved, service: svc, instance: inst, revision: svc.Revision}
}

// resourceCounts is the number of resources in all accounts and Regions.
type resourceCounts struct{ namespaces, services, instances, operations int }

// countResources adds the resources of the store to total.
func (s *store) countResources(total *resourceCounts) {
	total.namespaces += len(s.namespaces)
	total.services += len(s.services)
	for _, svc := range s.services {
		total.instances += len(svc.Instances)
	}
}
