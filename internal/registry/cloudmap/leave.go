package cloudmap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// leaver removes everything of this cluster from the registry. It runs after reader and writer have
// ended.
type leaver struct{ *components }

// aliveAfter is the number of silence periods for which a record must keep changing to belong to a
// live cluster: at first, late reads may show the last writes of the previous process.
const aliveAfter = 2

// farewellPolls is the number of polls for which the last cluster of a clusterset keeps the
// farewells: there are only registries that import from this one then, and these poll without peer
// notifications.
const farewellPolls = 5

// leaveTimeout bounds leave.
func (r *leaver) leaveTimeout() time.Duration {
	return (aliveAfter+1)*r.cfg.silence() + r.cfg.times.leave
}

// errNotRemoved is a removal that AWS Cloud Map accepted and does not show.
var errNotRemoved = errors.New("AWS Cloud Map still shows pages that were removed")

// leave removes everything of this cluster, and retries until ctx ends. The error is a
// LeftoversError if everything else is removed.
func (r *leaver) leave(ctx context.Context) error {
	mine := r.state.Claim() != state.Observing
	if !mine {
		// The records under this ID belong to another cluster or to a previous process.
		began := time.Now()
		err := r.retry(ctx, func() (err error) { mine, err = r.adoptAbandoned(ctx, time.Since(began)); return err })
		if err != nil || !mine {
			return err
		}
	}
	var place controlPlace
	steps := []func() error{
		func() (err error) { place, err = r.removeRecords(ctx); return err },
		func() error { return r.view.Leave(ctx) },
		func() error { return r.removeControl(ctx, place) },
		func() error { return errors.Join(r.view.ReviewLeft(ctx), r.control.deletions.Review(ctx)) },
	}
	for _, step := range steps {
		if err := r.retry(ctx, step); err != nil {
			return fmt.Errorf("removing everything of this cluster from AWS Cloud Map on leaving the clusterset: %w", err)
		}
	}
	if left := append(r.view.Left(), r.control.deletions.Left()...); len(left) > 0 {
		return &registry.LeftoversError{Left: left}
	}
	return nil
}

// removeRecords writes the farewell, which stays for clusters that do not read it now, and removes
// the own pages.
func (r *leaver) removeRecords(ctx context.Context) (controlPlace, error) {
	place, err := r.place(ctx)
	if err != nil {
		return place, err
	}
	if err := r.retry(ctx, func() error { return r.sayFarewell(ctx, place) }); err != nil {
		return place, fmt.Errorf("announcing that the cluster leaves: %w", err)
	}
	if err := r.retry(ctx, func() error { return r.removePages(ctx, place) }); err != nil {
		return place, fmt.Errorf("removing this cluster's pages: %w", err)
	}
	return place, nil
}

// removeControl removes what the control namespace has of this cluster. It undoes a slow write of
// this process that AWS Cloud Map has carried out since: of a page, or of a record in place of the
// farewell. The error makes it try again.
func (r *leaver) removeControl(ctx context.Context, place controlPlace) error {
	err := r.control.leave(ctx, place, farewellPolls*r.cfg.PollInterval)
	switch {
	case errors.Is(err, errNotShown):
		return errors.Join(r.sayFarewell(ctx, place), err)
	case api.IsInUse(err):
		return errors.Join(r.removePages(ctx, place), err)
	}
	return err
}

// errNotShown is a farewell that AWS Cloud Map accepted and does not show.
var errNotShown = errors.New("AWS Cloud Map does not show the last record of this cluster")

// sayFarewell writes the farewell and waits until it is shown: without it the exports of this
// cluster stay in the other clusters.
func (r *leaver) sayFarewell(ctx context.Context, place controlPlace) error {
	last := r.state.Writes.LeavingRecord()
	r.control.saveFarewell(ctx, place, last.Heartbeat)
	if _, err := r.client.WithPriority(api.PriorityHigh).RegisterInstance(ctx, place.members.ID, last.Instance(r.cfg.Signer)); err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < r.cfg.times.Confirm; {
		shown, err := r.readRecord(ctx, place.namespace)
		if err != nil {
			return err
		}
		if shown != nil && shown.Farewell && !last.IsLaterThan(*shown) {
			return nil
		}
		engine.Sleep(ctx, r.cfg.PollInterval)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errNotShown
}

// removePages removes the instances of the own pages: the listed ones, and those that were written
// and are not listed yet. It succeeds when the list is empty.
func (r *leaver) removePages(ctx context.Context, place controlPlace) error {
	listed, err := r.client.ListInstances(ctx, place.catalog)
	if err != nil {
		return err
	}
	ids := r.state.Writes.PartIDs()
	for _, instance := range listed {
		ids[instance.ID] = true
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		group.Go(func() error { return r.client.DeregisterInstance(groupCtx, place.catalog.ID, id) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	r.state.Writes.ForgetPages()
	if len(listed) > 0 {
		return errNotRemoved // as far as is known
	}
	return nil
}

// errNoNamespace is a namespace that AWS Cloud Map does not show.
var errNoNamespace = errors.New("AWS Cloud Map does not show the clusterset's namespace")

// adoptAbandoned reports whether the records under this identity were left by a previous process of
// this cluster, and adopts them for removal. They were not if the record keeps changing: a clone of
// the cluster has the same UID. A member signs a farewell also if another user has deleted its
// record or the namespace, which the other clusters create again: they know the member.
func (r *leaver) adoptAbandoned(ctx context.Context, leaving time.Duration) (bool, error) {
	in, ok, err := r.findNamespace(ctx, leaving)
	if err != nil || !ok {
		return false, err
	}
	id := r.cfg.Identity
	last := format.Member{ClusterID: id.ClusterID, ClusterSetID: id.ClusterSetID, UID: id.UID, Version: r.cfg.Version, Joined: r.cfg.Joined}
	began := time.Now()
	for changed := began; time.Since(changed) < r.cfg.silence(); {
		shown, err := r.readRecord(ctx, in)
		switch {
		case err != nil:
			return false, err
		case r.isAnothers(shown):
			r.logAnothers(shown)
			return false, nil
		case !r.isOwn(shown): // another user has deleted or replaced it
		// its process may have ended before everything was removed, and another user may have
		// deleted the catalog since
		case shown.Farewell:
			r.state.Writes.AdoptRecord(*shown)
			return true, nil
		case last.Heartbeat == 0:
			last = *shown
		case shown.IsLaterThan(last):
			last, changed = *shown, time.Now()
		}
		if changed.Sub(began) >= aliveAfter*r.cfg.silence() {
			r.log.Info("Keeping the records under a previous identity of this cluster: a clone of the cluster, with the same "+
				"UID of namespace kube-system, uses them", "cluster", r.cfg.Identity.ClusterID, "clusterSet", r.cfg.Identity.ClusterSetID)
			return false, nil
		}
		if engine.Sleep(ctx, r.cfg.PollInterval); ctx.Err() != nil {
			return false, fmt.Errorf("observing the record of a previous identity: %w", ctx.Err())
		}
	}
	r.state.Writes.AdoptRecord(last)
	return true, nil
}

// findNamespace returns the control namespace; ok is false if there is none. The other clusters
// create it again if this cluster was a member.
func (r *leaver) findNamespace(ctx context.Context, leaving time.Duration) (in api.Namespace, ok bool, err error) {
	namespaces, err := r.client.ListNamespaces(ctx)
	if err != nil {
		return in, false, err
	}
	if in, ok = namespaces[r.control.namespaceName()]; !ok && r.state.WasMember() && leaving < r.cfg.StaleAfter/2 {
		return in, false, errNoNamespace
	}
	return in, ok, nil
}

// isOwn reports whether a record, nil for none, was written by a process of this cluster.
func (r *leaver) isOwn(shown *format.Member) bool { return shown != nil && r.cfg.isOwn(*shown) }

// isAnothers reports whether the ID is not this cluster's, by its record, nil for none. A cluster
// that was a member has its ID whatever another user has done to its record, unless the cluster
// that had the ID before has returned. One that has just joined gives way to another record, under
// which another cluster may export, but not to a record that is gone.
func (r *leaver) isAnothers(shown *format.Member) bool {
	if r.isOwn(shown) {
		return false
	}
	if shown == nil {
		return !r.state.WasMember()
	}
	return !r.state.IsMember() || r.isEarlierOwner(shown.Key)
}

// logAnothers says that a record with this ID, nil for none, stays.
func (r *leaver) logAnothers(shown *format.Member) {
	if shown == nil {
		return
	}
	r.log.Info("Keeping the records with this cluster ID: another cluster has signed the latest one. If no other cluster uses the ID, "+
		"remove that record, and run kubectl mcs forget in the clusters that import from this one",
		"cluster", r.cfg.Identity.ClusterID, "clusterSet", r.cfg.Identity.ClusterSetID, "key", shown.Key.String())
}

// isEarlierOwner reports whether a key is that of the cluster that had this ID before, and has it
// again.
func (r *leaver) isEarlierOwner(key trust.Key) bool {
	pin, ok := r.cfg.Keyring.Pin(r.cfg.Identity.ClusterID)
	return ok && pin.Key == key && !pin.Left
}

// readRecord reads the record with this cluster's ID, nil if there is none.
func (r *leaver) readRecord(ctx context.Context, in api.Namespace) (*format.Member, error) {
	for n := 1; n <= r.control.services.toSearch(); n++ {
		found, err := r.control.recordsOf(ctx, in, n)
		if api.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading this cluster's record: %w", err)
		}
		if shown := format.FindMember(found, r.cfg.Identity); shown != nil {
			return shown, nil
		}
	}
	return nil, nil
}
