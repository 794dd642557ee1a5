package peernotify

import (
	"slices"
	"time"

	"golang.org/x/time/rate"
)

const (
	// BeatInterval is the time between two hints of one sender to one receiver, with or without news. A hundred clusters
	// send 50 datagrams of 200 bytes a second each.
	BeatInterval = 2 * time.Second
	// silentBeats is how many beats long no hint of a cluster must have arrived to poll fast again: three lost in a row are no
	// accident.
	silentBeats = 3.5
	// firstWait is how much longer than the time before each look after a hint waits for the registry to show the news:
	// looks are 0, 100, 300, 600, 1000, 1500, 2100, 2800 and 3600 ms after the hint. AWS Cloud Map takes about 500 ms.
	firstWait = 100 * time.Millisecond
	maxLooks  = 9
	// maxLag is the longest that a first look is put off because the registry was late before.
	maxLag = time.Second
)

// What hints may cost, whoever sends them: looks besides the polls. A single source may use half of it, so that who sends
// too much does not keep the others from being heard. When it is used up the poll does, at its fast interval.
const (
	// lookQuota is for all clusters together, which mostly share an account: two fifths of the 1,000 DiscoverInstances a second that
	// AWS allows it. The rest is for what the looks find, and for polls.
	lookQuota rate.Limit = 400
	// leastLooks is what a cluster has however many there are, mostLooks what firstWait between two looks lets through.
	leastLooks, mostLooks rate.Limit = 4, 10

	burstOfLooks, burstOfSource = 40, 20
)

// looksPerSecond is what each of so many clusters may use in the long run.
func looksPerSecond(clusters int) rate.Limit {
	return min(mostLooks, max(leastLooks, lookQuota/rate.Limit(max(1, clusters))))
}

// Intervals are how often the registry is looked at without news.
type Intervals struct {
	// Poll while some cluster is not heard, Relaxed while all are.
	Poll, Relaxed time.Duration
	// Silence is how long a cluster must not have been heard to count as silent.
	Silence time.Duration
}

// Silence is how long one of w's peers must not have been heard to count as silent.
func (w Whisper) Silence() time.Duration {
	return time.Duration(silentBeats * float64(w.beat()))
}

// Peer is another cluster, as the registry showed it last.
type Peer struct {
	ClusterID string
	// Token tells one life of the cluster's controller from the next. "" sends no hints.
	Token string
	// Generation is that of what the registry shows of it.
	Generation int64
	// Behind says that some of it could not be read yet.
	Behind bool
}

// Watch decides when the registry is looked at. It does no I/O, and is not safe for concurrent use.
type Watch struct {
	intervals  Intervals
	clusterSet string
	self       string

	sources map[string]*source
	// strangers are all who are not known as members: the next look may show them.
	strangers *source
	// budget is for all looks, perSecond its limit.
	budget    *rate.Limiter
	perSecond rate.Limit

	// lastLook is when the last look began, patience how long no other has to follow it whatever is heard: looks fail.
	lastLook time.Time
	patience time.Duration
	// hurried asks for the fast poll whatever is heard.
	hurried bool
}

// source is who may have news: another cluster, or this one, whose own writes are news as well.
type source struct {
	peer   Peer
	budget *rate.Limiter
	// heard is when its last hint arrived, and sequence that one's.
	heard    time.Time
	sequence int64

	// expected is the generation that the registry is to show, since when it is, how often it was looked for and when it
	// will be next; 0 is none.
	expected int64
	since    time.Time
	looks    int
	next     time.Time
	// lag is how long the registry took of late to show what it was expected to.
	lag time.Duration
}

// NewWatch makes a Watch for cluster self of a clusterset.
func NewWatch(clusterSet, self string, intervals Intervals) *Watch {
	w := &Watch{intervals: intervals, clusterSet: clusterSet, self: self, perSecond: looksPerSecond(1)}
	w.budget = rate.NewLimiter(w.perSecond, burstOfLooks)
	w.sources, w.strangers = map[string]*source{self: w.newSource()}, w.newSource()
	return w
}

func (w *Watch) newSource() *source {
	return &source{budget: rate.NewLimiter(w.perSecond/2, burstOfSource)}
}

// share bounds the looks by how many clusters there are.
func (w *Watch) share(clusters int) {
	limit := looksPerSecond(clusters)
	if limit == w.perSecond {
		return
	}
	w.perSecond = limit
	w.budget.SetLimitAt(w.lastLook, limit)
	for s := range w.all {
		s.budget.SetLimitAt(w.lastLook, limit/2)
	}
}

// Results of a hint that arrived, beside those of Decode.
const (
	ResultOK       = "ok"
	ResultForeign  = "other_clusterset"
	ResultReplayed = "replayed"
	ResultStranger = "unknown_peer"
)

// Heard takes in a hint. The result is for metrics; Next may be earlier afterwards.
func (w *Watch) Heard(now time.Time, m Message) (result string) {
	if m.ClusterSet != w.clusterSet || m.From == w.self {
		return ResultForeign
	}
	s := w.sources[m.From]
	if s == nil {
		// It may have joined since the last look. Its generation cannot be compared with anything.
		if w.strangers.expected == 0 {
			w.strangers.expect(now, m.Generation)
		}
		return ResultStranger
	}
	if m.Sequence <= s.sequence {
		return ResultReplayed
	}
	s.sequence, s.heard = m.Sequence, now
	s.expect(now, m.Generation)
	return ResultOK
}

// Wrote takes in that this cluster has written a generation, which the registry is to show.
func (w *Watch) Wrote(now time.Time, generation int64) { w.sources[w.self].expect(now, generation) }

func (s *source) expect(now time.Time, generation int64) {
	if generation <= max(s.peer.Generation, s.expected) {
		return // seen, or looked for already
	}
	next := now.Add(s.lag)
	if s.expected != 0 && s.next.Before(next) {
		next = s.next // who always has news must not put the look off for ever
	}
	s.expected, s.since, s.looks, s.next = generation, now, 0, next
}

// Looking takes in that a look begins.
func (w *Watch) Looking(now time.Time) {
	early := now.Before(w.polled(now))
	if early {
		w.budget.AllowN(now, 1)
	}
	w.lastLook = now
	for s := range w.all {
		if s.expected == 0 || now.Before(s.next) {
			continue
		}
		if early {
			s.budget.AllowN(now, 1)
		}
		s.looks++
		s.next = now.Add(time.Duration(s.looks) * firstWait)
	}
}

// Looked takes in what a look that succeeded has shown of all clusters: the live others and, once it has joined, this one.
// hurried asks for the fast poll because something else is awaited.
func (w *Watch) Looked(peers []Peer, hurried bool) {
	w.patience, w.hurried = 0, hurried
	w.strangers.expected = 0
	for id := range w.sources {
		if id != w.self && !slices.ContainsFunc(peers, func(p Peer) bool { return p.ClusterID == id }) {
			delete(w.sources, id)
		}
	}
	for _, p := range peers {
		s := w.sources[p.ClusterID]
		if s == nil {
			s = w.newSource()
			w.sources[p.ClusterID] = s
		}
		if s.peer.Token != p.Token {
			s.sequence, s.heard = 0, time.Time{} // another life, with another clock perhaps
		}
		s.peer = p
		if s.expected != 0 && p.Generation >= s.expected && !p.Behind {
			s.met(w.lastLook)
		}
	}
	for s := range w.all {
		if s.looks >= maxLooks {
			s.expected = 0 // it never came
		}
	}
	w.share(len(w.sources))
}

// met notes that the registry shows what was expected, and learns how late it is: a first look that finds nothing costs a
// request. When the first look found it, the next one is a little earlier.
func (s *source) met(at time.Time) {
	if s.looks <= 1 {
		s.lag = s.lag * 7 / 8
	} else {
		// The look before this one did not show it.
		s.lag = min(maxLag, max(s.lag, at.Sub(s.since)-time.Duration(s.looks-1)*firstWait))
	}
	s.expected = 0
}

// Failed takes in that a look failed: until after a pause there is no other, whatever is heard.
func (w *Watch) Failed(pause time.Duration) { w.patience = pause }

// all are the sources, strangers included.
func (w *Watch) all(yield func(*source) bool) {
	for _, s := range w.sources {
		if !yield(s) {
			return
		}
	}
	yield(w.strangers)
}

// Next is when the registry is to be looked at next, if nothing is heard meanwhile.
func (w *Watch) Next(now time.Time) time.Time {
	if w.patience > 0 {
		return w.lastLook.Add(w.patience)
	}
	next := w.polled(now)
	for s := range w.all {
		if s.expected == 0 {
			continue
		}
		at := latest(s.next, w.lastLook.Add(firstWait), hasLook(w.budget, now), hasLook(s.budget, now))
		if at.Before(next) {
			next = at
		}
	}
	return next
}

// polled is when the registry is to be looked at next for the poll.
func (w *Watch) polled(now time.Time) time.Time {
	fast, quiet := w.lastLook.Add(w.intervals.Poll), w.quietFrom()
	if w.awaiting() || !now.Before(quiet) {
		return fast
	}
	return earliest(w.lastLook.Add(w.intervals.Relaxed), latest(quiet, fast))
}

// Interval is the time between two looks as long as nothing changes.
func (w *Watch) Interval(now time.Time) time.Duration {
	if w.awaiting() || !now.Before(w.quietFrom()) {
		return w.intervals.Poll
	}
	return w.intervals.Relaxed
}

// awaiting says whether the registry is about to show something.
func (w *Watch) awaiting() bool {
	for _, s := range w.sources {
		if s.expected != 0 {
			return true
		}
	}
	return w.hurried
}

// quietFrom is when the first cluster counts as silent, if nothing is heard until then.
func (w *Watch) quietFrom() time.Time {
	quiet := w.lastLook.Add(never)
	for id, s := range w.sources {
		if id != w.self {
			quiet = earliest(quiet, s.quietFrom(w.intervals.Silence))
		}
	}
	return quiet
}

// never is further away than any poll.
const never = 24 * time.Hour

// quietFrom is when it counts as silent.
func (s *source) quietFrom(silence time.Duration) time.Time {
	if s.peer.Token == "" || s.heard.IsZero() {
		return time.Time{}
	}
	return s.heard.Add(silence)
}

// Silent are the clusters that are not heard, sorted.
func (w *Watch) Silent(now time.Time) []string {
	var ids []string
	for id, s := range w.sources {
		if id != w.self && !now.Before(s.quietFrom(w.intervals.Silence)) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// hasLook is when the bucket has a token.
func hasLook(bucket *rate.Limiter, now time.Time) time.Time {
	missing := 1 - bucket.TokensAt(now)
	if missing <= 0 {
		return time.Time{}
	}
	return now.Add(time.Duration(missing / float64(bucket.Limit()) * float64(time.Second)))
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func latest(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}
