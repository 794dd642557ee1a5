package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// farewellTTL is the time for which a farewell stays in etcd for clusters whose controllers do not
// run.
const farewellTTL = 7 * 24 * time.Hour

// leave removes everything of this cluster before ctx ends, unless another controller uses its ID.
// It leaves a farewell for the other clusters, which etcd removes when its lease expires: no
// cluster needs permission for another's keys.
func (w *writer) leave(ctx context.Context) error {
	var clone cloneWatch
	err := engine.RetryUntilDone(ctx, w.timings.retry, func() (done bool, err error) { return w.tryLeave(ctx, &clone) })
	if err != nil {
		return fmt.Errorf("removing everything of this cluster from etcd on leaving the clusterset: %w", err)
	}
	w.revokeLease(ctx)
	return nil
}

// cloneLeases is how many lease times the key alive must stay to belong to a live clone: the key of
// a previous process stays for one lease time, and an etcd that elects a new leader extends all
// leases by up to another.
const cloneLeases = 3

// cloneWatch observes a key alive that may belong to a clone.
type cloneWatch struct {
	alive aliveState
	since time.Time
	ttl   time.Duration
	// goneAt is the time at which the key was missing for the first time.
	goneAt time.Time
}

// mayReturn reports whether the next process of a clone may still write the key alive again, which
// the previous one has removed when it ended. A clone that restarts is live.
func (c *cloneWatch) mayReturn(now time.Time, interval time.Duration) bool {
	if c.alive.revision == 0 {
		return false // there was no clone to observe
	}
	if c.goneAt.IsZero() {
		c.goneAt = now
	}
	return now.Sub(c.goneAt) < yieldHeartbeats*interval
}

// tryLeave removes everything of this cluster if no other controller uses its ID. done reports
// whether nothing is left to do.
func (w *writer) tryLeave(ctx context.Context, clone *cloneWatch) (done bool, err error) {
	shownAlive, member, err := w.store.readOwn(ctx)
	if err != nil {
		return false, err
	}
	alive := aliveIn(shownAlive)
	switch w.session.ownerOf(alive, w.memberUID(member.value)) {
	case ownerOther:
		return true, nil
	case ownerUnclear:
		return w.watchClone(ctx, clone, alive)
	}
	shown := w.decodeOwn(member.value, w.cfg.Signer.Keys()...)
	own := w.mirror.ownKeys()
	own.alive, own.latest = alive, max(own.latest, shown.latest())
	if now := time.Now(); !alive.isHeld() && (w.session.isLeftToNext(own, now) || clone.mayReturn(now, w.cfg.HeartbeatInterval)) {
		return false, nil
	}
	if shown.Farewell && alive.revision == 0 {
		return true, nil
	}
	err = w.sayFarewell(ctx, alive.revision, shown)
	if errors.Is(err, errFenceLost) {
		return false, nil
	}
	return err == nil, err
}

// sayFarewell replaces everything of this cluster by a farewell. The last cluster leaves one too:
// clusters that only import from this registry are no members, and read it.
func (w *writer) sayFarewell(ctx context.Context, seen int64, shown memberRecord) error {
	member, err := w.session.farewell(w.mirror.ownKeys(), shown)
	if err != nil {
		return err
	}
	w.saveHeartbeat(ctx)
	lease, err := w.store.grant(ctx, w.timings.farewell)
	if err != nil {
		return err
	}
	if err := w.store.sayFarewell(ctx, seen, lease, member); err != nil {
		return errors.Join(err, w.store.revoke(ctx, lease))
	}
	return nil
}

// memberUID returns the UID of a member record, "" if it cannot be read.
func (w *writer) memberUID(member []byte) string { return w.decodeOwn(member).UID }

// decodeOwn decodes a member record with this cluster's ID, the zero value if it cannot be read or
// is signed with none of these keys. Without keys any counts.
func (w *writer) decodeOwn(member []byte, keys ...trust.Key) memberRecord {
	m, a, err := openMember(member, w.cfg.Identity.ClusterSetID, w.cfg.Identity.ClusterID)
	if err != nil || len(keys) > 0 && !slices.Contains(keys, a.key) {
		return memberRecord{}
	}
	record, err := decodeMember(m, w.cfg.Identity.ClusterSetID, w.cfg.Identity.ClusterID)
	if err != nil {
		return memberRecord{}
	}
	return record
}

// watchClone observes a key alive with this cluster's UID. If it is written again, or stays for
// longer than its lease lasts, a live clone holds it; done reports that.
func (w *writer) watchClone(ctx context.Context, clone *cloneWatch, alive aliveState) (done bool, err error) {
	if clone.alive != alive {
		ttl, err := w.store.leaseTTL(ctx, alive.lease)
		if err != nil || ttl == 0 {
			return false, err
		}
		done = clone.alive.revision != 0
		*clone = cloneWatch{alive: alive, since: time.Now(), ttl: ttl}
	}
	if done || time.Since(clone.since) > (cloneLeases-1)*clone.ttl {
		w.cfg.Logger.Info("Keeping the keys of a previous identity of this cluster: a clone of the cluster, with the same UID of "+
			"namespace kube-system, uses it", "cluster", w.cfg.Identity.ClusterID, "clusterSet", w.cfg.Identity.ClusterSetID)
		return true, nil
	}
	return false, nil
}

// revokeLease revokes the lease of this process, if it has one.
func (w *writer) revokeLease(ctx context.Context) {
	lease := w.session.currentLease()
	if lease == 0 {
		return
	}
	if err := w.store.revoke(ctx, lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		w.cfg.Logger.Error(err, "Failed to revoke the lease, it will expire", "lease", lease)
	}
}
