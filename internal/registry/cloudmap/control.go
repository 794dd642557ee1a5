package cloudmap

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

const (
	controlPrefix  = "mcs."
	catalogPrefix  = "catalog."
	membersService = "members"
)

// control finds the namespace and the services that hold members and pages, and makes them when they are not there.
type control struct {
	client   *api.Client
	identity mcs.Identity

	// readOnly makes nothing. What is missing is looked for again after a while.
	readOnly bool
	again    time.Duration

	known atomic.Pointer[controlPlace]
	// looking is held by who looks for the place: reader and writer must not both make it.
	looking *semaphore.Weighted
	// searched says that the place was found, or is to be found, without our record's help. recalling is since when the place that it
	// tells of is being verified. Both belong to who holds looking.
	searched  bool
	recalling time.Time
	// listed is told of each list of the namespaces.
	listed func(map[string]api.Namespace)
	// unlisted is closed when the place was found without a list of the services, and that has to be made up for.
	unlisted chan struct{}
}

func newControl(client *api.Client, cfg Config) *control {
	return &control{
		client: client, identity: cfg.Identity, readOnly: cfg.ReadOnly, again: cfg.times.missing, looking: semaphore.NewWeighted(1),
		listed: func(map[string]api.Namespace) {}, unlisted: make(chan struct{}),
	}
}

// controlPlace is where a clusterset's records are.
type controlPlace struct {
	// found is when it was found.
	found     time.Time
	namespace api.Namespace
	members   api.Service
	// catalog are the services of our own catalog. The first is always there, unless we just read.
	catalog map[int]api.Service
	// catalogs are the clusters that had a catalog when the place was found, and its services.
	catalogs map[string]map[int]api.Service
	// unlisted says that the services were not listed: catalogs is not known, and catalog may lack services that no record tells of.
	unlisted bool
	// isNew says that the catalog was not there before.
	isNew bool
	// missing says that the namespace or its service members is not there. Only who just reads sees that.
	missing bool
	// until is when it is to be looked for again; zero is never.
	until time.Time
}

// namespaceName is that of the clusterset's control namespace.
func (c *control) namespaceName() string { return controlPrefix + c.identity.ClusterSetID }

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
	find, doing := c.recallOrFind, "preparing"
	if c.readOnly {
		find, doing = c.look, "looking for"
	}
	place, err := find(ctx)
	if err != nil {
		return controlPlace{}, fmt.Errorf("%s the clusterset's namespace %s: %w", doing, c.namespaceName(), err)
	}
	if place.missing {
		place.until = time.Now().Add(c.again)
	}
	place.found = time.Now()
	c.known.Store(&place)
	if place.unlisted {
		close(c.unlisted)
	}
	return place, nil
}

// remembered is the place as found before, nil if it has to be looked for.
func (c *control) remembered() *controlPlace {
	known := c.known.Load()
	if known == nil || !known.until.IsZero() && !time.Now().Before(known.until) {
		return nil
	}
	return known
}

// forget makes the next ensure look again: something that was there has vanished.
func (c *control) forget() {
	if known := c.known.Load(); known != nil && time.Since(known.found) >= believed {
		c.known.CompareAndSwap(known, nil)
	}
}

// believed is how long what was found is believed to be there, whatever reads say: they are late. To look again costs a list of
// namespaces, which AWS allows the whole account once in two seconds.
const believed = 2 * time.Second

// recallOrFind finds the place with the help of our record when this process looks for it first, and by lists otherwise.
func (c *control) recallOrFind(ctx context.Context) (controlPlace, error) {
	if !c.searched {
		place, ok, err := c.recall(ctx)
		if err != nil {
			return place, err
		}
		c.searched = true
		if ok {
			return c.listSoon(ctx, place), nil
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
	place.catalogs = catalogsIn(services)
	place.members, ok = services[membersService]
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
	place.catalogs = catalogsIn(services)
	if place.members, ok = services[membersService]; !ok {
		if place.members, err = c.client.CreateService(ctx, place.namespace, membersService, c.identity, api.PartMembers); err != nil {
			return place, err
		}
	}
	place.catalog = maps.Clone(place.catalogs[c.identity.ClusterID])
	if _, ok := place.catalog[0]; ok {
		return place, nil
	}
	place.isNew = len(place.catalog) == 0
	first, err := c.createCatalog(ctx, place, 0)
	if place.isNew {
		place.catalog = map[int]api.Service{}
	}
	place.catalog[0] = first
	return place, err
}

// createCatalog makes a service of our catalog.
func (c *control) createCatalog(ctx context.Context, place controlPlace, number int) (api.Service, error) {
	return c.client.CreateService(ctx, place.namespace, catalogName(c.identity.ClusterID, number), c.identity, api.PartCatalog)
}

// extend makes a further service of our catalog, if it is not there.
func (c *control) extend(ctx context.Context, place *controlPlace, number int) error {
	if _, ok := place.catalog[number]; ok {
		return nil
	}
	made, err := c.createCatalog(ctx, *place, number)
	if err != nil {
		return err
	}
	c.change(place, func(catalog map[int]api.Service) { catalog[number] = made })
	return nil
}

// reduce deletes a service of our catalog, if it is ours by its tags and nobody uses it.
func (c *control) reduce(ctx context.Context, place *controlPlace, number int) (gone bool, err error) {
	s := place.catalog[number]
	gone, err = c.client.DeleteIfManaged(ctx, s.ARN, c.identity, func() error { return c.client.DeleteService(ctx, s) })
	if gone {
		c.change(place, func(catalog map[int]api.Service) { delete(catalog, number) })
	}
	return gone, err
}

// change changes the services of our catalog, in place and in what is remembered of it.
func (c *control) change(place *controlPlace, edit func(map[int]api.Service)) {
	place.catalog = maps.Clone(place.catalog)
	edit(place.catalog)
	for known := c.known.Load(); known != nil && known.namespace.ID == place.namespace.ID; known = c.known.Load() {
		changed := *known
		changed.catalog = maps.Clone(known.catalog)
		edit(changed.catalog)
		if c.known.CompareAndSwap(known, &changed) {
			return
		}
	}
}

// leave deletes this cluster's catalog, and with the last cluster the rest, as far as it is ours and empty. What somebody
// uses stays.
func (c *control) leave(ctx context.Context, place controlPlace) error {
	defer c.forget()
	for number := range place.catalog {
		if gone, err := c.reduce(ctx, &place, number); err != nil || !gone {
			return err
		}
	}
	members, err := c.client.ListInstances(ctx, place.members)
	if err != nil && !api.IsNotFound(err) {
		return err
	}
	if slices.ContainsFunc(members, func(i api.Instance) bool { return i.ID != c.identity.ClusterID }) {
		return nil
	}
	gone, err := c.client.DeleteIfManaged(ctx, place.members.ARN, c.identity, func() error { return c.client.DeleteService(ctx, place.members) })
	if err != nil || !gone {
		return err
	}
	_, err = c.client.DeleteIfManaged(ctx, place.namespace.ARN, c.identity, func() error { return c.client.DeleteNamespace(ctx, place.namespace) })
	return err
}
