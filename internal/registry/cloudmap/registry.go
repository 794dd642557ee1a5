package cloudmap

import (
	"context"
	"crypto/rand"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// Config says which cluster this is and how it takes part.
type Config struct {
	Identity mcs.Identity
	// Version is this controller's, for the others to see.
	Version string
	// InstanceView mirrors each endpoint as a Cloud Map instance. Without it, instances of the
	// previous process are removed.
	InstanceView bool
	// Instances are the settings of the instance view.
	Instances instances.Settings
	// ReadOnly is for a registry that is only imported from: nothing is written there, not even a
	// member record.
	ReadOnly bool
	// PollInterval is the time between two reads of the members, PollIntervalWithNotifications
	// while peer notifications from all of them arrive, HeartbeatInterval the time between two
	// heartbeats. A cluster is stale after StaleAfter without a heartbeat.
	PollInterval, PollIntervalWithNotifications, HeartbeatInterval, StaleAfter time.Duration
	// InstancesPerNamespace is the quota of the account that owns the namespace mcs.<clusterset>,
	// for a metric. ReadOnly does not need it.
	InstancesPerNamespace int
	// PeerNotifications makes the clusters notify each other of changes; nil disables that. A
	// registry that is only imported from does not use it.
	PeerNotifications *peernotify.Config
	// ResourceIDs makes a restart find the records without lists; nil is none. A registry that is
	// only imported from does not use it.
	ResourceIDs ResourceIDStore
	// Signer signs this cluster's records; a ReadOnly registry needs none. Keyring has the other
	// clusters' keys.
	Signer  *trust.Signer
	Keyring *trust.Keyring
	// Ledger has the budgets of the other clusters; nil has no limits. Wanted reports whether the
	// exports of a namespace are used; nil is all of them.
	Ledger *budget.Ledger
	Wanted func(namespace string) bool
	// UsedNamespaces returns the namespaces for which Wanted is true; ok is false if they are not
	// known. nil is all of them.
	UsedNamespaces func() (namespaces []string, ok bool)
	// Joined is the time at which this cluster joined under this identity for the first time, zero
	// if it never did.
	Joined time.Time
	Logger logr.Logger
	// Metrics and Trace may be nil.
	Metrics *registry.Metrics
	Trace   *tracing.Cluster

	// Only tests change times and wall. wall is the clock that other clusters' clocks are compared
	// with.
	times times
	wall  func() time.Time
	// process distinguishes this process from others of the cluster.
	process string
}

// times are intervals without a setting.
type times struct {
	state.Intervals
	// instanceResync is the interval between reads of one service of the instance view each. A read
	// takes one request.
	instanceResync time.Duration
	// instanceList is the maximum of the random delay, at least a fifth of it, after which the
	// instance view lists all services at a start. That takes a list of namespaces, which AWS
	// allows once in two seconds for all of an account, and a list of services for each namespace:
	// 100 controllers that start at once make 0.42 lists a second of the 0.5.
	instanceList time.Duration
	// leave bounds the removal of everything: 2 min for the requests, and api.InUsePatience each
	// for the services and the namespaces of the instance view, for members, and for the control
	// namespace. The catalog is empty before these.
	leave time.Duration
	// missing is the pause of a registry that is only read until it searches for a missing
	// namespace again. Each search lists the namespaces, which AWS allows once in two seconds.
	missing time.Duration
}

const (
	// silentBeats is after how many missed heartbeats a cluster with our ID is taken for dead: one
	// may get lost.
	silentBeats = 2.5
	// healthDelay is the time until reads show a health that was set: AWS documents 30 s. The other
	// 30 s are for requests and their retries.
	healthDelay = time.Minute
	// concurrency is the number of catalogs that are read, or of instances that are removed on
	// leaving, at once. At 20 to 50 ms a request, 8 of them use the 50 requests a second that
	// writes have, three times over.
	concurrency = 8
)

func defaultTimes() times {
	return times{
		Intervals: state.Intervals{
			Gather: 10 * time.Millisecond, Quiet: 50 * time.Millisecond, AtMost: 250 * time.Millisecond,
			Confirm: 15 * time.Second, Audit: cost.AuditInterval, Settle: 2 * time.Second,
			Retry: 500 * time.Millisecond, MaxRetry: 30 * time.Second,
			HealthSettle: instances.MaxStaleWrite + healthDelay,
		},
		leave: 2*time.Minute + 4*api.InUsePatience, missing: 10 * time.Second,
		instanceResync: cost.ViewInterval, instanceList: 5 * time.Minute,
	}
}

// Registry is one cluster's part in a clusterset on AWS Cloud Map. reader, writer and leaver do the
// work; state decides.
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
	state    *state.State
	peers    *peers
	notifier *engine.Notifier
	traces   *traces
	// view is nil if the registry is only read.
	view *instances.View
	// drain is the drain of this cluster, a mcs.Drain; nil before it is known.
	drain atomic.Value
}

var (
	_ registry.Registry = (*Registry)(nil)
	_ registry.Reporter = (*Registry)(nil)
)

// New creates a registry for one cluster. It makes no request.
func New(client *api.Client, cfg Config) (*Registry, error) {
	if err := checkConfig(cfg); err != nil {
		return nil, err
	}
	cfg, err := withInternals(cfg)
	if err != nil {
		return nil, err
	}
	c := &components{cfg: cfg, log: cfg.Logger, client: client, control: newControl(client, cfg), traces: newTraces(cfg.Trace)}
	stateCfg := cfg.state(client.Name())
	if c.traces != nil {
		stateCfg.Observed = c.traces.decoded
	}
	c.state = state.New(stateCfg)
	c.notifier = engine.NewNotifier(c.state.AddResolved)
	c.peers = newPeers(cfg, client.Name(), c.state, c.traces, c.notifier.NotifyKeys)
	if !cfg.ReadOnly {
		desired := c.state.Writes.DesiredInstances
		if !cfg.InstanceView {
			desired = c.state.Writes.HiddenInstances
		}
		c.view = instances.New(client.InOwnAccount().WithPriority(api.PriorityLow), instances.Config{
			Identity: cfg.Identity, Version: cfg.Version, Enabled: cfg.InstanceView, Settings: cfg.Instances, Desired: forAll(c.withDrain(desired)),
			Exporters: c.state.Exporters, IsStale: c.state.IsStale,
			ResyncInterval: cfg.times.instanceResync, ListWithin: cfg.times.instanceList,
			Logger: cfg.Logger, Metrics: cfg.Metrics,
		})
		c.state.SetView(c.view)
		if !client.UsesSharedNamespace() {
			c.control.listed = c.view.AddNamespaces // one list serves both
		}
	}
	return &Registry{Publisher: engine.NewPublisher(cfg.Identity.ClusterID, cfg.ReadOnly, c.state.Writes.SetDesired), components: c}, nil
}

// forAll returns desired without the exports for some clusters: every reader of the instances can
// use their addresses.
func forAll(desired func(mcs.Key) (*mcs.Export, bool)) func(mcs.Key) (*mcs.Export, bool) {
	return func(key mcs.Key) (*mcs.Export, bool) {
		exp, known := desired(key)
		if exp != nil && exp.Recipients != "" {
			return nil, known
		}
		return exp, known
	}
}

// withDrain returns desired with the drain of the cluster in the exports. That of an export which
// asks for DNS records depends on the other clusters. While it is not known what these export,
// nothing changes, after a start for StaleAfter: another cluster may stay unreadable for ever.
func (c *components) withDrain(desired func(mcs.Key) (*mcs.Export, bool)) func(mcs.Key) (*mcs.Export, bool) {
	began := time.Now()
	return func(key mcs.Key) (*mcs.Export, bool) {
		exp, known := desired(key)
		if drain, _ := c.drain.Load().(mcs.Drain); exp != nil && drain.Percent() > 0 {
			drained := *exp
			drained.Drain = drain.Max(exp.Drain)
			exp = &drained
		}
		if exp == nil || exp.Drain.Percent() < 100 || !exp.InstanceDNS.IsWanted() {
			return exp, known
		}
		exporters, ok := c.state.Exporters(key)
		drained := *exp
		var isDecided bool
		drained.Drain, isDecided = exporters.DrainOf(*exp)
		return &drained, known && ok && (isDecided || time.Since(began) >= c.cfg.StaleAfter)
	}
}

// Lookup implements registry.Registry.
func (r *Registry) Lookup(_ context.Context, key mcs.Key, imported ...string) (registry.View, error) {
	return r.state.Lookup(key, imported)
}

// Forget implements registry.Registry.
func (r *Registry) Forget(clusterID string) { r.notifier.Notify(r.state.Forget(clusterID)) }

// SetProperties implements registry.Registry.
func (r *Registry) SetProperties(properties mcs.Properties) {
	r.state.SetProperties(properties)
	drain := properties.Drain()
	if before := r.drain.Swap(drain); r.view != nil && before != any(drain) {
		r.view.EnqueueShown()
	}
}

// SetImports implements registry.Registry.
func (r *Registry) SetImports(report mcs.ImportReport) { r.state.SetImports(report) }

// Members implements registry.Registry.
func (r *Registry) Members(context.Context) ([]registry.Member, error) {
	members, err := r.state.ListMembers()
	r.peers.addNotified(members)
	r.view.AddStaleProblems(members)
	return members, err
}

// Report implements registry.Reporter.
func (r *Registry) Report() registry.Report {
	report := r.state.Report()
	report.Stored.View = r.view.Instances()
	return report
}

// Run implements registry.Registry.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	r.notifier.Start(func(key mcs.Key) {
		r.view.Observe(key)
		r.view.ObserveDrain(key)
		notify(key)
	})
	defer r.state.Reads.End()
	loops := []func(context.Context){newReader(r.components).run}
	if r.cfg.ReadOnly {
		return engine.Run(ctx, loops, 0, nil)
	}
	l := &leaver{r.components}
	loops = append(loops, (&writer{components: r.components}).run, func(ctx context.Context) { r.view.Run(ctx, notify) })
	if r.peers.transport != nil {
		loops = append(loops, r.peers.run)
	}
	return engine.Run(ctx, loops, l.leaveTimeout(), l.leave)
}

// place returns where the clusterset's records are.
func (c *components) place(ctx context.Context) (controlPlace, error) {
	place, err := c.control.ensure(ctx)
	if err == nil && !c.cfg.ReadOnly {
		c.state.SetLocation(place.location())
	}
	return place, err
}

// retry repeats a step until it succeeds or ctx ends.
func (c *components) retry(ctx context.Context, step func() error) error {
	backoff := engine.Backoff{Initial: c.cfg.times.Retry, Max: c.cfg.times.MaxRetry, Jitter: 1}
	return engine.RetryUntilDone(ctx, backoff, func() (bool, error) { return true, step() })
}

// state returns the configuration of the state.
func (c Config) state(clientName string) state.Config {
	return state.Config{
		Identity: c.Identity, ClientName: clientName, Version: c.Version, ReadOnly: c.ReadOnly,
		PollInterval: c.PollInterval, HeartbeatInterval: c.HeartbeatInterval, StaleAfter: c.StaleAfter,
		LongestPollInterval: c.longestPoll(), LongestHeartbeatInterval: c.longestHeartbeat(),
		Intervals: c.times.Intervals, InstancesPerNamespace: c.InstancesPerNamespace, WallClock: c.wall,
		Signer: c.Signer, Keyring: c.Keyring, Process: c.process, Joined: c.Joined, AllowsContact: c.allowsContact,
		Ledger: c.Ledger, Wanted: c.Wanted, UsedNamespaces: c.UsedNamespaces,
		Logger: c.Logger, Metrics: c.Metrics,
	}
}

// longestPoll and longestHeartbeat are the intervals of polls and heartbeats while nothing changes
// and peer notifications from every other cluster arrive.
func (c Config) longestPoll() time.Duration {
	if c.PeerNotifications == nil {
		return c.PollInterval
	}
	return max(c.PollInterval, c.PollIntervalWithNotifications)
}

func (c Config) longestHeartbeat() time.Duration {
	if c.PeerNotifications == nil {
		return c.HeartbeatInterval
	}
	return cost.QuietHeartbeat(c.HeartbeatInterval, c.StaleAfter)
}

// isOwn reports whether a record was written by a process of this cluster.
func (c Config) isOwn(m format.Member) bool {
	return c.Signer != nil && m.IsOf(c.Identity) && slices.Contains(c.Signer.Keys(), m.Key)
}

// allowsContact reports whether peer notifications may be sent to an address.
func (c Config) allowsContact(address netip.Addr) bool {
	return c.PeerNotifications == nil || c.PeerNotifications.Allows(address)
}

// silence is the time for which another cluster's record with this cluster's ID must not have
// changed until that cluster counts as dead. It may have claimed the ID a moment ago.
func (c Config) silence() time.Duration {
	return max(time.Duration(silentBeats*float64(c.HeartbeatInterval)), c.state("").YoungHeartbeatInterval()+c.HeartbeatInterval/2)
}

// checkConfig returns an error if no registry can be created with cfg.
func checkConfig(cfg Config) error {
	if err := registry.CheckIdentity(cfg.Identity); err != nil {
		return err
	}
	if cfg.Keyring == nil || cfg.Signer == nil && !cfg.ReadOnly {
		return errors.New("a registry needs a Signer and a Keyring")
	}
	if !cfg.ReadOnly && cfg.InstancesPerNamespace < 1 {
		return errors.New("InstancesPerNamespace must be set to a positive number")
	}
	return engine.CheckDurations(engine.Duration{Field: "PollInterval", Value: cfg.PollInterval},
		engine.Duration{Field: "PollIntervalWithNotifications", Value: cfg.PollIntervalWithNotifications},
		engine.Duration{Field: "HeartbeatInterval", Value: cfg.HeartbeatInterval}, engine.Duration{Field: "StaleAfter", Value: cfg.StaleAfter})
}

// withInternals returns cfg with the intervals and the clock that only tests set, and with the keys
// for peer notifications, which are derived from the signing key.
func withInternals(cfg Config) (Config, error) {
	// Heartbeats have to be seen well within the time after which their absence counts.
	cfg.PollIntervalWithNotifications = max(cfg.PollInterval, min(cfg.PollIntervalWithNotifications, cfg.StaleAfter/4))
	if cfg.times == (times{}) {
		cfg.times = defaultTimes()
	}
	if cfg.wall == nil {
		cfg.wall = time.Now
	}
	cfg.process = format.NewProcess(cfg.wall(), rand.Text())
	if cfg.PeerNotifications == nil || cfg.ReadOnly {
		cfg.PeerNotifications = nil
		return cfg, nil
	}
	notifications := *cfg.PeerNotifications
	var err error
	notifications.Keys, err = peernotify.NewKeys(cfg.Signer.Secret("peer notifications"))
	cfg.PeerNotifications = &notifications
	return cfg, err
}
