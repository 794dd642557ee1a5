package cloudmaplocal

import (
	"encoding/json"
	"slices"
	"time"
)

// replica is the state that the data plane shows: the same state, one consistency delay ago. It replays a log of
// changes, each at its time.
type replica struct {
	delay      time.Duration // consistency delay
	log        []change
	namespaces map[string]string          // id by HTTP name
	services   map[string]*replicaService // by id
	byName     map[serviceName]*replicaService

	// retention is how far back past instances are kept, for stale reads.
	retention time.Duration
}

type serviceName struct{ namespaceID, name string }

type replicaService struct {
	id        string
	name      serviceName
	instances map[string]*instance
	revision  int64

	visibleSince time.Time // in the replica
	past         []past    // the newest last
}

// past is a state that a change has replaced.
type past struct {
	until    time.Time
	id       string
	instance *instance // nil: it was not there
	revision int64
}

// changeKind determines which fields of a change are set.
type changeKind int

const (
	namespaceCreated changeKind = iota // namespace
	namespaceDeleted                   // namespace
	serviceCreated                     // service
	serviceDeleted                     // service
	instanceSet                        // service, instance, revision
	instanceRemoved                    // service, instance, revision
)

// change is one entry of the replica's log. Only immutable fields of the namespace and the service are read.
type change struct {
	at        time.Time
	kind      changeKind
	namespace *namespace
	service   *service
	instance  *instance
	revision  int64
}

func newReplica(delay time.Duration) replica {
	return replica{
		delay:      delay,
		namespaces: map[string]string{},
		services:   map[string]*replicaService{},
		byName:     map[serviceName]*replicaService{},
	}
}

// addChange adds a change of the store to the log.
func (r *replica) addChange(c change, now time.Time) {
	c.at = now.Add(r.delay)
	r.log = append(r.log, c)
}

// applyDue applies the changes that are visible by now.
func (r *replica) applyDue(now time.Time) {
	n := 0
	for ; n < len(r.log) && !r.log[n].at.After(now); n++ {
		r.applyChange(r.log[n])
		r.log[n] = change{} // releases the objects that it points to
	}
	r.log = r.log[n:]
}

func (r *replica) applyChange(c change) {
	switch c.kind {
	case namespaceCreated:
		r.namespaces[c.namespace.HTTPName] = c.namespace.ID
	case namespaceDeleted:
		delete(r.namespaces, c.namespace.HTTPName)
	case serviceCreated:
		name := serviceName{c.service.NamespaceID, c.service.Name}
		svc := &replicaService{
			id: c.service.ID, name: name, instances: map[string]*instance{}, revision: c.service.Revision, visibleSince: c.at,
		}
		r.services[svc.id], r.byName[name] = svc, svc
	case serviceDeleted:
		delete(r.services, c.service.ID)
		delete(r.byName, serviceName{c.service.NamespaceID, c.service.Name})
	case instanceSet:
		svc := r.services[c.service.ID]
		svc.keepPast(c, r.retention)
		c.instance.encoded, _ = json.Marshal(c.instance.Attributes) // strings always can
		svc.instances[c.instance.ID], svc.revision = c.instance, c.revision
	case instanceRemoved:
		svc := r.services[c.service.ID]
		svc.keepPast(c, r.retention)
		delete(svc.instances, c.instance.ID)
		svc.revision = c.revision
	}
}

// findService returns the service with these names, or the error for the missing one of the two.
func (r *replica) findService(namespace, name string) (*replicaService, error) {
	id, found := r.namespaces[namespace]
	if !found {
		return nil, namespaceNotFound(namespace)
	}
	svc := r.byName[serviceName{id, name}]
	if svc == nil {
		return nil, serviceNotFound(name)
	}
	return svc, nil
}

// keepPast keeps the state that a change replaces, and drops states older than the retention.
func (s *replicaService) keepPast(c change, keep time.Duration) {
	n := 0
	for n < len(s.past) && c.at.Sub(s.past[n].until) > keep {
		n++
	}
	s.past = s.past[n:]
	if keep > 0 {
		s.past = append(s.past, past{c.at, c.instance.ID, s.instances[c.instance.ID], s.revision})
	}
}

// knownIDs returns the IDs of current and past instances, sorted.
func (s *replicaService) knownIDs() []string {
	ids := sortedKeys(s.instances)
	for _, p := range s.past {
		ids = append(ids, p.id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// instanceAt returns an instance as it was at a time; nil if it did not exist.
func (s *replicaService) instanceAt(id string, then time.Time) *instance {
	for _, p := range s.past {
		if p.id == id && p.until.After(then) {
			return p.instance
		}
	}
	return s.instances[id]
}

// revisionAt returns the revision at a time.
func (s *replicaService) revisionAt(then time.Time) int64 {
	for _, p := range s.past {
		if p.until.After(then) {
			return p.revision
		}
	}
	return s.revision
}
