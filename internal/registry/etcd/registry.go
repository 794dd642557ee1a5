package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// Config says which cluster this is and how it takes part.
type Config struct {
	Identity mcs.Identity
	// Version is this controller's, for the others to see.
	Version string
	// Prefix is where the keys of all clustersets are; "" is /mcs.
	Prefix string
	// PollInterval is the time between two questions whether the watch is alive, HeartbeatInterval between two signs of life;
	// the lease lasts three of them. StaleAfter is how long a cluster may be silent until it counts as gone. 0 is
	// the default.
	PollInterval, HeartbeatInterval, StaleAfter time.Duration
	// ReadOnly makes a registry that is only imported from: nothing is written, the cluster is no member.
	ReadOnly bool
	Logger   logr.Logger
	// Metrics may be nil.
	Metrics *registry.Metrics

	// times are what only tests change.
	times times
}

// times are the intervals that nobody needs to set.
type times struct {
	// silence is how long etcd may take to answer the watch's question.
	silence time.Duration
	// retry is the pause after a first failure, and maxRetry the longest.
	retry, maxRetry time.Duration
	// leave bounds the removal of everything.
	leave time.Duration
	// lease is how long the key alive outlives the last sign of life.
	lease time.Duration
}

const (
	// DefaultPrefix is where the keys are unless set otherwise.
	DefaultPrefix = "/mcs"

	defaultPoll      = time.Second
	defaultHeartbeat = 12 * time.Second
	// defaultStale is ten heartbeats: a restart, a lost leader lease or a busy minute is not death.
	defaultStale = 2 * time.Minute
	// leaseBeats is how many heartbeats a lease lasts: the client library renews it three times in its life.
	leaseBeats = 3
)

// Registry is one cluster's part in a clusterset on etcd.
type Registry struct {
	cfg   Config
	log   logr.Logger
	store *store

	// writable wakes the writer.
	writable chan struct{}

	// keepers keep leases alive.
	keepers sync.WaitGroup

	mu      sync.Mutex
	members *registry.MemberLog
	state   *state
	outbox  *outbox
	claim   claim
	// record is what this cluster says of itself, as it was last written or is about to be; beatAt is when it is next.
	record memberRecord
	beatAt time.Time
	// recorded is the revision at which it was.
	recorded int64
	// lease is the one that we keep alive, 0 while there is none.
	lease int64
	// behind is how many answers in a row were of an earlier revision than what was read.
	behind int
	// most is how many operations a transaction may have.
	most  int
	asked registry.PendingLookups
	// readProblem, writeProblem and claimProblem are why reading, writing and having the ID do not work.
	readProblem, writeProblem, claimProblem error
}

var _ registry.Registry = (*Registry)(nil)

// New makes a registry for one cluster. It makes no request.
func New(client *Client, cfg Config) (*Registry, error) {
	if err := registry.CheckIdentity(cfg.Identity); err != nil {
		return nil, err
	}
	cfg = withDefaults(cfg)
	own := newMemberRecord(cfg.Identity, cfg.Version)
	data, err := own.encode()
	if err == nil {
		_, err = decodeMember(data, cfg.Identity.ClusterSetID, cfg.Identity.ClusterID)
	}
	if err != nil {
		return nil, fmt.Errorf("making the member record: %w", err)
	}
	id := cfg.Identity.ClusterID
	keys := newLayout(cfg.Prefix, cfg.Identity.ClusterSetID)
	r := &Registry{
		cfg: cfg, log: cfg.Logger, record: own,
		store:    &store{client: client, layout: keys, id: id},
		writable: make(chan struct{}, 1),
		state:    newState(keys, cfg.Identity.ClusterSetID, id, cfg.StaleAfter),
		members:  registry.NewMemberLog(cfg.Logger, id),
		claim:    newClaim(cfg.Identity.UID),
		most:     maxOperations,
		asked:    registry.PendingLookups{},
	}
	r.outbox = newOutbox(func(key mcs.Key) (*mcs.Export, bool) { return r.state.shown(id, key) })
	return r, nil
}

func withDefaults(cfg Config) Config {
	cfg.Prefix = cmp.Or(cfg.Prefix, DefaultPrefix)
	for value, standard := range map[*time.Duration]time.Duration{
		&cfg.PollInterval: defaultPoll, &cfg.HeartbeatInterval: defaultHeartbeat, &cfg.StaleAfter: defaultStale,
	} {
		if *value <= 0 {
			*value = standard
		}
	}
	if cfg.times == (times{}) {
		cfg.times = times{
			silence: max(5*time.Second, 3*cfg.PollInterval),
			retry:   200 * time.Millisecond, maxRetry: 5 * time.Second,
			leave: time.Minute, lease: leaseBeats * cfg.HeartbeatInterval,
		}
	}
	return cfg
}

// Publish implements registry.Registry.
func (r *Registry) Publish(_ context.Context, exp mcs.Export) error {
	if err := registry.CheckOwn(exp, r.cfg.Identity.ClusterID); err != nil {
		return err
	}
	if r.cfg.ReadOnly {
		return registry.ErrReadOnly
	}
	w, err := newWish(exp)
	if err != nil {
		return err
	}
	r.ask(exp.Key, w)
	return nil
}

// Withdraw implements registry.Registry.
func (r *Registry) Withdraw(_ context.Context, key mcs.Key) error {
	if r.cfg.ReadOnly {
		return registry.ErrReadOnly
	}
	r.ask(key, wish{})
	return nil
}

func (r *Registry) ask(key mcs.Key, w wish) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.outbox.ask(key, w) {
		r.wake()
	}
}

// wake makes the writer look again; it never blocks, because one pending look covers every change before it.
func (r *Registry) wake() {
	select {
	case r.writable <- struct{}{}:
	default:
	}
}

// Lookup implements registry.Registry.
func (r *Registry) Lookup(_ context.Context, key mcs.Key) (registry.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.state.synced {
		r.asked.NotSynced(key)
		return registry.View{}, fmt.Errorf("looking up %s: %w", key, registry.NotSynced(r.readProblem))
	}
	view := r.state.look(key, r.cfg.Identity.ClusterID)
	r.asked.Record(key, view)
	view.Local = r.publication(key)
	return view, nil
}

// publication says where our export of key stands. The caller holds r.mu.
func (r *Registry) publication(key mcs.Key) registry.PublishStatus {
	if r.cfg.ReadOnly {
		return registry.PublishStatus{State: registry.Absent}
	}
	var duplicate *registry.DuplicateIDError
	if errors.As(r.claimProblem, &duplicate) {
		// What etcd has is the other cluster's.
		if r.outbox.want[key].export == nil {
			return registry.PublishStatus{State: registry.Absent}
		}
		return registry.PublishStatus{State: registry.Pending, Err: duplicate}
	}
	return r.outbox.publication(key, cmp.Or(r.claimProblem, r.writeProblem, r.readProblem))
}

// Members implements registry.Registry.
func (r *Registry) Members(context.Context) ([]registry.Member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.state.synced {
		return nil, fmt.Errorf("listing members: %w", registry.NotSynced(r.readProblem))
	}
	return r.state.list(), nil
}

// Run implements registry.Registry.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	group, loops := errgroup.WithContext(ctx)
	group.Go(func() error { r.readLoop(loops, notify); return nil })
	if !r.cfg.ReadOnly {
		group.Go(func() error { r.writeLoop(loops, notify); return nil })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if !r.cfg.ReadOnly && errors.Is(context.Cause(ctx), registry.ErrLeave) {
		return r.leave(context.WithoutCancel(ctx))
	}
	return nil
}

// tell notifies of keys, and of those of which there is another answer now.
func (r *Registry) tell(notify func(mcs.Key), changed keySet) {
	r.mu.Lock()
	if r.state.synced {
		for _, key := range r.asked.Changed(func(key mcs.Key) registry.View { return r.state.look(key, r.cfg.Identity.ClusterID) }) {
			changed[key] = struct{}{}
		}
	}
	r.mu.Unlock()
	for key := range changed {
		notify(key)
	}
}

// problem notes in one of the fields what is wrong, or nil, and notifies of the publications that it concerns.
func (r *Registry) problem(field *error, err error, notify func(mcs.Key), broken, mended string) {
	r.mu.Lock()
	news := text(*field) != text(err)
	*field = err
	changed := keySet{}
	if news {
		r.outbox.unfinished(changed)
	}
	r.mu.Unlock()
	if !news {
		return
	}
	if err != nil {
		r.log.Error(err, broken)
	} else {
		r.log.Info(mended)
	}
	r.tell(notify, changed)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// backoff says how long to wait after failures in a row: between half and all of it, so that clusters that were cut off
// together do not come back together.
func (t times) backoff(failures int) time.Duration {
	pause := min(t.maxRetry, t.retry<<min(failures-1, 10))
	return pause/2 + rand.N(pause/2+1)
}

// pause waits, and returns early when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
