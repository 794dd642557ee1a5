package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// maxBehind is how many answers in a row may be of an earlier revision than what was read: a member of etcd that lags
// behind catches up in less.
const maxBehind = 3

// errBehind means that etcd is at an earlier revision than what was read.
var errBehind = errors.New("etcd is at an earlier revision than what was read of it")

// readLoop keeps the state current until ctx ends: it lists once, and again when the watch cannot go on from where it was.
func (r *Registry) readLoop(ctx context.Context, notify func(mcs.Key)) {
	listed := false
	for failures := 0; ctx.Err() == nil; {
		var err error
		if !listed {
			err = r.list(ctx, notify)
			listed = err == nil
		}
		if err == nil {
			began := time.Now()
			err = r.watch(ctx, notify)
			if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, errBehind) {
				r.log.Info("Reading everything again", "reason", err.Error())
				listed = false
			}
			if time.Since(began) > r.cfg.times.maxRetry {
				failures = 0 // it was well for a while
			}
		}
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.state.liveness.Unanswered()
		r.mu.Unlock()
		failures++
		if failures > 1 {
			r.problem(&r.readProblem, err, notify, "Cannot read from etcd; trying again", "")
		}
		pause(ctx, r.cfg.times.backoff(failures))
	}
}

func (r *Registry) list(ctx context.Context, notify func(mcs.Key)) error {
	list, revision, err := r.store.list(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	changed := keySet{}
	first := !r.state.synced
	rewound := r.state.replace(time.Now(), list, revision, changed)
	if first {
		r.state.allKeys(changed)
	}
	if rewound {
		r.claim.drop()
	}
	r.outbox.relisted(revision, rewound)
	r.outbox.unfinished(changed)
	r.taken(changed)
	r.mu.Unlock()
	r.tell(notify, changed)
	return nil
}

func (r *Registry) watch(ctx context.Context, notify func(mcs.Key)) error {
	r.mu.Lock()
	from := r.state.revision
	r.behind = 0
	r.mu.Unlock()
	return r.store.watch(ctx, from, r.cfg.PollInterval, r.cfg.times.silence, func(changes []pair, revision int64) error {
		r.problem(&r.readProblem, nil, notify, "", "Reading from etcd again")
		return r.take(changes, revision, notify)
	})
}

// take takes in an answer to the watch.
func (r *Registry) take(changes []pair, revision int64, notify func(mcs.Key)) error {
	r.mu.Lock()
	if revision < r.state.revision {
		r.behind++
		defer r.mu.Unlock()
		if r.behind >= maxBehind {
			return errBehind
		}
		return nil
	}
	r.behind = 0
	now, changed := time.Now(), keySet{}
	for _, p := range changes {
		r.state.apply(now, p, changed)
		if key, ok := r.ownExport(p.key); ok {
			r.outbox.seen(key, p.revision)
			changed[key] = struct{}{}
		}
		// An answer may be of a later revision than its changes, and more changes come in the next.
		r.state.revision = max(r.state.revision, p.revision)
	}
	if len(changes) == 0 {
		r.state.revision = revision
	}
	r.taken(changed)
	r.mu.Unlock()
	r.tell(notify, changed)
	return nil
}

// ownExport says whether a key is that of an export of this cluster, and of which.
func (r *Registry) ownExport(key string) (mcs.Key, bool) {
	id := r.cfg.Identity.ClusterID
	if r.store.layout.clusterOf(key) != id {
		return mcs.Key{}, false
	}
	what, of, err := r.store.layout.parse(id, key)
	return of, err == nil && what == kindExport
}

// taken draws the conclusions from what was just read. The caller holds r.mu.
func (r *Registry) taken(changed keySet) {
	r.state.answered(time.Now(), changed)
	r.members.Note(r.state.members())
	id := r.cfg.Identity.ClusterID
	if r.claim.observe(r.state.aliveOf(id), r.state.revision) {
		r.log.Info("This cluster's key alive has gone or is another process's", "key", r.store.layout.alive(id))
	}
	exports := 0
	if c := r.state.clusters[id]; c != nil {
		exports = len(c.exports)
	}
	r.cfg.Metrics.Stored(r.store.client.cfg.Name, "exports", exports)
	r.countPending()
	r.wake()
}

// countPending tells the metrics how many exports and withdrawals may have to be written. The caller holds r.mu.
func (r *Registry) countPending() {
	r.cfg.Metrics.Pending(r.store.client.cfg.Name, "exports", len(r.outbox.queued))
}
