package legacy

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
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// maxReads bounds the services that are read at once.
const maxReads = 8

// Config configures a Registry.
type Config struct {
	Identity mcs.Identity
	// PollInterval is the interval between polls of the services that have instances of the legacy
	// controller; 0 is the default.
	PollInterval time.Duration
	// Ledger has the budgets of the other clusters, nil has no limits: all clusters that run the
	// legacy controller share those of one cluster.
	Ledger *budget.Ledger
	Logger logr.Logger

	// intervals are changed only by tests.
	intervals intervals
}

// Rates returns the client-side rate limits of a client for this registry: a quarter of those of
// the main registry, beside which it runs with low priority. Only this registry uses
// DiscoverInstancesRevision.
func Rates() map[string]api.Rate {
	rates := map[string]api.Rate{}
	for _, operation := range []string{"DiscoverInstances", "ListInstances", "ListNamespaces", "ListServices"} {
		full := api.DefaultRates()[operation]
		rates[operation] = api.Rate{PerSecond: full.PerSecond / 4, Burst: max(1, full.Burst/4)}
	}
	return rates
}

// Registry reads the exports of clusters that still run the legacy controller from its Cloud Map
// instances, which are in namespaces named as the Kubernetes namespaces. It writes nothing.
//
// Instances of this project's instance view do not count: their exports are in pages. While a
// cluster migrates, its instances are rewritten one by one; its export counts until no instance of
// the legacy controller is left, and for intervals.hold after that.
type Registry struct {
	cfg    Config
	client *api.Client
	// schedule is used only by Run.
	schedule schedule

	mu      sync.Mutex
	catalog catalog
	// shown is what Lookup returns, members what Members returns.
	shown   map[mcs.Key]content
	members []registry.Member
	// pending are the keys of lookups before their service was read.
	pending engine.Keys
	problem *engine.Problem
}

var (
	_ registry.Registry = (*Registry)(nil)
	_ registry.Reporter = (*Registry)(nil)
)

// NewRegistry creates a registry. It makes no request.
func NewRegistry(client *api.Client, cfg Config) *Registry {
	cfg.PollInterval = cmp.Or(cfg.PollInterval, defaultPollInterval)
	if cfg.intervals == (intervals{}) {
		cfg.intervals = defaultIntervals()
	}
	return &Registry{
		cfg: cfg, client: client.InOwnAccount().WithPriority(api.PriorityLow),
		catalog: newCatalog(cfg.Identity.ClusterID, cfg.Ledger.Open(budget.Owner{ClusterID: ControllerName, Since: time.Now()})),
		shown:   map[mcs.Key]content{}, pending: engine.Keys{},
		problem: engine.NewProblem(cfg.Logger, "Failed to read the instances of clusters that run the legacy controller: keeping their last exports",
			"Reading the instances of clusters that run the legacy controller works again",
			func(err error) bool { return api.IsThrottled(err) || api.IsNotFound(err) }),
	}
}

// Publish implements registry.Registry. The instance view publishes this cluster's exports for
// legacy controllers.
func (r *Registry) Publish(context.Context, mcs.Export) error { return nil }

// Withdraw implements registry.Registry.
func (r *Registry) Withdraw(context.Context, mcs.Key) error { return nil }

// SetProperties implements registry.Registry. Instances have no properties.
func (r *Registry) SetProperties(mcs.Properties) {}

// SetImports implements registry.Registry. Instances have no report.
func (r *Registry) SetImports(mcs.ImportReport) {}

// Lookup implements registry.Registry.
func (r *Registry) Lookup(_ context.Context, key mcs.Key, imported ...string) (registry.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isRead(key) {
		r.pending[key] = struct{}{}
		return registry.View{}, fmt.Errorf("looking up the instances of %s: %w", key, registry.NotSynced(r.problem.Err()))
	}
	isKnown := func(id string) bool {
		return slices.ContainsFunc(r.members, func(m registry.Member) bool { return m.ClusterID == id })
	}
	var view registry.View
	for _, exp := range r.shown[key].exports {
		view.Set(exp.Cluster, registry.ClusterView{State: registry.Exports, Export: new(exp)})
	}
	for _, id := range r.shown[key].unknown {
		view.Set(id, registry.ClusterView{State: registry.Unknown})
	}
	view.SetUnseen(imported, isKnown)
	return view, nil
}

// Forget implements registry.Registry. It does nothing: an export of the legacy controller ends
// with its instances.
func (r *Registry) Forget(string) {}

// isRead reports whether the service of key has been read, or does not exist. The caller holds
// r.mu.
func (r *Registry) isRead(key mcs.Key) bool {
	s := r.catalog.services[key]
	return r.catalog.isListed && (s == nil || s.isRead)
}

// Members implements registry.Registry: the clusters that have exports.
func (r *Registry) Members(context.Context) ([]registry.Member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.catalog.isListed {
		return nil, fmt.Errorf("listing the clusters that run the legacy controller: %w", registry.ErrNotSynced)
	}
	return slices.Clone(r.members), nil
}

// Report implements registry.Reporter.
func (r *Registry) Report() registry.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return registry.Report{Keys: slices.Collect(maps.Keys(r.shown)), Reading: r.problem.Err()}
}

// Run implements registry.Registry. Leaving has no effect: this cluster has nothing in this
// registry.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	if errors.Is(context.Cause(ctx), registry.ErrLeave) {
		return nil
	}
	for {
		err := r.poll(ctx, notify)
		if ctx.Err() == nil {
			r.mu.Lock()
			r.problem.Set(err)
			r.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.cfg.PollInterval):
		}
	}
}

// poll lists services if that is due and reads the services that are due. Of several errors it
// returns one; each concerns its own service.
func (r *Registry) poll(ctx context.Context, notify func(mcs.Key)) error {
	err := r.listIfDue(ctx)
	r.mu.Lock()
	due := r.catalog.dueServices(time.Now(), r.cfg.intervals)
	r.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(maxReads)
	errs := make([]error, len(due))
	for i, d := range due {
		group.Go(func() error { errs[i] = r.readService(ctx, d); return nil })
	}
	_ = group.Wait()
	r.updateShown(time.Now(), notify)
	return cmp.Or(append([]error{err}, errs...)...)
}

// listIfDue lists namespaces and services.
func (r *Registry) listIfDue(ctx context.Context) error {
	if time.Now().Before(r.schedule.at) {
		return nil
	}
	found, err := r.listServices(ctx)
	now := time.Now()
	r.schedule.finish(now, r.cfg.intervals.list, err)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.catalog.setServices(now, found)
	return nil
}

// listServices returns every service that may belong to the clusterset.
func (r *Registry) listServices(ctx context.Context) (map[mcs.Key]service, error) {
	if r.schedule.namespaces == nil {
		namespaces, err := retryThrottled(ctx, r, r.client.ListNamespaces)
		if err != nil {
			return nil, err
		}
		r.schedule.namespaces, r.schedule.services = namespaces, map[string]map[string]api.Service{}
	}
	found := map[mcs.Key]service{}
	for _, name := range slices.Sorted(maps.Keys(r.schedule.namespaces)) {
		// The names of control namespaces, and of most namespaces of others, cannot be those of a
		// Kubernetes namespace.
		if len(validation.IsDNS1123Label(name)) > 0 {
			continue
		}
		in := r.schedule.namespaces[name]
		if _, isListed := r.schedule.services[name]; !isListed {
			services, err := retryThrottled(ctx, r, func(ctx context.Context) (map[string]api.Service, error) { return r.client.ListServices(ctx, in) })
			if err != nil && !api.IsNotFound(err) { // not found: deleted meanwhile
				return nil, err
			}
			r.schedule.services[name] = services
		}
		for serviceName, s := range r.schedule.services[name] {
			if len(validation.IsDNS1123Label(serviceName)) == 0 {
				found[mcs.Key{Namespace: name, Name: serviceName}] = service{namespace: in.HTTPName, resource: s}
			}
		}
	}
	r.schedule.namespaces = nil
	return found, nil
}

// readService reads a service if it may have changed.
func (r *Registry) readService(ctx context.Context, d dueService) error {
	revision, err := r.client.InstancesRevision(ctx, d.namespace, d.key.Name)
	if err == nil && revision <= d.revision && !d.mustRead {
		r.updateService(d, func(s *service) { s.checkedAt = time.Now() })
		return nil
	}
	var list []api.Instance
	if err == nil {
		list, revision, err = r.readInstances(ctx, d, revision)
	}
	if api.IsNotFound(err) {
		return nil // deleted meanwhile: the next list does not have it
	}
	if err != nil {
		return fmt.Errorf("reading the instances of %s: %w", d.key, err)
	}
	exports := ExportsOf(d.key, r.cfg.Identity.ClusterSetID, list)
	countCosts(exports)
	r.updateService(d, func(s *service) {
		if revision >= s.revision { // otherwise the answer is older than the last one
			s.revision = revision
			s.setExports(time.Now(), r.catalog.ownCluster, r.catalog.account, exports)
		}
	})
	return nil
}

// updateService updates the service that was read if it still exists.
func (r *Registry) updateService(d dueService, update func(*service)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.catalog.services[d.key]; s != nil && s.resource.ID == d.resource.ID {
		update(s)
	}
}

// readInstances reads all instances of the clusterset and their revision, which is below the given
// one if the answer is late. If there are more than DiscoverInstances returns, it lists them, which
// takes a request per hundred.
func (r *Registry) readInstances(ctx context.Context, d dueService, revision int64) ([]api.Instance, int64, error) {
	query := map[string]string{instances.AttrClusterSetID: r.cfg.Identity.ClusterSetID}
	list, complete, found, err := r.client.DiscoverInstancesAtRevision(ctx, d.namespace, d.key.Name, query)
	if complete || err != nil {
		return list, found, err
	}
	list, err = r.client.ListInstances(ctx, d.resource)
	return list, revision, err
}

// updateShown updates the answers of Lookup and Members, and notifies about changed ones.
func (r *Registry) updateShown(now time.Time, notify func(mcs.Key)) {
	r.mu.Lock()
	r.catalog.removeExpired(now, r.cfg.intervals.hold)
	shown, changed := map[mcs.Key]content{}, engine.Keys{}
	for key, s := range r.catalog.services {
		if content := s.content(); !content.isEmpty() {
			shown[key] = content
		}
		if !shown[key].equal(r.shown[key]) {
			changed[key] = struct{}{}
		}
	}
	for key := range r.shown {
		if r.catalog.services[key] == nil {
			changed[key] = struct{}{}
		}
	}
	r.shown, r.members = shown, r.catalog.members()
	for key := range r.pending {
		if r.isRead(key) {
			changed[key] = struct{}{}
			delete(r.pending, key)
		}
	}
	r.mu.Unlock()
	for key := range changed {
		notify(key)
	}
}
