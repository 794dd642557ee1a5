package union

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

const (
	// defaultHandover is the handover period of a cluster that moves to another registry. Its
	// exports must arrive there in that time: 3,000 exports take a minute under AWS's limits.
	defaultHandover = 2 * time.Minute
	// defaultSyncTimeout is the time after which a request to a registry times out.
	defaultSyncTimeout = 10 * time.Second
	// resolveInterval is the time between two comparisons of the sources of all clusters. It costs
	// no request.
	resolveInterval = time.Second
)

// Source is one of the registries.
type Source struct {
	// Name identifies it in logs, metrics and problems.
	Name string
	registry.Registry
}

// Config is the configuration of a Registry.
type Config struct {
	Identity mcs.Identity
	Logger   logr.Logger
	// Handover is the time for which the exports of a cluster that moves from one registry to
	// another are taken from both, 0 the default.
	Handover time.Duration
	// SyncTimeout is the time after a start after which lookups succeed although not all registries
	// have been read, 0 the default.
	SyncTimeout time.Duration

	// PseudoClusters has the IDs of the pseudo-clusters by the names of their registries. A member
	// of another registry with such an ID is a duplicate.
	PseudoClusters map[string]string

	// IsSigned reports whether a cluster has signed records and has neither left nor was forgotten
	// since, across restarts (trust.Keyring). Exports without signatures do not count under its ID,
	// also while no registry shows its record. It may be nil.
	IsSigned func(clusterID string) bool

	// interval is the time between two comparisons of the sources, changed only by tests.
	interval time.Duration
}

// Registry is the union of several registries.
type Registry struct {
	cfg     Config
	sources []Source
	names   []string

	mu sync.Mutex
	// syncDeadline is the end of SyncTimeout. Until then lookups return ErrNotSynced while not all
	// registries have been read. It is zero before Run.
	syncDeadline time.Time
	// keys are the keys of all notifications of the sources; waiting are the keys whose lookups
	// returned ErrNotSynced. pruneAt is the number of keys at which those without an export are
	// removed from keys.
	keys, waiting map[mcs.Key]struct{}
	pruneAt       int
}

var _ registry.Registry = (*Registry)(nil)

// New returns the union of first, which is exported to and imported from, and of others, which are
// only imported from: nothing is published to them or removed from them.
func New(cfg Config, first Source, others ...Source) *Registry {
	cfg.Handover = cmp.Or(cfg.Handover, defaultHandover)
	cfg.SyncTimeout = cmp.Or(cfg.SyncTimeout, defaultSyncTimeout)
	cfg.interval = cmp.Or(cfg.interval, resolveInterval)
	r := &Registry{cfg: cfg, sources: append([]Source{first}, others...), keys: map[mcs.Key]struct{}{}, waiting: map[mcs.Key]struct{}{}}
	for _, s := range r.sources {
		r.names = append(r.names, s.Name)
	}
	return r
}

// Publish implements registry.Registry.
func (r *Registry) Publish(ctx context.Context, exp mcs.Export) error {
	return r.sources[0].Publish(ctx, exp)
}

// Withdraw implements registry.Registry.
func (r *Registry) Withdraw(ctx context.Context, key mcs.Key) error {
	return r.sources[0].Withdraw(ctx, key)
}

// SetProperties implements registry.Registry.
func (r *Registry) SetProperties(properties mcs.Properties) { r.sources[0].SetProperties(properties) }

// SetImports implements registry.Registry.
func (r *Registry) SetImports(report mcs.ImportReport) { r.sources[0].SetImports(report) }

// Lookup implements registry.Registry. It returns ErrNotSynced until all registries have been read,
// for SyncTimeout at most; then registries that could not be read make the View Incomplete.
func (r *Registry) Lookup(ctx context.Context, key mcs.Key, imported ...string) (registry.View, error) {
	snapshots, err := r.snapshots(ctx, &key, imported...)
	if err != nil {
		return registry.View{}, fmt.Errorf("looking up %s: %w", key, err)
	}
	return mergeViews(r.cfg.Identity, snapshots, r.resolveSources(snapshots), imported), nil
}

// Forget implements registry.Registry.
func (r *Registry) Forget(clusterID string) {
	for _, s := range r.sources {
		s.Forget(clusterID)
	}
}

// Members implements registry.Registry.
func (r *Registry) Members(ctx context.Context) ([]registry.Member, error) {
	snapshots, err := r.snapshots(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("listing members: %w", err)
	}
	return mergeMembers(r.names, snapshots, r.resolveSources(snapshots)), nil
}

// resolveSources returns the sources of each cluster that is a member of a registry.
func (r *Registry) resolveSources(snapshots []snapshot) map[string]clusterSources {
	sources := resolveSources(r.cfg.Identity, snapshots, r.cfg.Handover, r.cfg.IsSigned)
	for i, name := range r.names {
		if id := r.cfg.PseudoClusters[name]; id != "" && id != r.cfg.Identity.ClusterID && len(snapshots) > 0 && snapshots[i].has(id) {
			sources[id] = resolvePseudo(snapshots, id, i)
		}
	}
	return sources
}

// snapshots returns the snapshots of all registries, including key unless it is nil. The error is
// ErrNotSynced if they are not sufficient for an answer.
func (r *Registry) snapshots(ctx context.Context, key *mcs.Key, imported ...string) ([]snapshot, error) {
	r.mu.Lock()
	mustSync := r.syncDeadline.IsZero() || time.Now().Before(r.syncDeadline)
	r.mu.Unlock()
	snapshots, err := r.readSources(ctx, key, imported...)
	if errors.Is(err, registry.ErrNotSynced) && !mustSync && isAnySynced(snapshots) {
		return snapshots, nil
	}
	if err != nil && key != nil {
		r.mu.Lock()
		r.waiting[*key] = struct{}{}
		r.mu.Unlock()
	}
	return snapshots, err
}

// readSources returns the snapshot of each registry and the first error.
func (r *Registry) readSources(ctx context.Context, key *mcs.Key, imported ...string) ([]snapshot, error) {
	snapshots := make([]snapshot, len(r.sources))
	var first error
	for i, s := range r.sources {
		members, err := s.Members(ctx)
		var view registry.View
		if key != nil {
			// Even after an error: a pending lookup makes the registry notify when it has an
			// answer.
			var lookupErr error
			view, lookupErr = s.Lookup(ctx, *key, imported...)
			err = cmp.Or(err, lookupErr)
		}
		snapshots[i] = snapshot{synced: err == nil, members: members, view: view}
		switch {
		case err == nil:
		case errors.Is(err, registry.ErrNotSynced):
			first = cmp.Or(first, fmt.Errorf("registry %s: %w", s.Name, err))
		default:
			return nil, fmt.Errorf("registry %s: %w", s.Name, err)
		}
	}
	return snapshots, first
}

func isAnySynced(snapshots []snapshot) bool {
	return slices.ContainsFunc(snapshots, func(s snapshot) bool { return s.synced })
}

// Run implements registry.Registry. Only an error of the first registry ends it. An error of
// another one is logged, and the content that was read from it stays.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	if errors.Is(context.Cause(ctx), registry.ErrLeave) {
		return r.sources[0].Run(ctx, notify)
	}
	r.mu.Lock()
	r.syncDeadline = time.Now().Add(r.cfg.SyncTimeout)
	r.mu.Unlock()
	notifyKnown := func(key mcs.Key) {
		r.mu.Lock()
		r.keys[key] = struct{}{}
		r.mu.Unlock()
		notify(key)
	}
	// The others must not see ErrLeave as the cause: this cluster is no member there.
	othersCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	var running sync.WaitGroup
	defer func() { stop(); end(); running.Wait() }()
	for _, s := range r.sources[1:] {
		running.Go(func() {
			if err := s.Run(othersCtx, notifyKnown); err != nil {
				r.cfg.Logger.Error(err, "Failed to run a registry that is imported from; its exports stay imported", "registry", s.Name)
			}
		})
	}
	running.Go(func() { r.watchSources(othersCtx, notify) })
	return r.sources[0].Run(ctx, notifyKnown)
}

// watchSources notifies of changes without a change of an export: when a handover period ends,
// another registry becomes the source.
func (r *Registry) watchSources(ctx context.Context, notify func(mcs.Key)) {
	ticker := time.NewTicker(r.cfg.interval)
	defer ticker.Stop()
	var before map[string]clusterSources
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		r.pruneKeys()
		snapshots, err := r.readSources(ctx, nil)
		r.notifyWaiting(snapshots, err, notify)
		now := r.resolveSources(snapshots)
		maps.DeleteFunc(now, func(_ string, s clusterSources) bool { return !s.ambiguous })
		if !maps.EqualFunc(before, now, clusterSources.equal) {
			r.notifyAll(notify)
		}
		before = now
	}
}

// notifyWaiting notifies of the keys whose lookups returned ErrNotSynced, as soon as lookups
// succeed.
func (r *Registry) notifyWaiting(snapshots []snapshot, err error, notify func(mcs.Key)) {
	if !isAnySynced(snapshots) {
		return
	}
	waiting := r.takeWaiting(err == nil)
	if len(waiting) > 0 && err != nil {
		r.cfg.Logger.Error(err, "Failed to read all registries in time, continuing without; nothing is removed until they are read")
	}
	for key := range waiting {
		notify(key)
	}
}

// takeWaiting returns the keys whose lookups returned ErrNotSynced, none before the end of
// SyncTimeout unless all registries were read.
func (r *Registry) takeWaiting(isComplete bool) map[mcs.Key]struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !isComplete && time.Now().Before(r.syncDeadline) {
		return nil
	}
	waiting := r.waiting
	r.waiting = map[mcs.Key]struct{}{} // lookups that come meanwhile write to it
	return waiting
}

// minPrune is the least number of keys that are pruned.
const minPrune = 1000

// pruneKeys removes the keys that no registry exports any more, when they may be half of all.
func (r *Registry) pruneKeys() {
	r.mu.Lock()
	before := r.keys
	if len(before) < max(minPrune, r.pruneAt) {
		r.mu.Unlock()
		return
	}
	r.keys = map[mcs.Key]struct{}{} // of the notifications that come meanwhile
	r.mu.Unlock()
	exported := r.Report().Keys
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range exported {
		if _, ok := before[key]; ok {
			r.keys[key] = struct{}{}
		}
	}
	r.pruneAt = 2 * len(r.keys)
}

// notifyAll notifies of the keys that the sources have notified of.
func (r *Registry) notifyAll(notify func(mcs.Key)) {
	r.mu.Lock()
	keys := maps.Clone(r.keys)
	r.mu.Unlock()
	for key := range keys {
		notify(key)
	}
}
