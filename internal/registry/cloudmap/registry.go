package cloudmap

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
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// Config says which cluster this is and how it takes part.
type Config struct {
	Identity mcs.Identity
	// Version is this controller's, for the others to see.
	Version string
	// InstanceView shows each endpoint as a Cloud Map instance too. Without it, what an earlier life has shown is removed.
	InstanceView bool
	// ReadOnly makes it a registry that is only imported from: nothing is written there, not even that this cluster takes part.
	ReadOnly bool
	// PollInterval is the time between two looks at the members, PollIntervalWithNotifications while hints from all of them arrive,
	// HeartbeatInterval between two signs of life. StaleAfter is how long a cluster may show no sign of life until it is stale.
	// 0 is the default.
	PollInterval, PollIntervalWithNotifications, HeartbeatInterval, StaleAfter time.Duration
	// InstancesPerNamespace is the quota of the account that has the namespace mcs.<clusterset>, for a metric. 0 is AWS's default.
	InstancesPerNamespace int
	// Hints make the clusters tell one another of changes; nil is without. A registry that is only imported from goes without.
	PeerNotifications *peernotify.Config
	// ResourceIDs makes a restart find the records without lists; nil is none. A registry that is only imported from does not use it.
	ResourceIDs ResourceIDStore
	Logger      logr.Logger
	// Metrics may be nil.
	Metrics *registry.Metrics

	// times and wall are what only tests change: wall is the clock that other clusters' clocks are compared with.
	times times
	wall  func() time.Time
}

// times are the intervals that nobody needs to set.
type times struct {
	// gather is how long a change waits for others, if it is the first after a pause: one cause may change several objects.
	gather time.Duration
	// quiet is how long no export must have changed until pages are written again, atMost how long that is put off.
	quiet, atMost time.Duration
	// confirm is how long the registry may take to show what was written until it is written again.
	confirm time.Duration
	// adopt is how long a page of an earlier life is tried to be read until it is given up.
	adopt time.Duration
	// audit is the time between two looks at all of our own pages. It costs one request, and bounds how long a page stays
	// away that somebody else removed or changed.
	audit time.Duration
	// settle is how long reads may be late (claim.settle, catalogs.lag).
	settle time.Duration
	// retry is the pause after a first failed write, and maxRetry the longest.
	retry, maxRetry time.Duration
	// unspoken is how long a page that was found without a record is not announced (outbox.unvouched), and an instance of ours stays,
	// of whose service nobody has said anything: a controller that starts, perhaps in
	// the place of the AWS Cloud Map MCS Controller for K8s, has not yet looked at everything that it exports.
	unspoken time.Duration
	// instanceResync is the interval between reads of one service of the instance view each. A read takes one request.
	instanceResync time.Duration
	// instanceList is the maximum of the random delay, at least a fifth of it, after which the instance view lists all services at a
	// start. That takes a list of namespaces, which AWS allows once in two seconds for all of an account, and a list of services for
	// each namespace: 100 controllers that start at once make 0.42 lists a second of the 0.5.
	instanceList time.Duration
	// leave bounds the removal of everything.
	leave time.Duration
	// missing is the time between two looks for a namespace that is not there, by who only reads. Each takes a list of
	// namespaces, of which AWS allows one in two seconds.
	missing time.Duration
	// gone is how long the namespace must not have been there until what was read of it goes. A namespace can only be deleted
	// when everything in it is, and clusters that live make it again at once: in a poll and the seconds that it takes AWS.
	gone time.Duration
}

const (
	defaultPoll      = time.Second
	defaultRelaxed   = 5 * time.Second
	defaultHeartbeat = 12 * time.Second
	// defaultStale is ten heartbeats: a restart, a lost leader lease or a minute of throttling is not death.
	defaultStale = 2 * time.Minute
	// defaultInstances is the quota of instances per namespace of an account that has not had it raised.
	defaultInstances = 2000
	// silentBeats is after how many missed heartbeats a cluster with our ID is taken for dead: one may get lost.
	silentBeats = 2.5
	// concurrency is the number of requests under way for pages at once. At 20 to 50 ms a request, 8 of them use the
	// 50 requests a second that writes have, three times over.
	concurrency = 8
)

func defaultTimes() times {
	return times{
		gather: 10 * time.Millisecond, quiet: 50 * time.Millisecond, atMost: 250 * time.Millisecond,
		confirm: 15 * time.Second, adopt: 15 * time.Second, audit: 2 * time.Minute, settle: 2 * time.Second,
		retry: 500 * time.Millisecond, maxRetry: 30 * time.Second,
		leave: 2 * time.Minute, missing: 10 * time.Second, gone: 30 * time.Second,
		unspoken: time.Minute, instanceResync: time.Minute, instanceList: 5 * time.Minute,
	}
}

// Registry is one cluster's part in a clusterset on AWS Cloud Map.
type Registry struct {
	engine.Publisher
	cfg     Config
	log     logr.Logger
	client  *api.Client
	control *control
	view    *instances.View // nil if the registry is only read

	// look and write wake the reader and the writer.
	look, write chan struct{}

	mu       sync.Mutex
	hints    hints
	catalogs *catalogs
	outbox   *outbox
	claim    claim
	members  *registry.MemberLog
	asked    engine.PendingLookups
	// ours is our record as it was last written, or is about to be; recorded is when it was.
	ours     format.Member
	recorded time.Time
	// missingSince is since when a registry that only reads finds nothing to read; zero while it does.
	missingSince time.Time
	// spoken are the keys that were ever published or withdrawn by this process.
	spoken keySet
	// leftovers says that the last audit found pages.
	leftovers bool
	// announce asks for the record to be written now.
	announce bool
	// catalogID is the service that our pages were written to.
	catalogID string
	// heldSince is when the claim was last won.
	heldSince time.Time
	// auditAt is when all of our own pages are looked at next.
	auditAt time.Time
	// firstAsk and lastAsk are when the changes began and ended that are to be written; zero when there are none.
	firstAsk, lastAsk time.Time
	// pagesWritten is when pages were last written.
	pagesWritten time.Time
	// readProblem and writeProblem are why reading and writing do not work, nil while they do.
	readProblem, writeProblem error
	writeFailures             int
	writeRetryAt              time.Time
}

var _ registry.Registry = (*Registry)(nil)

// New makes a registry for one cluster. It makes no request.
func New(client *api.Client, cfg Config) (*Registry, error) {
	if err := registry.CheckIdentity(cfg.Identity); err != nil {
		return nil, err
	}
	cfg = withDefaults(cfg)
	r := &Registry{
		cfg: cfg, log: cfg.Logger, client: client,
		control:  newControl(client, cfg),
		look:     make(chan struct{}, 1),
		write:    make(chan struct{}, 1),
		catalogs: newCatalogs(cfg.Identity, cfg.StaleAfter, cfg.PollInterval, cfg.times.settle),
		outbox:   newOutbox(cfg.Identity.ClusterID),
		claim:    claim{identity: cfg.Identity, silence: time.Duration(silentBeats * float64(cfg.HeartbeatInterval)), settle: cfg.times.settle},
		members:  registry.NewMemberLog(cfg.Logger, cfg.Identity.ClusterID),
		asked:    engine.PendingLookups{},
		spoken:   keySet{},
	}
	r.Publisher = engine.NewPublisher(cfg.Identity.ClusterID, cfg.ReadOnly, r.setDesired)
	r.hints = newHints(r)
	if !cfg.ReadOnly {
		desired := r.desiredInstances
		if !cfg.InstanceView {
			desired = r.hiddenInstances
		}
		r.view = instances.New(client.InOwnAccount().WithPriority(api.PriorityLow), instances.Config{
			Identity: cfg.Identity, Version: cfg.Version, Enabled: cfg.InstanceView, Desired: desired,
			ResyncInterval: cfg.times.instanceResync, ListWithin: cfg.times.instanceList,
			Logger: cfg.Logger, Metrics: cfg.Metrics,
		})
		if !client.UsesSharedNamespace() {
			r.control.listed = r.view.AddNamespaces // one list serves both
		}
	}
	return r, nil
}

func withDefaults(cfg Config) Config {
	for value, standard := range map[*time.Duration]time.Duration{
		&cfg.PollInterval: defaultPoll, &cfg.PollIntervalWithNotifications: defaultRelaxed, &cfg.HeartbeatInterval: defaultHeartbeat, &cfg.StaleAfter: defaultStale,
	} {
		if *value <= 0 {
			*value = standard
		}
	}
	if cfg.InstancesPerNamespace <= 0 {
		cfg.InstancesPerNamespace = defaultInstances
	}
	// Heartbeats have to be seen well within the time after which their absence counts.
	cfg.PollIntervalWithNotifications = max(cfg.PollInterval, min(cfg.PollIntervalWithNotifications, cfg.StaleAfter/4))
	if cfg.times == (times{}) {
		cfg.times = defaultTimes()
	}
	if cfg.wall == nil {
		cfg.wall = time.Now
	}
	return cfg
}

// setDesired sets the desired export of key, nil to withdraw it.
func (r *Registry) setDesired(key mcs.Key, exp *mcs.Export) error {
	if exp == nil {
		r.ask(key, nil)
		return nil
	}
	if err := record.Check(*exp); err != nil {
		return &registry.InvalidExportError{Key: exp.Key, Reason: err.Error()}
	}
	canonical := exp.Canonical()
	r.ask(exp.Key, &canonical)
	return nil
}

func (r *Registry) ask(key mcs.Key, exp *mcs.Export) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoken[key] = struct{}{}
	if !r.outbox.ask(key, exp) {
		return
	}
	r.lastAsk = time.Now()
	if r.firstAsk.IsZero() {
		r.firstAsk = r.lastAsk
	}
	wake(r.write)
	if r.view != nil {
		r.view.Enqueue(key)
	}
}

// wake makes a loop look again; it never blocks, because one pending look covers every change before it.
func wake(loop chan struct{}) {
	select {
	case loop <- struct{}{}:
	default:
	}
}

// Lookup implements registry.Registry.
func (r *Registry) Lookup(_ context.Context, key mcs.Key) (registry.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.catalogs.synced {
		return registry.View{}, r.asked.NotSynced(key, r.readProblem)
	}
	view := r.asked.Lookup(key, r.catalogs.look)
	if !r.cfg.ReadOnly {
		view.Local = r.publication(key)
	}
	return view, nil
}

// publication says where our export of key stands. The caller holds r.mu.
func (r *Registry) publication(key mcs.Key) registry.PublishStatus {
	want, asked := r.outbox.pages[format.PageOf(key)].want[key]
	if uid := r.claim.refused(); uid != "" {
		// What the registry shows is the other cluster's.
		if !asked || want == nil {
			return registry.PublishStatus{State: registry.Absent}
		}
		return registry.PublishStatus{State: registry.Pending, Err: &registry.DuplicateIDError{ClusterID: r.cfg.Identity.ClusterID, OtherUID: uid}}
	}
	result := r.outbox.publication(key, r.shown())
	if result.State == registry.Pending && result.Err == nil {
		result.Err = cmp.Or(r.writeProblem, r.readProblem)
	}
	if r.view != nil && result.State == registry.Exported {
		result.Warnings = r.view.Warnings(key)
	}
	return result
}

// shown is our own catalog as the registry shows it. The caller holds r.mu.
func (r *Registry) shown() *catalog {
	if own := r.catalogs.own(); own != nil {
		return own
	}
	return &catalog{}
}

// Members implements registry.Registry.
func (r *Registry) Members(context.Context) ([]registry.Member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.catalogs.synced {
		return nil, fmt.Errorf("listing members: %w", registry.NotSynced(r.readProblem))
	}
	return r.catalogs.list(), nil
}

// Run implements registry.Registry.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	if r.cfg.ReadOnly {
		r.readLoop(ctx, notify)
		return nil
	}
	group, loops := errgroup.WithContext(ctx)
	group.Go(func() error { r.readLoop(loops, notify); return nil })
	group.Go(func() error { r.writeLoop(loops, notify); return nil })
	group.Go(func() error { r.listIfUnlisted(loops); return nil })
	if r.hints.transport != nil {
		group.Go(func() error { r.hintLoop(loops); return nil })
	}
	if r.view != nil {
		group.Go(func() error { r.view.Run(loops, notify); return nil })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if errors.Is(context.Cause(ctx), registry.ErrLeave) {
		return r.leaveInTime(context.WithoutCancel(ctx))
	}
	return nil
}

// leaveInTime removes everything of this cluster, trying again for a bounded time what fails.
func (r *Registry) leaveInTime(ctx context.Context) error {
	r.mu.Lock()
	mine := r.claim.state != watching
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, (aliveAfter+1)*r.claim.silence+r.cfg.times.leave)
	defer cancel()
	if !mine {
		// What is there under our ID is another cluster's, or of an earlier life.
		err := r.retrying(ctx, func() (err error) { mine, err = r.abandoned(ctx); return err })
		if err != nil || !mine {
			return err
		}
	}
	var place controlPlace
	steps := []func() error{
		func() (err error) { place, err = r.removeRecords(ctx); return err },
		func() error { return r.view.Leave(ctx) },
		func() error { return r.control.leave(ctx, place) },
	}
	for _, step := range steps {
		if err := r.retrying(ctx, step); err != nil {
			return fmt.Errorf("removing everything of this cluster from AWS Cloud Map on leaving the clusterset: %w", err)
		}
	}
	return nil
}

// retrying repeats a step until it succeeds or ctx ends.
func (r *Registry) retrying(ctx context.Context, step func() error) error {
	for pause := r.cfg.times.retry; ; pause = min(2*pause, r.cfg.times.maxRetry) {
		err := step()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(api.Jitter(2 * pause)):
		case <-ctx.Done():
			return err
		}
	}
}

// tell notifies of keys, and of those of which there is another answer now.
func (r *Registry) tell(notify func(mcs.Key), changed keySet) {
	r.mu.Lock()
	if r.catalogs.synced {
		r.asked.AddChanged(engine.Keys(changed), r.catalogs.look)
	}
	r.mu.Unlock()
	for key := range changed {
		notify(key)
	}
}

// unfinished adds the keys whose publication is under way. The caller holds r.mu.
func (r *Registry) unfinished(keys keySet) {
	for i := range r.outbox.pages {
		for key := range r.outbox.pages[i].want {
			if r.publication(key).State == registry.Pending {
				keys[key] = struct{}{}
			}
		}
	}
}

// desiredInstances is what the instance view shows of key: exp, or nothing if it is nil. It is not known of exports that
// were left by an earlier life and not published or withdrawn since.
func (r *Registry) desiredInstances(key mcs.Key) (exp *mcs.Export, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.outbox.pages[format.PageOf(key)]
	if exp, asked := p.want[key]; asked {
		return exp, true
	}
	_, left := p.exports[key]
	_, spoken := r.spoken[key]
	return nil, p.adopted && !left && (spoken || time.Since(r.heldSince) >= r.cfg.times.unspoken)
}

// hiddenInstances is desiredInstances without an instance view: nothing, once the pages say all that the instances say.
func (r *Registry) hiddenInstances(key mcs.Key) (exp *mcs.Export, known bool) {
	exp, known = r.desiredInstances(key)
	if exp == nil {
		return nil, known
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return nil, r.publication(key).State == registry.Exported
}

// ownKeys are all keys of our own pages as shown. The caller holds r.mu.
func (r *Registry) ownKeys(keys keySet) {
	for i := range r.shown().pages {
		for key := range r.shown().pages[i].exports {
			keys[key] = struct{}{}
		}
	}
}

// place is where the clusterset's records are. When that is another place than before, because somebody deleted the
// namespace or our catalog, everything of ours is written again.
func (r *Registry) place(ctx context.Context) (controlPlace, error) {
	place, err := r.control.ensure(ctx)
	if err != nil || r.cfg.ReadOnly {
		return place, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if place.isNew {
		r.claim.settle = 0 // there is no earlier life
	}
	if moved := r.catalogID != "" && r.catalogID != place.catalog.ID; moved {
		r.log.Info("The clusterset's records are gone from AWS Cloud Map: writing this cluster's again", "namespace", place.namespace.Name)
		r.outbox.rewrite()
		r.announce = r.claim.state != watching
		wake(r.write)
		if r.view != nil {
			r.view.EnqueueAll()
		}
	}
	r.catalogID = place.catalog.ID
	return place, nil
}

// removeRecords removes our pages and our record: first the announcement, so that nobody reads half of the rest.
func (r *Registry) removeRecords(ctx context.Context) (controlPlace, error) {
	place, err := r.place(ctx)
	if err == nil && place.unlisted {
		if err = r.control.complete(ctx); err == nil {
			place, err = r.place(ctx)
		}
	}
	if err != nil {
		return place, err
	}
	r.mu.Lock()
	r.ours.Pages = format.Digests{}
	// Later than the pages too: the last ones may have been written and not announced, and the next life must not take them up.
	r.outbox.generation = max(r.outbox.generation, r.ours.Generation)
	r.ours.Generation = r.outbox.nextGeneration(r.cfg.wall())
	last := r.ours
	r.mu.Unlock()
	if _, err := r.client.WithPriority(api.PriorityHigh).RegisterInstance(ctx, place.members.ID, last.Instance()); err != nil {
		return place, fmt.Errorf("announcing that the cluster leaves: %w", err)
	}
	if err := r.retrying(ctx, func() error { return r.removePages(ctx, place) }); err != nil {
		return place, fmt.Errorf("removing this cluster's pages: %w", err)
	}
	if err := r.client.DeregisterInstance(ctx, place.members.ID, r.cfg.Identity.ClusterID); err != nil {
		return place, fmt.Errorf("removing this cluster's record: %w", err)
	}
	return place, nil
}

// errNotRemoved is a removal that AWS Cloud Map accepted and does not show.
var errNotRemoved = errors.New("AWS Cloud Map still shows pages that were removed")

// removePages removes the instances of our pages: those that are listed, and of those that we know of what is not listed
// yet. It is done only when the list shows none.
func (r *Registry) removePages(ctx context.Context, place controlPlace) error {
	listed, err := r.client.ListInstances(ctx, place.catalog)
	if err != nil {
		return err
	}
	ids := map[string]bool{}
	for _, instance := range listed {
		ids[instance.ID] = true
	}
	for i := range r.outbox.pages {
		for part := range r.outbox.pages[i].stored {
			ids[format.PartID(i, part)] = true
		}
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		group.Go(func() error { return r.client.DeregisterInstance(groupCtx, place.catalog.ID, id) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	r.outbox.disown()
	if len(listed) > 0 {
		return errNotRemoved // as far as is known
	}
	return nil
}
