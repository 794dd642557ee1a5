package cloudmap

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rate is a token bucket: so many requests a second in the long run, so many at once.
type Rate struct {
	PerSecond float64
	Burst     int
}

// defaultRates are how much of AWS's quotas one cluster takes.
//
// AWS publishes only those of DiscoverInstances, 1,000 a second with bursts of 2,000 for all of an account, and of
// DiscoverInstancesRevision, 3,000: a tenth of it lets ten clusters start at once. The others are the rates that AWS's own controller keeps itself to
// (aws-cloud-map-mcs-controller-for-k8s, ratelimiter.go), and 50 a second of GetService and ListInstances as users of
// external-dns met them (its issues 2505 and 2507). Several clusters in one account share them, which the adaptive part
// of pace finds out.
var defaultRates = map[string]Rate{
	"DiscoverInstances":         {100, 200},
	"DiscoverInstancesRevision": {300, 600},
	"RegisterInstance":          {50, 100},
	"DeregisterInstance":        {50, 100},
	"GetOperation":              {100, 200},
	"ListInstances":             {50, 100},
	"GetNamespace":              {50, 100},
	"GetService":                {50, 100},
	"ListTagsForResource":       {50, 100},
	"ListNamespaces":            {0.5, 5},
	"ListServices":              {2, 10},
	"CreateHttpNamespace":       {0.5, 5},
	"DeleteNamespace":           {0.5, 5},
	"CreateService":             {5, 50},
	"DeleteService":             {5, 50},
}

// class is whose requests go first. The record of this cluster is first: it is its sign of life and what announces its pages,
// one write after a change or in 12 seconds, which cannot starve the others; behind a thousand pages it would be late, and the cluster
// taken for dead. The instance view is last: nothing of ours waits for it.
type class int

const (
	classMembers class = iota
	classPages
	classInstances
	classes
)

const (
	// slowest is what a rate falls to at most, in requests a second: one in 20 seconds, five a second from a hundred clusters.
	slowest = 0.05
	// alwaysAfter is the time after which a request of classMembers goes out, whatever the rate: a sign of life is worth a
	// try at every heartbeat.
	alwaysAfter = 10 * time.Second
	// recovery is the time in which the rate rises from 0 to full, if nothing is throttled; below rise of it by smaller and smaller
	// steps, for many clusters that share a quota would all shoot over it together.
	recovery = 20 * time.Second
	// longestStep is the most time that a single success counts for.
	longestStep = time.Second
	rise        = 1.0 / 4
	// onceIn is how often a rate may fall: what is throttled within it was under way already.
	onceIn = 500 * time.Millisecond
)

// pace is the token bucket of one operation. Its rate is halved when AWS throttles, and rises evenly while it does not. Tokens go to
// those who wait by class, and by order of arrival within a class.
type pace struct {
	full    Rate
	report  func(perSecond float64)
	mu      sync.Mutex
	limiter *rate.Limiter
	part    float64 // of full that is used, up to 1
	changed time.Time
	// members is when a request of classMembers went out last.
	members time.Time
	waiting [classes][]chan struct{}
	// timer runs while somebody waits.
	timer *time.Timer
}

func newPace(full Rate, report func(perSecond float64)) *pace {
	report(full.PerSecond)
	return &pace{full: full, limiter: rate.NewLimiter(rate.Limit(full.PerSecond), full.Burst), report: report, part: 1}
}

// wait takes a token. The instance view leaves three quarters of the bucket to the others: 75 of RegisterInstance's 100, so that
// all of a catalog's 64 pages can be written at once however many instances wait.
func (p *pace) wait(ctx context.Context, c class) error {
	granted := make(chan struct{})
	p.mu.Lock()
	p.waiting[c] = append(p.waiting[c], granted)
	p.grant()
	p.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting[c], granted); i >= 0 {
		p.waiting[c] = slices.Delete(p.waiting[c], i, i+1)
		p.grant() // who stood behind may have less to wait for
	}
	return ctx.Err()
}

// grant hands out the tokens that there are, and comes again when there is the next one. The caller holds p.mu.
func (p *pace) grant() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	now := time.Now()
	for c := range p.waiting {
		for len(p.waiting[c]) > 0 {
			if pause := p.take(now, class(c)); pause > 0 {
				p.timer = time.AfterFunc(pause, p.again)
				return
			}
			close(p.waiting[c][0])
			p.waiting[c] = p.waiting[c][1:]
		}
	}
}

// take takes a token for a class, or says when to come again. The caller holds p.mu.
func (p *pace) take(now time.Time, c class) (pause time.Duration) {
	needed := 1.0
	if c == classInstances {
		needed += float64(p.limiter.Burst() * 3 / 4)
	}
	if missing := needed - p.limiter.TokensAt(now); missing > 0 {
		pause = max(time.Millisecond, time.Duration(missing/float64(p.limiter.Limit())*float64(time.Second)))
	}
	if c == classMembers {
		pause = min(pause, p.members.Add(alwaysAfter).Sub(now))
		if pause <= 0 {
			p.members = now
		}
	}
	if pause <= 0 {
		p.limiter.AllowN(now, 1)
	}
	return pause
}

func (p *pace) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.grant()
}

// done learns from a request's result.
func (p *pace) done(now time.Time, result string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch since := now.Sub(p.changed); {
	case result == resultThrottled && since >= onceIn:
		p.set(now, max(p.part/2, min(1, slowest/p.full.PerSecond)))
	case result == resultOK && p.part < 1 && since > 0:
		step := min(since, longestStep).Seconds() / recovery.Seconds()
		p.set(now, min(1, p.part+step*min(1, p.part/rise)))
	}
}

// set changes rate and burst alike. The caller holds p.mu.
func (p *pace) set(now time.Time, part float64) {
	p.part, p.changed = part, now
	p.limiter.SetLimitAt(now, rate.Limit(p.full.PerSecond*part))
	p.limiter.SetBurstAt(now, max(1, int(float64(p.full.Burst)*part)))
	p.report(p.full.PerSecond * part)
	p.grant()
}

// jittered is a random pause up to the given one: clusters that were throttled together do not come back together.
func jittered(pause time.Duration) time.Duration { return rand.N(pause) + 1 }
