package membership

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// The changes of a source cluster may cause 50 writes a second, a tenth of the requests that the
// controller may send to the API server (--kube-api-qps), after a burst of 5,000, all of its
// exports (--budget-scale).
const (
	sourceChanges = 50
	sourceBurst   = 5000
)

// sourcePace limits how fast the exports of a source cluster change in the views that the
// controllers see. A change beyond the pace is held: until it is due, a view has the export as it
// was last shown, or has the cluster as Unknown if none was. The end of an export is never held:
// its next beginning is. The limit is in the views and not in the work queues, because a reconcile
// has many causes, its own writes among them, and each reads the latest view.
//
// It is safe for concurrent use.
type sourcePace struct {
	now func() time.Time
	// requeueAfter makes the controllers reconcile a key after a delay.
	requeueAfter func(key mcs.Key, delay time.Duration)

	mu   sync.Mutex
	pace *engine.Pace[string]
	// services has the exports of each service by source cluster.
	services map[mcs.Key]map[string]*pacedExport
}

// pacedExport is the export of one service by one source cluster.
type pacedExport struct {
	// shown is the version that was last shown, nil if none was.
	shown *exportVersion
	// held is the latest version if it is held, nil otherwise; it is due at due.
	held *exportVersion
	due  time.Time
}

// exportVersion is a version of an export and of the properties of its cluster.
type exportVersion struct {
	export     mcs.Export
	properties mcs.Properties
}

func (v exportVersion) equal(o exportVersion) bool {
	return v.export.Equal(o.export) && maps.Equal(v.properties, o.properties)
}

// writes returns how many EndpointSlices change if v is shown after before, at least 1: those of
// the larger export, but no more than endpoints begin or end. Without before, which is nil, it
// is 1.
func (v exportVersion) writes(before *exportVersion) int {
	if before == nil {
		return 1
	}
	now, slices := slicedEndpoints(v.export)
	then, had := slicedEndpoints(before.export)
	return max(1, min(max(countOthers(now, then), countOthers(then, now)), max(slices, had)))
}

// countOthers returns the number of endpoints in a that are not in b.
func countOthers(a, b map[slicedEndpoint]bool) (n int) {
	for ep := range a {
		if !b[ep] {
			n++
		}
	}
	return n
}

// slicedEndpoint is an endpoint with the ports of its slice.
type slicedEndpoint struct {
	mcs.Endpoint
	ports string
}

// slicedEndpoints returns the endpoints of an export, and the number of slices that they need.
func slicedEndpoints(exp mcs.Export) (endpoints map[slicedEndpoint]bool, slices int) {
	endpoints = make(map[slicedEndpoint]bool, exp.EndpointCount())
	for _, group := range exp.Backends {
		ports := fmt.Sprint(group.Ports)
		families := map[bool]int{}
		for _, ep := range group.Endpoints {
			endpoints[slicedEndpoint{ep, ports}] = true
			families[ep.Address.Is4()]++
		}
		for _, n := range families {
			slices += (n + plan.MaxEndpoints - 1) / plan.MaxEndpoints
		}
	}
	return endpoints, slices
}

func newSourcePace(requeueAfter func(mcs.Key, time.Duration)) *sourcePace {
	return &sourcePace{
		now: time.Now, requeueAfter: requeueAfter, pace: engine.NewPace[string](sourceChanges, sourceBurst),
		services: map[mcs.Key]map[string]*pacedExport{},
	}
}

// limit returns view without the changes that are held, and requeues key for the time at which the
// next of them is due. postponed reports whether a change has been held since the last call and
// nothing else is new in the exports: no reconcile is needed before the change is due.
func (p *sourcePace) limit(key mcs.Key, view registry.View) (limited registry.View, postponed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, exports := p.now(), p.services[key]
	if exports == nil {
		exports = map[string]*pacedExport{}
	}
	updates := map[pacedUpdate]int{}
	if p.removeEnded(now, exports, view) {
		updates[updateShown]++
	}
	var due time.Time // of the next held change
	for cluster, c := range view.Clusters {
		if c.State != registry.Exports {
			continue
		}
		e, known := exports[cluster]
		if !known {
			e = &pacedExport{}
			exports[cluster] = e
		}
		updates[p.update(now, e, exportVersion{export: *c.Export, properties: c.Properties})]++
		if e.held != nil && (due.IsZero() || e.due.Before(due)) {
			due = e.due
		}
	}
	p.services[key] = exports
	if len(exports) == 0 {
		delete(p.services, key)
	}
	if due.IsZero() {
		return view, false
	}
	p.requeueAfter(key, due.Sub(now))
	return withoutHeld(view, exports), updates[updateHeld] > 0 && updates[updateShown] == 0
}

// pacedUpdate is the effect of a new version of an export.
type pacedUpdate int

const (
	// updateNone: the version is the same as before.
	updateNone pacedUpdate = iota
	// updateShown: the version is shown from now on.
	updateShown
	// updateHeld: the version is held.
	updateHeld
)

// update sets the latest version of an export.
func (p *sourcePace) update(now time.Time, e *pacedExport, latest exportVersion) pacedUpdate {
	if e.shown != nil && e.shown.equal(latest) {
		// what differs, such as the time of the change, causes no write
		e.shown, e.held = &latest, nil
		return updateNone
	}
	isSame := e.held != nil && e.held.equal(latest)
	if e.held == nil {
		cluster := latest.export.Cluster
		e.due = p.pace.DueAt(cluster)
		p.pace.Charge(now, cluster, 1)
	}
	if !e.due.After(now) {
		// The first write was charged above.
		if more := latest.writes(e.shown) - 1; more > 0 {
			p.pace.Charge(now, latest.export.Cluster, more)
		}
		e.shown, e.held = &latest, nil
		return updateShown
	}
	e.held = &latest
	if isSame {
		return updateNone
	}
	return updateHeld
}

// removeEnded removes the exports that view does not have any more, and reports whether there are
// any. An export that is unknown has not ended. The slices of an export are charged when it ends: a
// process that starts shows all exports at once.
func (p *sourcePace) removeEnded(now time.Time, exports map[string]*pacedExport, view registry.View) bool {
	before := len(exports)
	maps.DeleteFunc(exports, func(cluster string, e *pacedExport) bool {
		switch view.Clusters[cluster].State {
		case registry.Exports, registry.Unknown:
			return false
		case registry.None, registry.Ignored, registry.Unseen:
		}
		if e.shown != nil {
			_, ended := slicedEndpoints(e.shown.export)
			p.pace.Charge(now, cluster, ended)
		}
		return true
	})
	return len(exports) < before
}

// withoutHeld returns view with the exports as they are shown.
func withoutHeld(view registry.View, exports map[string]*pacedExport) registry.View {
	view.Clusters = maps.Clone(view.Clusters)
	for cluster, e := range exports {
		c := view.Clusters[cluster]
		switch {
		case c.State != registry.Exports || e.held == nil:
		case e.shown != nil:
			c.Export, c.Properties = &e.shown.export, e.shown.properties
			view.Clusters[cluster] = c
		default:
			view.Clusters[cluster] = registry.ClusterView{State: registry.Unknown, Liveness: c.Liveness, Properties: c.Properties}
		}
	}
	return view
}
