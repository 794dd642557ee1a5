// Package paths probes the pods of the other clusters to find clusters that the pods of this one
// cannot reach. Package pathhealth decides from the results, and the import reconciler applies the
// decision.
package paths

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// The limits of the probes. A hundred clusters need 25 connections a second while all of them
// answer.
const (
	// maxConnections is the number of concurrent attempts, connectionsPerSecond their rate.
	maxConnections                        = 64
	connectionsPerSecond, connectionBurst = 50, 50
)

// Paths probes the other clusters. The nil *Paths does nothing: all clusters are reachable.
type Paths struct {
	cfg     Config
	metrics *metrics
	limiter *rate.Limiter
	verdict atomic.Pointer[pathhealth.Verdict]

	mu sync.Mutex
	// endpoints has, by cluster, one endpoint of each imported service.
	endpoints map[string]map[mcs.Key]netip.AddrPort

	// Only Start uses the fields below.
	tracker  *pathhealth.Tracker
	schedule map[string]*schedule
}

// Config configures New.
type Config struct {
	Mode mcs.PathHealth
	// HealthPort is the port of the other controllers' probes, 0 if they are not probed.
	HealthPort uint16
	// State returns the membership state.
	State func() *membership.State
	// Reader reads the ServiceImports.
	Reader client.Reader
	// CheckAddress returns an error if this cluster must not connect to an address of another one.
	CheckAddress func(cluster string, a netip.Addr) error
	// Requeue makes the import controller reconcile a service.
	Requeue func(mcs.Key)
	// Probes configures the probes.
	Probes Probes
	Log    logr.Logger
}

// Probes configures the probes. The zero value has the defaults; tests replace them.
type Probes struct {
	// Dial opens and closes a TCP connection.
	Dial  func(ctx context.Context, address netip.AddrPort) error
	Rules pathhealth.Rules
	Times Times
}

// Times are the times of the probes.
type Times struct {
	// Tick is the interval of decisions, Round the interval of rounds.
	Tick, Round time.Duration
	// Connect is the time limit of a connection.
	Connect time.Duration
	// Endpoints is the interval of probes to endpoints while the controller of their cluster
	// answers. It is long, because servers may log or count connections without a request.
	// EndpointsAlone is the interval while the controller does not answer.
	Endpoints, EndpointsAlone time.Duration
	// Unknown is the interval of probes to a cluster in state Unknown.
	Unknown time.Duration
}

// defaultTimes allow, by Connect, for one lost SYN, which is retransmitted after a second.
var defaultTimes = Times{
	Tick: time.Second / 4, Round: 5 * time.Second, Connect: 2 * time.Second,
	Endpoints: time.Minute, EndpointsAlone: 10 * time.Second, Unknown: time.Minute,
}

func (p Probes) withDefaults() Probes {
	if p.Dial == nil {
		p.Dial = dial
	}
	if p.Rules == (pathhealth.Rules{}) {
		p.Rules = pathhealth.DefaultRules
	}
	if p.Times == (Times{}) {
		p.Times = defaultTimes
	}
	return p
}

// New returns Paths, nil if the mode is off. Start probes.
func New(cfg Config) *Paths {
	if cfg.Mode == mcs.PathHealthOff {
		return nil
	}
	cfg.Probes = cfg.Probes.withDefaults()
	return &Paths{
		cfg: cfg, metrics: newMetrics(), limiter: rate.NewLimiter(connectionsPerSecond, connectionBurst),
		endpoints: map[string]map[mcs.Key]netip.AddrPort{}, schedule: map[string]*schedule{},
	}
}

// Verdict returns the last decision about the paths to all other clusters.
func (p *Paths) Verdict() pathhealth.Verdict {
	if p == nil {
		return pathhealth.Verdict{}
	}
	if v := p.verdict.Load(); v != nil {
		return *v
	}
	return pathhealth.Verdict{}
}

// Mode returns the policy for unreachable clusters.
func (p *Paths) Mode() mcs.PathHealth {
	if p == nil {
		return mcs.PathHealthOff
	}
	return p.cfg.Mode
}

// SetExports records the exports that a service is imported from, none if it is not imported. The
// import policy has been applied.
func (p *Paths) SetExports(key mcs.Key, exports []mcs.Export) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for cluster, endpoints := range p.endpoints {
		if !slices.ContainsFunc(exports, func(e mcs.Export) bool { return e.Cluster == cluster }) {
			delete(endpoints, key)
		}
		if len(endpoints) == 0 {
			delete(p.endpoints, cluster)
		}
	}
	for _, e := range exports {
		address, ok := pathhealth.Target(e)
		switch {
		case !ok:
			delete(p.endpoints[e.Cluster], key)
		case p.endpoints[e.Cluster] == nil:
			p.endpoints[e.Cluster] = map[mcs.Key]netip.AddrPort{key: address}
		default:
			p.endpoints[e.Cluster][key] = address
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: only the leader probes, because
// only it imports.
func (p *Paths) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (p *Paths) Start(ctx context.Context) error {
	restored, err := p.restore(ctx)
	if err != nil {
		return err
	}
	p.tracker = pathhealth.NewTracker(p.cfg.Probes.Rules, restored)
	ticker := time.NewTicker(p.cfg.Probes.Times.Tick)
	defer ticker.Stop()
	rounds := make(chan round, 1)
	var next time.Time
	running := false
	for {
		if now := time.Now(); !running && !now.Before(next) {
			if r, ok := p.plan(ctx, now); ok {
				running, next = true, now.Add(p.cfg.Probes.Times.Round)
				go func() { rounds <- p.run(ctx, r) }()
			}
		}
		select {
		case <-ctx.Done():
			if running {
				<-rounds
			}
			return nil
		case r := <-rounds:
			running = false
			p.observe(r, time.Now())
		case <-ticker.C:
		}
		p.decide(ctx, time.Now())
	}
}

// restore returns the clusters whose endpoints a previous process withdrew.
func (p *Paths) restore(ctx context.Context) ([]string, error) {
	var imports mcsv1beta1.ServiceImportList
	if err := p.cfg.Reader.List(ctx, &imports, client.UnsafeDisableDeepCopy, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}); err != nil {
		return nil, fmt.Errorf("listing the ServiceImports of a previous process: %w", err)
	}
	var restored []string
	for i := range imports.Items {
		restored = append(restored, plan.UnreachableClusters(&imports.Items[i])...)
	}
	slices.Sort(restored)
	return slices.Compact(restored), nil
}

// plan returns the next round. It reports false while the members are not known.
func (p *Paths) plan(ctx context.Context, now time.Time) (round, bool) {
	session := p.cfg.State().Session
	if session == nil {
		return round{}, false
	}
	members, err := session.Registry.Members(ctx)
	if err != nil {
		return round{}, false
	}
	r := round{start: now, results: map[string]pathhealth.Result{}}
	verdict := p.Verdict()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range members {
		if m.ClusterID == session.Identity.ClusterID {
			continue
		}
		s := p.schedule[m.ClusterID]
		if s == nil {
			s = &schedule{}
			p.schedule[m.ClusterID] = s
		}
		r.add(m, s.next(now, p.targets(m), verdict.State(m.ClusterID), p.cfg.Probes.Times))
	}
	for id := range p.schedule {
		if _, ok := r.results[id]; !ok {
			delete(p.schedule, id)
		}
	}
	return r, true
}

// targets returns the addresses of a member that may be probed. The caller holds p.mu.
func (p *Paths) targets(m registry.Member) targets {
	allowed := func(a netip.Addr) bool { return p.cfg.CheckAddress(m.ClusterID, a) == nil }
	var t targets
	if p.cfg.HealthPort != 0 && m.Address.IsValid() && allowed(m.Address) {
		t.controller = netip.AddrPortFrom(m.Address, p.cfg.HealthPort)
	}
	t.endpoints, t.allowed = p.endpoints[m.ClusterID], allowed
	return t
}

// run probes the targets of a round.
func (p *Paths) run(ctx context.Context, r round) round {
	slots := make(chan struct{}, maxConnections)
	var all sync.WaitGroup
	for i := range r.probes {
		if p.limiter.Wait(ctx) != nil {
			break
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, p.cfg.Probes.Times.Connect)
			defer cancel()
			r.probes[i].outcome = classify(p.cfg.Probes.Dial(ctx, r.probes[i].address))
		})
	}
	all.Wait()
	return r
}

// observe records a finished round.
func (p *Paths) observe(r round, now time.Time) {
	for _, probe := range r.probes {
		p.metrics.count(probe)
		result := r.results[probe.cluster]
		outcome := &result.Outcomes[probe.kind]
		switch probe.outcome {
		case reached:
			outcome.Probed, outcome.Reached = outcome.Probed+1, outcome.Reached+1
		case unreached:
			outcome.Probed++
		case inconclusive:
		}
		r.results[probe.cluster] = result
	}
	for id, s := range p.schedule {
		s.observe(r, id)
	}
	p.tracker.Observe(r.start, now, r.results)
}

// decide publishes the verdict, and requeues the imports that it changes.
func (p *Paths) decide(ctx context.Context, now time.Time) {
	before, verdict := p.Verdict(), p.tracker.Decide(now)
	p.verdict.Store(&verdict)
	p.report(before, verdict)
	changed := verdict.Changed(before)
	if len(changed) == 0 {
		return
	}
	var imports mcsv1beta1.ServiceImportList
	if err := p.cfg.Reader.List(ctx, &imports, client.UnsafeDisableDeepCopy, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}); err != nil {
		if ctx.Err() == nil {
			p.cfg.Log.Error(err, "Failed to list the imports of clusters whose paths changed, retrying")
		}
		p.verdict.Store(&before)
		return
	}
	for i := range imports.Items {
		if isAffected(&imports.Items[i], changed, before, verdict) {
			p.cfg.Requeue(kube.KeyOf(client.ObjectKeyFromObject(&imports.Items[i])))
		}
	}
}

// isAffected reports whether an import may change with the verdict about the changed clusters: one
// of them is or was unreachable and exports the service, or a previous process found it
// unreachable.
func isAffected(imp *mcsv1beta1.ServiceImport, changed []string, before, after pathhealth.Verdict) bool {
	restored := plan.UnreachableClusters(imp)
	return slices.ContainsFunc(changed, func(id string) bool {
		if slices.Contains(restored, id) {
			return true
		}
		return (before.State(id) == pathhealth.Unreachable || after.State(id) == pathhealth.Unreachable) &&
			slices.ContainsFunc(imp.Status.Clusters, func(c mcsv1beta1.ClusterStatus) bool { return c.Cluster == id })
	})
}

// report logs the changes of the verdict.
func (p *Paths) report(before, after pathhealth.Verdict) {
	for _, id := range after.Changed(before) {
		was, is := before.State(id), after.State(id)
		switch {
		case is == pathhealth.Unreachable && was != is:
			p.cfg.Log.Error(errors.New("connections to the pods of the cluster time out"), "Failed to reach a cluster", "cluster", id, "mode", p.cfg.Mode)
		case was == pathhealth.Unreachable && is == pathhealth.Reachable:
			p.cfg.Log.Info("Cluster is reachable again", "cluster", id)
		}
	}
	if after.FaultHere && !before.FaultHere {
		p.cfg.Log.Error(errors.New("more than half of the clusters are unreachable"), "Failed to reach most clusters: the fault is probably in this one, so no endpoints are withdrawn",
			"clusters", after.Unreachable())
	}
}
