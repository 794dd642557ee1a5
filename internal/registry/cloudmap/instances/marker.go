package instances

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// MaxStaleWrite bounds the time from the decision that a cluster is stale to the write of an
// instance. With AWS's 30 s until a read shows the health it is the time after which a cluster that
// is back can see all of these writes.
const MaxStaleWrite = 30 * time.Second

// staleMarker sets the health of the instances of stale clusters by the policy in Settings.Stale.
// It changes nothing else.
//
// It is level-triggered: a service is read when one of its clusters becomes stale or an export
// changes, once more after the resync interval, because health and reads lag behind, and then in
// its turn. In memory it only has the health that it wrote: an instance that differs later was
// changed by its cluster, whose word counts. A cluster that is back restores its own instances
// (View.CheckHealth), so the marker writes nothing for clusters that are alive, and a marker that
// is gone leaves nothing to do.
type staleMarker struct {
	view *View
	wake chan struct{}

	mu sync.Mutex
	queue
	marks map[mcs.Key]*marks
	// isOurs has the services whose tags were read, by ARN. Only the goroutine of run uses it.
	isOurs map[string]bool
}

// marks are what the marker knows of a service with stale clusters.
type marks struct {
	// written is the health that was written since a cluster is stale, by cluster and instance.
	written map[string]map[string]string
	// isSettled: the service was or will be read again after the last event.
	isSettled bool
	// stale are its stale clusters, err the reason why the last attempt failed.
	stale []string
	err   error
}

func newStaleMarker(v *View) *staleMarker {
	return &staleMarker{view: v, wake: make(chan struct{}, 1), queue: newQueue(v.cfg.ResyncInterval), marks: map[mcs.Key]*marks{}, isOurs: map[string]bool{}}
}

// enqueue requests that a service is read because a cluster has become stale, or its exports have
// changed. With onlyKnown it does so if it has stale clusters.
func (m *staleMarker) enqueue(key mcs.Key, onlyKnown bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if onlyKnown && m.services[key] == nil {
		return
	}
	m.queue.enqueue(key)
	if known := m.marks[key]; known != nil {
		known.isSettled = false
	}
	m.signal()
}

// setActive lets the marker write while this cluster holds its ID.
func (m *staleMarker) setActive(active bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active = active
	m.signal()
}

func (m *staleMarker) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run sets health, one service after the other, until ctx ends.
func (m *staleMarker) run(ctx context.Context) {
	for {
		m.mu.Lock()
		key, last, pause := m.next(time.Now())
		m.mu.Unlock()
		if last != nil {
			m.finish(ctx, key, *last)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-time.After(pause):
		}
	}
}

// finish reconciles a service and records the result.
func (m *staleMarker) finish(ctx context.Context, key mcs.Key, last service) {
	exporters, known := m.view.cfg.Exporters(key)
	var writes int
	err := errUndecided
	if known {
		writes, err = m.reconcile(ctx, key, exporters)
	}
	failed := err != nil && ctx.Err() == nil && known
	m.logFirst(failed && last.failures == 0, err, key, exporters.Stale)
	now := time.Now()
	hasStale := len(exporters.Stale) > 0
	m.mu.Lock()
	defer m.mu.Unlock()
	// A service with recent writes is not forgotten: a cluster that is stale again and again is
	// written at the pace of repeated writes.
	result := outcome{writes: writes, isAbsent: known && !hasStale && !last.wasWritten(now)}
	s := m.queue.finish(key, now, result, err, failed)
	switch {
	case !known:
		return
	case !hasStale:
		delete(m.marks, key)
		return
	}
	of := m.marksOf(key)
	of.update(exporters.Stale, failed, err)
	if err == nil && !s.isQueued && !of.isSettled {
		of.isSettled, s.isQueued, s.retryAt = true, true, now.Add(m.resyncInterval)
	}
}

// logFirst logs the first of several failures in a row.
func (m *staleMarker) logFirst(isFirst bool, err error, key mcs.Key, stale []string) {
	if isFirst {
		m.view.log.Error(err, "Failed to set the health of the Cloud Map instances of stale clusters", "service", key.String(), "clusters", stale)
	}
}

// marksOf returns the marks of a service. The caller holds m.mu.
func (m *staleMarker) marksOf(key mcs.Key) *marks {
	if m.marks[key] == nil {
		m.marks[key] = &marks{written: map[string]map[string]string{}}
	}
	return m.marks[key]
}

// update records the stale clusters and the result of an attempt.
func (of *marks) update(stale []string, failed bool, err error) {
	of.stale, of.err = stale, nil
	maps.DeleteFunc(of.written, func(cluster string, _ map[string]string) bool { return !slices.Contains(stale, cluster) })
	if failed {
		of.err = err
	}
}

// add records the health that was written for an instance of a cluster.
func (of *marks) add(cluster string, i api.Instance) {
	if of.written[cluster] == nil {
		of.written[cluster] = map[string]string{}
	}
	of.written[cluster][i.ID] = i.Health
}

// reconcile reads a service with stale clusters and sets the health of their instances.
func (m *staleMarker) reconcile(ctx context.Context, key mcs.Key, e Exporters) (writes int, err error) {
	if len(e.Stale) == 0 {
		return 0, nil
	}
	have, err := m.view.discover(ctx, key)
	if api.IsNotFound(err) {
		return 0, nil
	}
	isConcerned := func(i api.Instance) bool {
		return slices.ContainsFunc(e.Stale, func(id string) bool {
			return OwnedBy(id, m.view.cfg.Identity.ClusterSetID)(i.Attributes) && setsHealth(i)
		})
	}
	if err != nil || !slices.ContainsFunc(have, isConcerned) {
		return 0, err
	}
	s, ok, err := m.view.findAfterRead(ctx, key, service{}, outcome{isShown: true})
	if err != nil || !ok || !s.HasHealth {
		return 0, err
	}
	changes := m.unwritten(key, staleHealth(e, m.view.cfg.Settings.Stale, m.view.cfg.Identity.ClusterSetID, hasAddressRecords(s), have))
	if len(changes) == 0 {
		return 0, nil
	}
	if isOurs, err := m.hasTags(ctx, s); err != nil || !isOurs {
		return 0, err
	}
	return m.write(ctx, key, s, changes)
}

// hasAddressRecords reports whether an instance of a service may stand for all ports of an address.
func hasAddressRecords(s api.Service) bool { return s.Records != "" && s.Records != api.RecordsSRV }

// unwritten returns the changes that this process has not written since the clusters are stale.
func (m *staleMarker) unwritten(key mcs.Key, changes []api.Instance) []api.Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.marks[key] == nil {
		return changes
	}
	written := m.marks[key].written
	return slices.DeleteFunc(changes, func(i api.Instance) bool { return written[i.Attributes[AttrClusterID]][i.ID] == i.Health })
}

// hasTags reports whether a service is one of the instance views of this clusterset.
func (m *staleMarker) hasTags(ctx context.Context, s api.Service) (bool, error) {
	if isOurs, known := m.isOurs[s.ARN]; known {
		return isOurs, nil
	}
	isOurs, err := m.view.client.IsOfView(ctx, s.ARN, m.view.cfg.Identity)
	if err == nil {
		m.isOurs[s.ARN] = isOurs
	}
	return isOurs, err
}

// write sets the health of instances whose clusters are still stale, and returns how many may have
// changed.
func (m *staleMarker) write(ctx context.Context, key mcs.Key, s api.Service, changes []api.Instance) (writes int, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxRequests)
	counts, clusters := map[string]int{}, []string{}
	for _, i := range changes {
		group.Go(func() error {
			cluster := i.Attributes[AttrClusterID]
			if !m.view.cfg.IsStale(cluster) {
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, MaxStaleWrite)
			defer cancel()
			err := m.view.client.SetHealth(ctx, s.ID, i.ID, i.Health)
			m.mu.Lock()
			defer m.mu.Unlock()
			counts[i.Health]++
			clusters = append(clusters, cluster)
			if err == nil {
				m.marksOf(key).add(cluster, i)
			}
			return err
		})
	}
	err = group.Wait()
	if writes = counts[api.HealthHealthy] + counts[api.HealthUnhealthy]; writes > 0 && err == nil {
		slices.Sort(clusters)
		m.view.log.Info("Setting the health of the Cloud Map instances of stale clusters", "service", key.String(), "clusters", slices.Compact(clusters),
			"unhealthy", counts[api.HealthUnhealthy], "healthy", counts[api.HealthHealthy])
	}
	return writes, err
}

// AddStaleProblems adds to stale members the reason why the health of their instances cannot be
// set.
func (v *View) AddStaleProblems(members []registry.Member) {
	if v == nil || v.marker == nil {
		return
	}
	v.marker.mu.Lock()
	defer v.marker.mu.Unlock()
	for i := range members {
		if problem := v.marker.problemOf(members[i].ClusterID); problem != "" {
			members[i].Problems = append(slices.Clone(members[i].Problems), problem)
		}
	}
}

// problemOf returns the reason why the health of instances of a cluster cannot be set, "" if there
// is none. The caller holds m.mu.
func (m *staleMarker) problemOf(clusterID string) string {
	var failed []string
	reasons := map[string]error{}
	for key, of := range m.marks {
		if of.err != nil && slices.Contains(of.stale, clusterID) {
			failed = append(failed, key.String())
			reasons[key.String()] = of.err
		}
	}
	if len(failed) == 0 {
		return ""
	}
	first := slices.MinFunc(failed, strings.Compare)
	return fmt.Sprintf("it is stale, and its Cloud Map instances of %d services, such as %s, cannot be made unhealthy: %v", len(failed), first, reasons[first])
}
