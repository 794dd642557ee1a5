package cloudmaplocal

import (
	"fmt"
	"maps"
	"strings"
	"time"
)

// store has the resources of a region: its namespaces, and its services with their instances,
// attributes and tags. A method that changes them returns the change for the replica.
//
// Maps of strings (attributes, tags) are immutable once they are stored: answers may refer to them
// after the lock is released.
type store struct {
	key        regionKey
	behaviors  Behaviors
	namespaces map[string]*namespace
	services   map[string]*service
	// usedNames are the HttpNames that namespaces have, or have had.
	usedNames map[string]bool
}

func newStore(key regionKey, b Behaviors) *store {
	return &store{
		key: key, behaviors: b, namespaces: map[string]*namespace{}, services: map[string]*service{}, usedNames: map[string]bool{},
	}
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

// resourceID returns the ID of a reference, an ID or an ARN. ARNs of another account, Region or
// kind have none here.
func (s *store) resourceID(kind, ref string) string {
	if strings.HasPrefix(ref, "arn:") {
		id, _ := strings.CutPrefix(ref, s.arn(kind, ""))
		return id
	}
	return ref
}

// creatorAccount returns the account that created a resource. It is stored only if it is not the
// owner's.
func (s *store) creatorAccount(account string) string {
	if account == "" {
		return s.key.account
	}
	return account
}

// namespaceOf returns the namespace of a service.
func (s *store) namespaceOf(svc *service) *namespace { return s.namespaces[svc.NamespaceID] }

// findServiceByName finds a service by name. Names are case-insensitive in DNS and case-sensitive
// in the API.
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

// addNamespace completes a creation.
func (s *store) addNamespace(ns *namespace, operationID string, now time.Time) change {
	ns.Created, ns.OperationID, ns.HTTPName = now, operationID, ns.Name
	if s.needsSuffix(ns.Name) {
		ns.HTTPName = ns.Name + "-" + random(lower, idLen)
	}
	ns.showEarlier(nil, now, s.behaviors.TagsVisibleAfter)
	s.namespaces[ns.ID], s.usedNames[ns.HTTPName] = ns, true
	return change{kind: namespaceCreated, namespace: ns}
}

// needsSuffix reports whether the HttpName of a new namespace must differ from its name.
func (s *store) needsSuffix(name string) bool {
	switch s.behaviors.HTTPNameSuffix {
	case SuffixNever:
		return false
	case SuffixReuse:
		return s.usedNames[name]
	case SuffixCoexisting:
	}
	for _, other := range s.namespaces {
		if other.HTTPName == name {
			return true
		}
	}
	return false
}

func (s *store) removeNamespace(id string) change {
	ns := s.namespaces[id]
	delete(s.namespaces, id)
	return change{kind: namespaceDeleted, namespace: ns}
}

func (s *store) addService(ns *namespace, svc *service, now time.Time) change {
	svc.Created, svc.Revision = now, s.behaviors.RevisionBase
	svc.showEarlier(nil, now, s.behaviors.TagsVisibleAfter)
	ns.services++
	s.services[svc.ID] = svc
	return change{kind: serviceCreated, service: svc}
}

func (s *store) removeService(svc *service, now time.Time) change {
	ns := s.namespaceOf(svc)
	ns.services--
	ns.LastUsed = now
	delete(s.services, svc.ID)
	return change{kind: serviceDeleted, service: svc}
}

// reserveInstance counts a registration of a new instance, so that registrations in flight cannot
// exceed the quotas.
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
	existing := svc.Instances[inst.ID]
	if s.behaviors.RevisionOn == RevisionOnRegistration || existing == nil || !maps.Equal(existing.Attributes, inst.Attributes) {
		svc.Revision++
	}
	if existing != nil && s.behaviors.HealthOnReregister == HealthKeep {
		inst.Health = existing.Health
	}
	inst.OperationID = operationID
	svc.Instances[inst.ID] = inst
	return change{kind: instanceSet, service: svc, instance: inst, revision: svc.Revision}
}

func (s *store) removeInstance(serviceID, id string, now time.Time) change {
	svc := s.services[serviceID]
	inst := svc.Instances[id]
	svc.inFlight--
	s.releaseInstance(svc)
	svc.Revision++
	svc.LastUsed = now
	delete(svc.Instances, id)
	return change{kind: instanceRemoved, service: svc, instance: inst, revision: svc.Revision}
}

// isInUse reports whether a resource counts as used although its last part has left.
func (s *store) isInUse(lastUsed, now time.Time) bool {
	return now.Before(lastUsed.Add(time.Duration(s.behaviors.InUseFor)))
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
