// Package pathhealth decides which clusters the pods of this cluster cannot reach, from what probes observed. It is pure: it does no I/O, and time
// is an argument.
//
// A probe is the attempt to open a TCP connection: to the controller of a cluster, or to one of its imported endpoints. Each of these is a Kind.
// A Tracker has the State of each cluster. It is local knowledge: no cluster learns it from another one, so that no cluster can make this one
// avoid a third.
package pathhealth

import (
	"maps"
	"slices"
	"time"
)

// Kind is a kind of probe.
type Kind int

// The kinds of probes. Two of them fail together only if the path fails: a controller restarts, and endpoints have NetworkPolicies.
const (
	Controller Kind = iota
	Endpoints

	kinds = 2
)

// Outcome is the result of the probes of one kind in one round. A kind without targets says nothing, nor does one that was not probed.
type Outcome struct {
	// Targets is the number of addresses that could be probed, Probed the number of those that were, and Reached the number that answered.
	Targets, Probed, Reached int
}

// Result is the result of a round for one cluster.
type Result struct {
	Outcomes [kinds]Outcome
	// Notified is when the last peer notification of the cluster arrived, and Heartbeat when the registry showed its last heartbeat; zero if there was
	// none.
	Notified, Heartbeat time.Time
	// Stale reports whether the cluster sends no heartbeats: a cluster that is down is no evidence that the fault is in this one.
	Stale bool
}

// State is the state of the path to a cluster.
type State string

// The states of a path.
const (
	// Undecided: this process has not probed the cluster for long enough, or not since its last targets disappeared or the first ones returned.
	Undecided State = ""
	// Unknown: the cluster was never reached, or not by probes that can tell a path that fails from a process that stopped.
	Unknown State = "Unknown"
	// Reachable: a probe succeeded, and none of both kinds failed long enough since.
	Reachable State = "Reachable"
	// Unreachable: all kinds of probes that reached the cluster before have failed for some time.
	Unreachable State = "Unreachable"
)

// Rules are the times and numbers of a Tracker.
type Rules struct {
	// After is the time since the last success after which a cluster is unreachable, and Failures the number of failed rounds of each kind.
	After    time.Duration
	Failures int
	// Back is the time of success after which it is reachable again.
	Back time.Duration
	// Settle is the time after which a cluster that is neither is Unknown.
	Settle time.Duration
	// Gap is the longest time between two rounds. After a longer one, as when the process was suspended, all times start again.
	Gap time.Duration
}

// DefaultRules are the rules of the controller.
var DefaultRules = Rules{After: 30 * time.Second, Failures: 3, Back: 10 * time.Second, Settle: time.Minute, Gap: 15 * time.Second}

// minEndpoints is the number of endpoints that must fail if nothing but endpoints reached the cluster before: one alone may be on a failed node.
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
	// counts reports whether a kind reached the cluster before. A kind that fails while the other one succeeds fails for another reason than the
	// path, and does not count until it succeeds.
	counts   [kinds]bool
	failures [kinds]int
	// silent is when the time without success began, and good when the time with success did, zero while there is none.
	silent, good time.Time
}

// Path is the path to one cluster, for users.
type Path struct {
	State State
	// Since is when the state began, or when the cluster was first probed.
	Since time.Time
	// Last are the last outcomes of each kind that was probed.
	Last [kinds]Outcome
}

// NewTracker returns a Tracker that knows no cluster. restored are the clusters that a previous process found unreachable: they count as reached
// before, so that a restart does not end the knowledge about a path that still fails.
func NewTracker(rules Rules, restored []string) *Tracker {
	t := &Tracker{rules: rules, clusters: map[string]*path{}, restored: map[string]bool{}}
	for _, id := range restored {
		t.restored[id] = true
	}
	return t
}

// Observe records a round of probes that began at start and ended at end. results has all other clusters; those that are missing are removed.
func (t *Tracker) Observe(start, end time.Time, results map[string]Result) {
	maps.DeleteFunc(t.clusters, func(id string, _ *path) bool { _, ok := results[id]; return !ok })
	gap := start.Sub(t.lastEnd) > t.rules.Gap
	t.lastEnd = end
	for id, r := range results {
		p := t.clusters[id]
		if p == nil {
			known := t.restored[id]
			p = &path{Path: Path{Since: start}, counts: [kinds]bool{known, known}, silent: start}
			t.clusters[id] = p
		} else if gap {
			p.silent, p.good, p.failures = start, time.Time{}, [kinds]int{}
		}
		p.observe(start, end, r, t.rules)
	}
}

// observe records one round. The time without success begins when the round did, and that with success when it ended: a round takes longer if other
// connections time out.
func (p *path) observe(start, end time.Time, r Result, rules Rules) {
	p.last = r
	had := p.hasTargets()
	probed, reached := p.count(r)
	if had != p.hasTargets() && (p.counts[Controller] || p.counts[Endpoints]) {
		// The new targets must be probed often, unlike those of state Unknown. Until the decision, withdrawn endpoints stay so.
		p.State, p.Since = Undecided, end
	}
	switch {
	case !p.hasTargets():
		p.silent, p.good, p.failures = start, time.Time{}, [kinds]int{}
	case reached > 0:
		p.silent = start
		if p.good.IsZero() {
			p.good = end
		}
		for k := range p.counts {
			p.counts[k] = p.counts[k] && p.failures[k] < rules.Failures
		}
	case probed > 0:
		p.good = time.Time{}
	}
}

// hasTargets reports whether anything could be probed in the last round.
func (p *path) hasTargets() bool { return p.Last[Controller].Targets+p.Last[Endpoints].Targets > 0 }

// count records the outcomes of each kind, and returns the number of probes, and of those that succeeded.
func (p *path) count(r Result) (probed, reached int) {
	for k, o := range r.Outcomes {
		probed, reached = probed+o.Probed, reached+o.Reached
		switch {
		case o.Reached > 0:
			p.counts[k], p.failures[k] = true, 0
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

// fails reports whether each kind of probe that reached the cluster before fails. A controller that does not answer may have stopped. So without
// endpoints, it must have stopped to notify this cluster although it sends heartbeats to the registry.
func (p *path) fails(now time.Time, rules Rules) bool {
	controller := p.counts[Controller] && p.Last[Controller].Targets > 0
	if controller && p.failures[Controller] < rules.Failures {
		return false
	}
	if endpoints := p.Last[Endpoints].Targets; p.counts[Endpoints] && endpoints > 0 {
		return p.failures[Endpoints] >= rules.Failures && (controller || endpoints >= minEndpoints)
	}
	notified := p.last.Notified
	return controller && !notified.IsZero() && now.Sub(notified) >= rules.After && p.last.Heartbeat.Sub(p.silent) >= rules.After/2
}

// Decide returns the Verdict at now. Time may pass between two rounds.
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
	case !p.good.IsZero() && now.Sub(p.good) >= rules.Back:
		p.set(Reachable, now)
	case p.good.IsZero() && now.Sub(p.silent) >= rules.After && p.fails(now, rules):
		p.set(Unreachable, now)
	case p.State == Undecided && now.Sub(p.Since) >= rules.Settle:
		p.set(Unknown, now)
	}
}

// Verdict is what is known about the paths to all other clusters.
type Verdict struct {
	Paths map[string]Path
	// FaultHere reports whether more than half of the clusters, this one included, are unreachable. Stale clusters do not count, nor those that
	// are neither reachable nor unreachable. Then the fault is probably in this cluster, and the endpoints of the others must stay in use.
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

// Changed returns the clusters, sorted, about which v and before differ: their state, or what FaultHere means for them.
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
