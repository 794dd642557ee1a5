package instances

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

const (
	// minRetry is the pause after a first failure, maxRetry the longest pause.
	minRetry = time.Second
	maxRetry = 5 * time.Minute
	// eagerFailures is the number of failures of a service after which it waits for other failing
	// services: one of them is tried in retrySpacing, six a minute, however many they are.
	eagerFailures = 3
	retrySpacing  = 10 * time.Second
	// maxUndecidedRetry is the longest pause while the desired export is unknown. The retry takes
	// no request.
	maxUndecidedRetry = 15 * time.Second
	// absentReads is the number of reads without instances of this cluster after which a service
	// without an export is forgotten. One answer may be late.
	absentReads = 2
	// rewriteWindow is the time after a write of a service in which the next one counts as a
	// repeated one. The repeated writes of a namespace may be 10 a second, a fifth of what AWS
	// allows an account, after a burst of 300: a user who changes exports again and again does not
	// use the rate up.
	rewriteWindow     = 10 * time.Minute
	namespaceRewrites = 10
	rewriteBurst      = 300
)

// backoff is the pause before the next attempt.
type backoff struct {
	failures int
	retryAt  time.Time
}

// fail sets the pause after a failure. Quotas last longer than throttling. A denial may be over
// soon: IAM may see a new role, or the tags of a new namespace or service, after seconds.
func (b *backoff) fail(now time.Time, err error) {
	b.failures++
	pause := min(maxRetry, minRetry<<min(b.failures-1, 10))
	switch {
	case errors.Is(err, errUndecided):
		pause = min(maxUndecidedRetry, pause)
	case api.IsInvalid(err):
		pause = maxRetry
	}
	b.retryAt = now.Add(api.Jitter(pause))
}

// service is the state of one Cloud Map service.
type service struct {
	// isQueued: the service has to be reconciled. isBusy: it is being reconciled.
	isQueued, isBusy bool
	// isDoubtful: others may have changed the health of its instances.
	isDoubtful bool
	// isUndecided: the last attempt made no request, because the desired export is not known.
	isUndecided bool
	backoff
	// isTorn: the last attempt failed, so that it is not known which instances there are. applied
	// is the export whose instances were last written or read, nil if none or if isTorn.
	isTorn  bool
	applied *mcs.Export
	// shape is that of applied; known if isShaped.
	shape    shape
	isShaped bool
	// isUndeleted: the last removal did not delete the service. It could not, and reads do not show
	// that the service still exists, or the list had instances of others, which may have been
	// removed already: two clusters that end their exports at once see each other's.
	isUndeleted bool
	// instances is the number of instances of applied.
	instances int
	// operations are those of the last writes.
	operations operations
	// isLook: the attempt only looks at them.
	isLook bool
	// writtenAt is the time of the last write, reconciledAt that of the last attempt.
	writtenAt, reconciledAt time.Time
	// absent is the number of reads in a row without instances of this cluster.
	absent  int
	omitted omitted
	// reported are the warnings of the last notification.
	reported []string
}

// listState is the state of the list of all services after a start.
type listState struct {
	isPending bool
	// doneAt is the time at which the last list succeeded.
	doneAt time.Time
	backoff
}

// queue holds the services that may have instances of this cluster. The view's lock guards it.
type queue struct {
	// active: this cluster holds its cluster ID.
	active          bool
	isCleanupDenied bool
	list            listState
	services        map[mcs.Key]*service
	// forgotAt is the time at which a service was forgotten last, because reads showed no instances
	// of this cluster.
	forgotAt time.Time
	// retryAt is the time at which the next service that has failed several times may be
	// reconciled.
	retryAt        time.Time
	resyncInterval time.Duration
	// resyncAt is the time of the next read of an unchanged service.
	resyncAt time.Time
	// checkAt is the time at which the health of all instances is checked again, zero for never.
	checkAt time.Time
	// pace limits the repeated writes of each namespace.
	pace *engine.Pace[string]
}

func newQueue(resyncInterval time.Duration) queue {
	return queue{services: map[mcs.Key]*service{}, resyncInterval: resyncInterval, pace: engine.NewPace[string](namespaceRewrites, rewriteBurst)}
}

// requestList requests a list of all services after a random part of within, at least a fifth of
// it.
func (q *queue) requestList(now time.Time, within time.Duration) {
	q.list = listState{isPending: true, backoff: backoff{retryAt: now.Add(within/5 + rand.N(within-within/5))}}
}

// enqueue requests that a service is reconciled at once.
func (q *queue) enqueue(key mcs.Key) {
	s := q.services[key]
	if s == nil {
		s = &service{}
		q.services[key] = s
	}
	s.isQueued, s.backoff = true, backoff{}
}

// reset requests that all services are reconciled as after a start.
func (q *queue) reset() {
	for key, s := range q.services {
		if s.applied != nil {
			s.applied, s.writtenAt = nil, time.Time{}
			q.enqueue(key)
		}
	}
}

// doubtHealth requests that the health of all instances is read.
func (q *queue) doubtHealth() {
	for key, s := range q.services {
		// those that failed without a registry wait no longer
		if s.applied != nil || s.isBusy || s.isQueued {
			q.enqueue(key)
			s.isDoubtful = true
		}
	}
	q.checkAt = time.Time{}
}

// pending returns the number of services that have to be reconciled.
func (q *queue) pending() (n int) {
	for _, s := range q.services {
		if s.isQueued || s.isBusy {
			n++
		}
	}
	return n
}

// next returns the service that is reconciled next with its state, or a nil state and the pause
// until then.
func (q *queue) next(now time.Time) (key mcs.Key, state *service, pause time.Duration) {
	pause = time.Minute
	if !q.active {
		return key, nil, pause
	}
	if !q.checkAt.IsZero() {
		if wait := q.checkAt.Sub(now); wait > 0 {
			pause = min(pause, wait)
		} else {
			q.doubtHealth()
		}
	}
	if q.list.isPending {
		pause = max(0, min(pause, q.list.retryAt.Sub(now)))
	}
	for key, s := range q.services {
		at, hasWork := q.dueAt(now, key, s)
		if wait := at.Sub(now); !hasWork || wait > 0 {
			if hasWork {
				pause = min(pause, wait)
			}
			continue
		}
		if s.isQueued && s.isFailing() {
			q.retryAt = now.Add(retrySpacing)
		}
		return key, s.start(), 0
	}
	if key, s := q.nextResync(now); s != nil {
		return key, s.start(), 0
	}
	return key, nil, max(0, min(pause, q.resyncAt.Sub(now)))
}

// wasWritten reports whether another write of the service is a repeated one.
func (s *service) wasWritten(now time.Time) bool {
	return !s.writtenAt.IsZero() && now.Sub(s.writtenAt) < rewriteWindow
}

// isFailing reports whether the service takes turns with other failing ones.
func (s *service) isFailing() bool { return s.failures > eagerFailures && !s.isUndecided }

// dueAt returns when a queued service may be reconciled, or else when the operations of another one
// are looked at. hasWork is false if neither is the case.
func (q *queue) dueAt(now time.Time, key mcs.Key, s *service) (at time.Time, hasWork bool) {
	switch {
	case s.isBusy, !s.isQueued && len(s.operations.accepted) == 0:
		return at, false
	case !s.isQueued:
		return s.operations.lookAt, true
	}
	at = s.retryAt
	if s.isFailing() && at.Before(q.retryAt) {
		at = q.retryAt
	}
	if paced := q.pace.DueAt(key.Namespace); s.wasWritten(now) && at.Before(paced) {
		at = paced
	}
	return at, true
}

// charge records the writes of a service, which count for its namespace if they repeat earlier
// ones.
func (q *queue) charge(now time.Time, key mcs.Key, s *service, writes int) {
	if writes == 0 {
		return
	}
	if s.wasWritten(now) {
		q.pace.Charge(now, key.Namespace, writes)
	}
	s.writtenAt = now
}

// start marks the service as busy and returns a copy of its state. An attempt that was not
// requested looks at the operations, if there are any.
func (s *service) start() *service {
	s.isLook = !s.isQueued && len(s.operations.accepted) > 0
	s.isQueued, s.isBusy = false, true
	last := *s
	s.isDoubtful = false
	return &last
}

// outcome returns the result of an attempt that has changed and found nothing.
func (s *service) outcome() outcome {
	return outcome{applied: s.applied, instances: s.instances, shape: s.shape, isShaped: s.isShaped, isUndeleted: s.isUndeleted, omitted: s.omitted, operations: s.operations}
}

// record records the result of an attempt. A failed one may not have come as far as the writes, or
// the deletion of the service.
func (s *service) record(result outcome, failed bool) {
	s.isTorn, s.applied, s.instances, s.omitted = failed && !s.isLook, result.applied, result.instances, result.omitted
	s.shape, s.isShaped = result.shape, result.isShaped
	if !failed || !result.operations.isEmpty() {
		s.operations = result.operations
	}
	s.isUndeleted = result.isUndeleted || s.isUndeleted && failed
}

// endFailures ends the pauses after the failures of a service, unless it has to be reconciled
// again.
func (q *queue) endFailures(s *service) {
	if s.failures > eagerFailures {
		q.retryAt = time.Time{}
	}
	if !s.isQueued {
		s.backoff = backoff{}
	}
}

// nextResync returns the service with the oldest read once per interval.
func (q *queue) nextResync(now time.Time) (key mcs.Key, oldest *service) {
	if now.Before(q.resyncAt) {
		return key, nil
	}
	q.resyncAt = now.Add(q.resyncInterval)
	for k, s := range q.services {
		isDue := !s.isQueued && !s.isBusy && now.Sub(s.reconciledAt) >= q.resyncInterval
		if isDue && (oldest == nil || s.reconciledAt.Before(oldest.reconciledAt)) {
			key, oldest = k, s
		}
	}
	return key, oldest
}

// finish updates the state of a service that was reconciled, forgets the service if it has no
// instances, and returns the state. After an error that is not a failure, the service keeps the
// export that was applied before.
func (q *queue) finish(key mcs.Key, now time.Time, result outcome, err error, failed bool) *service {
	s := q.services[key]
	s.isBusy, s.reconciledAt = false, now
	s.isDoubtful = s.isDoubtful || result.isDoubtful
	q.charge(now, key, s, result.writes)
	if err != nil {
		s.isQueued, s.isUndecided = true, !failed
		s.fail(now, err)
		if !failed {
			s.isTorn = s.isTorn || !errors.Is(err, errUndecided) // the process ends during a write
			return s
		}
		// else it is not known yet whether the attempt succeeded
	} else if len(result.operations.accepted) == 0 {
		q.endFailures(s)
	}
	s.record(result, failed)
	if !q.active && s.applied != nil { // deactivated meanwhile
		s.applied, s.isQueued = nil, true
	}
	if s.absent++; !result.isAbsent {
		s.absent = 0
	}
	if s.absent >= absentReads && !s.isQueued && len(s.reported) == 0 {
		delete(q.services, key)
		q.forgotAt = now
	}
	return s
}
