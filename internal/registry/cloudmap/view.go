package cloudmap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

const (
	// viewServices are the services that are brought in step at once, viewRequests the requests under way for each. The
	// pace of requests is what really bounds the view.
	viewServices = 4
	viewRequests = 4
	// viewRetry is the pause after a first failure, viewMaxRetry the longest.
	viewRetry    = time.Second
	viewMaxRetry = 5 * time.Minute
	// maxDenials is how often in a row the search for what is left must be denied until it is given up, if nothing is shown: once may be
	// a role that AWS does not know of yet.
	maxDenials = 3
	// undecidedRetry is the longest pause while it is not known what is to be shown.
	undecidedRetry = 15 * time.Second
	// maxInstances is AWS's limit for a service, which cannot be raised. The pages hold all endpoints all the same.
	maxInstances = 1000
)

// errUndecided means that it is not known yet what the view is to show of an export that an earlier life left.
var errUndecided = errors.New("it is not decided yet whether the service is still exported")

// instanceView shows this cluster's endpoints as Cloud Map instances, for people and for consumers that know nothing of
// pages. It is level-triggered, has time, and nothing waits for it.
type instanceView struct {
	client   *api.Client
	places   *places
	identity mcs.Identity
	version  string
	own      func(attrs map[string]string) bool
	desired  func(mcs.Key) (exp *mcs.Export, known bool)
	log      logr.Logger
	metrics  *registry.Metrics
	wake     chan struct{}
	// off says that nothing is shown: the view only removes what an earlier life has shown.
	off bool
	// audit is the time between two looks at services that are shown, scanWithin when leftovers are looked for at the latest.
	audit, scanWithin time.Duration

	mu sync.Mutex
	// auditAt is when the next service is looked at.
	auditAt time.Time
	// enabled while the cluster ID is ours, scan when leftovers of an earlier life have to be looked for.
	enabled, scan bool
	scanRetry     retry
	queue         map[mcs.Key]*viewItem
	// shown is what each service has of ours, as far as this process wrote it.
	shown map[mcs.Key]shownService
	// doubtful are services that are not shown and may have something of ours all the same, because a removal that was accepted did not
	// happen or a read did not show it, and when each was last looked at. The audit looks once more.
	doubtful map[mcs.Key]doubt
	// denials are how often in a row the search for what is left was denied.
	denials int
	// unshown are the services that are not shown whole.
	unshown map[mcs.Key]unshown
}

// viewItem is a service that has to be looked at.
type viewItem struct {
	retry
	// busy while it is worked on, again when it has to be looked at once more after that.
	busy, again bool
}

// shownService is what the view has made of a service.
type shownService struct {
	exp       mcs.Export
	instances int
	// partly says that not all of them could be written: they are tried again with the next change.
	partly bool
	// seen is when they were written, or last found to be there.
	seen time.Time
}

// doubt is when a service was last looked at that may have something of ours, and whether it was not found then.
type doubt struct {
	seen   time.Time
	missed bool
}

func newInstanceView(client *api.Client, cfg Config, desired func(mcs.Key) (*mcs.Export, bool)) *instanceView {
	return &instanceView{
		client:   client,
		places:   newPlaces(client, cfg.Identity),
		identity: cfg.Identity,
		version:  cfg.Version,
		own:      plan.OwnInstance(cfg.Identity.ClusterID, cfg.Identity.ClusterSetID),
		desired:  desired,
		log:      cfg.Logger.WithName("instances"),
		metrics:  cfg.Metrics,
		wake:     make(chan struct{}, 1),
		off:      !cfg.InstanceView,
		audit:    cfg.times.viewAudit, scanWithin: cfg.times.scan,
		queue:    map[mcs.Key]*viewItem{},
		shown:    map[mcs.Key]shownService{},
		doubtful: map[mcs.Key]doubt{},
		unshown:  map[mcs.Key]unshown{},
	}
}

// look makes the view look at key.
func (v *instanceView) look(key mcs.Key) {
	if v.off {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.enqueue(key)
	wake(v.wake)
}

// enqueue adds key to the queue. The caller holds v.mu.
func (v *instanceView) enqueue(key mcs.Key) {
	item := v.queue[key]
	if item == nil {
		item = &viewItem{}
		v.queue[key] = item
	}
	item.retry, item.again = retry{}, item.busy
}

// enable lets the view write, and some time later look for what an earlier life left. That takes lists: many controllers that start at
// once have more important requests to make, and are not to make these at once.
func (v *instanceView) enable() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.enabled, v.scan = true, true
	v.scanRetry = retry{retryAt: time.Now().Add(v.scanWithin/5 + rand.N(v.scanWithin-v.scanWithin/5))}
	wake(v.wake)
}

// disable keeps the view from writing: the cluster ID, by which it knows its instances, is another cluster's. What is
// asked meanwhile waits.
func (v *instanceView) disable() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.enabled = false
	v.forget()
}

// again makes the view look at everything once more: somebody deleted what was there.
func (v *instanceView) again() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget()
	wake(v.wake)
}

// forget puts everything that was shown back into the queue. The caller holds v.mu.
func (v *instanceView) forget() {
	for key := range v.shown {
		v.enqueue(key)
	}
	clear(v.shown)
}

// run brings services in step until ctx ends.
func (v *instanceView) run(ctx context.Context, notify func(mcs.Key)) {
	var group errgroup.Group
	group.SetLimit(viewServices)
	defer func() { _ = group.Wait() }() // the work reports its errors itself
	for {
		v.scanIfDue(ctx)
		v.auditIfDue(ctx)
		key, ok, pause := v.next(time.Now())
		if ok {
			group.Go(func() error { v.done(ctx, key, v.sync(ctx, key), notify); return nil })
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

// next takes a service from the queue, or says when to come again.
func (v *instanceView) next(now time.Time) (key mcs.Key, ok bool, pause time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	pause = time.Minute
	if !v.enabled {
		return key, false, pause
	}
	if len(v.shown)+len(v.doubtful) > 0 {
		pause = max(0, min(pause, v.auditAt.Sub(now)))
	}
	if v.scan {
		pause = max(0, min(pause, v.scanRetry.retryAt.Sub(now)))
	}
	for key, item := range v.queue {
		if item.busy {
			continue
		}
		wait := item.retryAt.Sub(now)
		if wait <= 0 {
			item.busy, item.again = true, false
			return key, true, 0
		}
		pause = min(pause, wait)
	}
	return key, false, pause
}

// done notes how the work on a service ended.
func (v *instanceView) done(ctx context.Context, key mcs.Key, err error, notify func(mcs.Key)) {
	if api.IsNotFound(err) {
		v.places.forget()
	}
	if ctx.Err() == nil && err != nil && !errors.Is(err, errUndecided) {
		v.failed(key, err)
	}
	if v.changed(key) {
		notify(key)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	item := v.queue[key]
	item.busy = false
	defer wake(v.wake)
	switch {
	case err != nil && ctx.Err() == nil:
		item.failures++
		item.retryAt = time.Now().Add(api.Jitter(viewPause(err, item.failures)))
		if !errors.Is(err, errUndecided) {
			delete(v.shown, key)
			v.complain(err, key, item)
		}
	case !item.again:
		delete(v.queue, key)
	}
	total := 0
	for _, s := range v.shown {
		total += s.instances
	}
	v.metrics.SetObjects(v.client.Name(), "instances", total)
	v.count()
}

// viewPause is how long to wait after so many failures in a row. A quota or a missing permission does not mend itself:
// trying soon would only cost requests.
func viewPause(err error, failures int) time.Duration {
	if errors.Is(err, errUndecided) {
		return min(undecidedRetry, viewRetry<<min(failures-1, 10)) // it costs no request
	}
	if api.IsInvalid(err) || api.IsDenied(err) {
		return viewMaxRetry
	}
	return min(viewMaxRetry, viewRetry<<min(failures-1, 10))
}

// complain logs the first of several failures in a row; the others are the same.
func (v *instanceView) complain(err error, key mcs.Key, item *viewItem) {
	if item.failures > 1 {
		v.log.V(1).Info("Still cannot show the endpoints of a service as Cloud Map instances", "service", key.String(), "retryAt", item.retryAt, "reason", err.Error())
		return
	}
	v.log.Error(err, "Cannot show the endpoints of a service as Cloud Map instances; trying again", "service", key.String(), "retryAt", item.retryAt)
}

// sync brings the service of key in step with what is exported.
func (v *instanceView) sync(ctx context.Context, key mcs.Key) error {
	exp, known := v.desired(key)
	switch {
	case !known:
		return errUndecided
	case exp == nil:
		return v.remove(ctx, key)
	}
	v.mu.Lock()
	shown, touched := v.shown[key]
	v.mu.Unlock()
	if touched && !shown.partly && shown.exp.Equal(*exp) {
		return nil
	}
	if !touched {
		if left, err := v.leftAsWanted(ctx, *exp); left || err != nil {
			return err
		}
	}
	s, have, err := v.ensure(ctx, key, shown, touched)
	if err != nil {
		return err
	}
	want, beyond := v.instances(*exp)
	changes := plan.Instances(want, have, v.own)
	refused, err := v.apply(ctx, s, changes)
	if err != nil {
		return err
	}
	u := unshown{beyond: beyond, collisions: changes.Collisions, refused: refused}
	v.mu.Lock()
	defer v.mu.Unlock()
	hidden := len(u.collisions) + len(u.refused)
	v.shown[key] = shownService{exp: *exp, instances: len(want) - hidden, partly: hidden > 0, seen: time.Now()}
	v.note(key, u)
	return nil
}

// ensure returns the service of key, which it makes if need be, and what it has.
func (v *instanceView) ensure(ctx context.Context, key mcs.Key, shown shownService, touched bool) (s api.Service, have []api.Instance, err error) {
	s, made, err := v.places.ensure(ctx, key)
	if err == nil && !made {
		have, err = v.client.ListInstances(ctx, s)
	}
	if err != nil || !touched {
		return s, have, err
	}
	written, _ := v.instances(shown.exp)
	return s, present(written, have, v.own), nil
}

// leftAsWanted says whether an earlier life has left all instances of exp as they are to be: then nothing has to be written, and no
// place to be found by lists. Only one read is made, by names.
func (v *instanceView) leftAsWanted(ctx context.Context, exp mcs.Export) (bool, error) {
	v.mu.Lock()
	mayBeLeft := v.scan
	v.mu.Unlock()
	want, beyond := v.instances(exp)
	if !mayBeLeft || beyond > 0 {
		return false, nil
	}
	have, ok, err := v.discoverOwn(ctx, exp.Key)
	if api.IsDenied(err) {
		return false, nil // who may write can do without
	}
	if changes := plan.Instances(want, have, v.own); !ok || len(changes.Register)+len(changes.Deregister) > 0 {
		return false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shown[exp.Key] = shownService{exp: exp, instances: len(want), seen: time.Now()}
	v.note(exp.Key, unshown{})
	return true, nil
}

// instances are those that show exp, as many as a service may have, and how many there are beyond.
func (v *instanceView) instances(exp mcs.Export) (want []api.Instance, beyond int) {
	want = plan.InstancesOf(exp, v.identity.ClusterSetID, v.version)
	beyond = max(0, len(want)-maxInstances)
	return want[:len(want)-beyond], beyond
}

// present is what a service has, given what we wrote and what is listed. A list may be a moment behind: of our own
// instances what we wrote counts, and the list adds the attributes and instances that others wrote.
func present(written, listed []api.Instance, own func(map[string]string) bool) []api.Instance {
	byID := map[string]api.Instance{}
	for _, instance := range written {
		byID[instance.ID] = instance
	}
	for _, instance := range listed {
		ours, isWritten := byID[instance.ID]
		switch {
		case !own(instance.Attributes):
			byID[instance.ID] = instance
		case isWritten:
			byID[instance.ID] = api.Instance{ID: instance.ID, Attributes: plan.WithForeign(ours.Attributes, instance.Attributes)}
		default:
			// Left by an earlier life, or removed by us and still listed. With nothing of ours but the owner in it, it is
			// removed if it is not wanted and written if it is.
			owner := map[string]string{attrClusterID: instance.Attributes[attrClusterID]}
			byID[instance.ID] = api.Instance{ID: instance.ID, Attributes: plan.WithForeign(owner, instance.Attributes)}
		}
	}
	return slices.Collect(maps.Values(byID))
}

// apply registers and deregisters instances. Those that AWS Cloud Map will never take, as an IPv6 address in a service with DNS
// records of IPv4, are refused and hurt nobody else.
func (v *instanceView) apply(ctx context.Context, s api.Service, changes plan.InstanceChanges) (refused []string, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(viewRequests)
	var mu sync.Mutex
	for _, id := range changes.Deregister {
		group.Go(func() error { return v.client.DeregisterInstance(ctx, s.ID, id) })
	}
	for _, instance := range changes.Register {
		group.Go(func() error {
			_, err := v.client.RegisterInstance(ctx, s.ID, instance)
			var invalid *types.InvalidInput
			if !errors.As(err, &invalid) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, fmt.Sprintf("%s (%s)", instance.ID, invalid.ErrorMessage()))
			return nil
		})
	}
	err = group.Wait()
	slices.Sort(refused)
	return refused, err
}

// remove removes our instances of key, and the service and the namespace if we made them and nobody uses them.
func (v *instanceView) remove(ctx context.Context, key mcs.Key) error {
	s, ok, err := v.places.find(ctx, key)
	if err != nil {
		return err
	}
	v.mu.Lock()
	shown, touched := v.shown[key]
	v.mu.Unlock()
	others := false
	if ok {
		listed, err := v.client.ListInstances(ctx, s)
		if err != nil {
			return err
		}
		have := listed
		if touched {
			written, _ := v.instances(shown.exp)
			have = present(written, listed, v.own)
		}
		others = slices.ContainsFunc(listed, func(i api.Instance) bool { return !v.own(i.Attributes) })
		if _, err := v.apply(ctx, s, plan.Instances(nil, have, v.own)); err != nil {
			return err
		}
	}
	if !others {
		if err := v.places.remove(ctx, key); err != nil {
			return err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.shown, key)
	if ok || touched {
		v.doubtful[key] = doubt{seen: time.Now()}
	}
	v.note(key, unshown{})
	return nil
}

// scanIfDue looks for instances of ours in every service once, and puts their services into the queue.
func (v *instanceView) scanIfDue(ctx context.Context) {
	v.mu.Lock()
	due := v.enabled && v.scan && !time.Now().Before(v.scanRetry.retryAt)
	v.mu.Unlock()
	if !due {
		return
	}
	keys, others, err := v.leftovers(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	if !api.IsDenied(err) {
		v.denials = 0
	} else if v.denials++; v.off && v.denials >= maxDenials {
		// Who shows nothing need not be allowed to.
		v.log.Info("Not looking for Cloud Map instances that this cluster left: it may not", "reason", err.Error())
		v.scan = false
		return
	}
	if err != nil {
		if ctx.Err() == nil {
			v.log.Error(err, "Cannot look for Cloud Map instances that this cluster left; trying again")
		}
		v.scanRetry.failures++
		v.scanRetry.retryAt = time.Now().Add(min(viewMaxRetry, viewRetry<<min(v.scanRetry.failures, 10)))
		return
	}
	v.scan, v.scanRetry = false, retry{}
	for _, key := range keys {
		v.enqueue(key)
	}
	for _, key := range others {
		v.doubtful[key] = doubt{seen: time.Now()}
	}
}

// leftovers are the services that have instances of ours, whoever wrote them, and others that were not seen to have any.
func (v *instanceView) leftovers(ctx context.Context) (keys, others []mcs.Key, err error) {
	candidates, err := v.places.candidates(ctx)
	if err != nil {
		return nil, nil, err
	}
	for namespaceName, services := range candidates {
		for _, key := range services {
			if v.inStep(key) {
				continue
			}
			var instances []api.Instance
			err := v.client.RetryThrottled(ctx, func() (err error) {
				instances, _, err = v.client.DiscoverInstances(ctx, namespaceName, key.Name, map[string]string{attrClusterID: v.identity.ClusterID})
				return err
			})
			if err != nil && !api.IsNotFound(err) {
				return nil, nil, fmt.Errorf("looking for instances of this cluster in %s: %w", key, err)
			}
			if slices.ContainsFunc(instances, func(i api.Instance) bool { return v.own(i.Attributes) }) {
				keys = append(keys, key)
			} else {
				others = append(others, key)
			}
		}
	}
	return keys, others, nil
}

// inStep says whether a service is known to have what it is to have.
func (v *instanceView) inStep(key mcs.Key) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, shown := v.shown[key]
	return shown && v.queue[key] == nil
}

// leave removes all instances of this cluster. run has ended before. A nil view has none.
func (v *instanceView) leave(ctx context.Context) error {
	if v == nil {
		return nil
	}
	keys, _, err := v.leftovers(ctx)
	if v.off && api.IsDenied(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// What run did not finish is in the queue, such as a namespace that is left of an empty service.
	keys = slices.AppendSeq(slices.AppendSeq(keys, maps.Keys(v.shown)), maps.Keys(v.queue))
	slices.SortFunc(keys, func(a, b mcs.Key) int { return strings.Compare(a.String(), b.String()) })
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(viewServices)
	for _, key := range slices.Compact(keys) {
		group.Go(func() error { return v.remove(ctx, key) })
	}
	return group.Wait()
}
