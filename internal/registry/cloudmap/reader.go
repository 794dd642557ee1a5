package cloudmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// wholeFrom is from how many pages on a catalog is read at once: one larger answer instead of that many requests.
const wholeFrom = 4

// readLoop looks at the registry, at intervals and when there may be news, until ctx ends.
func (r *Registry) readLoop(ctx context.Context, notify func(mcs.Key)) {
	// Controllers that start together, after an outage of the account say, do not march in step.
	timer := time.NewTimer(rand.N(r.cfg.PollInterval))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.look:
		case <-timer.C:
		}
		if r.untilLook() <= 0 {
			r.looking()
			whole, err := r.poll(ctx, notify)
			r.reading(ctx, err, notify)
			r.looked(whole, err)
		}
		timer.Reset(r.untilLook())
	}
}

// reading notes whether reading works, and tells who waits for it when that changes.
func (r *Registry) reading(ctx context.Context, err error, notify func(mcs.Key)) {
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	changed := keySet{}
	if text(err) != text(r.readProblem) {
		r.readProblem = err
		r.unfinished(changed)
		logChange(r.log, err, "Cannot read the clusterset from AWS Cloud Map; what is known of it stays", "Reading the clusterset from AWS Cloud Map again")
	}
	r.mu.Unlock()
	r.tell(notify, changed)
}

// logChange says that something does not work any more, or does again. Being throttled, and not yet seeing what was just
// made, are Cloud Map as it is.
func logChange(log logr.Logger, err error, failing, working string) {
	switch {
	case err == nil:
		log.Info(working)
	case api.IsThrottled(err) || api.IsNotFound(err):
		log.Info(failing, "reason", err.Error())
	default:
		log.Error(err, failing)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// poll reads the members, and of each cluster the pages that are not what it announces. whole says that all members were read,
// whatever became of the pages.
func (r *Registry) poll(ctx context.Context, notify func(mcs.Key)) (whole bool, err error) {
	place, instances, err := r.readMembers(ctx)
	changed := keySet{}
	if err == nil && !r.takeMembers(place, instances, changed) {
		err = errors.New("reading the members of the clusterset: this cluster's own record is not among them")
	}
	if err != nil {
		r.mu.Lock()
		r.catalogs.liveness.ObserveFailure()
		r.mu.Unlock()
		return false, err
	}
	if r.cfg.ReadOnly {
		r.tell(notify, changed)
		return true, r.readOthers(ctx, place, notify)
	}
	if err := r.auditIfDue(ctx, place, format.FindMember(instances, r.cfg.Identity), changed); err != nil {
		r.tell(notify, changed)
		return true, cmp.Or(err, r.readPages(ctx, place, notify))
	}
	r.takeClaim(format.FindMember(instances, r.cfg.Identity), changed)
	// The members are known now; whose pages are not read yet shows as Unknown.
	r.tell(notify, changed)
	return true, r.readPages(ctx, place, notify)
}

// readMembers reads the records of all members.
func (r *Registry) readMembers(ctx context.Context) (controlPlace, []api.Instance, error) {
	place, err := r.place(ctx)
	if err != nil || place.missing {
		return place, nil, err
	}
	instances, whole, err := r.client.WithPriority(api.PriorityHigh).DiscoverInstances(ctx, place.namespace.HTTPName, format.MembersService, nil)
	if err != nil {
		r.vanished(err)
		return place, nil, fmt.Errorf("reading the members of the clusterset: %w", err)
	}
	if !whole {
		return place, nil, fmt.Errorf("the clusterset has %d members or more, of which AWS Cloud Map shows only a part", api.MaxDiscovered)
	}
	return place, instances, nil
}

// vanished makes us look for the control namespace again when it is gone.
func (r *Registry) vanished(err error) {
	if api.IsNotFound(err) {
		r.control.forget()
	}
}

// takeMembers takes in a read of the members, unless it cannot be right: our own record is there once we have joined.
func (r *Registry) takeMembers(place controlPlace, instances []api.Instance, changed keySet) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claim.state == held && format.FindMember(instances, r.cfg.Identity) == nil {
		if time.Since(r.recorded) > r.cfg.times.settle {
			// Somebody removed it. The sooner it is back, the fewer take this cluster for gone, or its ID for free.
			r.announce = true
			wake(r.write)
		}
		return false
	}
	r.catalogs.suspect(place)
	if r.claim.state == watching && format.FindMember(instances, r.cfg.Identity) == nil {
		r.catalogs.unannounced()
	}
	r.catalogs.members(time.Now(), instances, changed)
	r.countShared(len(instances))
	r.noteMembers()
	return true
}

// noteMembers logs who came, who went, and who lives or not, since the last read. The caller holds r.mu.
func (r *Registry) noteMembers() {
	var members []registry.Member
	for id, cluster := range r.catalogs.clusters {
		if cluster.hasRecord {
			members = append(members, registry.Member{ClusterID: id, Version: cluster.record.Version, LastSeen: cluster.lastSeen, Stale: r.catalogs.liveness.IsStale(id)})
		}
	}
	r.members.Update(members)
}

// auditIfDue reads all of our own pages: before the ID is claimed, when another cluster may have written them, and now
// and then.
func (r *Registry) auditIfDue(ctx context.Context, place controlPlace, shown *format.Member, changed keySet) error {
	r.mu.Lock()
	now := time.Now()
	due := r.claim.free(now, shown) || r.claim.state != watching && !now.Before(r.auditAt)
	r.mu.Unlock()
	if !due {
		return nil
	}
	stored, err := r.readOwn(ctx, place)
	if err != nil {
		r.vanished(err)
		return fmt.Errorf("reading this cluster's own pages: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.auditAt = time.Now().Add(r.cfg.times.audit)
	r.leftovers = len(format.GroupByPage(stored)) > 0
	if shown == nil && r.leftovers {
		// Pages are written under a record and removed before it: whoever wrote these may live, and write it again.
		r.claim.settle = max(r.claim.settle, r.claim.silence)
	}
	r.catalogs.audit(time.Now(), stored, changed)
	return nil
}

// readOwn reads all instances of our own catalog.
func (r *Registry) readOwn(ctx context.Context, place controlPlace) ([]api.Instance, error) {
	instances, whole, err := r.client.DiscoverInstances(ctx, place.namespace.HTTPName, place.catalog.Name, nil)
	if err == nil && !whole {
		return r.client.ListInstances(ctx, place.catalog)
	}
	return instances, err
}

// takeClaim decides whose our ID is, and takes over what the earlier life of this cluster left when it is ours.
func (r *Registry) takeClaim(shown *format.Member, changed keySet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	before, refusedBefore := r.claim.state, r.claim.refused()
	if before == watching {
		r.prepareRecord(shown)
	}
	if r.claim.observe(now, shown, r.ours) {
		r.announce = true
		wake(r.write)
		if r.claim.state == held {
			r.auditAt = now // the other cluster may have written our pages
		}
	}
	if r.claim.state == claiming && before == watching {
		r.outbox.unvouched = shown == nil && r.leftovers
		r.outbox.after(r.shown())
	}
	if r.claim.state != before || r.claim.refused() != refusedBefore {
		r.claimChanged(now, before, changed)
	}
	if r.claim.state == held {
		r.adoptPages(now, changed)
		r.confirmPages(now)
	}
}

// prepareRecord makes the record that we would claim the ID with. The caller holds r.mu.
func (r *Registry) prepareRecord(shown *format.Member) {
	joined := r.cfg.wall().UTC().Truncate(time.Millisecond)
	if shown != nil {
		r.outbox.generation = max(r.outbox.generation, shown.Generation)
		r.ours.Heartbeat = max(r.ours.Heartbeat, shown.Heartbeat)
		if shown.IsOf(r.cfg.Identity) {
			joined = shown.Joined
		}
	}
	r.ours = format.Member{
		ClusterID: r.cfg.Identity.ClusterID, ClusterSetID: r.cfg.Identity.ClusterSetID,
		UID: r.cfg.Identity.UID, Version: r.cfg.Version, Contact: r.contact(), Joined: joined, Heartbeat: r.ours.Heartbeat,
	}
}

// claimChanged acts upon a claim that was won or lost. The caller holds r.mu.
func (r *Registry) claimChanged(now time.Time, before claimState, changed keySet) {
	switch {
	case r.claim.state == held:
		r.heldSince = now
		r.log.Info("Joined the clusterset", "cluster", r.cfg.Identity.ClusterID)
		wake(r.write)
		if r.view != nil {
			r.view.Activate()
		}
	case r.claim.state == claiming:
		r.outbox.nextGeneration(r.cfg.wall())
	case r.claim.refused() != "":
		r.log.Info("Another cluster uses this cluster's ID: nothing is exported until it is gone",
			"cluster", r.cfg.Identity.ClusterID, "uid", r.cfg.Identity.UID, "otherUID", r.claim.refused())
	}
	if r.claim.state == watching && before != watching {
		r.outbox.disown()
		if r.view != nil {
			r.view.Deactivate()
		}
	}
	r.unfinished(changed)
	r.ownKeys(changed)
}

// adoptPages makes the pages as shown the base of what is written, one by one as they become known. The caller holds r.mu.
func (r *Registry) adoptPages(now time.Time, changed keySet) {
	shown := r.shown()
	for i := range r.outbox.pages {
		if r.outbox.pages[i].adopted {
			continue
		}
		switch page := &shown.pages[i]; {
		case page.read && !page.lost:
			r.outbox.adopt(i, page)
		case page.failures > eagerRetries && now.Sub(r.heldSince) >= r.cfg.times.adopt:
			r.log.Info("A page of this cluster's earlier life cannot be read and is written anew", "page", format.PageName(i), "problem", page.trouble)
			r.outbox.abandon(i, page, shown.record)
		default:
			continue
		}
		for key := range r.outbox.pages[i].want {
			changed[key] = struct{}{}
		}
		wake(r.write)
	}
}

// confirmPages compares what was written with what is shown. The caller holds r.mu.
func (r *Registry) confirmPages(now time.Time) {
	for _, page := range r.outbox.confirm(now, r.shown(), r.cfg.times.confirm) {
		r.outbox.pages[page].torn = true
		wake(r.write)
	}
	r.count()
}

// readPages reads every page that has to be read, and sees to the clusters whose record is gone.
func (r *Registry) readPages(ctx context.Context, place controlPlace, notify func(mcs.Key)) error {
	r.mu.Lock()
	now := time.Now()
	var wanted []catalogRead
	for id, cluster := range r.catalogs.clusters {
		if id == r.cfg.Identity.ClusterID && r.cfg.ReadOnly {
			continue // what this cluster may have left here is never imported
		}
		if pages := cluster.wanted(now); len(pages) > 0 {
			wanted = append(wanted, catalogRead{id, pages})
		}
	}
	absent := r.catalogs.absent(now)
	r.mu.Unlock()
	if len(wanted) == 0 && len(absent) == 0 {
		return nil
	}

	var group errgroup.Group
	group.SetLimit(concurrency)
	var failed failures
	for _, read := range wanted {
		group.Go(func() error { failed.add(r.readCatalog(ctx, place, read, notify)); return nil })
	}
	for _, id := range absent {
		group.Go(func() error { failed.add(r.verifyAbsent(ctx, place, id, notify)); return nil })
	}
	_ = group.Wait() // failures are gathered in failed: one cluster's must not end the others' reads
	return failed.first()
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

// catalogRead are the pages of a catalog that have to be read.
type catalogRead struct {
	clusterID string
	pages     []int
}

// readCatalog reads pages of one cluster, all at once if they are many.
func (r *Registry) readCatalog(ctx context.Context, place controlPlace, read catalogRead, notify func(mcs.Key)) error {
	id, name := read.clusterID, format.CatalogName(read.clusterID)
	if len(read.pages) >= wholeFrom {
		instances, whole, err := r.client.DiscoverInstances(ctx, place.namespace.HTTPName, name, nil)
		if err != nil {
			return r.unreadable(id, read.pages, err)
		}
		if whole {
			byPage := format.GroupByPage(instances)
			for _, page := range read.pages {
				r.takePage(id, page, byPage[page], notify)
			}
			return nil
		}
	}
	for _, page := range read.pages {
		instances, _, err := r.client.DiscoverInstances(ctx, place.namespace.HTTPName, name, map[string]string{format.AttrPage: format.PageName(page)})
		if err != nil {
			return r.unreadable(id, []int{page}, err)
		}
		r.takePage(id, page, instances, notify)
	}
	return nil
}

func (r *Registry) takePage(id string, page int, instances []api.Instance, notify func(mcs.Key)) {
	changed := keySet{}
	now := time.Now()
	r.mu.Lock()
	r.catalogs.page(now, id, page, instances, changed)
	if id == r.cfg.Identity.ClusterID && r.claim.state == held {
		r.adoptPages(now, changed)
		r.confirmPages(now)
	}
	r.mu.Unlock()
	r.tell(notify, changed)
}

// unreadable notes that pages could not be read at all. A catalog that is not there, though its pages are announced, is
// that cluster's trouble; any other error is ours.
func (r *Registry) unreadable(id string, pages []int, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cluster := r.catalogs.clusters[id]; cluster != nil {
		for _, page := range pages {
			p := &cluster.pages[page]
			p.trouble = err.Error()
			p.failed(time.Now(), r.cfg.PollInterval)
		}
	}
	if api.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("reading the pages of cluster %s: %w", id, err)
}

// verifyAbsent looks whether a cluster whose record is gone has left: then its catalog is empty, or gone too.
func (r *Registry) verifyAbsent(ctx context.Context, place controlPlace, id string, notify func(mcs.Key)) error {
	instances, whole, err := r.client.DiscoverInstances(ctx, place.namespace.HTTPName, format.CatalogName(id), nil)
	gone := api.IsServiceNotFound(err)
	if err != nil && !gone {
		return fmt.Errorf("reading the pages of cluster %s: %w", id, err)
	}
	hasPages := !gone && (!whole || len(format.GroupByPage(instances)) > 0)
	changed := keySet{}
	r.mu.Lock()
	r.catalogs.verified(time.Now(), id, hasPages, changed)
	r.mu.Unlock()
	r.tell(notify, changed)
	return nil
}
