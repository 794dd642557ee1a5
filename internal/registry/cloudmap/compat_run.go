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
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// CompatConfig says for whom instances are read, and how often.
type CompatConfig struct {
	Identity mcs.Identity
	// PollInterval is the time between two looks at each service that has such instances; 0 is the default.
	PollInterval time.Duration
	Logger       logr.Logger

	// times are what only tests change.
	times compatTimes
}

// Compat shows the exports of the clusters that still run the AWS Cloud Map MCS Controller for K8s: those that its instances
// tell of, in the Cloud Map namespaces that are named as Kubernetes namespaces are. It only reads, at the pace that is left over.
//
// What controllers like this one write as their instance view does not count here: it is in their pages. While a cluster changes
// from the old controller to ours, its instances are rewritten one by one; they count until none of the old kind is left, and
// for compatHold more.
type Compat struct {
	cfg    CompatConfig
	log    logr.Logger
	client *api.Client

	mu      sync.Mutex
	catalog compatCatalog
	// shown is what Look answers, and members what Members does.
	shown   map[mcs.Key][]mcs.Export
	members []registry.Member
	// asked are the keys that were told ErrNotSynced.
	asked keySet
	// problem is why the last round did not succeed, nil if it did.
	problem error
	// lists says when to list; only Run uses it.
	lists compatLists
}

var _ registry.Registry = (*Compat)(nil)

// NewCompat makes the compatibility import. It makes no request.
func NewCompat(client *api.Client, cfg CompatConfig) *Compat {
	cfg.PollInterval = cmp.Or(cfg.PollInterval, defaultCompatPoll)
	if cfg.times == (compatTimes{}) {
		cfg.times = defaultCompatTimes()
	}
	return &Compat{
		cfg: cfg, log: cfg.Logger, client: client.InOwnAccount().WithPriority(api.PriorityLow),
		catalog: compatCatalog{own: cfg.Identity.ClusterID, services: map[mcs.Key]*compatService{}},
		shown:   map[mcs.Key][]mcs.Export{}, asked: keySet{},
	}
}

// Publish implements registry.Registry: this cluster's exports reach the old kind of controller through the instance view.
func (c *Compat) Publish(context.Context, mcs.Export) error { return nil }

// Withdraw implements registry.Registry.
func (c *Compat) Withdraw(context.Context, mcs.Key) error { return nil }

// Lookup implements registry.Registry.
func (c *Compat) Lookup(_ context.Context, key mcs.Key) (registry.View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.catalog.services[key]; !c.catalog.listed || s != nil && !s.read {
		c.asked[key] = struct{}{}
		err := registry.ErrNotSynced
		if c.problem != nil {
			err = fmt.Errorf("%w: %w", err, c.problem)
		}
		return registry.View{}, fmt.Errorf("looking up the instances of %s: %w", key, err)
	}
	return registry.View{Exports: slices.Clone(c.shown[key])}, nil
}

// Members implements registry.Registry: the clusters that have exports.
func (c *Compat) Members(context.Context) ([]registry.Member, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.catalog.listed {
		return nil, fmt.Errorf("listing the clusters that run the AWS Cloud Map MCS Controller for K8s: %w", registry.ErrNotSynced)
	}
	return slices.Clone(c.members), nil
}

// Run implements registry.Registry. Leaving is nothing to it: it has nothing in the registry.
func (c *Compat) Run(ctx context.Context, notify func(mcs.Key)) error {
	if errors.Is(context.Cause(ctx), registry.ErrLeave) {
		return nil
	}
	for {
		err := c.round(ctx, notify)
		c.report(ctx, err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.cfg.PollInterval):
		}
	}
}

// report logs when reading begins to fail, and when it works again.
func (c *Compat) report(ctx context.Context, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil || text(err) == text(c.problem) {
		return
	}
	c.problem = err
	logChange(c.log, err, "Cannot read the instances of the clusters that run the AWS Cloud Map MCS Controller for K8s; what is known of them stays",
		"Reading the instances of the clusters that run the AWS Cloud Map MCS Controller for K8s again")
}

// round looks once at everything that is due. Of several errors it returns one; each concerns its own service.
func (c *Compat) round(ctx context.Context, notify func(mcs.Key)) error {
	err := c.listIfDue(ctx)
	c.mu.Lock()
	looks := c.catalog.dueServices(time.Now(), c.cfg.times)
	c.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(concurrency)
	errs := make([]error, len(looks))
	for i, look := range looks {
		group.Go(func() error { errs[i] = c.look(ctx, look); return nil })
	}
	_ = group.Wait()
	c.show(time.Now(), notify)
	return cmp.Or(append([]error{err}, errs...)...)
}

// listIfDue lists namespaces and services.
func (c *Compat) listIfDue(ctx context.Context) error {
	if time.Now().Before(c.lists.at) {
		return nil
	}
	found, err := c.list(ctx)
	now := time.Now()
	c.lists.done(now, c.cfg.times.list, err)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.catalog.list(now, found)
	return nil
}

// list finds every service that may be one of the clusterset.
func (c *Compat) list(ctx context.Context) (map[mcs.Key]compatService, error) {
	if c.lists.namespaces == nil {
		namespaces, err := patiently(ctx, c, c.client.ListNamespaces)
		if err != nil {
			return nil, err
		}
		c.lists.namespaces, c.lists.services = namespaces, map[string]map[string]api.Service{}
	}
	found := map[mcs.Key]compatService{}
	for _, name := range slices.Sorted(maps.Keys(c.lists.namespaces)) {
		// A control namespace, and most of what has nothing to do with Kubernetes, is no name of a Kubernetes namespace.
		if len(validation.IsDNS1123Label(name)) > 0 {
			continue
		}
		in := c.lists.namespaces[name]
		if _, listed := c.lists.services[name]; !listed {
			services, err := patiently(ctx, c, func(ctx context.Context) (map[string]api.Service, error) { return c.client.ListServices(ctx, in) })
			if err != nil && !api.IsNotFound(err) { // deleted since
				return nil, err
			}
			c.lists.services[name] = services
		}
		for serviceName, s := range c.lists.services[name] {
			if len(validation.IsDNS1123Label(serviceName)) == 0 {
				found[mcs.Key{Namespace: name, Name: serviceName}] = compatService{namespace: in.HTTPName, service: s}
			}
		}
	}
	c.lists.namespaces = nil
	return found, nil
}

// look reads a service if it may have changed.
func (c *Compat) look(ctx context.Context, l compatLook) error {
	revision, err := c.client.InstancesRevision(ctx, l.namespace, l.key.Name)
	if err == nil && revision <= l.revision && !l.whole {
		c.note(l, func(s *compatService) { s.lookedAt = time.Now() })
		return nil
	}
	var instances []api.Instance
	if err == nil {
		instances, revision, err = c.instances(ctx, l, revision)
	}
	if api.IsNotFound(err) {
		return nil // deleted since: the next list will say so
	}
	if err != nil {
		return fmt.Errorf("reading the instances of %s: %w", l.key, err)
	}
	exports := legacy.ExportsOf(l.key, c.cfg.Identity.ClusterSetID, instances)
	c.note(l, func(s *compatService) {
		if revision >= s.revision { // else it is an answer from before the last one
			s.revision = revision
			s.note(time.Now(), c.catalog.own, exports)
		}
	})
	return nil
}

// note notes something of the service that was looked at, if it is still the same.
func (c *Compat) note(l compatLook, what func(*compatService)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.catalog.services[l.key]; s != nil && s.service.ID == l.service.ID {
		what(s)
	}
}

// instances reads the instances of our clusterset, whole, and the revision that they are of: at least the one given, or the
// answer is an old one. When there are more than DiscoverInstances shows, they are listed, at a request per hundred.
func (c *Compat) instances(ctx context.Context, l compatLook, revision int64) ([]api.Instance, int64, error) {
	query := map[string]string{format.AttrClusterSetID: c.cfg.Identity.ClusterSetID}
	instances, complete, found, err := c.client.DiscoverInstancesAtRevision(ctx, l.namespace, l.key.Name, query)
	if complete || err != nil {
		return instances, found, err
	}
	instances, err = c.client.ListInstances(ctx, l.service)
	return instances, revision, err
}

// show makes Look answer what is known now, and notifies of what that changes.
func (c *Compat) show(now time.Time, notify func(mcs.Key)) {
	c.mu.Lock()
	c.catalog.forget(now, c.cfg.times.hold)
	shown, changed := map[mcs.Key][]mcs.Export{}, keySet{}
	for key, s := range c.catalog.services {
		if exports := s.exports(); len(exports) > 0 {
			shown[key] = exports
		}
		if !slices.EqualFunc(shown[key], c.shown[key], mcs.Export.Equal) {
			changed[key] = struct{}{}
		}
	}
	for key := range c.shown {
		if c.catalog.services[key] == nil {
			changed[key] = struct{}{}
		}
	}
	c.shown, c.members = shown, c.catalog.members()
	for key := range c.asked {
		if s := c.catalog.services[key]; c.catalog.listed && (s == nil || s.read) {
			changed[key] = struct{}{}
			delete(c.asked, key)
		}
	}
	c.mu.Unlock()
	for key := range changed {
		notify(key)
	}
}
