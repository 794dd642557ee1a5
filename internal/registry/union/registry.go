package union

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

const (
	// defaultHandover is how long a cluster that went from one registry to another is taken from both. What it exports has to
	// arrive there in that time: 3,000 exports take a minute under AWS's limits.
	defaultHandover = 2 * time.Minute
	// defaultPatience is how long a start waits for all registries to be read. It is the time in which a request is given up.
	defaultPatience = 10 * time.Second
	// lookInterval is the time between two comparisons of where the members stand. It costs no request.
	lookInterval = time.Second
)

// Source is one of several registries.
type Source struct {
	// Name tells it from the others in logs, metrics and problems.
	Name string
	registry.Registry
}

// Config says which cluster this is.
type Config struct {
	Identity mcs.Identity
	Logger   logr.Logger
	// Handover is how long a cluster that went from one registry to another is taken from both, Patience how long a start
	// waits for all registries to be read. 0 is the default.
	Handover, Patience time.Duration

	// look is what only tests change.
	look time.Duration
}

// Registry is several registries as one.
type Registry struct {
	cfg     Config
	sources []Source
	names   []string

	mu sync.Mutex
	// patientUntil is until when ErrNotSynced is the answer while not all registries have been read; zero before Run.
	patientUntil time.Time
	// keys are all that a source has ever notified of, waiting those that were told ErrNotSynced.
	keys, waiting map[mcs.Key]struct{}
}

var _ registry.Registry = (*Registry)(nil)

// New makes one registry of first, which is exported to and imported from, and of further ones, which are only imported
// from: they are neither published to nor left.
func New(cfg Config, first Source, further ...Source) *Registry {
	cfg.Handover = cmp.Or(cfg.Handover, defaultHandover)
	cfg.Patience = cmp.Or(cfg.Patience, defaultPatience)
	cfg.look = cmp.Or(cfg.look, lookInterval)
	r := &Registry{cfg: cfg, sources: append([]Source{first}, further...), keys: map[mcs.Key]struct{}{}, waiting: map[mcs.Key]struct{}{}}
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

// Lookup implements registry.Registry. It waits a moment for all registries to be read; then those that could not be read
// make the View Incomplete.
func (r *Registry) Lookup(ctx context.Context, key mcs.Key) (registry.View, error) {
	sights, err := r.see(ctx, &key)
	if err != nil {
		return registry.View{}, fmt.Errorf("looking up %s: %w", key, err)
	}
	return mergeViews(r.cfg.Identity, sights, standings(sights, r.cfg.Handover)), nil
}

// Members implements registry.Registry.
func (r *Registry) Members(ctx context.Context) ([]registry.Member, error) {
	sights, err := r.see(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("listing members: %w", err)
	}
	return mergeMembers(r.names, sights, standings(sights, r.cfg.Handover)), nil
}

// see is what all registries show, of key too if there is one, or ErrNotSynced when that is not enough to answer.
func (r *Registry) see(ctx context.Context, key *mcs.Key) ([]sight, error) {
	r.mu.Lock()
	patient := r.patientUntil.IsZero() || time.Now().Before(r.patientUntil)
	r.mu.Unlock()
	sights, err := r.seeEach(ctx, key)
	if errors.Is(err, registry.ErrNotSynced) && !patient && anySynced(sights) {
		return sights, nil
	}
	if err != nil && key != nil {
		r.mu.Lock()
		r.waiting[*key] = struct{}{}
		r.mu.Unlock()
	}
	return sights, err
}

// seeEach is what each registry shows, with the first error.
func (r *Registry) seeEach(ctx context.Context, key *mcs.Key) ([]sight, error) {
	sights := make([]sight, len(r.sources))
	var first error
	for i, s := range r.sources {
		members, err := s.Members(ctx)
		var view registry.View
		if key != nil {
			// Even if nothing is known: who asked is told when that changes.
			var lookErr error
			view, lookErr = s.Lookup(ctx, *key)
			err = cmp.Or(err, lookErr)
		}
		sights[i] = sight{synced: err == nil, members: members, view: view}
		switch {
		case err == nil:
		case errors.Is(err, registry.ErrNotSynced):
			first = cmp.Or(first, fmt.Errorf("registry %s: %w", s.Name, err))
		default:
			return nil, fmt.Errorf("registry %s: %w", s.Name, err)
		}
	}
	return sights, first
}

func anySynced(sights []sight) bool {
	for _, s := range sights {
		if s.synced {
			return true
		}
	}
	return false
}

// Run implements registry.Registry. Of the errors only those of the first registry end it: a further one that cannot go on is
// logged, and what was read of it stays.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	if errors.Is(context.Cause(ctx), registry.ErrLeave) {
		return r.sources[0].Run(ctx, notify)
	}
	r.mu.Lock()
	r.patientUntil = time.Now().Add(r.cfg.Patience)
	r.mu.Unlock()
	heard := func(key mcs.Key) {
		r.mu.Lock()
		r.keys[key] = struct{}{}
		r.mu.Unlock()
		notify(key)
	}
	// The others must not know why ctx ended: nobody leaves them.
	rest, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	var running sync.WaitGroup
	defer func() { stop(); end(); running.Wait() }()
	for _, s := range r.sources[1:] {
		running.Go(func() {
			if err := s.Run(rest, heard); err != nil {
				r.cfg.Logger.Error(err, "A registry that is imported from gave up; what is known of it stays", "registry", s.Name)
			}
		})
	}
	running.Go(func() { r.watch(rest, notify) })
	return r.sources[0].Run(ctx, heard)
}

// watch notifies of what changes without a change of any export: time passes, and another registry's word counts.
func (r *Registry) watch(ctx context.Context, notify func(mcs.Key)) {
	ticker := time.NewTicker(r.cfg.look)
	defer ticker.Stop()
	var before map[string]standing
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		sights, err := r.seeEach(ctx, nil)
		r.release(sights, err, notify)
		now := standings(sights, r.cfg.Handover)
		maps.DeleteFunc(now, func(_ string, s standing) bool { return !s.contested })
		if !maps.EqualFunc(before, now, standing.equal) {
			r.notifyAll(notify)
		}
		before = now
	}
}

// release notifies who was told ErrNotSynced, once there is no more to wait for.
func (r *Registry) release(sights []sight, err error, notify func(mcs.Key)) {
	r.mu.Lock()
	if !anySynced(sights) || err != nil && time.Now().Before(r.patientUntil) {
		r.mu.Unlock()
		return
	}
	waiting := r.waiting
	if len(waiting) > 0 {
		r.waiting = map[mcs.Key]struct{}{}
	}
	r.mu.Unlock()
	if len(waiting) > 0 && err != nil {
		r.cfg.Logger.Info("Not all registries could be read yet: going on without, and removing nothing", "reason", err.Error())
	}
	for key := range waiting {
		notify(key)
	}
}

// notifyAll notifies of every key that was ever heard of.
func (r *Registry) notifyAll(notify func(mcs.Key)) {
	r.mu.Lock()
	keys := maps.Clone(r.keys)
	r.mu.Unlock()
	for key := range keys {
		notify(key)
	}
}
