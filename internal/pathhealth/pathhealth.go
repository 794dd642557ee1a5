// Package pathhealth decides which clusters the pods of this cluster cannot reach, from the results
// of probes. It is pure: it does no I/O, and time is an argument.
//
// A probe is the attempt to open a TCP connection: to the controller of a cluster, or to one of its
// imported endpoints. Each of these is a Kind. A Tracker has the State of the path to each cluster.
// Clusters do not share their states, so no cluster can make this one avoid a third.
package pathhealth

import (
	"maps"
	"slices"
	"time"
)

// Kind is a kind of probe.
type Kind int

// The kinds of probes. One kind alone may fail for another reason than the path: a controller
// restarts, and NetworkPolicies select endpoints.
const (
	Controller Kind = iota
	Endpoints

	kinds = 2
)

// Outcome is the result of the probes of one kind in one round. Without targets or probes it is no
// evidence about the path.
type Outcome struct {
	// Targets is the number of addresses that could be probed, Probed the number of addresses that
	// were, Reached the number that answered.
	Targets, Probed, Reached int
}

// Result is the result of a round for one cluster.
type Result struct {
	Outcomes [kinds]Outcome
	// Notified is the time of the last peer notification from the cluster, Heartbeat the time at
	// which the registry showed its last heartbeat; zero if there was none.
	Notified, Heartbeat time.Time
	// Stale reports whether the cluster is stale. A cluster that is down is no evidence of a fault
	// in this one.
	Stale bool
}

// State is the state of the path to a cluster.
type State string

// The states of a path.
const (
	// Undecided: the probes have not run for long enough since this process started, or since the
	// cluster lost its last target or got its first one.
	Undecided State = ""
	// Unknown: the probes do not show whether the path fails. They never reached the cluster, or
	// the controller that they reached may have stopped.
	Unknown State = "Unknown"
	// Reachable: probes have succeeded, and they have not failed for long enough to make the
	// cluster unreachable.
	Reachable State = "Reachable"
	// Unreachable: all kinds of probes that reached the cluster before have failed for long enough.
	Unreachable State = "Unreachable"
)

// Rules are the limits at which a Tracker changes a state.
type Rules struct {
	// A cluster becomes Unreachable if no probe has succeeded for UnreachableAfter, and MinFailures
	// rounds of each kind have failed in a row.
	UnreachableAfter time.Duration
	MinFailures      int
	// A cluster becomes Reachable if probes have succeeded for ReachableAfter.
	ReachableAfter time.Duration
	// An undecided cluster becomes Unknown after UnknownAfter.
	UnknownAfter time.Duration
	// MaxPause is the longest time between two rounds. After a longer pause, as when the process
	// was suspended, all times begin anew.
	MaxPause time.Duration
}

// DefaultRules are the rules of the controller.
var DefaultRules = Rules{
	UnreachableAfter: 30 * time.Second, MinFailures: 3, ReachableAfter: 10 * time.Second, UnknownAfter: time.Minute, MaxPause: 15 * time.Second,
}

// minEndpoints is the number of endpoints that must fail if only endpoints reached the cluster
// before: a single one may be on a failed node.
const minEndpoints = 2

// Tracker has the states of the paths. It is not safe for concurrent use.
type Tracker struct {
	rules    Rules
	clusters map[string]*path
	restored map[string]bool
	lastEnd  time.Time
}

// path is the path to one cluster.
type path struct {
	Path
	// last is the last round.
	last Result
	// isEvidence reports for each kind whether its failures are evidence about the path: it reached
	// the cluster before. A kind that fails while the other one succeeds fails for another reason,
	// and is no evidence until it succeeds.
	isEvidence [kinds]bool
	// failures is the number of rounds of each kind that failed in a row.
	failures [kinds]int
	// failingSince is the time since which no probe has succeeded: the start of the last round with
	// a success. succeedingSince is the end of the first round with a success since the last failed
	// one, zero after a failed round.
	failingSince, succeedingSince time.Time
}

// Path is the path to one cluster, for users.
type Path struct {
	State State
	// Since is the time at which the state began, or the cluster was first probed.
	Since time.Time
	// Last has for each kind the outcome of the last round that probed it.
	Last [kinds]Outcome
}

// NewTracker returns a Tracker without clusters. restored are the clusters that a previous process
// found unreachable: they count as reached before, so they become unreachable again if the path
// still fails.
func NewTracker(rules Rules, restored []string) *Tracker {
	t := &Tracker{rules: rules, clusters: map[string]*path{}, restored: map[string]bool{}}
	for _, id := range restored {
		t.restored[id] = true
	}
	return t
}

// Observe records a round of probes that began at start and ended at end. results has all other
// clusters; those that are missing are removed.
func (t *Tracker) Observe(start, end time.Time, results map[string]Result) {
	maps.DeleteFunc(t.clusters, func(id string, _ *path) bool { _, ok := results[id]; return !ok })
	gap := start.Sub(t.lastEnd) > t.rules.MaxPause
	t.lastEnd = end
	for id, r := range results {
		p := t.clusters[id]
		if p == nil {
			known := t.restored[id]
			p = &path{Path: Path{Since: start}, isEvidence: [kinds]bool{known, known}, failingSince: start}
			t.clusters[id] = p
		} else if gap {
			p.failingSince, p.succeedingSince, p.failures = start, time.Time{}, [kinds]int{}
		}
		p.observe(start, end, r, t.rules)
	}
}

// observe records one round. A time of failure begins at the start of a round, and a time of
// success at its end: a round takes longer if other connections time out.
func (p *path) observe(start, end time.Time, r Result, rules Rules) {
	p.last = r
	hadTargets := p.hasTargets()
	probed, reached := p.recordOutcomes(r)
	if hadTargets != p.hasTargets() && (p.isEvidence[Controller] || p.isEvidence[Endpoints]) {
		// The new targets must be probed often, unlike those of state Unknown. Until the decision,
		// withdrawn endpoints stay so.
		p.State, p.Since = Undecided, end
	}
	switch {
	case !p.hasTargets():
		p.failingSince, p.succeedingSince, p.failures = start, time.Time{}, [kinds]int{}
	case reached > 0:
		p.failingSince = start
		if p.succeedingSince.IsZero() {
			p.succeedingSince = end
		}
		for k := range p.isEvidence {
			p.isEvidence[k] = p.isEvidence[k] && p.failures[k] < rules.MinFailures
		}
	case probed > 0:
		p.succeedingSince = time.Time{}
	}
}

// hasTargets reports whether anything could be probed in the last round.
func (p *path) hasTargets() bool { return p.Last[Controller].Targets+p.Last[Endpoints].Targets > 0 }

// recordOutcomes records the outcomes of each kind, and returns the numbers of all probes and of
// successful ones.
func (p *path) recordOutcomes(r Result) (probed, reached int) {
	for k, o := range r.Outcomes {
		probed, reached = probed+o.Probed, reached+o.Reached
		switch {
		case o.Reached > 0:
			p.isEvidence[k], p.failures[k] = true, 0
		case o.Probed > 0:
			p.failures[k]++
		}
		p.Last[k].Targets = o.Targets
		if o.Probed > 0 || o.Targets == 0 {
			p.Last[k] = o
		}
	}
	return probed, reached
}

func (p *path) set(s State, now time.Time) {
	if p.State != s {
		p.State, p.Since = s, now
	}
}

// hasFailed reports whether each kind of probe that is evidence has failed often enough. A
// controller that does not answer may have stopped. So without endpoints, its peer notifications
// must be missing as well, while its heartbeats still appear in the registry.
func (p *path) hasFailed(now time.Time, rules Rules) bool {
	controller := p.isEvidence[Controller] && p.Last[Controller].Targets > 0
	if controller && p.failures[Controller] < rules.MinFailures {
		return false
	}
	if endpoints := p.Last[Endpoints].Targets; p.isEvidence[Endpoints] && endpoints > 0 {
		return p.failures[Endpoints] >= rules.MinFailures && (controller || endpoints >= minEndpoints)
	}
	notified := p.last.Notified
	return controller && !notified.IsZero() && now.Sub(notified) >= rules.UnreachableAfter && p.last.Heartbeat.Sub(p.failingSince) >= rules.UnreachableAfter/2
}

// Decide returns the Verdict at now. Callers may call it between rounds.
func (t *Tracker) Decide(now time.Time) Verdict {
	v := Verdict{Paths: make(map[string]Path, len(t.clusters))}
	known, unreachable := 1, 0 // this cluster
	for id, p := range t.clusters {
		p.decide(now, t.rules)
		v.Paths[id] = p.Path
		if (p.State == Reachable || p.State == Unreachable) && !p.last.Stale {
			known++
			if p.State == Unreachable {
				unreachable++
			}
		}
	}
	v.FaultHere = 2*unreachable > known
	return v
}

// decide sets the state.
func (p *path) decide(now time.Time, rules Rules) {
	switch {
	case !p.succeedingSince.IsZero() && now.Sub(p.succeedingSince) >= rules.ReachableAfter:
		p.set(Reachable, now)
	case p.succeedingSince.IsZero() && now.Sub(p.failingSince) >= rules.UnreachableAfter && p.hasFailed(now, rules):
		p.set(Unreachable, now)
	case p.State == Undecided && now.Sub(p.Since) >= rules.UnknownAfter:
		p.set(Unknown, now)
	}
}

// Verdict has the paths to all other clusters.
type Verdict struct {
	Paths map[string]Path
	// FaultHere reports whether more than half of the clusters, this one included, are unreachable.
	// Then the fault is probably in this cluster, and the endpoints of the others must stay in use.
	// Only clusters count that are reachable or unreachable, and not stale.
	FaultHere bool
}

// State returns the state of the path to a cluster.
func (v Verdict) State(id string) State {
	return v.Paths[id].State
}

// Unreachable returns the clusters in state Unreachable, sorted.
func (v Verdict) Unreachable() []string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(v.Paths)) {
		if v.Paths[id].State == Unreachable {
			out = append(out, id)
		}
	}
	return out
}

// Changed returns the clusters, sorted, whose state differs in v and before. If FaultHere differs,
// these include all unreachable clusters.
func (v Verdict) Changed(before Verdict) []string {
	ids := map[string]bool{}
	for id := range v.Paths {
		ids[id] = true
	}
	for id := range before.Paths {
		ids[id] = true
	}
	maps.DeleteFunc(ids, func(id string, _ bool) bool {
		now, then := v.State(id), before.State(id)
		return now == then && (v.FaultHere == before.FaultHere || now != Unreachable)
	})
	return slices.Sorted(maps.Keys(ids))
}
