package cloudmaplocal

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"
)

// replica is the state that the data plane shows: the same state, one consistency delay ago. It
// replays a log of changes, each at its time.
type replica struct {
	behaviors  Behaviors
	log        []change                   // in the order of their times
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

// change is one entry of the replica's log. Only immutable fields of the namespace and the service
// are read.
type change struct {
	at        time.Time
	kind      changeKind
	namespace *namespace
	service   *service
	instance  *instance
	revision  int64
}

func newReplica(b Behaviors) replica {
	return replica{
		behaviors:  b,
		namespaces: map[string]string{},
		services:   map[string]*replicaService{},
		byName:     map[serviceName]*replicaService{},
	}
}

// addChange adds a change of the store to the log. Changes of several instances can show in another
// order than they were made. Changes of one instance keep their order, and a service ends after all
// changes of its instances.
func (r *replica) addChange(c change, now time.Time) {
	c.at = now.Add(time.Duration(r.behaviors.ConsistencyDelay))
	if spread := int64(r.behaviors.ConsistencySpread); spread > 0 && c.instance != nil {
		c.at = c.at.Add(time.Duration(rand.Int64N(spread)))
	}
	at := len(r.log)
	for at > 0 && r.log[at-1].at.After(c.at) && !c.follows(r.log[at-1]) {
		at--
	}
	if at > 0 && r.log[at-1].at.After(c.at) {
		c.at = r.log[at-1].at
	}
	r.log = slices.Insert(r.log, at, c)
}

// follows reports whether a change must not show before an earlier one.
func (c change) follows(earlier change) bool {
	switch {
	case c.service == nil || earlier.service == nil || c.service.ID != earlier.service.ID:
		return false
	case c.instance == nil || earlier.instance == nil:
		return true
	}
	return c.instance.ID == earlier.instance.ID
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
		if r.namespaces[c.namespace.HTTPName] == c.namespace.ID {
			delete(r.namespaces, c.namespace.HTTPName)
		}
	case serviceCreated:
		name := serviceName{c.service.NamespaceID, c.service.Name}
		svc := &replicaService{
			id: c.service.ID, name: name, instances: map[string]*instance{}, revision: c.service.Revision, visibleSince: c.at,
		}
		r.services[svc.id], r.byName[name] = svc, svc
	case serviceDeleted:
		delete(r.services, c.service.ID)
		if name := (serviceName{c.service.NamespaceID, c.service.Name}); r.byName[name] != nil && r.byName[name].id == c.service.ID {
			delete(r.byName, name)
		}
	case instanceSet:
		svc := r.services[c.service.ID]
		svc.keepPast(c, r.retention)
		c.instance.encoded, _ = json.Marshal(c.instance.Attributes) // strings always can
		svc.instances[c.instance.ID], svc.revision = c.instance, max(svc.revision, c.revision)
	case instanceRemoved:
		svc := r.services[c.service.ID]
		svc.keepPast(c, r.retention)
		delete(svc.instances, c.instance.ID)
		svc.revision = max(svc.revision, c.revision)
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
