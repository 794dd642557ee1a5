package cloudmap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// control finds the control namespace and its services, and creates missing ones.
type control struct {
	client    *api.Client
	identity  mcs.Identity
	deletions *api.Deletions

	// isMine reports whether this process has written a record.
	isMine func(format.Member) bool
	// readOnly creates nothing. Missing resources are searched again after a while.
	readOnly bool
	again    time.Duration

	// known is the place, nil while it has to be found or verified. last is the last known place.
	known, last atomic.Pointer[controlPlace]
	// looking is locked during a search: reader and writer must not both create the resources.
	looking *semaphore.Weighted
	// store keeps the resource IDs; nil is none.
	store ResourceIDStore
	// searched is set if the stored IDs have been used or are useless. recalling is the time since
	// which they are being verified. looking guards both.
	searched  bool
	recalling time.Time
	// err is the error of the last search, and retryAt the time from which the next one may begin:
	// reader and writer call ensure more often. looking guards both.
	err      error
	failures int
	retryAt  time.Time
	backoff  engine.Backoff
	// services are the services with member records.
	services memberServices
	// saved are the IDs that the store has. Only the writer uses it, once the place is known.
	saved ResourceIDs
	// heartbeat is the heartbeat of the previous process, or a later one. looking guards it.
	heartbeat int64
	// wall is the clock of heartbeats.
	wall func() time.Time
	log  logr.Logger
	// listed is called after each list of the namespaces.
	listed func(map[string]api.Namespace)
	// doubts and relists are the numbers of failed reads and of lists after them since the last
	// read of the members. Only the reader of a process that only reads uses them.
	doubts, relists int
}

func newControl(client *api.Client, cfg Config) *control {
	return &control{
		client: client, identity: cfg.Identity, deletions: api.NewDeletions(client, cfg.Identity), store: cfg.ResourceIDs, log: cfg.Logger, readOnly: cfg.ReadOnly, again: cfg.times.missing, looking: semaphore.NewWeighted(1),
		wall:    cfg.wall,
		isMine:  func(m format.Member) bool { return m.Process == cfg.process && cfg.isOwn(m) },
		listed:  func(map[string]api.Namespace) {},
		backoff: engine.Backoff{Initial: cfg.times.Retry, Max: cfg.times.MaxRetry, Jitter: 1},
	}
}

// controlPlace is the namespace and the services with a clusterset's records.
type controlPlace struct {
	// found is the time at which it was found.
	found     time.Time
	namespace api.Namespace
	// members is the service with the own record.
	members api.Service
	// catalog is the own catalog, which exists unless this process only reads.
	catalog api.Service
	// isNew is set if this process created the catalog.
	isNew bool
	// missing is set if the namespace or its service members does not exist, which only a process
	// that only reads can find.
	missing bool
	// rechecked is set if the place was verified by its IDs after an error.
	rechecked bool
	// until is the time of the next search; zero is never.
	until time.Time
	// heartbeat is the heartbeat of the previous process, or a later one.
	heartbeat int64
}

// location returns the location of the records for the state.
func (p controlPlace) location() state.Location {
	return state.Location{Namespace: p.namespace.Name, CatalogID: p.catalog.ID, IsNew: p.isNew, Heartbeat: p.heartbeat}
}

// namespaceName returns the name of the clusterset's control namespace.
func (c *control) namespaceName() string { return format.ControlNamespace(c.identity.ClusterSetID) }

// ensure returns the place, from memory once it is known.
func (c *control) ensure(ctx context.Context) (controlPlace, error) {
	if known := c.knownPlace(); known != nil {
		return *known, nil
	}
	if err := c.looking.Acquire(ctx, 1); err != nil {
		return controlPlace{}, err
	}
	defer c.looking.Release(1)
	if known := c.knownPlace(); known != nil {
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

// search finds the place. It first verifies the last known place by its IDs, with three requests,
// of which AWS allows 50 a second each. Lists come second, because AWS allows an account one list
// in two seconds: a wrong response must not make all clusters list.
func (c *control) search(ctx context.Context) (place controlPlace, err error) {
	if c.readOnly {
		if place, err = c.findExisting(ctx); err != nil {
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

// lastKnown returns the last known place, also while it is being verified; ok is false if there is
// none.
func (c *control) lastKnown() (place controlPlace, ok bool) {
	if last := c.last.Load(); last != nil && !last.missing {
		return *last, true
	}
	return place, false
}

// doubtAfter makes the next ensure verify the place after an error that a deleted resource may
// cause: with policies by tags, IAM denies access to a resource that does not exist.
func (c *control) doubtAfter(err error) {
	age := believed
	known := c.known.Load()
	switch {
	case known == nil || !api.IsNotFound(err) && !api.IsDenied(err):
		return
	case c.readOnly:
		c.relistAfter(known)
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

// relistAfter is doubtAfter for a process that only reads. It may not verify IDs, so the next
// ensure lists namespaces and services. One failed read may be a wrong answer. If more follow
// although the lists show the place, it lists again after 30 s, and after twice as long each time.
func (c *control) relistAfter(known *controlPlace) {
	c.doubts++
	pause := believed
	if c.relists > 0 {
		pause = min(recheckDenied<<min(c.relists-1, 10), relistMax)
	}
	if c.doubts < 2 || time.Since(known.found) < pause {
		return
	}
	c.relists++
	c.known.CompareAndSwap(known, nil)
}

// confirm records that the members were read at the place.
func (c *control) confirm() { c.doubts, c.relists = 0, 0 }

// relistMax is the longest pause between two lists while the members cannot be read. Reads go on
// meanwhile, and show the members as soon as they are back.
const relistMax = 5 * time.Minute

const (
	// recheckAgain is the shortest time between two verifications of a place, whatever the
	// responses are: each takes three requests.
	recheckAgain = 10 * time.Second
	// recheckDenied is the same after a denied request, which is more often a missing permission
	// than a deleted resource.
	recheckDenied = 30 * time.Second
)

// knownPlace returns the known place, nil if it has to be found.
func (c *control) knownPlace() *controlPlace {
	known := c.known.Load()
	if known == nil || !known.until.IsZero() && !time.Now().Before(known.until) {
		return nil
	}
	return known
}

// believed is the time for which found resources count as existing, whatever reads return: they are
// eventually consistent. Another search takes a list of namespaces, which AWS allows an account
// once in two seconds.
const believed = 2 * time.Second

// recallOrFind finds the place by the stored IDs in the first search of this process, and by lists
// otherwise.
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

// findExisting finds existing resources.
func (c *control) findExisting(ctx context.Context) (place controlPlace, err error) {
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
	c.services.observe(countServices(services))
	return place, nil
}

// find finds existing resources, and creates missing ones.
func (c *control) find(ctx context.Context) (place controlPlace, err error) {
	namespaces, err := c.client.ListNamespaces(ctx)
	if err != nil {
		return place, err
	}
	c.listed(namespaces)
	var ok bool
	if place.namespace, ok = namespaces[c.namespaceName()]; !ok {
		if place.namespace, err = c.client.CreateNamespace(ctx, c.namespaceName(), c.identity, api.PartControl); err != nil {
			return place, c.notCreated(err)
		}
	}
	services, err := c.client.ListServices(ctx, place.namespace)
	if err != nil {
		return place, err
	}
	if place.members, err = c.findMembers(ctx, place.namespace, services); err != nil {
		return place, c.notCreated(err)
	}
	if place.catalog, ok = services[format.CatalogName(c.identity.ClusterID)]; ok {
		return place, nil
	}
	place.isNew = true
	place.catalog, err = c.client.CreateService(ctx, place.namespace, format.CatalogName(c.identity.ClusterID), c.identity, api.PartCatalog)
	return place, c.notCreated(err)
}

// notCreated adds to the error of a creation that IAM denied what creates the resource instead.
func (c *control) notCreated(err error) error {
	if !api.IsDenied(err) {
		return err
	}
	return fmt.Errorf("%w; in a sealed clusterset, an administrator of the AWS account creates it, with the stack of the cluster or kubectl mcs registry seal --clusterset-id=%s %s | sh "+
		"("+docs.URL("iam.md#sealed-and-unsealed")+")", err, c.identity.ClusterSetID, c.identity.ClusterID)
}

// leave deletes this cluster's catalog. The last cluster also deletes the farewells, and the
// services with member records and the namespace, if controllers created them and they are empty.
// Resources that an administrator created or another writer uses stay. pause is the time for which
// the farewells of all clusters stay before. The error is errNotShown if the service has another
// record of this process than its farewell.
func (c *control) leave(ctx context.Context, place controlPlace, pause time.Duration) error {
	defer func() { c.known.Store(nil); c.last.Store(nil) }()
	c.saveIDs(ctx, controlPlace{}, 0)
	if _, err := c.deletions.Service(ctx, place.namespace, place.catalog); err != nil {
		return err
	}
	services, err := c.membersServices(ctx, place.namespace)
	if err != nil {
		return err
	}
	if ok, err := c.haveOnlyFarewells(ctx, services); err != nil || !ok {
		return err
	}
	engine.Sleep(ctx, pause) // registries that only read may not have read the farewell yet
	allGone := true
	// a cluster that joins meanwhile is in the first one with room
	for _, s := range slices.Backward(services) {
		gone, err := c.deleteMembers(ctx, place.namespace, s)
		if err != nil {
			return err
		}
		allGone = allGone && gone
	}
	if !allGone {
		return nil
	}
	_, err = c.deletions.Namespace(ctx, place.namespace)
	return err
}

// haveOnlyFarewells reports whether the services with member records have no other records than
// farewells.
func (c *control) haveOnlyFarewells(ctx context.Context, services []api.Service) (bool, error) {
	for _, s := range services {
		if farewells, err := c.farewells(ctx, s); err != nil || farewells == nil {
			return false, err
		}
	}
	return true, nil
}

// deleteMembers deletes a service with member records, and the farewells in it before. gone is
// false if it has other records or stays for another reason.
func (c *control) deleteMembers(ctx context.Context, in api.Namespace, s api.Service) (gone bool, err error) {
	farewells, err := c.farewells(ctx, s)
	if err != nil || farewells == nil {
		return false, err
	}
	for _, id := range farewells {
		if err := c.client.DeregisterInstance(ctx, s.ID, id); err != nil {
			return false, err
		}
	}
	return c.deletions.Service(ctx, in, s)
}

// farewells returns the IDs of the records in a service with member records if all of them are
// farewells, otherwise nil. The error is errNotShown if one that is none is of this process.
func (c *control) farewells(ctx context.Context, s api.Service) ([]string, error) {
	ids, allLeft := []string{}, true
	members, err := c.client.ListInstances(ctx, s)
	if err != nil && !api.IsNotFound(err) {
		return nil, err
	}
	for _, instance := range members {
		r, parseErr := format.ParseMember(instance, c.identity.ClusterSetID)
		switch {
		case parseErr != nil:
			allLeft = false
		case r.Farewell:
			ids = append(ids, instance.ID)
		case c.isMine(r):
			return nil, errNotShown
		default:
			allLeft = false
		}
	}
	if !allLeft {
		return nil, nil
	}
	return ids, nil
}
