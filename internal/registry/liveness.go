package registry

import (
	"maps"
	"slices"
	"time"
)

// Liveness finds the stale clusters: those without a heartbeat for a time. All backends use it, so
// that they agree. It is not safe for concurrent use.
//
// Time counts only between two successful reads of the registry during which the heartbeat of any
// cluster advanced, this one included: then a heartbeat of the silent cluster would have shown as
// well. So no cluster becomes stale because the registry does not answer, throttles, refuses writes
// or shows old data, nor because this process was suspended: then no heartbeat advances for longer
// than half the allowed time, and all of that time is dropped.
//
// It follows that a dead cluster may become stale late by up to one heartbeat of the others.
type Liveness struct {
	own   string
	after time.Duration
	// lastRead is the time of the last read, zero if it failed or there was none.
	lastRead time.Time
	// counted is the time that counts so far, pending the time that will count with the next
	// heartbeat.
	counted, pending time.Duration
	clusters         map[string]*clusterLiveness
}

// clusterLiveness is the liveness of one cluster.
type clusterLiveness struct {
	// alive is true if it had a heartbeat since this process started.
	alive bool
	// at is the counted time at its last heartbeat, or when it was first seen.
	at    time.Duration
	stale bool
}

// NewLiveness returns a Liveness for cluster own, which itself is never stale. after is the time
// until a cluster is stale, at least three intervals of the slowest heartbeat.
func NewLiveness(own string, after time.Duration) *Liveness {
	return &Liveness{own: own, after: after, clusters: map[string]*clusterLiveness{}}
}

// ObserveHeartbeats records a successful read of the registry. now must have a monotonic reading,
// as time.Now has. heartbeats has each cluster of the registry and whether its heartbeat has
// advanced. The first record that a new process reads is no heartbeat: the cluster may have been
// dead for long. It returns the other clusters, sorted, with another liveness than before.
func (l *Liveness) ObserveHeartbeats(now time.Time, heartbeats map[string]bool) (changed []string) {
	l.count(now, slices.Contains(slices.Collect(maps.Values(heartbeats)), true))
	for id, heartbeat := range heartbeats {
		c := l.clusters[id]
		if c == nil {
			c = &clusterLiveness{at: l.counted, alive: heartbeat}
			l.clusters[id] = c
		} else if heartbeat {
			if id != l.own && (c.stale || !c.alive) {
				changed = append(changed, id)
			}
			*c = clusterLiveness{alive: true, at: l.counted}
		}
	}
	for id, c := range l.clusters {
		if id != l.own && !c.stale && l.counted-c.at >= l.after {
			c.stale = true
			changed = append(changed, id)
		}
	}
	slices.Sort(changed)
	return changed
}

// count counts the time since the last read if it showed a heartbeat. Else the time is pending
// until one does.
func (l *Liveness) count(now time.Time, heartbeat bool) {
	if !l.lastRead.IsZero() {
		l.pending += now.Sub(l.lastRead)
	}
	l.lastRead = now
	if !heartbeat {
		return
	}
	if l.pending <= l.after/2 {
		l.counted += l.pending
	}
	l.pending = 0
}

// ObserveFailure records a failed read: the time until the next successful one does not count.
func (l *Liveness) ObserveFailure() { l.lastRead = time.Time{} }

// IsCurrent reports whether the last read of the registry succeeded.
func (l *Liveness) IsCurrent() bool { return !l.lastRead.IsZero() }

// Of returns the liveness of a cluster. This one is Live.
func (l *Liveness) Of(id string) LivenessState {
	c := l.clusters[id]
	switch {
	case c != nil && c.stale:
		return Stale
	case c != nil && !c.alive && id != l.own:
		return Undecided
	}
	return Live
}

// IsStale reports whether a cluster is Stale.
func (l *Liveness) IsStale(id string) bool { return l.Of(id) == Stale }

// Has reports whether a cluster was among the heartbeats of a read.
func (l *Liveness) Has(id string) bool { return l.clusters[id] != nil }

// Clone returns a copy.
func (l *Liveness) Clone() *Liveness {
	out := *l
	out.clusters = make(map[string]*clusterLiveness, len(l.clusters))
	for id, c := range l.clusters {
		copied := *c
		out.clusters[id] = &copied
	}
	return &out
}

// Remove removes a cluster that has left.
func (l *Liveness) Remove(id string) { delete(l.clusters, id) }
