package cloudmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// wholeCatalogThreshold is the number of stale pages from which one read of the whole catalog replaces one request per page.
const wholeCatalogThreshold = 4

// reader polls the registry. It belongs to one goroutine.
type reader struct {
	*components
	// missingSince is since when a registry that is only read does not exist; zero while it does.
	missingSince time.Time
}

// run polls the registry, at intervals and when peer notifications arrive, until ctx ends.
func (r *reader) run(ctx context.Context) {
	// Controllers that start together, for example after an outage of the account, must not poll in sync.
	timer := time.NewTimer(rand.N(r.cfg.PollInterval))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.state.ReadSignal:
		case <-timer.C:
		}
		if r.peers.untilRead() <= 0 {
			r.peers.readStarted()
			whole, err := r.poll(ctx)
			if ctx.Err() == nil {
				r.notifier.Notify(r.state.Reads.SetError(err))
			}
			r.peers.readEnded(whole, err)
		}
		timer.Reset(r.peers.untilRead())
	}
}

// poll reads the members, and of each cluster the pages that are not what it announces. whole says that all members were read,
// whatever became of the pages.
func (r *reader) poll(ctx context.Context) (whole bool, err error) {
	place, instances, err := r.readMembers(ctx)
	changed := engine.Keys{}
	if err == nil && !r.state.Reads.ObserveMembers(place.location(), instances, changed) {
		err = errors.New("reading the members of the clusterset: this cluster's own record is not among them")
	}
	if err != nil {
		r.state.Reads.ObserveFailure()
		return false, err
	}
	if r.cfg.ReadOnly {
		r.notifier.Notify(changed)
		return true, r.readOthers(ctx, place)
	}
	if err := r.auditIfDue(ctx, place, format.FindMember(instances, r.cfg.Identity), changed); err != nil {
		r.notifier.Notify(changed)
		return true, cmp.Or(err, r.readPages(ctx, place))
	}
	r.state.Reads.ObserveClaim(format.FindMember(instances, r.cfg.Identity), changed)
	// The members are known now; whose pages are not read yet shows as Unknown.
	r.notifier.Notify(changed)
	return true, r.readPages(ctx, place)
}

// readMembers reads the records of all members.
func (r *reader) readMembers(ctx context.Context) (controlPlace, []api.Instance, error) {
	place, err := r.place(ctx)
	if err != nil || place.missing {
		return place, nil, err
	}
	instances, whole, err := r.client.WithPriority(api.PriorityHigh).DiscoverInstances(ctx, place.namespace.HTTPName, format.MembersService, nil)
	if err != nil {
		r.control.forgetIfGone(err)
		return place, nil, fmt.Errorf("reading the members of the clusterset: %w", err)
	}
	if !whole {
		return place, nil, fmt.Errorf("the clusterset has %d members or more, of which AWS Cloud Map shows only a part", api.MaxDiscovered)
	}
	return place, instances, nil
}

// auditIfDue reads all own pages if that is due.
func (r *reader) auditIfDue(ctx context.Context, place controlPlace, shown *format.Member, changed engine.Keys) error {
	if !r.state.Reads.IsAuditDue(time.Now(), shown) {
		return nil
	}
	stored, err := r.readOwnPages(ctx, place)
	if err != nil {
		r.control.forgetIfGone(err)
		return fmt.Errorf("reading this cluster's own pages: %w", err)
	}
	r.state.Reads.ObserveAudit(time.Now(), shown, stored, changed)
	return nil
}

// readOwnPages reads all instances of the own catalog.
func (r *reader) readOwnPages(ctx context.Context, place controlPlace) ([]api.Instance, error) {
	instances, whole, err := r.client.DiscoverInstances(ctx, place.namespace.HTTPName, place.catalog.Name, nil)
	if err == nil && !whole {
		return r.client.ListInstances(ctx, place.catalog)
	}
	return instances, err
}

// readPages reads every page that has to be read, and the catalogs of clusters whose record is gone.
func (r *reader) readPages(ctx context.Context, place controlPlace) error {
	wanted, absent := r.state.Reads.StaleReads(time.Now())
	if len(wanted) == 0 && len(absent) == 0 {
		return nil
	}

	var group errgroup.Group
	group.SetLimit(concurrency)
	var failed failures
	for _, read := range wanted {
		group.Go(func() error { failed.add(r.readCatalog(ctx, place, read)); return nil })
	}
	for _, id := range absent {
		group.Go(func() error { failed.add(r.readAbsent(ctx, place, id)); return nil })
	}
	_ = group.Wait() // failures are gathered in failed: one cluster's must not end the others' reads
	r.notifier.Notify(engine.Keys{})
	return failed.first()
}

// readCatalog reads pages of one cluster, all at once if they are many.
func (r *reader) readCatalog(ctx context.Context, place controlPlace, read state.CatalogRead) error {
	id, name := read.ClusterID, format.CatalogName(read.ClusterID)
	if len(read.Pages) >= wholeCatalogThreshold {
		instances, whole, err := r.client.DiscoverInstances(ctx, place.namespace.HTTPName, name, nil)
		if err != nil {
			return r.observeUnreadable(id, read.Pages, err)
		}
		if whole {
			byPage := format.GroupByPage(instances)
			for _, page := range read.Pages {
				r.observePage(id, page, byPage[page])
			}
			return nil
		}
	}
	for _, page := range read.Pages {
		instances, _, err := r.client.DiscoverInstances(ctx, place.namespace.HTTPName, name, map[string]string{format.AttrPage: format.PageName(page)})
		if err != nil {
			return r.observeUnreadable(id, []int{page}, err)
		}
		r.observePage(id, page, instances)
	}
	return nil
}

// observePage records a read of a page.
func (r *reader) observePage(id string, page int, found []api.Instance) {
	r.notifier.NotifyKeys(r.state.Reads.ObservePage(time.Now(), id, page, found))
}

// observeUnreadable records that pages could not be read at all. A catalog that does not exist although its pages are announced is a problem of
// that cluster; other errors are returned.
func (r *reader) observeUnreadable(id string, pages []int, err error) error {
	r.state.Reads.ObserveUnreadablePages(time.Now(), id, pages, err)
	if api.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("reading the pages of cluster %s: %w", id, err)
}

// readAbsent reads whether a cluster whose record is gone has left: then its catalog is empty or gone.
func (r *reader) readAbsent(ctx context.Context, place controlPlace, id string) error {
	found, whole, err := r.client.DiscoverInstances(ctx, place.namespace.HTTPName, format.CatalogName(id), nil)
	gone := api.IsServiceNotFound(err)
	if err != nil && !gone {
		return fmt.Errorf("reading the pages of cluster %s: %w", id, err)
	}
	hasPages := !gone && (!whole || len(format.GroupByPage(found)) > 0)
	r.notifier.Notify(r.state.Reads.ObserveCatalog(time.Now(), id, hasPages))
	return nil
}

// readOthers reads the other clusters' pages for a registry that only reads.
//
// Where the clusterset's namespace is missing, no cluster has joined: a registry that was never there has no exports. One that
// was there and is gone, as AWS's lists say, has lost its last cluster, unless the clusters make it again within seconds.
func (r *reader) readOthers(ctx context.Context, place controlPlace) error {
	if !place.missing {
		r.setMissing(time.Time{})
		return r.readPages(ctx, place)
	}
	now := time.Now()
	since := r.setMissing(now)
	if now.Sub(since) < r.cfg.times.gone {
		return nil
	}
	r.notifier.Notify(r.state.Reads.RemoveAll(now))
	return nil
}

// setMissing records since when the namespace is missing, zero if it is not, logs changes, and returns the time.
func (r *reader) setMissing(now time.Time) time.Time {
	switch {
	case !now.IsZero() && r.missingSince.IsZero():
		r.log.Info("No cluster of the clusterset uses this registry", "namespace", r.control.namespaceName())
		r.missingSince = now
	case now.IsZero() && !r.missingSince.IsZero():
		r.log.Info("A cluster of the clusterset uses this registry now", "namespace", r.control.namespaceName())
		r.missingSince = now
	}
	return r.missingSince
}

// failures gathers errors of concurrent requests.
type failures struct {
	mu  sync.Mutex
	err error
}

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *failures) first() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
