package cloudmap

import (
	"cmp"
	"context"
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

// wholeCatalogThreshold is the number of stale pages from which one read of the whole catalog
// replaces one request per page.
const wholeCatalogThreshold = 4

// reader polls the registry. It belongs to one goroutine.
type reader struct {
	*components
	records recordReader
	// catalogs finds the catalogs whose tags are read.
	catalogs catalogFinder
	// missingSince is the time since which a registry that is only read does not exist; zero while
	// it does.
	missingSince time.Time
}

func newReader(c *components) *reader {
	return &reader{components: c, records: recordReader{components: c}, catalogs: catalogFinder{components: c}}
}

// run polls the registry, at intervals and when peer notifications arrive, until ctx ends.
func (r *reader) run(ctx context.Context) {
	// Controllers that start together, for example after an outage of the account, must not poll in
	// sync.
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

// poll reads the members, and the pages of each cluster that differ from the announced ones. whole
// reports whether all members were read, whatever became of the pages.
func (r *reader) poll(ctx context.Context) (whole bool, err error) {
	began := time.Now()
	place, instances, err := r.readMembers(ctx)
	r.traces.membersRead(began)
	if err != nil {
		r.state.Reads.ObserveFailure()
		return false, err
	}
	changed := engine.Keys{}
	r.state.Reads.ObserveMembers(instances, changed)
	if r.cfg.ReadOnly {
		r.notifier.Notify(changed)
		return true, r.readOthers(ctx, place)
	}
	shown := format.FindMember(instances, r.cfg.Identity)
	r.readProofIfDue(ctx, place, shown)
	if err := r.auditIfDue(ctx, place, shown, changed); err != nil {
		r.notifier.Notify(changed)
		return true, cmp.Or(err, r.readPages(ctx, place))
	}
	r.state.Reads.ObserveClaim(shown, changed)
	// The members are known now; whose pages are not read yet shows as Unknown.
	r.notifier.Notify(changed)
	err = r.readPages(ctx, place)
	r.readTagsForUsers(ctx, place)
	return true, err
}

// readMembers reads the records of all members.
func (r *reader) readMembers(ctx context.Context) (controlPlace, []api.Instance, error) {
	place, err := r.place(ctx)
	if err != nil || place.missing {
		return place, nil, err
	}
	instances, err := r.records.read(ctx, place.namespace)
	if err != nil {
		r.control.doubtAfter(err)
		return place, nil, fmt.Errorf("reading the members of the clusterset: %w", err)
	}
	if r.cfg.ReadOnly {
		r.control.confirm()
	}
	return place, instances, nil
}

// readProofIfDue reads the own catalog if another cluster has this ID by its record.
func (r *reader) readProofIfDue(ctx context.Context, place controlPlace, shown *format.Member) {
	if !r.state.Reads.IsProofDue(time.Now(), shown) {
		return
	}
	// a failure is no proof, and is tried again
	if stored, err := r.readOwnPages(ctx, place); err == nil {
		r.state.Reads.ObserveProof(time.Now(), stored)
	}
}

// auditIfDue reads all own pages if that is due.
func (r *reader) auditIfDue(ctx context.Context, place controlPlace, shown *format.Member, changed engine.Keys) error {
	if !r.state.Reads.IsAuditDue(time.Now(), shown) {
		return nil
	}
	stored, err := r.readOwnPages(ctx, place)
	if err != nil {
		r.control.doubtAfter(err)
		return fmt.Errorf("reading this cluster's own pages: %w", err)
	}
	r.state.Reads.ObserveAudit(time.Now(), shown, stored, changed)
	if expired := r.state.Reads.ExpiredFarewells(); len(expired) > 0 {
		if err := r.records.removeFarewells(ctx, place, expired); err != nil {
			r.log.V(1).Info("Failed to remove the last records of clusters that left; retrying at the next audit", "members", expired, "error", err.Error())
		}
	}
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

// longestReads is the time after which a poll begins no further read of a catalog: a client may
// make 100 a second, and far fewer while AWS throttles. The members are read again before the
// others, because heartbeats must be seen, and the second record of a cluster after a start.
const longestReads = 10 * time.Second

// leastReads is the time for which catalogs that have not changed are read at least, also if the
// reads of those that have changed have no answer for longestReads.
const leastReads = 2 * time.Second

// readPages reads every page and every copy of a record that has to be read: first those that have
// changed. The others can wait if AWS throttles the account.
func (r *reader) readPages(ctx context.Context, place controlPlace) error {
	deadline := time.Now().Add(longestReads)
	wanted, others := r.state.Reads.StaleReads(time.Now())
	var err error
	for ; err == nil && len(wanted) > 0; wanted = r.state.Reads.MoreNewcomers(time.Now()) {
		err = r.readCatalogs(ctx, place, wanted, deadline, false)
	}
	if api.IsThrottled(err) {
		return err
	}
	if least := time.Now().Add(leastReads); least.After(deadline) {
		deadline = least
	}
	return cmp.Or(err, r.readCatalogs(ctx, place, others, deadline, true))
}

// readCatalogs reads catalogs. It begins no read after the deadline, nor once one was throttled if
// they can wait.
func (r *reader) readCatalogs(ctx context.Context, place controlPlace, wanted []state.CatalogRead, deadline time.Time, canWait bool) error {
	var group errgroup.Group
	group.SetLimit(concurrency)
	var failed failures
	for _, read := range wanted {
		group.Go(func() error {
			waits := canWait && api.IsThrottled(failed.first())
			if !waits && time.Now().Before(deadline) {
				failed.add(r.readCatalog(ctx, place, read))
			}
			return nil
		})
	}
	// failures are gathered in failed: one cluster's must not end the others' reads
	_ = group.Wait()
	r.notifier.Notify(engine.Keys{})
	return failed.first()
}

// readCatalog reads pages of one cluster, all at once if they are many or the copy of its record is
// wanted.
func (r *reader) readCatalog(ctx context.Context, place controlPlace, read state.CatalogRead) error {
	id := read.ClusterID
	if read.Record || len(read.Pages) >= wholeCatalogThreshold {
		instances, whole, err := r.discover(ctx, place, id, nil)
		if err != nil {
			return r.observeUnreadable(read, err)
		}
		if whole {
			r.notifier.NotifyKeys(r.state.Reads.ObserveCatalog(time.Now(), id, instances))
			r.readTagsIfDue(ctx, place, id)
			return nil
		}
	}
	if read.Record {
		instances, err := r.readPage(ctx, place, id, format.CopyID)
		if err != nil {
			return r.observeUnreadable(read, err)
		}
		r.notifier.Notify(r.state.Reads.ObserveRecordCopy(time.Now(), id, instances))
		r.readTagsIfDue(ctx, place, id)
	}
	for _, page := range read.Pages {
		instances, err := r.readPage(ctx, place, id, format.PageName(page))
		if err != nil {
			return r.observeUnreadable(state.CatalogRead{ClusterID: id, Pages: []int{page}}, err)
		}
		r.notifier.NotifyKeys(r.state.Reads.ObservePage(time.Now(), id, page, instances))
	}
	return nil
}

// readTagsIfDue reads the tags of a cluster's catalog if its record was refused because of its key.
func (r *reader) readTagsIfDue(ctx context.Context, place controlPlace, id string) {
	if !r.state.Reads.AreTagsDue(time.Now(), id) {
		return
	}
	pause := r.cfg.StaleAfter / state.CopyReads // a catalog that was created again has another ARN
	r.readTags(ctx, id, func() (api.Service, error) {
		return r.catalogs.find(ctx, place.namespace, format.CatalogName(id), pause, pause)
	})
}

// readTagsForUsers reads the tags of catalogs, so that users see whether they are sealed, if that
// is due.
func (r *reader) readTagsForUsers(ctx context.Context, place controlPlace) {
	for ctx.Err() == nil {
		id, clusters := r.state.Reads.TagsForUsers(time.Now())
		switch id {
		case "":
			return
		case r.cfg.Identity.ClusterID:
			r.readTags(ctx, id, func() (api.Service, error) { return place.catalog, nil })
		default:
			r.readTags(ctx, id, func() (api.Service, error) {
				return r.catalogs.find(ctx, place.namespace, format.CatalogName(id), listedFor, state.ListPause(clusters))
			})
		}
	}
}

// listedFor is the time for which a list of the services is used to show whether catalogs are
// sealed.
const listedFor = 24 * time.Hour

// readTags reads the tags of the catalog that find returns.
func (r *reader) readTags(ctx context.Context, id string, find func() (api.Service, error)) {
	began := time.Now()
	catalog, err := find()
	owner := ""
	if err == nil {
		owner, err = r.client.CatalogOwner(ctx, catalog)
	}
	if api.IsNotFound(err) {
		r.catalogs.forget(catalog.Name)
	}
	if ctx.Err() == nil {
		// a failure proves nothing, and is tried again
		r.state.Reads.ObserveTags(began, id, owner, err)
	}
}

// catalogFinder finds the catalogs of other clusters, which readers otherwise know by name only. It
// is safe for concurrent use.
type catalogFinder struct {
	*components
	mu sync.Mutex
	// services and err are the result of the last list, at listedAt.
	services map[string]api.Service
	err      error
	listedAt time.Time
}

// find returns a catalog. It lists the services if the last list is older than maxAge, or if that
// does not have the catalog or has failed, but not within pause of it.
func (f *catalogFinder) find(ctx context.Context, namespace api.Namespace, name string, maxAge, pause time.Duration) (api.Service, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found, ok := f.services[name]
	if age := time.Since(f.listedAt); f.listedAt.IsZero() || age >= maxAge || !ok && age >= pause {
		f.services, f.err = f.client.ListServices(ctx, namespace)
		f.listedAt = time.Now()
		found, ok = f.services[name]
	}
	switch {
	case f.err != nil:
		return api.Service{}, f.err
	case !ok:
		return api.Service{}, fmt.Errorf("finding service %s: the list of services does not have it", name)
	}
	return found, nil
}

// forget removes a catalog that does not exist from the result of the last list.
func (f *catalogFinder) forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.services, name)
}

// readPage reads the instances of a cluster's catalog with a value of PAGE.
func (r *reader) readPage(ctx context.Context, place controlPlace, id, page string) ([]api.Instance, error) {
	instances, _, err := r.discover(ctx, place, id, map[string]string{format.AttrPage: page})
	return instances, err
}

// discover reads the instances of a cluster's catalog that have the attributes of query.
func (r *reader) discover(ctx context.Context, place controlPlace, id string, query map[string]string) (instances []api.Instance, whole bool, err error) {
	began := time.Now()
	instances, whole, err = r.client.DiscoverInstances(ctx, place.namespace.HTTPName, format.CatalogName(id), query)
	r.traces.catalogRead(id, r.peers, began)
	return instances, whole, err
}

// observeUnreadable records that pages or the copy of a record could not be read at all. A catalog
// that does not exist is a problem of that cluster; other errors are returned.
func (r *reader) observeUnreadable(read state.CatalogRead, err error) error {
	r.state.Reads.ObserveUnreadablePages(time.Now(), read.ClusterID, read.Pages, err)
	isMissing := api.IsNotFound(err)
	switch {
	case read.Record && isMissing:
		r.notifier.Notify(r.state.Reads.ObserveRecordCopy(time.Now(), read.ClusterID, nil))
	case read.Record:
		r.state.Reads.ObserveUnreadableCatalog(time.Now(), read.ClusterID)
	}
	if isMissing {
		if read.ClusterID == r.cfg.Identity.ClusterID {
			// no write says that it is gone if AWS accepts those to missing services
			r.control.doubtAfter(err)
		}
		return nil
	}
	return fmt.Errorf("reading the catalog of cluster %s: %w", read.ClusterID, err)
}

// readOthers reads the other clusters' pages for a registry that only reads. A namespace that is
// missing is no evidence: it may not be shared or listed any more. What was read stays.
func (r *reader) readOthers(ctx context.Context, place controlPlace) error {
	if place.missing {
		r.setMissing(time.Now())
		return nil
	}
	r.setMissing(time.Time{})
	return r.readPages(ctx, place)
}

// setMissing records since when the namespace is missing, zero if it is not, and logs changes.
func (r *reader) setMissing(now time.Time) {
	switch {
	case !now.IsZero() && r.missingSince.IsZero():
		r.log.Info("The clusterset's namespace does not exist in this registry, or this cluster may not see it; imports stay", "namespace", r.control.namespaceName())
		r.missingSince = now
	case now.IsZero() && !r.missingSince.IsZero():
		r.log.Info("The clusterset's namespace exists in this registry", "namespace", r.control.namespaceName())
		r.missingSince = now
	}
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
