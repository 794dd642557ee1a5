package controller

import (
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// turns is for work that can wait: new imports of what only this cluster exports, whose clients have the Service itself, and the first
// status of new exports and imports. Of much at once, one piece is done at a time, and none while other imports wait to be made. The
// more slowly the API server writes, the longer are the rests between. So it takes what the API server has to spare, and what
// carries traffic comes first. One alone is done at once; statuses, which people wait for, come before imports.
type turns struct {
	// imports is the queue of the imports that do not wait for turns.
	imports *trigger
	strain  *strain

	mu sync.Mutex
	// holder has the turn; the zero turn is nobody.
	holder turn
	// resting says that the next turn is given later.
	resting bool
	// waiting are those who wait, by what for, the first one first, and queued since when.
	waiting [kinds][]turn
	queued  map[turn]time.Time
}

// kind is what a turn is for, in the order in which turns are given.
type kind int

const (
	forStatus kind = iota
	forImport
	kinds
)

// turn is a service and the reconciler that has work to do for it.
type turn struct {
	look *trigger
	key  mcs.Key
}

const (
	// unhurried is how many times as long as at best a write takes before there are rests. On the testbed ours take 2 to 4 times as long
	// as the lease's renewal, the Service's most, and 4 to 20 times where many are made at once.
	unhurried = 3
	// restPerStrain is by how much a rest grows with each further time, up to longestRest: many times what a turn takes.
	restPerStrain = 100 * time.Millisecond
	longestRest   = time.Second
	// longestWait is how long anything waits for others and for rests; after that only for its turn.
	longestWait = 2 * time.Minute
	// peek is how often it is seen whether other imports still wait.
	peek = 10 * time.Millisecond
)

// take says whether it is t's turn, which lasts until done. If it is not, t's reconciler looks at t.key again when it is.
func (q *turns) take(t turn, what kind) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	free := q.holder == turn{} && !q.resting
	if free && len(q.queued) == 0 && !q.imports.busy() {
		q.holder = t
	}
	if q.holder == t {
		return true
	}
	if _, ok := q.queued[t]; !ok {
		if q.queued == nil {
			q.queued = map[turn]time.Time{}
		}
		q.queued[t] = time.Now()
		q.waiting[what] = append(q.waiting[what], t)
	}
	if free {
		q.rest(peek)
	}
	return false
}

// done ends t's turn if it has it. Whoever may have the turn must say so at the end of every look, be there nothing to do any more.
func (q *turns) done(t turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.holder != t {
		return
	}
	q.holder = turn{}
	q.rest(restUnder(q.strain.factor()))
}

// restUnder is how long to rest between turns under such strain.
func restUnder(strain float64) time.Duration {
	return time.Duration(min(max(0, strain-unhurried)*float64(restPerStrain), float64(longestRest)))
}

// rest gives the next turn after d, at once to who has waited for too long.
func (q *turns) rest(d time.Duration) {
	if what, ok := q.first(); ok && q.late(what) {
		d = 0
	}
	q.resting = true
	time.AfterFunc(d, q.next)
}

// first is what the next turn is for; ok is false when nobody waits.
func (q *turns) first() (what kind, ok bool) {
	for what := range kinds {
		if len(q.waiting[what]) > 0 {
			return what, true
		}
	}
	return 0, false
}

// late says whether the first one of those who wait has waited for too long.
func (q *turns) late(what kind) bool { return time.Since(q.queued[q.waiting[what][0]]) >= longestWait }

// next gives the next turn.
func (q *turns) next() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.resting = false
	what, ok := q.first()
	if !ok {
		return
	}
	if q.imports.busy() && !q.late(what) {
		q.rest(peek)
		return
	}
	t := q.waiting[what][0]
	q.waiting[what] = q.waiting[what][1:]
	delete(q.queued, t)
	q.holder = t
	t.look.notify(t.key)
}
