package cloudmap

import (
	"context"
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
	"ListTagsForResource":       {50, 100},
	"ListNamespaces":            {0.5, 5},
	"ListServices":              {2, 10},
	"CreateHttpNamespace":       {0.5, 5},
	"DeleteNamespace":           {0.5, 5},
	"CreateService":             {5, 50},
	"DeleteService":             {5, 50},
}

const (
	// slowest is the part of its rate that an operation falls to at most: seven halvings.
	slowest = 1.0 / 128
	// recovery is the time in which a rate that fell to nothing rises again in full, if nothing is throttled.
	recovery = 20 * time.Second
	// onceIn is how often a rate may fall: what is throttled within it was under way already.
	onceIn = 500 * time.Millisecond
)

// pace is the token bucket of one operation. Its rate is halved when AWS throttles, and rises evenly while it does not.
type pace struct {
	full    Rate
	limiter *rate.Limiter
	report  func(perSecond float64)

	mu      sync.Mutex
	part    float64 // of full that is used, up to 1
	changed time.Time
}

func newPace(full Rate, report func(perSecond float64)) *pace {
	report(full.PerSecond)
	return &pace{full: full, limiter: rate.NewLimiter(rate.Limit(full.PerSecond), full.Burst), report: report, part: 1}
}

// wait takes a token. A patient caller leaves the last quarter of the bucket to the others.
func (p *pace) wait(ctx context.Context, patient bool) error {
	if !patient {
		return p.limiter.Wait(ctx)
	}
	for {
		now := time.Now()
		if p.limiter.TokensAt(now) >= float64(p.limiter.Burst()/4+1) && p.limiter.AllowN(now, 1) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(float64(time.Second) / float64(p.limiter.Limit()))):
		}
	}
}

// done learns from a request's result.
func (p *pace) done(now time.Time, result string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch since := now.Sub(p.changed); {
	case result == resultThrottled && since >= onceIn:
		p.set(now, max(p.part/2, slowest))
	case result == resultOK && p.part < 1 && since > 0:
		p.set(now, min(1, p.part+min(since, time.Second).Seconds()/recovery.Seconds()))
	}
}

// set changes rate and burst alike. The caller holds p.mu.
func (p *pace) set(now time.Time, part float64) {
	p.part, p.changed = part, now
	p.limiter.SetLimitAt(now, rate.Limit(p.full.PerSecond*part))
	p.limiter.SetBurstAt(now, max(1, int(float64(p.full.Burst)*part)))
	p.report(p.full.PerSecond * part)
}
