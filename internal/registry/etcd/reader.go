package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// maxBehind is how many answers in a row may have an earlier revision than the mirror: an etcd
// member that lags behind catches up in less.
const maxBehind = 3

var (
	// errBehind means that etcd is at an earlier revision than the mirror.
	errBehind = errors.New("etcd is at an earlier revision than before")
	// errRewound means that etcd does not have a change any more that was read from it.
	errRewound = errors.New("etcd was set back to an earlier state")
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
	// rewound is true if etcd was set back, until the next head.
	rewound bool
	// compacted is true if the last watch could not continue after the latest change that was read.
	compacted bool
	// isAnswered is set if an answer of the last watch was applied. A watch that takes long and has
	// none does not work.
	isAnswered bool
	// isListed is set if all keys were listed since the head was read; listing is the list that was
	// begun last.
	isListed bool
	listing  *listing
}

func newReader(cfg Config, timings timings, store *store, mirror *mirror, writer *writer, notifier *engine.Notifier) *reader {
	return &reader{
		cfg: cfg, timings: timings, store: store, mirror: mirror, writer: writer, notifier: notifier,
		memberLog: registry.NewMemberLog(cfg.Logger, cfg.Identity.ClusterID), listing: newListing(),
	}
}

// run keeps the mirror current until ctx ends: it reads the head, watches from there on, and lists
// all keys beside the watch; again when the watch cannot continue.
func (r *reader) run(ctx context.Context) {
	isBegun := false
	for failures := 0; ctx.Err() == nil; {
		var err error
		fresh := !isBegun
		if !isBegun {
			err = r.begin(ctx)
			isBegun = err == nil
		}
		if err == nil {
			began := time.Now()
			err = r.watch(ctx, fresh)
			r.compacted = errors.Is(err, rpctypes.ErrCompacted)
			if r.compacted || errors.Is(err, errBehind) || errors.Is(err, errRewound) {
				r.cfg.Logger.Info("Watch cannot continue, listing all keys", "error", err.Error())
				isBegun = false
			}
			if r.isAnswered && time.Since(began) > r.timings.retry.Max {
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

// begin reads the head. If etcd may have been set back since the previous one, values with the
// revisions of before may be others.
func (r *reader) begin(ctx context.Context) error {
	began := time.Now()
	h, err := r.store.head(ctx, r.mirror.known())
	if err == nil && !r.rewound {
		latest := r.mirror.latestChange()
		r.rewound, err = r.isSetBack(ctx, latest, latest.revision)
		if errors.Is(err, rpctypes.ErrCompacted) {
			r.rewound, err = true, nil // it may be
		}
	}
	if err != nil {
		r.store.client.handleSilence(began, err)
		return err
	}
	r.publish(r.mirror.begin(h, r.rewound))
	r.rewound, r.isListed = false, false
	return nil
}

// isSetBack reports whether a change that was read is not the latest one of its key as of a
// revision any more. The error is ErrCompacted if that is not known. The zero value is no change.
func (r *reader) isSetBack(ctx context.Context, change seenChange, revision int64) (bool, error) {
	if change.revision == 0 {
		return false, nil
	}
	there, err := r.store.hasChange(ctx, change, revision)
	return err == nil && !there, err
}

// watch applies changes until the watch fails. fresh is true if the head was read just now.
//
// It continues after the latest change that was read, and checks that etcd has that change. So it
// sees each change that etcd has since, also if etcd was set back: up to a change that both have,
// the changes are the same. Only when etcd has compacted them, it continues after the head.
//
// A list begins and ends within one watch: if etcd is set back between two, the list may be of
// before.
func (r *reader) watch(ctx context.Context, fresh bool) error {
	r.behind, r.isAnswered = 0, false
	latest := r.mirror.latestChange()
	switch {
	case latest.revision == 0 && !fresh:
		return errRewound // it may be: there is no change to check
	case latest.revision != 0 && (!fresh || !r.compacted):
		r.mirror.goBack()
	}
	from := r.mirror.revision()
	w := watch{revision: from, interval: r.cfg.PollInterval, silence: r.timings.silence, signal: r.mirror.readSignal, read: r.readMore}
	w.check = func(ctx context.Context) error {
		setBack, err := r.isSetBack(ctx, latest, from)
		if setBack {
			r.rewound = true
			return errRewound
		}
		r.mirror.readSignal.Set()
		return err
	}
	defer func() { r.listing.end(); r.listing = newListing() }()
	w.apply = func(changes []pair, revision int64) error {
		r.setProblem(r.listing.problem())
		r.isAnswered = true
		began := time.Now()
		u, behind := r.mirror.apply(changes, revision)
		if err := r.countBehind(behind); behind {
			return err
		}
		r.traceChanges(changes, began)
		r.publish(u)
		r.takeList()
		return nil
	}
	return r.store.watch(ctx, w)
}

// countBehind counts an answer, and returns errBehind if it is the last of maxBehind in a row that
// were behind the mirror.
func (r *reader) countBehind(behind bool) error {
	if !behind {
		r.behind = 0
		return nil
	}
	if r.behind++; r.behind >= maxBehind {
		return errBehind
	}
	return nil
}

// traceChanges records that changes were received at began and applied.
func (r *reader) traceChanges(changes []pair, began time.Time) {
	if r.cfg.Trace == nil {
		return
	}
	now := time.Now()
	for _, exp := range r.mirror.exportsOf(changes) {
		r.cfg.Trace.Record(tracing.ReadExport, exp, began, now)
	}
}

// readMore makes the reads that have to be made next. Without any, it begins the list if there was
// none, or applies it.
func (r *reader) readMore(ctx context.Context) error {
	r.takeList()
	reads, revision := r.mirror.dueReads(pageKeys)
	if len(reads) == 0 && !r.isListed && !r.listing.isBegun {
		r.listing = beginListing(ctx, r.store, r.timings.retry, r.mirror.readSignal)
	}
	return r.read(ctx, reads, revision)
}

// takeList applies the list once the watch has shown all changes up to its revision.
func (r *reader) takeList() {
	if list, ok := r.listing.take(r.mirror.revision()); ok {
		r.isListed = true
		r.publish(r.mirror.applyList(list))
	}
}

// read reads exports that were ignored or over budget, those of a cluster that has changed or has a
// new key, or those that the watch may have skipped a change of. It reads them as of the revision
// of the mirror, so that they do not come before or after other changes.
func (r *reader) read(ctx context.Context, reads []dueRead, revision int64) error {
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	results := make([][]pair, len(reads))
	for i, due := range reads {
		group.Go(func() (err error) {
			if due.all {
				results[i], err = r.store.readExports(ctx, due.cluster, revision)
			} else {
				results[i], err = r.store.read(ctx, due.keys, revision)
			}
			return err
		})
	}
	err := group.Wait()
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		return errBehind
	case err != nil:
		r.store.client.handleSilence(began, err)
		return err
	}
	for i, due := range reads {
		r.publish(r.mirror.applyRead(due, results[i]))
	}
	return nil
}

// publish logs and counts an update of the mirror, and informs the writer and the user of the
// registry.
func (r *reader) publish(u update) {
	if u.reviewed {
		r.memberLog.Update(u.members)
	}
	r.cfg.Metrics.SetObjects(r.store.client.cfg.Name, "exports", u.ownExports)
	for range u.refused {
		r.cfg.Metrics.CountRefusedRecord(r.store.client.cfg.Name)
	}
	r.writer.observe(u)
	r.notifier.Notify(u.changed)
}
