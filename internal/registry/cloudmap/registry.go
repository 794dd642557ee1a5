package cloudmap

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
)

// Config says which cluster this is and how it takes part.
type Config struct {
	Identity mcs.Identity
	// Version is this controller's, for the others to see.
	Version string
	// InstanceView mirrors each endpoint as a Cloud Map instance. Without it, instances of the previous process are removed.
	InstanceView bool
	// ReadOnly is for a registry that is only imported from: nothing is written there, not even a member record.
	ReadOnly bool
	// PollInterval is the time between two reads of the members, PollIntervalWithNotifications while peer notifications from all of them
	// arrive, HeartbeatInterval the time between two heartbeats. A cluster is stale after StaleAfter without a heartbeat. 0 is the default.
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

// times are intervals without a setting.
type times struct {
	// gather is how long a change waits for others, if it is the first after a pause: one cause may change several objects.
	gather time.Duration
	// quiet is how long no export must have changed until pages are written again, atMost how long that is put off.
	quiet, atMost time.Duration
	// confirm is how long the registry may take to show what was written until it is written again.
	confirm time.Duration
	// adopt is how long a page of the previous process is tried to be read until it is given up.
	adopt time.Duration
	// audit is the time between two looks at all of our own pages. It costs one request, and bounds how long a page stays
	// away that another writer removed or changed.
	audit time.Duration
	// settle is how long reads may be late (claim.settle, catalogs.lag).
	settle time.Duration
	// retry is the pause after a first failed write, and maxRetry the longest.
	retry, maxRetry time.Duration
	// adoptionGracePeriod is how long a page that was found without a record is not announced (outbox.orphanedPages), and an instance of ours stays,
	// of whose service no cluster has said anything: a controller that starts, perhaps in
	// the place of the AWS Cloud Map MCS Controller for K8s, has not yet looked at everything that it exports.
	adoptionGracePeriod time.Duration
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
		adoptionGracePeriod: time.Minute, instanceResync: time.Minute, instanceList: 5 * time.Minute,
	}
}

// Registry is one cluster's part in a clusterset on AWS Cloud Map. reader, writer and leaver do the work; state decides.
type Registry struct {
	engine.Publisher
	*components
}

// components are the parts of a Registry.
type components struct {
	cfg      Config
	log      logr.Logger
	client   *api.Client
	control  *control
	state    *state
	peers    *peers
	notifier *engine.Notifier
}

var (
	_ registry.Registry = (*Registry)(nil)
	_ registry.Reporter = (*Registry)(nil)
)

// New creates a registry for one cluster. It makes no request.
func New(client *api.Client, cfg Config) (*Registry, error) {
	if err := registry.CheckIdentity(cfg.Identity); err != nil {
		return nil, err
	}
	cfg = withDefaults(cfg)
	c := &components{cfg: cfg, log: cfg.Logger, client: client, control: newControl(client, cfg), state: newState(cfg, client.Name())}
	c.notifier = engine.NewNotifier(c.state.addResolved)
	c.peers = newPeers(cfg, client.Name(), c.state)
	if !cfg.ReadOnly {
		desired := c.state.desiredInstances
		if !cfg.InstanceView {
			desired = c.state.hiddenInstances
		}
		c.state.view = instances.New(client.InOwnAccount().WithPriority(api.PriorityLow), instances.Config{
			Identity: cfg.Identity, Version: cfg.Version, Enabled: cfg.InstanceView, Desired: desired,
			ResyncInterval: cfg.times.instanceResync, ListWithin: cfg.times.instanceList,
			Logger: cfg.Logger, Metrics: cfg.Metrics,
		})
		if !client.UsesSharedNamespace() {
			c.control.listed = c.state.view.AddNamespaces // one list serves both
		}
	}
	return &Registry{Publisher: engine.NewPublisher(cfg.Identity.ClusterID, cfg.ReadOnly, c.state.setDesired), components: c}, nil
}

// Lookup implements registry.Registry.
func (r *Registry) Lookup(_ context.Context, key mcs.Key) (registry.View, error) {
	return r.state.lookup(key)
}

// Members implements registry.Registry.
func (r *Registry) Members(context.Context) ([]registry.Member, error) { return r.state.listMembers() }

// Report implements registry.Reporter.
func (r *Registry) Report() registry.Report { return r.state.report() }

// Run implements registry.Registry.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	r.notifier.Start(notify)
	loops := []func(context.Context){(&reader{components: r.components}).run}
	if r.cfg.ReadOnly {
		return engine.Run(ctx, loops, 0, nil)
	}
	l := &leaver{r.components}
	loops = append(loops, (&writer{components: r.components}).run, r.listIfUnlisted, func(ctx context.Context) { r.state.view.Run(ctx, notify) })
	if r.peers.transport != nil {
		loops = append(loops, r.peers.run)
	}
	return engine.Run(ctx, loops, l.leaveTimeout(), l.leave)
}

// place returns where the clusterset's records are.
func (c *components) place(ctx context.Context) (controlPlace, error) {
	place, err := c.control.ensure(ctx)
	if err == nil && !c.cfg.ReadOnly {
		c.state.setLocation(place)
	}
	return place, err
}

// retry repeats a step until it succeeds or ctx ends.
func (c *components) retry(ctx context.Context, step func() error) error {
	backoff := engine.Backoff{Initial: c.cfg.times.retry, Max: c.cfg.times.maxRetry, Jitter: 1}
	return engine.RetryUntilDone(ctx, backoff, func() (bool, error) { return true, step() })
}

// silence is how long another cluster's record with this cluster's ID must not have changed until that cluster counts as dead.
func (c Config) silence() time.Duration {
	return time.Duration(silentBeats * float64(c.HeartbeatInterval))
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
