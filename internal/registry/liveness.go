package registry

import (
	"maps"
	"slices"
	"time"
)

// Liveness judges which clusters are stale: those without a sign of life for a time. Every backend uses it, so that
// all judge alike. It is not safe for concurrent use.
//
// Not all time counts. What counts is time between two looks at the registry that were answered, and in which somebody's
// heartbeat advanced, be it this cluster's own as read back: then a heartbeat of the silent cluster would have shown as
// well. So nobody becomes stale because the registry does not answer, throttles, refuses writes or shows old data, nor because this
// process was suspended: then nobody's heartbeat is seen to advance for longer than half the allowed time, and all
// of that time is dropped.
//
// It follows that a dead cluster becomes stale up to one heartbeat of the others later than after.
type Liveness struct {
	own   string
	after time.Duration
	// looked is the last look, zero when it was not answered or there was none.
	looked time.Time
	// counted is the time so far that counts, pending what will count with the next sign of life.
	counted, pending time.Duration
	clusters         map[string]*lifeline
}

// lifeline is what is known of one cluster.
type lifeline struct {
	// heard says that it has shown a sign of life since this process started.
	heard bool
	// at is what Liveness had counted at its last sign of life, or when it was first seen.
	at    time.Duration
	stale bool
}

// NewLiveness judges the others for cluster own, which itself is never stale. after must be at least three intervals of the
// slowest heartbeat.
func NewLiveness(own string, after time.Duration) *Liveness {
	return &Liveness{own: own, after: after, clusters: map[string]*lifeline{}}
}

// Answered takes in a look at the registry that was answered. now must have a monotonic reading, as time.Now has. signs says of
// each cluster that the registry shows whether it shows a new sign of life; its first sight after the start of the process is
// none, for it may have been dead for long. It returns the other clusters, sorted, of which Stale or Unheard says
// something else than before.
func (l *Liveness) Answered(now time.Time, signs map[string]bool) (changed []string) {
	l.count(now, slices.Contains(slices.Collect(maps.Values(signs)), true))
	for id, sign := range signs {
		c := l.clusters[id]
		if c == nil {
			c = &lifeline{at: l.counted, heard: sign}
			l.clusters[id] = c
		} else if sign {
			if id != l.own && (c.stale || !c.heard) {
				changed = append(changed, id)
			}
			*c = lifeline{heard: true, at: l.counted}
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

// count lets the time since the last look count, or wait for a sign of life, if this one has none.
func (l *Liveness) count(now time.Time, sign bool) {
	if !l.looked.IsZero() {
		l.pending += now.Sub(l.looked)
	}
	l.looked = now
	if !sign {
		return
	}
	if l.pending <= l.after/2 {
		l.counted += l.pending
	}
	l.pending = 0
}

// Unanswered takes in a look that failed: the time until the next one that is answered does not count.
func (l *Liveness) Unanswered() { l.looked = time.Time{} }

// Stale says whether a cluster has shown no sign of life for the time that counts.
func (l *Liveness) Stale(id string) bool {
	c := l.clusters[id]
	return c != nil && c.stale
}

// Unheard says whether it is not known yet if a cluster lives: since this process started it has shown no sign of life,
// but not for long enough to be stale.
func (l *Liveness) Unheard(id string) bool {
	c := l.clusters[id]
	return id != l.own && c != nil && !c.heard && !c.stale
}

// Forget drops what is known of a cluster that has left.
func (l *Liveness) Forget(id string) { delete(l.clusters, id) }
