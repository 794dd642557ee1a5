package cloudmap

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// peers decides when to read the registry, by polls, peer notifications and own writes, and
// notifies the other clusters of own writes.
type peers struct {
	cfg   Config
	log   logr.Logger
	name  string
	state *state.State
	// traces is nil without tracing.
	traces *traces

	// notify gets the keys that records have changed.
	notify func(engine.Keys)
	// sent are the records of other clusters that wait to be verified.
	sent chan peernotify.Records
	// pace limits the records of each cluster. It belongs to the goroutine that receives.
	pace *engine.Pace[string]

	// keys are the public keys of the other live members that send notifications, as the last read
	// showed them.
	keys atomic.Pointer[map[string]string]

	mu       sync.Mutex
	schedule *peernotify.Scheduler
	// transport is nil if peer notifications are disabled.
	transport *peernotify.Transport
	// written is the generation of the own record as last written, 0 before.
	written int64
	// round is the position of the next round of contacts (peernotify.Round).
	round int
	// asks are the questions of this process, by cluster.
	asks map[string]*ask
	// failures is the number of failed reads in a row.
	failures int
	// silent are the clusters without peer notifications, since when, and those of the last log
	// line.
	silent, logged string
	since          time.Time
}

// ask is the question of this process to another cluster, which record it has written last. It is
// repeated until an answer comes: for a process that has not asked, the cluster writes a record
// (state.Reads.Answer).
type ask struct {
	nonce string
	// key has signed the record that was read of the cluster.
	key trust.Key
	// sent is the number of questions, sentAt the time of the last one, and answered whether an
	// answer came.
	sent     int
	sentAt   time.Time
	answered bool
}

const (
	// maxAsks is the number of questions to a cluster of which this process has read more than one
	// record: older versions do not answer.
	maxAsks = 3
	// askPause is the shortest time between two of them.
	askPause = time.Second
)

// isDue reports whether to ask again. isFirst is set while this process has read one record of the
// cluster.
func (a *ask) isDue(now time.Time, isFirst bool) bool {
	isOpen := isFirst || !a.answered && a.sent < maxAsks
	return isOpen && now.Sub(a.sentAt) >= askPause
}

const (
	// maxThrottledPause is the longest pause between two throttled reads: far less than the time
	// after which a cluster is stale.
	maxThrottledPause = 15 * time.Second
	// eagerReads is the number of failed reads in a row, for another reason than throttling, after
	// which the pauses grow, up to maxFailurePause: six seconds on average, ten reads a minute.
	eagerReads      = 5
	maxFailurePause = 10 * time.Second
)

// silenceThreshold is the time for which the same clusters must be without peer notifications
// before the log has them: longer than a restart.
const silenceThreshold = time.Minute

func newPeers(cfg Config, name string, s *state.State, t *traces, notify func(engine.Keys)) *peers {
	p := &peers{cfg: cfg, log: cfg.Logger, name: name, state: s, traces: t, notify: notify, sent: make(chan peernotify.Records, maxSent), pace: engine.NewPace[string](sentPerSecond, sentBurst), asks: map[string]*ask{}}
	intervals := peernotify.Intervals{Poll: cfg.PollInterval, PollWithNotifications: cfg.PollIntervalWithNotifications}
	if cfg.PeerNotifications != nil {
		intervals.Silence = cfg.PeerNotifications.Silence()
		count := func(direction, result string) { cfg.Metrics.CountPeerNotification(name, direction, result) }
		p.transport = peernotify.NewTransport(*cfg.PeerNotifications, p, count, cfg.Logger.WithName("peer-notifications"))
	}
	p.schedule = peernotify.NewScheduler(cfg.Identity.ClusterSetID, cfg.Identity.ClusterID, intervals)
	return p
}

// run sends and receives peer notifications and records until ctx ends.
func (p *peers) run(ctx context.Context) {
	defer p.state.SetContact(peernotify.Contact{})
	var applying sync.WaitGroup
	defer applying.Wait()
	applying.Go(func() { p.applySent(ctx) })
	p.transport.Run(ctx)
}

const (
	// sentPerSecond is the number of records of one cluster that are verified in a second, after a
	// burst of sentBurst. A cluster writes updates 12 times a second: 25 writes, of a page and of
	// the record each. It gathers what is more. What is sent beyond that is read from the registry.
	sentPerSecond, sentBurst = 15, 60
	// maxSent is the number of records that wait to be verified.
	maxSent = 128
	// maxSentParts is the number of parts of pages that are sent with a record. More do not fit
	// (peernotify.MaxRecords).
	maxSentParts = 16
)

// resultRead is the result of records that do not count, or not all: they were read before, or have
// to be read.
const resultRead = "read"

// HandleRecords implements peernotify.Handler.
func (p *peers) HandleRecords(records peernotify.Records) (result string) {
	if records.ClusterSet != p.cfg.Identity.ClusterSetID || records.From == p.cfg.Identity.ClusterID {
		return peernotify.ResultForeign
	}
	now := time.Now()
	if p.pace.DueAt(records.From).After(now) {
		return peernotify.ResultLimited
	}
	p.pace.Charge(now, records.From, 1)
	p.mu.Lock() // apply calls HandleArrived after HandleArrival
	defer p.mu.Unlock()
	select {
	case p.sent <- records:
		p.schedule.HandleArrival(records.From, records.Generation)
		return ""
	default:
		return peernotify.ResultLimited
	}
}

// applySent applies the records that arrive until ctx ends.
func (p *peers) applySent(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case records := <-p.sent:
			result := peernotify.ResultOK
			if !p.apply(records) {
				result = resultRead
			}
			p.cfg.Metrics.CountPeerNotification(p.name, peernotify.RecordsReceived, result)
		}
	}
}

// apply applies records that a cluster has sent, and reports whether all of them count.
func (p *peers) apply(records peernotify.Records) (isWhole bool) {
	record, parts, err := format.UnpackRecords(records.Data)
	if err == nil {
		var changed engine.Keys
		now := time.Now()
		p.traces.pagesReceived(records.From, now)
		changed, isWhole = p.state.Reads.ObserveSent(now, records.From, records.Generation, record, parts)
		p.notify(changed)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.schedule.HandleArrived(time.Now(), records.From, records.Generation, isWhole)
	if p.schedule.IsReadWanted() {
		p.state.ReadSignal.Set()
	}
	return isWhole
}

// send sends a record that was written, and the parts of pages that it announces and the others do
// not have, to the clusters that may import what has changed: they have them before AWS Cloud Map
// shows them, which takes some 500 ms.
func (p *peers) send(record format.Member, instance api.Instance, parts []api.Instance) {
	receivers := slices.DeleteFunc(p.state.Receivers(p.cfg.PeerNotifications.Contact()), func(r peernotify.Receiver) bool { return r.Generation != record.Generation })
	if len(receivers) == 0 || len(parts) > maxSentParts {
		return
	}
	packed, err := format.PackRecords(instance, parts)
	if err != nil {
		p.log.Error(err, "Failed to send records to the other clusters; they read them")
		return
	}
	p.transport.SendRecords(peernotify.Records{
		ClusterSet: p.cfg.Identity.ClusterSetID, From: p.cfg.Identity.ClusterID, Generation: record.Generation, Data: packed,
	}, receivers)
}

// Listening implements peernotify.Handler: from now on the own record contains the contact.
func (p *peers) Listening() { p.state.SetContact(p.cfg.PeerNotifications.Contact()) }

// PeerKey implements peernotify.Handler.
func (p *peers) PeerKey(clusterID string) string {
	if keys := p.keys.Load(); keys != nil {
		return (*keys)[clusterID]
	}
	return ""
}

// HandleUnknownPeer implements peernotify.Handler.
func (p *peers) HandleUnknownPeer(m peernotify.Message) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.ReadSignal.Set()
	return p.schedule.HandleUnknownPeer(m)
}

// HandleMessage implements peernotify.Handler.
func (p *peers) HandleMessage(m peernotify.Message) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := p.schedule.IsReadWanted()
	result := p.schedule.HandleMessage(time.Now(), m)
	if p.schedule.IsReadWanted() && !wanted {
		// not for each of the 500 a second of 1,000 clusters: the reader computes its schedule from
		// all peers
		p.state.ReadSignal.Set()
	}
	return result
}

// State implements peernotify.Handler: each of the other live clusters that listen gets the
// generation of the last written record with a change for it.
func (p *peers) State() (peernotify.Message, []peernotify.Receiver) {
	receivers := p.state.Receivers(p.cfg.PeerNotifications.Contact())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written == 0 {
		receivers = nil
	}
	receivers, p.round = peernotify.Round(receivers, p.round)
	for i := range receivers {
		r := &receivers[i]
		if r.Generation = min(r.Generation, p.written); r.Generation == 0 {
			r.Generation = p.written
		}
	}
	return peernotify.Message{ClusterSet: p.cfg.Identity.ClusterSetID, From: p.cfg.Identity.ClusterID}, receivers
}

// Asks implements peernotify.Handler.
func (p *peers) Asks() (questions []peernotify.Question) {
	contacted := p.state.Contacted(p.cfg.PeerNotifications.Contact())
	p.mu.Lock()
	defer p.mu.Unlock()
	before, now := p.asks, time.Now()
	p.asks = make(map[string]*ask, len(contacted))
	for _, c := range contacted {
		a := before[c.ClusterID]
		if a == nil || a.key != c.Key {
			a = &ask{nonce: peernotify.NewNonce(), key: c.Key}
		}
		p.asks[c.ClusterID] = a
		if !a.isDue(now, c.IsFirst) {
			continue
		}
		a.sent, a.sentAt = a.sent+1, now
		questions = append(questions, peernotify.Question{
			Ask: peernotify.Ask{ClusterSet: p.cfg.Identity.ClusterSetID, From: p.cfg.Identity.ClusterID, Nonce: a.nonce}, To: c.Contact,
		})
	}
	return questions
}

// HandleAsk implements peernotify.Handler.
func (p *peers) HandleAsk(a peernotify.Ask) (answer peernotify.Answer, ok bool) {
	if a.ClusterSet != p.cfg.Identity.ClusterSetID {
		return answer, false
	}
	at, ok := p.state.Reads.Answer(time.Now(), a.From)
	return peernotify.Answer{
		ClusterSet: p.cfg.Identity.ClusterSetID, From: p.cfg.Identity.ClusterID, Generation: at.Generation, Heartbeat: at.Heartbeat,
	}, ok
}

// HandleAnswer implements peernotify.Handler.
func (p *peers) HandleAnswer(answer peernotify.Answer) (result string) {
	if answer.ClusterSet != p.cfg.Identity.ClusterSetID {
		return peernotify.ResultForeign
	}
	p.mu.Lock()
	a := p.asks[answer.From]
	if a == nil || a.nonce != answer.Nonce {
		p.mu.Unlock()
		return peernotify.ResultReplayed
	}
	a.answered = true
	key := a.key
	p.mu.Unlock()
	at := trust.Time{Generation: answer.Generation, Heartbeat: answer.Heartbeat}
	changed, isBehind := p.state.Reads.ObserveAnswer(time.Now(), answer.From, key, at)
	p.notify(changed)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.schedule.HandleAnswer(time.Now(), answer.From, answer.Generation, isBehind)
	if p.schedule.IsReadWanted() {
		p.state.ReadSignal.Set()
	}
	return peernotify.ResultOK
}

// addNotified sets when the last peer notifications of the members arrived.
func (p *peers) addNotified(members []registry.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range members {
		members[i].Notified = p.schedule.Notified(members[i].ClusterID)
	}
}

// announced returns when the change of a cluster that is being read was announced, zero if no
// notification did.
func (p *peers) announced(id string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.schedule.Announced(id)
}

// recordWritten tells the other clusters and the own reader that a record was written. A record
// with a new generation is sent, before its notification.
func (p *peers) recordWritten(record format.Member, instance api.Instance) {
	parts := p.state.Writes.TakeUnsent(record)
	p.mu.Lock()
	p.schedule.HandleOwnWrite(time.Now(), record.Generation)
	p.state.ReadSignal.Set()
	isNew := record.Generation > p.written && p.transport != nil
	if isNew {
		p.written = record.Generation
	}
	p.mu.Unlock()
	if isNew {
		p.send(record, instance, parts)
		p.transport.Notify()
	}
}

// untilRead returns the time until the next read.
func (p *peers) untilRead() time.Duration {
	isWanted := p.state.TakeReadWanted()
	p.mu.Lock()
	defer p.mu.Unlock()
	if isWanted {
		p.schedule.RequestRead()
	}
	now := time.Now()
	return p.schedule.NextRead(now).Sub(now)
}

// readStarted records that a read starts.
func (p *peers) readStarted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.schedule.HandleReadStart(time.Now())
}

// readEnded schedules the next read after one that ended with err. whole is set if all member
// records were read, even if some pages were not.
func (p *peers) readEnded(whole bool, err error) {
	now := time.Now()
	others, urgent := p.state.Peers(now)
	keys := map[string]string{}
	for _, peer := range others {
		keys[peer.ClusterID] = peer.Key
	}
	p.keys.Store(&keys)
	p.state.Writes.SetQuiet(p.scheduleNext(now, whole, err, others, urgent))
}

// scheduleNext schedules the next read after one that ended with err, and reports whether nothing
// happens and peer notifications from all others arrive.
func (p *peers) scheduleNext(now time.Time, whole bool, err error, others []peernotify.Peer, urgent bool) (isQuiet bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slow := api.MustSlowDown(err); !whole || slow {
		p.schedule.HandleReadFailure(p.pauseAfterFailure(slow))
		return false
	}
	p.failures = 0
	p.schedule.HandleReadSuccess(others, urgent)
	p.reportSilence(now)
	if p.transport == nil {
		return false
	}
	if p.isAsking(others) {
		p.transport.Notify()
	}
	return p.schedule.IsQuiet(now)
}

// isAsking reports whether one of the other clusters was not asked yet. The caller holds p.mu.
func (p *peers) isAsking(others []peernotify.Peer) bool {
	return slices.ContainsFunc(others, func(other peernotify.Peer) bool {
		return other.ClusterID != p.cfg.Identity.ClusterID && p.asks[other.ClusterID] == nil
	})
}

// pauseAfterFailure returns the pause after a failed read. It grows while AWS throttles, or while
// reads go on to fail for another reason, with a random part that spreads the clusters of the
// account. The caller holds p.mu.
func (p *peers) pauseAfterFailure(slow bool) time.Duration {
	p.failures++
	doublings, longest := p.failures, maxThrottledPause
	if !slow {
		doublings, longest = p.failures-eagerReads, maxFailurePause
	}
	if doublings <= 0 {
		return p.cfg.PollInterval
	}
	return p.cfg.PollInterval + rand.N(min(longest, p.cfg.PollInterval<<min(doublings, 10)))
}

// reportSilence updates the metric of the poll interval, and logs which clusters send no peer
// notifications. The caller holds p.mu.
func (p *peers) reportSilence(now time.Time) {
	interval := p.schedule.PollInterval(now)
	p.cfg.Metrics.SetPollInterval(p.name, interval)
	if p.transport == nil {
		return
	}
	silent := strings.Join(p.schedule.SilentPeers(now), ", ")
	if silent != p.silent || p.since.IsZero() {
		p.silent, p.since = silent, now
	}
	if silent == p.logged || now.Sub(p.since) < silenceThreshold {
		return
	}
	p.logged = silent
	if silent == "" {
		p.log.Info("Receiving peer notifications from all clusters: polling the registry less often", "interval", interval)
		return
	}
	p.log.Info("Missing peer notifications from some clusters: polling the registry more often. Their UDP port may be closed to this cluster, or "+
		"they run without peer notifications", "members", silent, "interval", interval)
}
