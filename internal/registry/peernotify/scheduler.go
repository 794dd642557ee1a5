package peernotify

import (
	"slices"
	"time"

	"golang.org/x/time/rate"
)

const (
	// SendInterval is the time between two notifications of one sender to one receiver, with or
	// without news. A hundred clusters send 50 datagrams of 200 bytes a second each.
	SendInterval = 2 * time.Second
	// silentIntervals is the number of send intervals without a notification after which a peer is
	// silent: three lost datagrams in a row are no accident.
	silentIntervals = 3.5
	// minReadInterval is the shortest time between the starts of two reads.
	minReadInterval = 100 * time.Millisecond
)

// retryLadder lists the times after a notification at which the registry is read again while it
// does not show the news. A consistent registry shows it to the first read, at once. AWS Cloud Map
// shows a write after about 500 ms, so one read comes just after that, and one before it for the
// writes that show earlier. After the last read the notification is given up.
var retryLadder = [...]time.Duration{
	250 * time.Millisecond, 550 * time.Millisecond, 1050 * time.Millisecond, 1600 * time.Millisecond,
	2200 * time.Millisecond, 2900 * time.Millisecond, 3700 * time.Millisecond,
}

// The rate limit of reads that notifications cause, in addition to the polls. When it is exhausted,
// the fast poll remains. A read serves all peers, so that a peer that floods this cluster delays
// the news of the others by one interval of the limit.
const (
	// accountReads is the limit for all clusters together, which mostly share an account: two
	// fifths of the 1,000 DiscoverInstances a second that AWS allows it. The rest is for the pages
	// that the reads find, and for polls.
	accountReads rate.Limit = 400
	// minReads is the limit of a cluster however many there are, maxReads the most that
	// minReadInterval allows. With fewer reads than one a second, changes would take longer than
	// three seconds. So more than 400 clusters of one account can exceed accountReads while changes
	// that all of them import come without a pause.
	minReads, maxReads rate.Limit = 1, 10

	readBurst = 40
)

// readsPerSecond returns the rate limit of each cluster where there are the given number of
// clusters.
func readsPerSecond(clusters int) rate.Limit {
	return min(maxReads, max(minReads, accountReads/rate.Limit(max(1, clusters))))
}

// Intervals are the times between two polls of the registry.
type Intervals struct {
	// Poll applies while a peer is silent, PollWithNotifications while none is.
	Poll, PollWithNotifications time.Duration
	// Silence is the time without a notification after which a peer is silent.
	Silence time.Duration
}

// Silence returns the time without a notification after which a peer is silent.
func (c Config) Silence() time.Duration {
	return time.Duration(silentIntervals * float64(c.sendInterval()))
}

// Peer is a cluster as the last read of the registry showed it.
type Peer struct {
	ClusterID string
	// Key is the public key of the cluster. It is empty if the cluster sends no notifications.
	Key string
	// Process distinguishes processes of the cluster's controller.
	Process string
	// Generation is that of the cluster's record in the registry.
	Generation int64
	// Behind reports whether some of the cluster's content could not be read yet.
	Behind bool
}

// Scheduler decides when the registry is read. It does no I/O, and is not safe for concurrent use.
type Scheduler struct {
	intervals  Intervals
	clusterSet string
	self       string

	// peers are the clusters of the last read and this one: its own writes are changes as well.
	peers   map[string]*peer
	limiter *rate.Limiter

	lastRead time.Time
	// readNow is set by a notification until the next read begins.
	readNow bool
	// retry is the time of the next read of the ladder while the Scheduler is expecting something.
	retry time.Time
	// failurePause is the time after a failed read during which notifications cause no read, 0
	// after a successful one.
	failurePause time.Duration
	// fastPoll is set by the last read to keep the fast poll although no peer is silent.
	fastPoll bool
}

// peer is the state of a cluster in the Scheduler.
type peer struct {
	Peer
	// notified is the time of its last notification, sequence the sequence in it.
	notified time.Time
	sequence int64
	// expected is the generation that was announced last, if the registry does not show it yet,
	// otherwise 0.
	expected  int64
	announced time.Time
	// arrived is the generation of the records that the peer has sent last, while they are
	// verified, otherwise 0.
	arrived int64
}

// NewScheduler returns the Scheduler of cluster self of a clusterset.
func NewScheduler(clusterSet, self string, intervals Intervals) *Scheduler {
	return &Scheduler{
		intervals: intervals, clusterSet: clusterSet, self: self, peers: map[string]*peer{self: {}},
		limiter: rate.NewLimiter(readsPerSecond(1), readBurst),
	}
}

// Results of a received notification, in addition to those of Decode.
const (
	ResultOK          = "ok"
	ResultForeign     = "other_clusterset"
	ResultReplayed    = "replayed"
	ResultUnknownPeer = "unknown_peer"
	ResultClock       = "wrong_clock"
)

// maxClockDifference is the largest difference of two clocks: AWS refuses requests of a client
// whose clock differs from its own by more than five minutes (Signature Version 4), so two clusters
// differ by ten at most. A sequence beyond it would make later messages look like replays.
const maxClockDifference = 10 * time.Minute

// HandleMessage processes a notification and returns its result for metrics. NextRead may be
// earlier afterwards.
func (s *Scheduler) HandleMessage(now time.Time, m Message) (result string) {
	if m.ClusterSet != s.clusterSet || m.From == s.self {
		return ResultForeign
	}
	p := s.peers[m.From]
	switch difference := time.Duration(m.Sequence - now.UnixNano()); {
	case p == nil:
		return ResultUnknownPeer // it has left meanwhile
	case difference > maxClockDifference || difference < -maxClockDifference:
		return ResultClock
	case m.Sequence <= p.sequence:
		return ResultReplayed
	}
	p.sequence, p.notified = m.Sequence, now
	s.expect(now, p, m.Generation)
	return ResultOK
}

// IsReadWanted reports whether a notification has announced something since the last read began:
// NextRead is earlier than before it.
func (s *Scheduler) IsReadWanted() bool { return s.readNow }

// HandleUnknownPeer processes a notification of a cluster that the last read did not show: it may
// have joined, or its controller may have another key. Its generation cannot be compared with
// anything. It returns the result for metrics.
func (s *Scheduler) HandleUnknownPeer(m Message) (result string) {
	if m.ClusterSet != s.clusterSet || m.From == s.self {
		return ResultForeign
	}
	s.readNow = true
	return ResultUnknownPeer
}

// RequestRead makes a read due, as a notification does.
func (s *Scheduler) RequestRead() { s.readNow = true }

// HandleAnswer records that a peer has answered that its last record has a generation. isBehind
// reports whether some of its content has to be read since.
func (s *Scheduler) HandleAnswer(now time.Time, from string, generation int64, isBehind bool) {
	if p := s.peers[from]; p != nil {
		s.expect(now, p, generation)
	}
	if isBehind {
		s.RequestRead()
	}
}

// HandleArrival records that a peer has sent its records of a generation. Until HandleArrived gets
// the result, a notification of them causes no read.
func (s *Scheduler) HandleArrival(from string, generation int64) {
	if p := s.peers[from]; p != nil {
		p.arrived = generation
	}
}

// HandleArrived records whether the records of a generation that a peer has sent count, with all
// that they announce. Otherwise they are read.
func (s *Scheduler) HandleArrived(now time.Time, from string, generation int64, isWhole bool) {
	p := s.peers[from]
	if p == nil {
		return
	}
	if p.arrived == generation {
		p.arrived = 0
	}
	if !isWhole {
		s.expect(now, p, generation)
		return
	}
	p.Generation = max(p.Generation, generation)
	if p.Generation >= p.expected {
		p.expected = 0
	}
}

// HandleOwnWrite records that this cluster has written a generation.
func (s *Scheduler) HandleOwnWrite(now time.Time, generation int64) {
	s.expect(now, s.peers[s.self], generation)
}

// expect starts the ladder for a generation that is neither shown nor expected yet. A retry that is
// due earlier stays: peers that keep announcing news do not postpone it.
func (s *Scheduler) expect(now time.Time, p *peer, generation int64) {
	if generation <= max(p.Generation, p.expected, p.arrived) {
		return
	}
	if retry := now.Add(retryLadder[0]); !s.isExpecting() || retry.Before(s.retry) {
		s.retry = retry
	}
	p.expected, p.announced, s.readNow = generation, now, true
}

// isExpecting reports whether the registry does not show everything yet that was announced.
func (s *Scheduler) isExpecting() bool {
	for _, p := range s.peers {
		if p.expected != 0 {
			return true
		}
	}
	return false
}

// HandleReadStart records that a read begins.
func (s *Scheduler) HandleReadStart(now time.Time) {
	if now.Before(s.nextPoll(now)) {
		s.limiter.AllowN(now, 1)
	}
	s.lastRead, s.readNow = now, false
	if now.Before(s.retry) {
		return
	}
	s.retry = now.Add(never)
	for _, p := range s.peers {
		if p.expected != 0 {
			s.retry = earliest(s.retry, p.nextRetry(now))
		}
	}
}

// nextRetry returns the first time of the ladder after now.
func (p *peer) nextRetry(now time.Time) time.Time {
	for _, after := range retryLadder {
		if retry := p.announced.Add(after); retry.After(now) {
			return retry
		}
	}
	return now.Add(never)
}

// HandleReadSuccess records all clusters that a read has shown: the live peers and, once it has
// joined, this one. fastPoll asks for the fast poll until the next read.
func (s *Scheduler) HandleReadSuccess(clusters []Peer, fastPoll bool) {
	s.failurePause, s.fastPoll = 0, fastPoll
	isShown := make(map[string]bool, len(clusters))
	for _, c := range clusters {
		isShown[c.ClusterID] = true
		p := s.peers[c.ClusterID]
		if p == nil {
			p = &peer{}
			s.peers[c.ClusterID] = p
		}
		if p.Process != c.Process {
			p.sequence, p.notified = 0, time.Time{} // another process, perhaps with another clock
		}
		p.Peer = c
		if p.Generation >= p.expected && !p.Behind {
			p.expected = 0
		}
	}
	for id, p := range s.peers {
		if id != s.self && !isShown[id] {
			delete(s.peers, id)
		}
		if !s.lastRead.Before(p.announced.Add(retryLadder[len(retryLadder)-1])) {
			p.expected = 0 // given up
		}
	}
	s.readNow = s.readNow && s.isExpecting()
	s.limiter.SetLimitAt(s.lastRead, readsPerSecond(len(s.peers)))
}

// HandleReadFailure records that a read failed: the next one begins after a pause, whatever is
// announced.
func (s *Scheduler) HandleReadFailure(pause time.Duration) { s.failurePause = pause }

// NextRead returns the time of the next read, if no notification arrives until then.
func (s *Scheduler) NextRead(now time.Time) time.Time {
	if s.failurePause > 0 {
		return s.lastRead.Add(s.failurePause)
	}
	next := s.nextPoll(now)
	if !s.readNow && !s.isExpecting() {
		return next
	}
	wanted := s.retry
	if s.readNow {
		wanted = now
	}
	return earliest(next, latest(wanted, s.lastRead.Add(minReadInterval), nextToken(s.limiter, now)))
}

// nextPoll returns the time of the next poll.
func (s *Scheduler) nextPoll(now time.Time) time.Time {
	fast, silent := s.lastRead.Add(s.intervals.Poll), s.silentAt()
	if s.PollInterval(now) == s.intervals.Poll {
		return fast
	}
	return earliest(s.lastRead.Add(s.intervals.PollWithNotifications), latest(silent, fast))
}

// PollInterval returns the time between two reads as long as nothing changes.
func (s *Scheduler) PollInterval(now time.Time) time.Duration {
	if s.IsQuiet(now) {
		return s.intervals.PollWithNotifications
	}
	return s.intervals.Poll
}

// IsQuiet reports whether nothing is expected and no peer is silent.
func (s *Scheduler) IsQuiet(now time.Time) bool {
	return !s.fastPoll && !s.isExpecting() && now.Before(s.silentAt())
}

// silentAt returns the time when the first peer becomes silent, if no notification arrives until
// then.
func (s *Scheduler) silentAt() time.Time {
	at := s.lastRead.Add(never)
	for id, p := range s.peers {
		if id != s.self {
			at = earliest(at, p.silentAt(s.intervals.Silence))
		}
	}
	return at
}

// never is further away than any poll.
const never = 24 * time.Hour

func (p *peer) silentAt(silence time.Duration) time.Time {
	if p.Key == "" || p.notified.IsZero() {
		return time.Time{}
	}
	return p.notified.Add(silence)
}

// SilentPeers returns the IDs of the peers that are silent, sorted.
func (s *Scheduler) SilentPeers(now time.Time) []string {
	var ids []string
	for id, p := range s.peers {
		if id != s.self && !now.Before(p.silentAt(s.intervals.Silence)) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Notified returns when the last notification of a peer arrived, zero if none did.
func (s *Scheduler) Notified(id string) time.Time {
	if p := s.peers[id]; p != nil {
		return p.notified
	}
	return time.Time{}
}

// Announced returns when the generation of a peer that the registry does not show yet was
// announced, zero if there is none.
func (s *Scheduler) Announced(id string) time.Time {
	if p := s.peers[id]; p != nil && p.expected != 0 {
		return p.announced
	}
	return time.Time{}
}

// nextToken returns the time at which the limiter has a token.
func nextToken(limiter *rate.Limiter, now time.Time) time.Time {
	missing := 1 - limiter.TokensAt(now)
	if missing <= 0 {
		return time.Time{}
	}
	return now.Add(time.Duration(missing / float64(limiter.Limit()) * float64(time.Second)))
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
