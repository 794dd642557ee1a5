package instances

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

const (
	// maxServices bounds the services that are reconciled at once, maxRequests the concurrent
	// writes of each. The rate limits of the client are the real bound.
	maxServices = 4
	maxRequests = 4
	// maxDenials is the number of denied attempts after which a disabled view stops removing
	// instances. A first denial may be due to a role that AWS has not propagated yet.
	maxDenials = 3
	// maxInstances is AWS's limit for a service, which cannot be raised. The pages still have all
	// endpoints. It also bounds the memory of the view: reconciling a service takes at most three
	// copies of 1,000 instances (desired, read, to write) of some 2 KiB each, and maxServices at
	// once take 24 MiB.
	maxInstances = api.MaxDiscovered
)

// errUndecided means that this cluster may still export the service: the controller has not read
// all objects since its start.
var errUndecided = errors.New("it is not known yet whether the service is still exported")

// Config configures a View.
type Config struct {
	Identity mcs.Identity
	// Version is the version of this controller.
	Version string
	// Enabled is false if no endpoint is mirrored: then the view only removes the instances of a
	// previous process.
	Enabled bool
	// Settings are the zero value for services without DNS records and health.
	Settings Settings
	// Desired returns the export that the instances of a service mirror, nil if there is none.
	// known is false if it may change before the start of the controller is complete.
	Desired func(mcs.Key) (exp *mcs.Export, known bool)
	// Exporters and IsStale say what Settings.Stale needs of the other clusters. ok is false while
	// that is not known. A write follows IsStale at once.
	Exporters func(mcs.Key) (e Exporters, ok bool)
	IsStale   func(clusterID string) bool
	// ResyncInterval is the interval between reads of one service each. Reads may lag behind writes
	// by at most as much.
	ResyncInterval time.Duration
	// ListWithin is the maximum of the random delay after which services are listed at a start.
	ListWithin time.Duration
	Logger     logr.Logger
	// Metrics may be nil.
	Metrics *registry.Metrics
}

// View mirrors the exported endpoints of this cluster as Cloud Map instances. Its requests have low
// priority.
type View struct {
	cfg       Config
	client    *api.Client
	resources *resourceCache
	isOwn     func(attrs map[string]string) bool
	log       logr.Logger
	wake      chan struct{}
	// marker is nil if this cluster does not set the health of the instances of stale clusters.
	marker *staleMarker

	mu sync.Mutex
	queue
	// denials is the number of denied attempts to leave.
	denials int
}

// New creates a view. It makes no request.
func New(client *api.Client, cfg Config) *View {
	v := &View{
		cfg:       cfg,
		client:    client,
		resources: newResourceCache(client, cfg.Identity, cfg.Settings),
		isOwn:     OwnedBy(cfg.Identity.ClusterID, cfg.Identity.ClusterSetID),
		log:       cfg.Logger.WithName("instances"),
		wake:      make(chan struct{}, 1),
		queue:     newQueue(cfg.ResyncInterval),
	}
	if cfg.Enabled && cfg.Settings.Stale != "" {
		v.marker = newStaleMarker(v)
	}
	return v
}

// AddNamespaces adds a list of namespaces that the caller made to the view's cache.
func (v *View) AddNamespaces(all map[string]api.Namespace) { v.resources.addNamespaces(all) }

// Enqueue requests that the service of key is reconciled because its export has changed.
func (v *View) Enqueue(key mcs.Key) {
	if !v.cfg.Enabled {
		return
	}
	v.marker.enqueue(key, true)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.enqueue(key)
	v.signal()
}

// Observe tells the view that the exports of other clusters, or their staleness, may have changed.
// A nil view does not need it.
func (v *View) Observe(key mcs.Key) {
	if v == nil || v.marker == nil {
		return
	}
	e, ok := v.cfg.Exporters(key)
	v.marker.enqueue(key, ok && len(e.Stale) == 0)
}

// CheckHealth requests that the health of all instances is read, now and once more after settle:
// this cluster may have been stale for others, which may have changed it (Settings.Stale), and may
// do so for as long as settle.
func (v *View) CheckHealth(settle time.Duration) {
	if !v.cfg.Enabled || v.cfg.Settings.Unready != UnreadyUnhealthy {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.doubtHealth()
	v.checkAt = time.Now().Add(settle)
	v.signal()
}

// Activate lets the view write, and requests a list of all services to find instances of a previous
// process. The list has a random delay because it takes requests that AWS allows once in two
// seconds for all controllers of an account, and controllers that start at once have more important
// lists to make.
func (v *View) Activate() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.marker.setActive(true)
	v.active, v.isCleanupDenied = true, false
	v.requestList(time.Now(), v.cfg.ListWithin)
	v.signal()
}

// ListAgain requests another list of all services if the last one was made later than since, or a
// service was forgotten later: the share of a namespace, or a permission, may have been missing
// then.
func (v *View) ListAgain(since time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.active && !v.isCleanupDenied && !v.list.isPending && (v.list.doneAt.After(since) || v.forgotAt.After(since)) {
		v.requestList(time.Now(), v.cfg.ListWithin)
		v.signal()
	}
}

// Deactivate keeps the view from writing because another cluster holds the cluster ID, which marks
// the instances.
func (v *View) Deactivate() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.marker.setActive(false)
	v.active = false
	v.reset()
}

// EnqueueAll requests that all services are reconciled because their namespaces may be gone.
func (v *View) EnqueueAll() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reset()
	v.signal()
}

// EnqueueShown requests that the services with instances of this cluster are reconciled, because
// their exports may have changed.
func (v *View) EnqueueShown() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, s := range v.services {
		if s.applied != nil {
			v.enqueue(key)
		}
	}
	v.signal()
}

// Pending returns the number of services that have to be reconciled. A list of services counts as
// one.
func (v *View) Pending() (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.list.isPending {
		n++
	}
	for _, s := range v.services {
		if s.isQueued || s.isBusy {
			n++
		}
	}
	return n
}

// Unconfirmed returns the number of services without an export that are read once more, in their
// turn, before they are forgotten.
func (v *View) Unconfirmed() (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.services {
		if s.applied == nil && !s.isQueued && !s.isBusy {
			n++
		}
	}
	return n
}

// IsCleanupDenied reports whether a disabled view has given up removing instances for lack of
// permissions.
func (v *View) IsCleanupDenied() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.isCleanupDenied
}

// signal makes Run continue. It never blocks.
func (v *View) signal() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Run reconciles services until ctx ends. It calls notify for a service whose warnings have
// changed.
func (v *View) Run(ctx context.Context, notify func(mcs.Key)) {
	var group errgroup.Group
	group.SetLimit(maxServices)
	defer func() { _ = group.Wait() }() // finishService handles the errors
	if v.marker != nil {
		var marker sync.WaitGroup
		defer marker.Wait()
		marker.Go(func() { v.marker.run(ctx) })
	}
	for {
		v.listIfDue(ctx)
		v.mu.Lock()
		key, state, pause := v.next(time.Now())
		v.mu.Unlock()
		if state != nil {
			group.Go(func() error {
				result, err := v.reconcile(ctx, key, *state)
				result.isDoubtful = err != nil && state.isDoubtful
				if v.finishService(ctx, key, result, err) {
					notify(key)
				}
				return nil
			})
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-v.wake:
		case <-time.After(pause):
		}
	}
}

// finishService records the result of reconciling a service, and reports whether its warnings have
// changed.
func (v *View) finishService(ctx context.Context, key mcs.Key, result outcome, err error) (hasNewWarnings bool) {
	v.resources.observe(err)
	failed := err != nil && ctx.Err() == nil && !errors.Is(err, errUndecided)
	exp, known := v.cfg.Desired(key)
	if failed {
		result.omitted = omittedByFailure(exp, err, result)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.signal()
	if v.services[key] == nil { // given up meanwhile
		return false
	}
	s := v.finish(key, time.Now(), result, err, failed)
	if failed {
		if s.failures >= maxDenials && v.giveUpCleanup(err) {
			return false
		}
		v.logFailure(err, key, s)
	}
	v.updateMetrics()
	return (err == nil || failed) && v.updateWarnings(key, s, exp != nil || !known)
}

// logFailure logs the first of several failures in a row; the others are the same.
func (v *View) logFailure(err error, key mcs.Key, s *service) {
	if s.failures > 1 || api.IsInUse(err) { // AWS Cloud Map takes a while to process removals
		v.log.V(1).Info("Still failing to mirror endpoints as Cloud Map instances", "service", key.String(), "retryAt", s.retryAt, "error", err.Error())
		return
	}
	v.log.Error(err, "Failed to mirror endpoints as Cloud Map instances", "service", key.String(), "retryAt", s.retryAt)
}

// giveUpCleanup ends a disabled view that is denied access and reports whether it did: it needs no
// permissions for instances.
func (v *View) giveUpCleanup(err error) bool {
	if v.cfg.Enabled || !api.IsDenied(err) {
		return false
	}
	v.log.Error(err, "Failed to remove the Cloud Map instances of a previous process: leaving them")
	v.isCleanupDenied, v.list = true, listState{}
	clear(v.services)
	v.updateMetrics()
	return true
}

// outcome is the result of reconciling a service.
type outcome struct {
	// applied is the export that the instances mirror now, nil if none.
	applied *mcs.Export
	// instances is the number of instances of applied.
	instances int
	// writes is the number of instances that may have changed.
	writes int
	// isAbsent: a read shows no instance of this cluster.
	isAbsent bool
	// isShown: a read by names shows instances of this cluster that it does not want.
	// isServiceMissing: such a read does not find the service.
	isShown, isServiceMissing bool
	// isUndeleted: the service has no instances and could not be deleted, or it has instances of
	// others.
	isUndeleted bool
	// shape is that of applied; known if isShaped.
	shape    shape
	isShaped bool
	// isDoubtful: the health of the instances still has to be checked.
	isDoubtful bool
	// health has the health of the instances that a read shows, nil without a read.
	health     map[string]string
	omitted    omitted
	operations operations
}

// reconcile makes the instances of a service mirror the desired export. last is the state of the
// service before.
func (v *View) reconcile(ctx context.Context, key mcs.Key, last service) (outcome, error) {
	if last.isLook {
		return v.look(ctx, last)
	}
	exp, known := v.cfg.Desired(key)
	if !known {
		return outcome{}, errUndecided
	}
	if err := v.restoreHealth(ctx, key, exp, last); err != nil {
		return outcome{}, err
	}
	read, isSynced, err := v.check(ctx, key, exp, last)
	if isSynced || err != nil {
		return read, err
	}
	if exp == nil {
		return v.remove(ctx, key, last, read)
	}
	return v.write(ctx, key, *exp, last, read)
}

// check reports whether nothing has to be written, as far as that is known without a list. read is
// the result of a read by names, zero if there was none.
func (v *View) check(ctx context.Context, key mcs.Key, exp *mcs.Export, last service) (read outcome, isSynced bool, err error) {
	isRecent, hasUndone := v.isRecent(last), len(last.operations.undone) > 0
	switch {
	case hasUndone && (isRecent || exp != nil): // it is written again, whatever a read shows
	case isRecent && !last.isTorn && equalExports(exp, last.applied):
		return last.outcome(), true, nil // a read may not show the last write yet
	case !isRecent && (last.applied == nil || equalExports(exp, last.applied)):
		return v.verify(ctx, key, exp, last)
	}
	return outcome{}, false, nil
}

// restoreHealth sets the health of the instances of exp where a read shows another one, if that is
// in doubt and reconcile does not read it after a recent write. Setting it again does no harm if
// the read does not show that write yet.
func (v *View) restoreHealth(ctx context.Context, key mcs.Key, exp *mcs.Export, last service) error {
	if !last.isDoubtful || exp == nil || !last.shape.hasHealth || !v.isRecent(last) {
		return nil
	}
	have, err := v.discover(ctx, key)
	if err != nil {
		return err
	}
	want, _ := v.instancesOf(exp, last.shape)
	changes := Diff(want, have, v.isOwn).Health
	if len(changes) == 0 {
		return nil
	}
	service, ok, err := v.resources.find(ctx, key)
	if err != nil || !ok {
		return err
	}
	return v.setHealth(ctx, service, changes)
}

func equalExports(a, b *mcs.Export) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(*b)
}

// isRecent reports whether reads may not show the last write of a service yet.
func (v *View) isRecent(last service) bool { return time.Since(last.writtenAt) < v.cfg.ResyncInterval }

// verify reports whether a read by names, which takes one request and no list, shows the instances
// of exp. It does not show whether a service without instances was deleted.
func (v *View) verify(ctx context.Context, key mcs.Key, exp *mcs.Export, last service) (result outcome, isSynced bool, err error) {
	if exp != nil && !last.isShaped {
		if v.cfg.Settings.dependsOnService(*exp) {
			return outcome{}, false, nil // a list shows the service
		}
		last.shape, last.isShaped = v.cfg.Settings.shapeOf(*exp, api.ServiceConfig{}), true
	}
	have, err := v.discover(ctx, key)
	switch {
	case api.IsNotFound(err), api.IsDenied(err): // the lists decide, which need other permissions
		return outcome{isServiceMissing: api.IsNotFound(err)}, false, nil
	case err != nil:
		return outcome{}, false, err
	}
	last.shape = last.shape.in(have, v.isOwn)
	want, overLimit := v.instancesOf(exp, last.shape)
	changes := Diff(want, have, v.isOwn)
	isRefused := func(i api.Instance) bool { _, ok := last.omitted.refused[i.ID]; return ok }
	if changes.Register = slices.DeleteFunc(changes.Register, isRefused); changes.count() > 0 {
		if last.applied != nil {
			v.log.Info("Restoring Cloud Map instances that another client changed", "service", key.String())
		}
		return outcome{isShown: len(changes.Deregister) > 0, health: healthByID(have)}, false, nil
	}
	isKept := exp == nil && last.isUndeleted && slices.ContainsFunc(have, func(i api.Instance) bool { return !v.isOwn(i.Attributes) })
	return outcome{
		isUndeleted: isKept,
		applied:     exp, instances: len(want) - len(changes.Collisions) - len(last.omitted.refused), isAbsent: exp == nil,
		shape: last.shape, isShaped: last.isShaped,
		omitted: omitted{overLimit: overLimit, collisions: changes.Collisions, refused: last.omitted.refused, difference: last.omitted.difference},
	}, exp != nil || !last.isUndeleted || isKept, nil
}

// discover reads all instances of a service by its names. A service has no more instances than one
// answer.
func (v *View) discover(ctx context.Context, key mcs.Key) (instances []api.Instance, err error) {
	err = v.client.RetryThrottled(ctx, func() (err error) {
		instances, _, err = v.client.DiscoverInstances(ctx, v.resources.httpNameOf(key.Namespace), key.Name, nil)
		return err
	})
	return instances, err
}

// write creates the service of exp if necessary and writes its instances.
func (v *View) write(ctx context.Context, key mcs.Key, exp mcs.Export, last service, read outcome) (outcome, error) {
	s, err := v.resources.ensure(ctx, exp)
	if err != nil {
		return outcome{}, err
	}
	shape := v.cfg.Settings.shapeOf(exp, s.ServiceConfig)
	var listed []api.Instance
	if !s.isNew {
		if listed, err = v.client.ListInstances(ctx, s.Service); err != nil {
			return outcome{}, err
		}
		if shape.hasHealth {
			if err := v.addHealth(ctx, key, listed, last, read); err != nil {
				return outcome{}, err
			}
		}
	}
	shape = shape.in(listed, v.isOwn)
	want, overLimit := v.instancesOf(&exp, shape)
	changes := Diff(want, v.withLastWrite(listed, last), v.isOwn)
	written, refused, err := v.apply(ctx, s.Service, changes)
	result := outcome{writes: changes.count(), shape: shape, isShaped: true, operations: last.operations.add(time.Now(), written)}
	if err != nil {
		return result, err
	}
	result.applied, result.instances = &exp, len(want)-len(changes.Collisions)-len(refused)
	result.omitted = omitted{overLimit: overLimit, collisions: changes.Collisions, refused: refused, difference: v.cfg.Settings.difference(exp, s.in, s.ServiceConfig)}
	return result, nil
}

// addHealth adds the health of instances to a list. Reads do not show a recent write for half a
// minute, so after one it adds nothing: withLastWrite knows the health that was written, and that
// of other instances is set again.
func (v *View) addHealth(ctx context.Context, key mcs.Key, listed []api.Instance, last service, read outcome) error {
	if v.isRecent(last) {
		return nil
	}
	if read.health == nil {
		have, err := v.discover(ctx, key)
		if err != nil && !api.IsNotFound(err) {
			return err
		}
		read.health = healthByID(have)
	}
	for i := range listed {
		listed[i].Health = read.health[listed[i].ID]
	}
	return nil
}

func healthByID(instances []api.Instance) map[string]string {
	health := make(map[string]string, len(instances))
	for _, i := range instances {
		health[i.ID] = i.Health
	}
	return health
}

// remove removes the instances of this cluster from the service of key. It deletes the service and
// the namespace if a controller of this clusterset created them and nothing uses them. read is the
// result of a read by names, zero if there was none.
func (v *View) remove(ctx context.Context, key mcs.Key, last service, read outcome) (outcome, error) {
	var result outcome
	s, ok, err := v.findAfterRead(ctx, key, last, read)
	if err != nil {
		return result, err
	}
	hasOthers := false
	if ok {
		listed, err := v.client.ListInstances(ctx, s)
		if read.isServiceMissing && api.IsNotFound(err) { // another cluster deleted it
			err = v.resources.forgetService(ctx, key, true)
		}
		if err != nil {
			return result, err
		}
		hasOthers = slices.ContainsFunc(listed, func(i api.Instance) bool { return !v.isOwn(i.Attributes) })
		changes := Diff(nil, v.withLastWrite(listed, last), v.isOwn)
		result.writes = len(changes.Deregister)
		written, _, err := v.apply(ctx, s, changes)
		if result.operations = last.operations.add(time.Now(), written); err != nil {
			return result, err
		}
	}
	result.isUndeleted = hasOthers
	if !hasOthers {
		if err := v.resources.remove(ctx, key); err != nil {
			result.isUndeleted = true
			return result, err
		}
	}
	result.isAbsent = result.writes == 0 && !read.isShown // a list may be older than the read
	return result, nil
}

// findAfterRead returns the service of key after a read by names, which may show that the list of
// services is out of date. ok is false if there is none.
func (v *View) findAfterRead(ctx context.Context, key mcs.Key, last service, read outcome) (s api.Service, ok bool, err error) {
	if read.isServiceMissing {
		if err := v.forgetMissing(ctx, key, last); err != nil {
			return s, false, err
		}
	}
	s, ok, err = v.resources.find(ctx, key)
	if err != nil || ok || !read.isShown {
		return s, ok, err
	}
	// an earlier read did not find the service
	if err := v.resources.forgetService(ctx, key, false); err != nil {
		return s, false, err
	}
	return v.resources.find(ctx, key)
}

// forgetMissing handles a service without an export that a read by names does not find. IAM by tags
// denies listing a service that does not exist, so the cached one is not used. If this process has
// removed its instances or has seen that there are none, another cluster has deleted the service.
// Otherwise a new list decides.
func (v *View) forgetMissing(ctx context.Context, key mcs.Key, last service) error {
	if last.applied != nil {
		return nil
	}
	return v.resources.forgetService(ctx, key, !last.writtenAt.IsZero() || last.absent > 0)
}

// instancesOf returns the instances of exp, as many as a service can have, and the number of the
// others.
func (v *View) instancesOf(exp *mcs.Export, s shape) (want []api.Instance, overLimit int) {
	if exp == nil {
		return nil, 0
	}
	return firstFromExport(*exp, v.cfg.Identity.ClusterSetID, v.cfg.Version, maxInstances, s)
}

// withLastWrite adds the last write to a list that may not show it yet. Of instances whose
// registration came to nothing only the owner is certain.
func (v *View) withLastWrite(listed []api.Instance, last service) []api.Instance {
	isUndone := func(i api.Instance) bool { u, ok := last.operations.undone[i.ID]; return ok && !u.isRemoval }
	if v.isRecent(last) {
		written, _ := v.instancesOf(last.applied, last.shape)
		return mergeWritten(slices.DeleteFunc(written, isUndone), listed, v.isOwn)
	}
	for i, instance := range listed {
		if isUndone(instance) && v.isOwn(instance.Attributes) {
			listed[i] = onlyOwner(instance)
		}
	}
	return listed
}

// apply registers and deregisters instances. It returns the operations that may fail, and the
// instances that AWS Cloud Map refuses, such as an IPv6 address in a service with DNS records for
// IPv4, by ID with the reason. It sets health first: if that fails, the attributes still differ,
// and the next attempt sets it again.
func (v *View) apply(ctx context.Context, s api.Service, changes Changes) (written []operation, refused map[string]string, err error) {
	if err := v.setHealth(ctx, s, changes.Health); err != nil {
		return nil, nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxRequests)
	var mu sync.Mutex
	add := func(id, instance string, isRemoval bool) {
		if id == "" || s.Records == "" {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		written = append(written, operation{id: id, instance: instance, isRemoval: isRemoval, at: time.Now()})
	}
	for _, instance := range changes.Deregister {
		group.Go(func() error {
			id, err := v.client.StartDeregistration(ctx, s.ID, instance)
			add(id, instance, true)
			return err
		})
	}
	for _, instance := range changes.Register {
		group.Go(func() error {
			id, err := v.client.RegisterInstance(ctx, s.ID, instance)
			add(id, instance.ID, false)
			var invalid *types.InvalidInput
			if !errors.As(err, &invalid) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if refused == nil {
				refused = map[string]string{}
			}
			refused[instance.ID] = invalid.ErrorMessage()
			return nil
		})
	}
	err = group.Wait()
	return written, refused, err
}

func (v *View) setHealth(ctx context.Context, s api.Service, instances []api.Instance) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxRequests)
	for _, i := range instances {
		group.Go(func() error { return v.client.SetHealth(ctx, s.ID, i.ID, i.Health) })
	}
	return group.Wait()
}

// listIfDue lists all services once and enqueues the unknown ones, which may have instances of a
// previous process.
func (v *View) listIfDue(ctx context.Context) {
	v.mu.Lock()
	isDue := v.active && v.list.isPending && !time.Now().Before(v.list.retryAt)
	v.mu.Unlock()
	if !isDue {
		return
	}
	keys, err := v.resources.list(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		if v.list.fail(time.Now(), err); ctx.Err() == nil && (v.list.failures < maxDenials || !v.giveUpCleanup(err)) {
			v.log.Error(err, "Failed to list Cloud Map services to find instances of a previous process", "retryAt", v.list.retryAt)
		}
		return
	}
	v.list = listState{doneAt: time.Now()}
	for _, key := range keys {
		if v.services[key] == nil {
			v.enqueue(key)
		}
	}
}

// Leave removes all instances of this cluster. Run must have ended; late calls of other methods
// change nothing. A nil view has none. A disabled view returns no error if it has been denied
// access maxDenials times: it needs no permissions for instances.
func (v *View) Leave(ctx context.Context) error {
	if v == nil {
		return nil
	}
	err := v.removeAll(ctx)
	if !api.IsDenied(err) {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.denials++; (v.isCleanupDenied || v.denials >= maxDenials) && v.giveUpCleanup(err) {
		return nil
	}
	return err
}

func (v *View) removeAll(ctx context.Context) error {
	keys, err := v.resources.list(ctx)
	if err != nil {
		return err
	}
	v.mu.Lock()
	// such as a service without instances that Run could not delete
	keys = slices.AppendSeq(keys, maps.Keys(v.services))
	v.mu.Unlock()
	slices.SortFunc(keys, func(a, b mcs.Key) int { return strings.Compare(a.String(), b.String()) })
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxServices)
	for _, key := range slices.Compact(keys) {
		group.Go(func() error { return v.leaveService(ctx, key) })
	}
	return group.Wait()
}

// Left returns the services and namespaces of the view that could not be deleted. A nil view has
// none.
func (v *View) Left() []registry.Leftover {
	if v == nil {
		return nil
	}
	return v.resources.deletions.Left()
}

// ReviewLeft ends the report of what is gone.
func (v *View) ReviewLeft(ctx context.Context) error {
	if v == nil {
		return nil
	}
	return v.resources.deletions.Review(ctx)
}

// leaveService removes the instances of this cluster from a service if the service may have any.
func (v *View) leaveService(ctx context.Context, key mcs.Key) error {
	last, known := v.stateOf(key)
	if !known {
		_, isSynced, err := v.verify(ctx, key, nil, service{})
		if err != nil {
			return fmt.Errorf("reading the instances of %s: %w", key, err)
		}
		if isSynced {
			return nil
		}
	}
	return v.removeListed(ctx, key, last)
}

// removeListed removes the instances of this cluster from a service until none is listed, and waits
// while the service is in use.
func (v *View) removeListed(ctx context.Context, key mcs.Key, last service) error {
	// No process repairs what stays, so it counts what is listed: a request may fail as if an
	// instance was gone, and a write whose result is not known may show later.
	var before []operation // the removals of the last attempt
	for isKnown := !last.isTorn; ; isKnown = true {
		result, err := v.remove(ctx, key, last, outcome{})
		isDone := err == nil && result.writes == 0 && isKnown
		// in use until AWS Cloud Map has processed the removals
		if isDone || err != nil && !api.IsInUse(err) {
			return err
		}
		for _, r := range v.resultsOf(ctx, before) {
			if r.reason != nil {
				return r.reason
			}
		}
		before = slices.DeleteFunc(result.operations.accepted, func(op operation) bool { return !op.isRemoval })
		pause := removalPause
		if !isKnown {
			pause = writePause
		}
		last = service{}
		if engine.Sleep(ctx, pause); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// removalPause is the pause until the instances that were removed are listed again. AWS Cloud Map
// takes 1 to 2 s.
const removalPause = time.Second

// writePause is the time after which an instance that was written is listed: 2 s for the operation,
// and 0.5 s until reads show it.
const writePause = 3 * time.Second

// stateOf returns the state of a service if it is known.
func (v *View) stateOf(key mcs.Key) (state service, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s, known := v.services[key]
	if !known {
		return service{}, false
	}
	return *s, true
}
