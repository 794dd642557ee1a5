package imports

import (
	"sync"
	"time"

	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// portNames remembers since when changes of port names are pending. The changes themselves follow
// from the objects: after a restart they wait once more.
type portNames struct {
	pending sync.Map // mcs.Key -> map[plan.NameChange]time.Time
}

// plan returns the ports to write now, and when they have to be planned again, 0 if only after a
// change.
func (n *portNames) plan(in plan.PortInput, now time.Time) (plan.PortPlan, time.Duration) {
	if in.Merged.Type != mcsv1beta1.ClusterSetIP {
		n.pending.Delete(in.Key)
		return plan.PortPlan{Service: in.Merged.Ports}, 0
	}
	var before map[plan.NameChange]time.Time
	if v, ok := n.pending.Load(in.Key); ok {
		before = v.(map[plan.NameChange]time.Time)
	}
	for change, since := range before {
		if now.Sub(since) >= plan.SettleTime {
			in.Settled = append(in.Settled, change)
		}
	}
	p := plan.Ports(in)
	if len(p.Pending) == 0 {
		n.pending.Delete(in.Key)
		return p, 0
	}
	pending := map[plan.NameChange]time.Time{}
	var again time.Duration
	for _, change := range p.Pending {
		since, ok := before[change]
		if !ok {
			since = now
		}
		pending[change] = since
		again = sooner(again, max(0, plan.SettleTime-now.Sub(since)))
	}
	n.pending.Store(in.Key, pending)
	return p, again
}

// forget drops what is pending for an import that ends.
func (n *portNames) forget(key mcs.Key) { n.pending.Delete(key) }

// planPorts plans the ports of the derived Service and the slices.
func (r *Controller) planPorts(f importFacts, d importDecision, usable mcs.Merged) (plan.PortPlan, time.Duration) {
	return r.portNames.plan(plan.PortInput{Key: f.key, Service: f.derived, Merged: usable, Exports: d.wanted(), Slices: f.slices}, r.now())
}
