package cloudmap

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

const (
	controlPrefix  = "mcs."
	catalogPrefix  = "catalog."
	membersService = "members"
)

// control finds the namespace and the services that hold members and pages, and makes them when they are not there.
type control struct {
	client   *Client
	identity mcs.Identity

	// readOnly makes nothing. What is missing is looked for again after a while.
	readOnly bool
	again    time.Duration

	known atomic.Pointer[controlPlace]
	// looking is held by who looks for the place: reader and writer must not both make it.
	looking *semaphore.Weighted
}

func newControl(client *Client, cfg Config) *control {
	return &control{
		client: client, identity: cfg.Identity, readOnly: cfg.ReadOnly, again: cfg.times.missing, looking: semaphore.NewWeighted(1),
	}
}

// controlPlace is where a clusterset's records are.
type controlPlace struct {
	// found is when it was found.
	found            time.Time
	namespace        namespace
	members, catalog service
	// catalogs are the clusters that had a catalog when the place was found.
	catalogs []string
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
	find, doing := c.find, "preparing"
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

// look finds what is there.
func (c *control) look(ctx context.Context) (place controlPlace, err error) {
	namespaces, err := c.client.namespaces(ctx)
	if err != nil {
		return place, err
	}
	var ok bool
	if place.namespace, ok = namespaces[c.namespaceName()]; !ok {
		return controlPlace{missing: true}, nil
	}
	services, err := c.client.services(ctx, place.namespace)
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
	namespaces, err := c.client.namespaces(ctx)
	if err != nil {
		return place, err
	}
	var ok bool
	if place.namespace, ok = namespaces[c.namespaceName()]; !ok {
		if place.namespace, err = c.client.createNamespace(ctx, c.namespaceName(), c.identity, partControl); err != nil {
			return place, err
		}
	}
	services, err := c.client.services(ctx, place.namespace)
	if err != nil {
		return place, err
	}
	place.catalogs = catalogsIn(services)
	if place.members, ok = services[membersService]; !ok {
		if place.members, err = c.client.createService(ctx, place.namespace, membersService, c.identity, partMembers); err != nil {
			return place, err
		}
	}
	if place.catalog, ok = services[catalogName(c.identity.ClusterID)]; !ok {
		place.isNew = true
		place.catalog, err = c.client.createService(ctx, place.namespace, catalogName(c.identity.ClusterID), c.identity, partCatalog)
	}
	return place, err
}

// catalogsIn are the clusters that have a catalog.
func catalogsIn(services map[string]service) []string {
	var clusters []string
	for name := range services {
		if id, ok := strings.CutPrefix(name, catalogPrefix); ok && mcs.ValidateClusterID(id) == nil {
			clusters = append(clusters, id)
		}
	}
	return clusters
}

func catalogName(clusterID string) string { return catalogPrefix + clusterID }

// leave deletes this cluster's catalog, and with the last cluster the rest, as far as it is ours and empty. What somebody
// uses stays.
func (c *control) leave(ctx context.Context, place controlPlace) error {
	defer c.forget()
	remove := []struct {
		arn    string
		delete func() error
	}{
		{place.catalog.arn, func() error { return c.client.deleteService(ctx, place.catalog) }},
		{place.members.arn, func() error { return c.client.deleteService(ctx, place.members) }},
		{place.namespace.arn, func() error { return c.client.deleteNamespace(ctx, place.namespace) }},
	}
	members, err := c.client.list(ctx, place.members)
	if err != nil && !isNotFound(err) {
		return err
	}
	if slices.ContainsFunc(members, func(i plan.Instance) bool { return i.ID != c.identity.ClusterID }) {
		remove = remove[:1]
	}
	for _, resource := range remove {
		if gone, err := c.client.removeIfOurs(ctx, resource.arn, c.identity, resource.delete); err != nil || !gone {
			return err
		}
	}
	return nil
}
