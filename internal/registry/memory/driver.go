package memory

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// exchange writes the desired exports, reads everything and returns the keys with a View that may
// have changed.
func (r *Registry) exchange() []mcs.Key {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.hub.err; err != nil {
		r.setProblem(err)
		r.step(belief.Failed{})
	} else {
		isAlive, problem := r.write()
		r.setProblem(problem)
		r.read(isAlive)
	}
	if r.isSynced {
		r.lookups.AddChanged(r.changed, r.belief.StatusOf)
	}
	changed := slices.Collect(maps.Keys(r.changed))
	clear(r.changed)
	return changed
}

// The caller of the functions below holds hub.mu and r.mu.

// setProblem sets the reason why the desired exports are not written.
func (r *Registry) setProblem(problem error) {
	if fmt.Sprint(problem) != fmt.Sprint(r.problem) {
		for key := range r.desired {
			r.changed.Add(key)
		}
	}
	r.problem = problem
}

// write claims the cluster ID, and writes the desired exports and the record. It reports whether it
// wrote a record, which is a heartbeat.
func (r *Registry) write() (isAlive bool, err error) {
	if r.readOnly {
		return false, nil
	}
	c, err := r.hub.claim(r)
	if err != nil {
		return false, err
	}
	isChanged := c.owner != r || c.isMissing
	for key, exp := range r.desired {
		isChanged = r.hub.put(c, key, exp) || isChanged
	}
	m := c.member
	m.ClusterID, m.UID = r.identity.ClusterID, r.identity.UID
	if r.properties != nil {
		m.Properties = r.properties
	}
	if r.imports != "" {
		m.Imports = r.imports
	}
	isChanged = isChanged || !maps.Equal(m.Properties, c.member.Properties) || m.Imports != c.member.Imports
	if !isChanged && r.hub.dropHeartbeats {
		return false, nil
	}
	r.hub.sign(r, c, m, isChanged)
	return true, nil
}

// read passes what the hub shows to belief. isAlive reports whether this cluster had a heartbeat.
func (r *Registry) read(isAlive bool) {
	shown := r.hub.shown(r.identity.ClusterSetID)
	r.readOwn(shown[r.identity.ClusterID])
	delete(shown, r.identity.ClusterID)
	for id, c := range shown {
		r.members[id] = c.member
		r.step(belief.RecordRead{Record: c.record})
	}
	for id := range r.members {
		if shown[id] == nil && id != r.identity.ClusterID {
			r.step(belief.RecordMissing{Cluster: id})
		}
	}
	r.step(belief.Tick{Heartbeat: isAlive})
	r.isSynced = true
}

// readOwn reads what this cluster exports; c is nil if the hub shows no record of it.
func (r *Registry) readOwn(c *cluster) {
	var own map[mcs.Key]*mcs.Export
	delete(r.members, r.identity.ClusterID)
	if c != nil && !c.record.Farewell {
		r.members[r.identity.ClusterID] = c.member
		switch {
		case r.hub.held:
			own = r.own
		case c.member.UID == r.identity.UID && !r.readOnly:
			own = c.exports()
		}
	}
	for _, exports := range []map[mcs.Key]*mcs.Export{r.own, own} {
		for key := range exports {
			if r.own[key] != own[key] {
				r.changed.Add(key)
			}
		}
	}
	r.own = own
	maps.DeleteFunc(r.desired, func(key mcs.Key, exp *mcs.Export) bool { return exp == nil && own[key] == nil })
}

// step passes an event to belief, and carries the actions out. A proof is not read: each record is
// read from the place that only its cluster can write.
func (r *Registry) step(event belief.Event) {
	actions := r.belief.Step(event, time.Now())
	for _, key := range actions.Notify {
		r.changed.Add(key)
	}
	for _, of := range actions.ReadUnits {
		if r.hub.unreadable[of.Cluster] {
			continue // the next Tick requests them again
		}
		units := r.hub.units(clusterRef{r.identity.ClusterSetID, of.Cluster}, of.Units)
		r.step(belief.UnitsRead{Cluster: of.Cluster, Units: units})
	}
}

// viewOf returns the View of key without the own export.
func (r *Registry) viewOf(key mcs.Key, imported []string) registry.View {
	return r.belief.View(key, imported...)
}
