package cloudmap

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// control finds the namespace and the services that hold members and pages, and makes them when they are not there.
type control struct {
	client   *api.Client
	identity mcs.Identity

	// readOnly makes nothing. What is missing is looked for again after a while.
	readOnly bool
	again    time.Duration

	// known is the place, nil while it has to be found or verified. last is the place as it was known last.
	known, last atomic.Pointer[controlPlace]
	// looking is held by who looks for the place: reader and writer must not both make it.
	looking *semaphore.Weighted
	// store keeps the resource IDs; nil is none.
	store ResourceIDStore
	// searched says that the stored IDs were used, or are of no use. recalling is since when they are being verified. Both are guarded by
	// looking.
	searched  bool
	recalling time.Time
	// err is why the last search failed, and retryAt when the next one may begin: reader and writer ask more often. Both are guarded by looking.
	err      error
	failures int
	retryAt  time.Time
	backoff  engine.Backoff
	// saved are the IDs that the store has. Only the writer uses it, once the place is known.
	saved ResourceIDs
	// heartbeat is that of the previous process, or later. It is guarded by looking.
	heartbeat int64
	// wall is the clock that heartbeats are made with.
	wall func() time.Time
	log  logr.Logger
	// listed gets of each list of the namespaces.
	listed func(map[string]api.Namespace)
}

func newControl(client *api.Client, cfg Config) *control {
	return &control{
		client: client, identity: cfg.Identity, store: cfg.ResourceIDs, log: cfg.Logger, readOnly: cfg.ReadOnly, again: cfg.times.missing, looking: semaphore.NewWeighted(1),
		wall:    cfg.wall,
		listed:  func(map[string]api.Namespace) {},
		backoff: engine.Backoff{Initial: cfg.times.Retry, Max: cfg.times.MaxRetry, Jitter: 1},
	}
}

// controlPlace is where a clusterset's records are.
type controlPlace struct {
	// found is when it was found.
	found     time.Time
	namespace api.Namespace
	members   api.Service
	// catalog is our own catalog, which is always there unless we only read.
	catalog api.Service
	// isNew says that the catalog was not there before.
	isNew bool
	// missing says that the namespace or its service members is not there. Only who just reads sees that.
	missing bool
	// rechecked is set if the place was in doubt, and verified by its IDs.
	rechecked bool
	// until is when it is to be looked for again; zero is never.
	until time.Time
	// heartbeat is that of the previous process, or later.
	heartbeat int64
}

// location returns the location of the records for the state.
func (p controlPlace) location() state.Location {
	return state.Location{Namespace: p.namespace.Name, CatalogID: p.catalog.ID, IsNew: p.isNew, Heartbeat: p.heartbeat}
}

// namespaceName is that of the clusterset's control namespace.
func (c *control) namespaceName() string { return format.ControlNamespace(c.identity.ClusterSetID) }

// ensure returns the place, from memory once it is known.
func (c *control) ensure(ctx context.Context) (controlPlace, error) {
	if known := c.remembered(); known != nil {
		return *known, nil
	}
	if err := c.looking.Acquire(ctx, 1); err != nil {
		return controlPlace{}, err
	}
	defer c.looking.Release(1)
	if known := c.remembered(); known != nil {
		return *known, nil
	}
	if c.err != nil && time.Now().Before(c.retryAt) {
		return controlPlace{}, c.err
	}
	place, err := c.search(ctx)
	if ctx.Err() != nil {
		return controlPlace{}, ctx.Err()
	}
	if c.err = err; err != nil {
		c.failures++
		c.retryAt = time.Now().Add(c.backoff.Pause(c.failures))
		return controlPlace{}, err
	}
	c.failures = 0
	if place.missing {
		place.until = time.Now().Add(c.again)
	}
	place.found, place.heartbeat = time.Now(), c.heartbeat
	c.last.Store(&place)
	c.known.Store(&place)
	return place, nil
}

// search finds the place. A place that was known is verified by its IDs, with three requests of which AWS allows 50 a second each, before any
// list: one wrong answer must not make all clusters list, of which AWS allows a whole account one in two seconds.
func (c *control) search(ctx context.Context) (place controlPlace, err error) {
	if c.readOnly {
		if place, err = c.look(ctx); err != nil {
			return place, fmt.Errorf("looking for the clusterset's namespace %s: %w", c.namespaceName(), err)
		}
		return place, nil
	}
	last := c.last.Load()
	if last != nil {
		_, err := c.verify(ctx, c.client.WithPriority(api.PriorityHigh), last.resourceIDs())
		switch {
		case err == nil:
			return last.recheckedNow(), nil
		case api.IsRetryable(err) && !errors.Is(err, errElsewhere):
			return place, fmt.Errorf("verifying the clusterset's namespace %s: %w", c.namespaceName(), err)
		}
	}
	place, err = c.recallOrFind(ctx)
	switch {
	case err != nil && last != nil && api.IsDenied(err):
		return last.recheckedNow(), nil // no response says that it is gone
	case err != nil:
		return place, fmt.Errorf("preparing the clusterset's namespace %s: %w", c.namespaceName(), err)
	}
	return place, nil
}

// recheckedNow returns the place after it was verified.
func (p controlPlace) recheckedNow() controlPlace {
	p.rechecked, p.isNew = true, false
	return p
}

// lastKnown returns the place as it was known last, also while it is being verified; ok is false if none was known yet.
func (c *control) lastKnown() (place controlPlace, ok bool) {
	if last := c.last.Load(); last != nil && !last.missing {
		return *last, true
	}
	return place, false
}

// doubtAfter makes the next ensure verify the place after an error that may mean that something was deleted. IAM by tags denies access to a
// resource that does not exist.
func (c *control) doubtAfter(err error) {
	age := believed
	known := c.known.Load()
	switch {
	case known == nil || !api.IsNotFound(err) && !api.IsDenied(err):
		return
	case api.IsDenied(err):
		age = recheckDenied
	case known.rechecked:
		age = recheckAgain
	}
	if time.Since(known.found) >= age {
		c.known.CompareAndSwap(known, nil)
	}
}

const (
	// recheckAgain is how long a place that was verified is not verified again, whatever responses say: each time takes three requests.
	recheckAgain = 10 * time.Second
	// recheckDenied is the same after a denied request, which is more often a missing permission than a deleted resource.
	recheckDenied = 30 * time.Second
)

// remembered is the place as found before, nil if it has to be looked for.
func (c *control) remembered() *controlPlace {
	known := c.known.Load()
	if known == nil || !known.until.IsZero() && !time.Now().Before(known.until) {
		return nil
	}
	return known
}

// believed is how long what was found is believed to be there, whatever reads say: they are late. To read again costs a list of
// namespaces, which AWS allows the whole account once in two seconds.
const believed = 2 * time.Second

// recallOrFind finds the place by the stored IDs when this process looks for it first, and by lists otherwise.
func (c *control) recallOrFind(ctx context.Context) (controlPlace, error) {
	if !c.searched {
		place, ok, err := c.recall(ctx)
		if err != nil {
			return place, err
		}
		c.searched = true
		if ok {
			return place, nil
		}
	}
	return c.find(ctx)
}

// look finds what is there.
func (c *control) look(ctx context.Context) (place controlPlace, err error) {
	namespaces, err := c.client.ListNamespaces(ctx)
	if err != nil {
		return place, err
	}
	var ok bool
	if place.namespace, ok = namespaces[c.namespaceName()]; !ok {
		return controlPlace{missing: true}, nil
	}
	services, err := c.client.ListServices(ctx, place.namespace)
	if err != nil {
		return place, err
	}
	place.members, ok = services[format.MembersService]
	place.missing = !ok
	return place, nil
}

// find finds what is there, and makes what is not.
func (c *control) find(ctx context.Context) (place controlPlace, err error) {
	namespaces, err := c.client.ListNamespaces(ctx)
	if err != nil {
		return place, err
	}
	c.listed(namespaces)
	var ok bool
	if place.namespace, ok = namespaces[c.namespaceName()]; !ok {
		if place.namespace, err = c.client.CreateNamespace(ctx, c.namespaceName(), c.identity, api.PartControl); err != nil {
			return place, err
		}
	}
	services, err := c.client.ListServices(ctx, place.namespace)
	if err != nil {
		return place, err
	}
	if place.members, ok = services[format.MembersService]; !ok {
		if place.members, err = c.client.CreateService(ctx, place.namespace, format.MembersService, c.identity, api.PartMembers); err != nil {
			return place, err
		}
	}
	if place.catalog, ok = services[format.CatalogName(c.identity.ClusterID)]; ok {
		return place, nil
	}
	place.isNew = true
	place.catalog, err = c.client.CreateService(ctx, place.namespace, format.CatalogName(c.identity.ClusterID), c.identity, api.PartCatalog)
	return place, err
}

// leave deletes this cluster's catalog, and after the last cluster the rest, as far as it is ours and empty. What another writer
// uses stays. pause is the time for which the farewells of all clusters stay then.
func (c *control) leave(ctx context.Context, place controlPlace, pause time.Duration) error {
	defer func() { c.known.Store(nil); c.last.Store(nil) }()
	c.saveIDs(ctx, controlPlace{}, 0)
	gone, err := c.client.DeleteIfManaged(ctx, place.catalog.ARN, c.identity, func() error { return c.client.DeleteService(ctx, place.catalog) })
	if err != nil || !gone {
		return err
	}
	farewells, err := c.farewells(ctx, place)
	if err != nil || farewells == nil {
		return err
	}
	engine.Sleep(ctx, pause) // registries that only read may not have read the farewell yet
	if farewells, err = c.farewells(ctx, place); err != nil || farewells == nil {
		return err
	}
	for _, id := range farewells {
		if err := c.client.DeregisterInstance(ctx, place.members.ID, id); err != nil {
			return err
		}
	}
	gone, err = c.client.DeleteIfManaged(ctx, place.members.ARN, c.identity, func() error { return c.client.DeleteService(ctx, place.members) })
	if err != nil || !gone {
		return err
	}
	_, err = c.client.DeleteIfManaged(ctx, place.namespace.ARN, c.identity, func() error { return c.client.DeleteNamespace(ctx, place.namespace) })
	return err
}

// farewells returns the IDs of the records in service members if all of them are farewells, otherwise nil.
func (c *control) farewells(ctx context.Context, place controlPlace) ([]string, error) {
	ids := []string{}
	members, err := c.client.ListInstances(ctx, place.members)
	if err != nil && !api.IsNotFound(err) {
		return nil, err
	}
	for _, instance := range members {
		r, parseErr := format.ParseMember(instance, c.identity.ClusterSetID)
		if isFarewell := parseErr == nil && r.Farewell; !isFarewell {
			return nil, nil
		}
		ids = append(ids, instance.ID)
	}
	return ids, nil
}
