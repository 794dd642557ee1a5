package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// Config is the configuration of a Registry.
type Config struct {
	Identity mcs.Identity
	// Version is the version of this controller, shown to the other clusters.
	Version string
	// Prefix is the prefix of the keys of all clustersets; "" is names.EtcdPrefix.
	Prefix string
	// PollInterval is the time between two progress requests, which check that the watch works.
	// HeartbeatInterval is the time between two heartbeats; the lease lasts for three of them.
	// StaleAfter is the time for which a cluster may go without a heartbeat until it is stale. All
	// three are required.
	PollInterval, HeartbeatInterval, StaleAfter time.Duration
	// ReadOnly makes a registry that is only imported from: it writes nothing, and the cluster is
	// no member.
	ReadOnly bool
	// Signer signs this cluster's records; a ReadOnly registry needs none. Keyring has the other
	// clusters' keys.
	Signer  *trust.Signer
	Keyring *trust.Keyring
	// Joined is the time at which this cluster joined under this identity for the first time, zero
	// if it never did: of two clusters with one ID, the older one takes it back.
	Joined time.Time
	// SavedHeartbeat is what SaveHeartbeat has saved last, in a previous process. SaveHeartbeat is
	// called before a record is written; nil saves nothing.
	SavedHeartbeat engine.SavedHeartbeat
	SaveHeartbeat  func(context.Context, engine.SavedHeartbeat) error
	// Ledger has the budgets of the other clusters; nil has no limits. Wanted reports whether the
	// exports of a namespace are used; nil is all of them.
	Ledger *budget.Ledger
	Wanted func(namespace string) bool
	Logger logr.Logger
	// Metrics and Trace may be nil.
	Metrics *registry.Metrics
	Trace   *tracing.Cluster

	// Only tests change wall, the clock of the records. nil is time.Now.
	wall func() time.Time
}

// timings are the intervals that only tests change.
type timings struct {
	// silence is the time that etcd may take to answer a progress request of the watch.
	silence time.Duration
	// retry are the pauses between failed requests.
	retry engine.Backoff
	// leave bounds the removal of everything, farewell is the time for which the farewell stays.
	leave, farewell time.Duration
	// lease is the time for which the key alive outlives the last renewal.
	lease time.Duration
	// release bounds the revocation of the lease when the controller stops.
	release time.Duration
	// status is the time between two checks of etcd's members.
	status time.Duration
}

// leaseHeartbeats is how many heartbeats a lease lasts: the client library renews it three times in
// that time.
const leaseHeartbeats = 3

func defaultTimings(cfg Config) timings {
	return timings{
		silence: max(5*time.Second, 3*cfg.PollInterval),
		retry:   engine.Backoff{Initial: 200 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5},
		leave:   time.Minute, farewell: farewellTTL,
		lease:   leaseHeartbeats * cfg.HeartbeatInterval,
		release: releaseTimeout,
		status:  statusInterval,
	}
}

// Registry is the registry of one cluster on etcd.
type Registry struct {
	engine.Publisher
	cfg      Config
	timings  timings
	client   *Client
	notifier *engine.Notifier
	mirror   *mirror
	reader   *reader
	writer   *writer
	// running is true once Run has been called.
	running atomic.Bool
}

var (
	_ registry.Registry = (*Registry)(nil)
	_ registry.Reporter = (*Registry)(nil)
)

// New creates a registry for one cluster. It makes no request.
func New(client *Client, cfg Config) (*Registry, error) {
	return newRegistry(client, cfg, defaultTimings(cfg))
}

func newRegistry(client *Client, cfg Config, timings timings) (*Registry, error) {
	if err := checkConfig(cfg); err != nil {
		return nil, err
	}
	if !cfg.ReadOnly {
		cfg.Keyring.AddOwn(cfg.Identity.ClusterID, cfg.Signer.Keys()...)
	}
	store := &store{
		client: client, id: cfg.Identity.ClusterID,
		limits: cfg.Ledger.Limits(), layout: newLayout(cmp.Or(cfg.Prefix, names.EtcdPrefix), cfg.Identity.ClusterSetID),
	}
	mirror := newMirror(newState(stateConfig{
		layout: store.layout, clusterSetID: cfg.Identity.ClusterSetID, own: store.id, name: client.cfg.Name, keyring: cfg.Keyring,
		self: selfOf(cfg), poll: cfg.PollInterval, staleAfter: cfg.StaleAfter,
		ledger: cfg.Ledger, isWanted: cfg.Wanted,
	}), store.id, cfg.PollInterval, cfg.Logger)
	notifier := engine.NewNotifier(mirror.addResolvedLookups)
	writer := newWriter(cfg, timings, store, mirror, notifier)
	return &Registry{
		Publisher: engine.NewPublisher(store.id, cfg.ReadOnly, writer.setDesired),
		cfg:       cfg, timings: timings, client: client, notifier: notifier, mirror: mirror, writer: writer,
		reader: newReader(cfg, timings, store, mirror, writer, notifier),
	}, nil
}

// selfOf returns the author of this cluster's values, the zero value if it only reads.
func selfOf(cfg Config) author {
	if cfg.ReadOnly {
		return author{}
	}
	return author{
		clusterSetID: cfg.Identity.ClusterSetID, clusterID: cfg.Identity.ClusterID, uid: cfg.Identity.UID, key: cfg.Signer.Key(),
	}
}

// checkConfig returns an error if no registry can be created with cfg.
func checkConfig(cfg Config) error {
	if err := registry.CheckIdentity(cfg.Identity); err != nil {
		return err
	}
	err := engine.CheckDurations(engine.Duration{Field: "PollInterval", Value: cfg.PollInterval},
		engine.Duration{Field: "HeartbeatInterval", Value: cfg.HeartbeatInterval}, engine.Duration{Field: "StaleAfter", Value: cfg.StaleAfter})
	if err != nil {
		return err
	}
	switch {
	case cfg.Keyring == nil:
		return errors.New("field Keyring must be set: it has the keys of the other clusters")
	case cfg.ReadOnly:
		return nil
	case cfg.Signer == nil:
		return errors.New("field Signer must be set: it signs this cluster's records")
	}
	if err := checkRecord(cfg); err != nil {
		return fmt.Errorf("creating the member record: %w", err)
	}
	return nil
}

// checkRecord returns an error if the other clusters could not read this cluster's member record.
func checkRecord(cfg Config) error {
	value, err := signMember(cfg.Signer, newMemberRecord(cfg.Identity, cfg.Version))
	if err != nil {
		return err
	}
	m, _, err := openMember(value, cfg.Identity.ClusterSetID, cfg.Identity.ClusterID)
	if err != nil {
		return err
	}
	_, err = decodeMember(m, cfg.Identity.ClusterSetID, cfg.Identity.ClusterID)
	return err
}

// Lookup implements registry.Registry.
func (r *Registry) Lookup(_ context.Context, key mcs.Key, imported ...string) (registry.View, error) {
	view, err := r.mirror.lookup(key, imported)
	if view.Has(registry.Ignored) {
		r.mirror.want(key)
	}
	if err == nil && !r.cfg.ReadOnly {
		view.Local = r.writer.publishStatus(key)
	}
	return view, err
}

// Forget implements registry.Registry.
func (r *Registry) Forget(clusterID string) {
	r.cfg.Keyring.Forget(clusterID)
	changed := r.mirror.forget(clusterID)
	if r.running.Load() {
		r.notifier.Notify(changed)
	}
}

// SetProperties implements registry.Registry.
func (r *Registry) SetProperties(properties mcs.Properties) {
	if !r.cfg.ReadOnly {
		r.writer.setProperties(properties)
	}
}

// SetImports implements registry.Registry.
func (r *Registry) SetImports(report mcs.ImportReport) {
	if !r.cfg.ReadOnly {
		r.writer.session.setImports(report)
	}
}

// Members implements registry.Registry.
func (r *Registry) Members(context.Context) ([]registry.Member, error) { return r.mirror.members() }

// Run implements registry.Registry.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	r.notifier.Start(notify)
	r.running.Store(true)
	defer r.mirror.end()
	monitor := func(ctx context.Context) { r.client.monitor(ctx, r.timings.status) }
	if r.cfg.ReadOnly {
		return engine.Run(ctx, []func(context.Context){r.reader.run, monitor}, 0, nil)
	}
	return engine.Run(ctx, []func(context.Context){r.reader.run, r.writer.run, monitor}, cloneLeases*r.timings.lease+r.timings.leave, r.writer.leave)
}

// Report implements registry.Reporter.
func (r *Registry) Report() registry.Report {
	keys := engine.Keys{}
	r.mirror.addAllKeys(keys)
	writing := r.writer.report(keys)
	return registry.Report{Keys: slices.Collect(maps.Keys(keys)), Reading: r.mirror.problem.Err(), Writing: writing}
}
