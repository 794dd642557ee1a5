package cloudmap

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// ResourceIDs are the Cloud Map IDs of the control namespace, of service members and of this
// cluster's catalog, or their ARNs in a namespace of another account.
//
// A controller that starts finds the control namespace by lists, of which AWS allows a whole
// account one in two seconds. A hundred controllers that start at once would be without a heartbeat
// for minutes, and become stale. So a controller keeps the IDs, and after a restart verifies them
// with three requests of which AWS allows 50 per second each.
//
// Heartbeat is kept with them, because a save of one is a write of all.
type ResourceIDs struct {
	Namespace, Members, Catalog string
	Heartbeat                   engine.SavedHeartbeat
}

// ResourceIDStore keeps the ResourceIDs of a cluster across restarts of its controller.
type ResourceIDStore interface {
	// LoadResourceIDs returns the IDs that were saved last, or the zero value.
	LoadResourceIDs(ctx context.Context) (ResourceIDs, error)
	// SaveResourceIDs replaces the saved IDs; the zero value removes them.
	SaveResourceIDs(ctx context.Context, ids ResourceIDs) error
}

// resourceIDs returns the IDs of the place.
func (p controlPlace) resourceIDs() ResourceIDs {
	return ResourceIDs{Namespace: p.namespace.ID, Members: p.members.ID, Catalog: p.catalog.ID}
}

// recallFor is the time for which loading and verifying the IDs is retried while requests fail that
// may succeed later. After that the place is found by lists. A hundred controllers that start at
// once need two GetService each, at 50 per second for all: 4 s without throttling.
const recallFor = 30 * time.Second

// recall returns the place that the stored IDs lead to, verified without lists. ok is false if
// there are no IDs or the resources do not match them. An error is one that the next attempt may
// resolve.
func (c *control) recall(ctx context.Context) (place controlPlace, ok bool, err error) {
	if c.store == nil {
		return place, false, nil
	}
	if c.recalling.IsZero() {
		c.recalling = time.Now()
	}
	ids, err := c.store.LoadResourceIDs(ctx)
	if err == nil {
		c.saved, c.heartbeat = ids, ids.Heartbeat.Next(c.wall())
		if ids.Namespace == "" {
			return place, false, nil
		}
	}
	if err == nil {
		place, err = c.verify(ctx, c.client.WithPriority(api.PriorityHigh), ids)
	}
	switch {
	case err == nil:
		return place, true, nil
	case ctx.Err() != nil:
		return place, false, err
	case errors.Is(err, errElsewhere) || time.Since(c.recalling) >= recallFor || !api.IsRetryable(err):
		return place, false, nil
	}
	return place, false, err
}

// saveIDs stores the IDs of the place if they are not stored, with the latest heartbeat. A failure
// is not one of the registry: without them the next start takes longer.
func (c *control) saveIDs(ctx context.Context, place controlPlace, heartbeat int64) {
	ids := place.resourceIDs()
	next, due := c.saved.Heartbeat.Advance(heartbeat, c.wall())
	ids.Heartbeat = c.saved.Heartbeat
	if c.store == nil || ids == c.saved && !due {
		return
	}
	ids.Heartbeat = next
	if err := c.store.SaveResourceIDs(ctx, ids); err != nil {
		c.log.Info("Failed to store the IDs of the clusterset's resources; retrying at the next heartbeat", "error", err.Error())
		return
	}
	c.saved = ids
}

// saveFarewell stores the IDs of the place with the heartbeat of the farewell, which may be far
// from the last one.
func (c *control) saveFarewell(ctx context.Context, place controlPlace, heartbeat int64) {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	c.saved.Heartbeat = 0 // store it now
	c.saveIDs(ctx, place, heartbeat)
}

// errElsewhere means that the stored IDs are not those of the clusterset's resources.
var errElsewhere = errors.New("the stored resource IDs are not those of the clusterset")

// verify returns the place with these IDs if the resources have the expected names and owner.
func (c *control) verify(ctx context.Context, client *api.Client, ids ResourceIDs) (place controlPlace, err error) {
	in, err := client.GetNamespace(ctx, ids.Namespace)
	if err != nil {
		return place, err
	}
	if in.ID != ids.Namespace || in.Name != c.namespaceName() || !client.IsOwner(in.Owner) {
		return place, errElsewhere
	}
	place = controlPlace{namespace: in}
	isMembers := func(name string) bool { _, ok := format.ParseMembersService(name); return ok }
	if place.members, err = c.verifyService(ctx, client, in, ids.Members, isMembers); err != nil {
		return place, err
	}
	isCatalog := func(name string) bool { return name == format.CatalogName(c.identity.ClusterID) }
	place.catalog, err = c.verifyService(ctx, client, in, ids.Catalog, isCatalog)
	return place, err
}

// verifyService returns the service with this ID if it has an expected name and is in the
// namespace.
func (c *control) verifyService(ctx context.Context, client *api.Client, in api.Namespace, id string, isExpected func(name string) bool) (api.Service, error) {
	s, err := client.GetService(ctx, id)
	if err != nil {
		return api.Service{}, err
	}
	if s.ID != id || !isExpected(s.Name) || !in.HasID(s.NamespaceID) || !client.IsOwner(s.Owner) {
		return api.Service{}, errElsewhere
	}
	return s.Service, nil
}
