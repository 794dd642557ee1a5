package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// maxBehind is how many answers in a row may have an earlier revision than the mirror: an etcd member that lags behind
// catches up in less.
const maxBehind = 3

var (
	// errBehind means that etcd is at an earlier revision than the mirror.
	errBehind = errors.New("etcd is at an earlier revision than before")
	// errRewound means that etcd does not have a change any more that was read from it.
	errRewound = errors.New("etcd was set back to an earlier state")
	// errReadAgain means that values must be read again: a cluster has a new key, there is room in a budget, or the watch has skipped a change.
	errReadAgain = errors.New("values must be read again: of a cluster with a new key, for which there is room in a budget, or that a watch has not shown")
)

// reader keeps the mirror current, and informs the writer of each update.
type reader struct {
	cfg      Config
	timings  timings
	store    *store
	mirror   *mirror
	writer   *writer
	notifier *engine.Notifier

	// The rest is used by run alone.
	memberLog *registry.MemberLog
	// behind counts the answers in a row that had an earlier revision than the mirror.
	behind int
	// history decides when to check whether etcd was set back; rewound is true if it was, until the next list.
	history historyCheck
	rewound bool
}

// historyCheck decides when to check whether etcd was set back, so that the watch continues as if nothing had happened: when there was no answer of it for
// longer than usual, which setting etcd back takes.
type historyCheck struct {
	usual time.Duration
	// answeredAt is the time of the last answer, or the end of its check, zero before the first.
	answeredAt time.Time
}

// isDue reports whether to check before an answer is used.
func (h *historyCheck) isDue(now time.Time) bool {
	before := h.answeredAt
	h.answeredAt = now
	return now.Sub(before) >= h.usual
}

// passed records the end of a check. The answers that came meanwhile have waited for it, and need none: with a check for each, a slow etcd would be read more slowly
// than it changes.
func (h *historyCheck) passed(now time.Time) { h.answeredAt = now }

func newReader(cfg Config, timings timings, store *store, mirror *mirror, writer *writer, notifier *engine.Notifier) *reader {
	return &reader{
		cfg: cfg, timings: timings, store: store, mirror: mirror, writer: writer, notifier: notifier,
		memberLog: registry.NewMemberLog(cfg.Logger, cfg.Identity.ClusterID),
		history:   historyCheck{usual: cfg.PollInterval * 3 / 2},
	}
}

// run keeps the mirror current until ctx ends: it lists once, and again when the watch cannot resume.
func (r *reader) run(ctx context.Context) {
	listed := false
	for failures := 0; ctx.Err() == nil; {
		var err error
		if !listed {
			err = r.list(ctx)
			listed = err == nil
		}
		if err == nil {
			began := time.Now()
			err = r.watch(ctx)
			if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, errBehind) || errors.Is(err, errRewound) || errors.Is(err, errReadAgain) {
				r.cfg.Logger.Info("Watch cannot resume, listing all keys", "error", err.Error())
				listed = false
			}
			if time.Since(began) > r.timings.retry.Max {
				failures = 0 // it worked for a while
			}
		}
		if ctx.Err() != nil {
			return
		}
		r.mirror.markUnanswered()
		failures++
		if failures > 1 {
			r.setProblem(err)
		}
		engine.Sleep(ctx, r.timings.retry.Pause(failures))
	}
}

// setProblem sets the reason why reading does not work, or nil.
func (r *reader) setProblem(err error) {
	if r.mirror.problem.Set(err) {
		r.writer.notifyPending()
	}
}

// list reads all keys.
func (r *reader) list(ctx context.Context) error {
	pairs, revision, err := r.store.list(ctx)
	if err != nil {
		r.store.client.handleSilence(err)
		return err
	}
	r.publish(r.mirror.replace(pairs, revision, r.rewound))
	r.rewound = false
	return nil
}

// checkHistory returns errRewound if etcd does not have the latest change that was read from it: it was set back, and the changes since
// may have exceeded the revision before.
func (r *reader) checkHistory(ctx context.Context) error {
	latest := r.mirror.latestChange()
	if !r.history.isDue(time.Now()) || latest.revision == 0 {
		return nil
	}
	there, err := r.store.hasChange(ctx, latest)
	if err == nil && there {
		r.history.passed(time.Now())
		return nil
	}
	r.history.answeredAt = time.Time{}
	if err != nil {
		return err
	}
	r.rewound = true
	return errRewound
}

// watch applies changes until the watch fails.
func (r *reader) watch(ctx context.Context) error {
	r.behind, r.history.answeredAt = 0, time.Time{}
	_, from := r.mirror.unread(1) // the previous watch may have ended before all were read
	w := watch{revision: from, interval: r.cfg.PollInterval, silence: r.timings.silence, signal: r.mirror.readSignal, read: r.readUnread}
	w.apply = func(changes []pair, revision int64) error {
		if err := r.checkHistory(ctx); err != nil {
			return err
		}
		r.setProblem(nil)
		u, behind := r.mirror.apply(changes, revision)
		if behind {
			if r.behind++; r.behind >= maxBehind {
				return errBehind
			}
			return nil
		}
		r.behind = 0
		r.publish(u)
		if u.relist {
			return errReadAgain
		}
		return nil
	}
	return r.store.watch(ctx, w)
}

// readUnread reads exports that were ignored and are wanted now. It reads them as of the revision of the mirror, so that they do not come before or
// after other changes.
func (r *reader) readUnread(ctx context.Context) error {
	keys, revision := r.mirror.unread(pageKeys)
	if len(keys) == 0 {
		return nil
	}
	pairs, err := r.store.read(ctx, keys, revision)
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		return errBehind
	case err != nil:
		return err
	}
	r.publish(r.mirror.applyRead(keys, pairs, revision))
	return nil
}

// publish logs and counts an update of the mirror, and informs the writer and the user of the registry.
func (r *reader) publish(u update) {
	r.memberLog.Update(u.members)
	r.cfg.Metrics.SetObjects(r.store.client.cfg.Name, "exports", u.ownExports)
	for range u.refused {
		r.cfg.Metrics.CountRefusedRecord(r.store.client.cfg.Name)
	}
	r.writer.observe(u)
	r.notifier.Notify(u.changed)
}
