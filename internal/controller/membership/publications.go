package membership

import (
	"context"
	"sync/atomic"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// publications is the registry of a session. While the cluster changes its identity, it publishes
// the exports under the next one too. The exports of the other clusters change at their pace.
type publications struct {
	registry.Registry
	pace *sourcePace
	next atomic.Pointer[Session]
}

var (
	_ registry.Reporter  = (*publications)(nil)
	_ registry.Truster   = (*publications)(nil)
	_ registry.KeyKeeper = (*publications)(nil)
)

// Publish implements registry.Registry. An error of the next registry is not returned: both
// registries refuse the same exports.
func (p *publications) Publish(ctx context.Context, exp mcs.Export) error {
	if next := p.next.Load(); next != nil {
		under := exp
		under.Cluster = next.Identity.ClusterID
		_ = next.Registry.Publish(ctx, under)
	}
	return p.Registry.Publish(ctx, exp)
}

// Withdraw implements registry.Registry.
func (p *publications) Withdraw(ctx context.Context, key mcs.Key) error {
	if next := p.next.Load(); next != nil {
		_ = next.Registry.Withdraw(ctx, key)
	}
	return p.Registry.Withdraw(ctx, key)
}

// Lookup implements registry.Registry.
func (p *publications) Lookup(ctx context.Context, key mcs.Key, imported ...string) (registry.View, error) {
	view, err := p.Registry.Lookup(ctx, key, imported...)
	if err != nil {
		return view, err
	}
	view, _ = p.pace.limit(key, view)
	return view, nil
}

// postpones reports whether a notification of key needs no reconcile now: a change that is held is
// its cause.
func (p *publications) postpones(ctx context.Context, key mcs.Key) bool {
	view, err := p.Registry.Lookup(ctx, key)
	if err != nil {
		return false
	}
	_, postponed := p.pace.limit(key, view)
	return postponed
}

// Trust implements registry.Truster.
func (p *publications) Trust(clusterID, key string) error {
	return registry.Trust(p.Registry, clusterID, key)
}

// KeepKeys implements registry.KeyKeeper.
func (p *publications) KeepKeys(imported []string) { registry.KeepKeys(p.Registry, imported) }

// Report implements registry.Reporter.
func (p *publications) Report() registry.Report { return registry.ReportOf(p.Registry) }
