package membership

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// A source cluster may change 50 services a second, a tenth of the requests that the controller may send to the API server (--kube-api-qps), after a burst of
// 5,000, all of its exports (--budget-member-exports).
const (
	sourceChanges = 50
	sourceBurst   = 5000
)

// sourcePace delays the reconciles that a source cluster causes by changing its exports again and again: those of other clusters do not wait for them, and the
// API server gets no more writes than at that pace. It is safe for concurrent use.
type sourcePace struct {
	lookup func(context.Context, mcs.Key) (registry.View, error)
	now    func() time.Time
	seed   maphash.Seed

	mu   sync.Mutex
	pace *engine.Pace[string]
	// seen has the hash of each cluster's export of a key at the last notification.
	seen map[mcs.Key]map[string]uint64
}

func newSourcePace(lookup func(context.Context, mcs.Key) (registry.View, error)) *sourcePace {
	return &sourcePace{
		lookup: lookup, now: time.Now, seed: maphash.MakeSeed(), pace: engine.NewPace[string](sourceChanges, sourceBurst),
		seen: map[mcs.Key]map[string]uint64{},
	}
}

// delay returns the time to wait with the reconcile of a key of which the registry has notified: none if something else than an export has changed, or if one
// of the clusters with a changed export has not used up its pace.
func (p *sourcePace) delay(ctx context.Context, key mcs.Key) time.Duration {
	view, err := p.lookup(ctx, key)
	if err != nil {
		return 0
	}
	shown := map[string]uint64{}
	for _, exp := range view.Exports {
		shown[exp.Cluster] = p.hash(exp, view.Properties[exp.Cluster])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := changedClusters(p.seen[key], shown)
	if p.seen[key] = shown; len(shown) == 0 {
		delete(p.seen, key)
	}
	if len(changed) == 0 {
		return 0
	}
	now := p.now()
	due := p.pace.DueAt(changed[0])
	for _, cluster := range changed {
		if at := p.pace.DueAt(cluster); at.Before(due) {
			due = at
		}
		p.pace.Charge(now, cluster, 1)
	}
	return max(0, due.Sub(now))
}

// hash returns a hash of an export and the properties of its cluster.
func (p *sourcePace) hash(exp mcs.Export, properties mcs.Properties) uint64 {
	var h maphash.Hash
	h.SetSeed(p.seed)
	_ = json.NewEncoder(&h).Encode(exp) // the hash of what cannot be encoded does not change, so that its changes do not wait
	_ = json.NewEncoder(&h).Encode(properties)
	return h.Sum64()
}

// changedClusters returns the clusters that differ.
func changedClusters(before, after map[string]uint64) (changed []string) {
	for cluster, hash := range after {
		if was, had := before[cluster]; !had || was != hash {
			changed = append(changed, cluster)
		}
	}
	for cluster := range before {
		if _, has := after[cluster]; !has {
			changed = append(changed, cluster)
		}
	}
	return changed
}
