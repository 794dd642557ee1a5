package cloudmap

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
)

// hints is a registry's part in the clusters' telling one another of changes (package hint). The fields are guarded by the
// registry's mutex.
type hints struct {
	// schedule decides when to read; without a transport it knows only of polls and of own writes.
	schedule *peernotify.Scheduler
	// transport is nil when peer notifications are disabled; open is set while its socket is open.
	transport *peernotify.Transport
	open      bool
	// said is the generation of our record as it was last written, 0 before.
	said int64
	// failures is how many looks have failed in a row.
	failures int
	// silent are the clusters that are not heard, since when it is them, and whether the log knows.
	silent string
	since  time.Time
	logged string
}

func newHints(r *Registry) hints {
	intervals := peernotify.Intervals{Poll: r.cfg.PollInterval, PollWithNotifications: r.cfg.PollIntervalWithNotifications}
	var h hints
	if r.cfg.PeerNotifications != nil && !r.cfg.ReadOnly {
		intervals.Silence = r.cfg.PeerNotifications.Silence()
		count := func(direction, result string) {
			r.cfg.Metrics.CountPeerNotification(r.client.Name(), direction, result)
		}
		h.transport = peernotify.NewTransport(*r.cfg.PeerNotifications, notificationHandler{r}, count, r.log.WithName("hints"))
	}
	h.schedule = peernotify.NewScheduler(r.cfg.Identity.ClusterSetID, r.cfg.Identity.ClusterID, intervals)
	return h
}

// notificationHandler is the part of the registry that its Transport calls.
type notificationHandler struct{ r *Registry }

// Listening implements peernotify.Handler: from now on our record contains the contact.
func (w notificationHandler) Listening() {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.hints.open = true
	w.r.ours.Contact = w.r.cfg.PeerNotifications.Contact
	if w.r.claim.state != watching {
		w.r.announce = true
		wake(w.r.write)
	}
}

// HandleMessage implements peernotify.Handler.
func (w notificationHandler) HandleMessage(m peernotify.Message) string {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	wake(w.r.look)
	return w.r.hints.schedule.HandleMessage(time.Now(), m)
}

// State implements peernotify.Handler: it returns our record's generation, for every other live cluster that listens.
func (w notificationHandler) State() (peernotify.Message, []peernotify.Contact) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	var contacts []peernotify.Contact
	if w.r.claim.state == held && w.r.hints.said != 0 {
		for id, cluster := range w.r.catalogs.clusters {
			if id != w.r.cfg.Identity.ClusterID && w.r.catalogs.live(id) && w.r.cfg.PeerNotifications.Contact.Reaches(cluster.record.Contact) {
				contacts = append(contacts, cluster.record.Contact)
			}
		}
	}
	return peernotify.Message{ClusterSet: w.r.cfg.Identity.ClusterSetID, From: w.r.cfg.Identity.ClusterID, Generation: w.r.hints.said}, contacts
}

// contact is where we want to be sent hints, nowhere while we do not listen. The caller holds r.mu.
func (r *Registry) contact() peernotify.Contact {
	if !r.hints.open {
		return peernotify.Contact{}
	}
	return r.cfg.PeerNotifications.Contact
}

// hintLoop sends and receives hints until ctx ends.
func (r *Registry) hintLoop(ctx context.Context) {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hints.open = false
	}()
	r.hints.transport.Run(ctx)
}

// wrote tells the others, and our own reader, that the record of generation has been written. The caller holds r.mu.
func (r *Registry) wrote(generation int64) {
	r.hints.schedule.HandleOwnWrite(time.Now(), generation)
	wake(r.look)
	if generation > r.hints.said && r.hints.transport != nil {
		r.hints.said = generation
		r.hints.transport.Notify()
	}
}

// untilLook is the time until the registry has to be looked at.
func (r *Registry) untilLook() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	return r.hints.schedule.NextRead(now).Sub(now)
}

func (r *Registry) looking() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hints.schedule.HandleReadStart(time.Now())
}

// looked says when to look again after a look that ended with err. whole says that all members' records were read; the
// pages of some may not have been.
func (r *Registry) looked(whole bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if throttled := api.IsThrottled(err); !whole || throttled {
		r.hints.schedule.HandleReadFailure(r.pauseAfterFailure(throttled))
		return
	}
	r.hints.failures = 0
	peers, hurried := r.peers(now)
	r.hints.schedule.HandleReadSuccess(peers, hurried)
	r.noteSilence(now)
}

// pauseAfterFailure is how long not to look: longer and longer while AWS throttles, with all clusters of the account spread over
// that time. The caller holds r.mu.
func (r *Registry) pauseAfterFailure(throttled bool) time.Duration {
	if !throttled {
		return r.cfg.PollInterval
	}
	r.hints.failures++
	return r.cfg.PollInterval + rand.N(min(maxThrottledPause, r.cfg.PollInterval<<min(r.hints.failures, 10)))
}

// maxThrottledPause is the longest pause between two looks that are throttled: far less than the time after which a cluster counts as
// gone.
const maxThrottledPause = 15 * time.Second

// peers are all live clusters as the registry shows them, and whether there is something to be looked for soon that no hint
// will tell of. The caller holds r.mu.
func (r *Registry) peers(now time.Time) (peers []peernotify.Peer, hurried bool) {
	hurried = !r.hints.open || r.claim.state != held || r.outbox.unconfirmed() || r.catalogs.incomplete
	for id, cluster := range r.catalogs.clusters {
		hurried = hurried || !cluster.absentSince.IsZero() || cluster.behind(now)
		own := id == r.cfg.Identity.ClusterID
		if r.catalogs.live(id) && (!own || r.claim.state == held) {
			peers = append(peers, peernotify.Peer{
				ClusterID: id, Token: cluster.record.Contact.Token, Generation: cluster.record.Generation, Behind: cluster.behind(now),
			})
		}
	}
	return peers, hurried
}

// noteSilence tells metrics how often we poll, and the log whom we do not hear. The caller holds r.mu.
func (r *Registry) noteSilence(now time.Time) {
	interval := r.hints.schedule.PollInterval(now)
	r.cfg.Metrics.SetPollInterval(r.client.Name(), interval)
	silent := strings.Join(r.hints.schedule.SilentPeers(now), ", ")
	if r.hints.transport == nil {
		return
	}
	if silent != r.hints.silent || r.hints.since.IsZero() {
		r.hints.silent, r.hints.since = silent, now
	}
	if silent == r.hints.logged || now.Sub(r.hints.since) < silenceCounts {
		return
	}
	r.hints.logged = silent
	if silent == "" {
		r.log.Info("Hints from all clusters arrive: the registry is polled less often", "interval", interval)
		return
	}
	r.log.Info("No hints from some clusters: the registry is polled more often. Is their UDP port closed to this cluster, or do they run without hints?",
		"members", silent, "interval", interval)
}

// silenceCounts is how long it has to be the same clusters that are not heard to be worth a line in the log: a restart is not.
const silenceCounts = time.Minute

// live says whether a cluster's controller is at work, as far as its record shows.
func (c *catalogs) live(id string) bool {
	cluster := c.clusters[id]
	return cluster.hasRecord && cluster.absentSince.IsZero() && !c.liveness.IsStale(id)
}

// behind says whether a page is announced that Cloud Map may show at the next look. One that could not be read several times
// is tried again at its own time.
func (c *catalog) behind(now time.Time) bool {
	for i := range c.pages {
		if p := &c.pages[i]; c.unread(now, i) && p.failures <= eagerRetries {
			return true
		}
	}
	return false
}
