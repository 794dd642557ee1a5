// Package dns asks the cluster's DNS, as a pod does, whether it serves clusterset.local.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

const (
	// interval is the time between two checks. After a check that failed the next one follows
	// sooner, so that a repair is soon visible.
	interval      = time.Minute
	retryInterval = 10 * time.Second
	// timeout limits a check. The resolver waits 5 s for an answer, and asks each server twice.
	timeout = 30 * time.Second
	// lasting is the time after which ServiceImports show that names do not resolve: a restart of
	// the DNS is shorter, and each change is a write for every import.
	lasting = time.Minute
)

// The names that a check asks for. A trailing dot disables the search domains.
const (
	// versionName has a TXT record wherever the zone is served, also without a ServiceImport.
	versionName = "dns-version." + coredns.Zone + "."
	// ownService exists in every cluster, in the zone of the cluster's own Services, which is a
	// search domain of pods.
	ownService = "kubernetes.default.svc"
	// exposedService exists only if a server serves the zone from the Services instead of the
	// ServiceImports.
	exposedService = ownService + "." + coredns.Zone + "."
)

// version matches the content of the TXT record. A resolver of the Internet that answers every name
// has another one.
var version = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// A Watcher checks the DNS once a minute. It is a prometheus.Collector.
type Watcher struct {
	resolver *net.Resolver
	log      logr.Logger
	served   *prometheus.Desc
	state    atomic.Pointer[status.DNS]
	// resolution is a mcs.Resolution, and requeue makes the imports be reconciled after a change.
	resolution atomic.Int32
	requeue    func(context.Context) error
	// failing is the time of the first check in which the names did not resolve, zero if they do.
	failing time.Time
}

// NewWatcher returns a Watcher, which Start starts. It asks resolver, or that of the pod if it is
// nil, and calls requeue when Resolution changes.
func NewWatcher(resolver *net.Resolver, requeue func(context.Context) error, log logr.Logger) *Watcher {
	if resolver == nil {
		resolver = &net.Resolver{PreferGo: true, Dial: dial}
	}
	w := &Watcher{resolver: resolver, requeue: requeue, log: log, served: prometheus.NewDesc("cloud_map_mcs_dns_served",
		"Whether the cluster's DNS serves clusterset.local to the controller's pod: 1 or 0. Absent while that is not known.", nil, nil)}
	w.state.Store(&status.DNS{State: status.DNSUnknown, Problem: "the controller has not asked the DNS yet"})
	return w
}

// dial connects to a DNS server. The end of ctx ends a query, which only its timeout of 5 s does
// otherwise.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	}
	return conn, err
}

// State returns the result of the last check.
func (w *Watcher) State() status.DNS { return *w.state.Load() }

// Resolution returns whether the names of the clusterset resolve.
func (w *Watcher) Resolution() mcs.Resolution { return mcs.Resolution(w.resolution.Load()) }

// NeedLeaderElection implements manager.LeaderElectionRunnable: one pod is enough.
func (w *Watcher) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (w *Watcher) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		state := w.check(ctx)
		wait := interval
		if state.State != status.DNSServed {
			wait = retryInterval
		}
		if ctx.Err() == nil { // else the end of ctx ended the queries
			w.report(state)
			w.state.Store(&state)
			w.resolve(ctx, state)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// check asks the DNS. A name that does not resolve is evidence only if the DNS of the cluster
// answers for the cluster's own Services.
func (w *Watcher) check(ctx context.Context) status.DNS {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	problem := w.versionProblem(ctx)
	var exposed []string
	if problem == "" {
		// An error, such as that the name does not exist, is the normal case.
		exposed, _ = w.resolver.LookupHost(ctx, exposedService)
	}
	if problem == "" && len(exposed) == 0 {
		return status.DNS{State: status.DNSServed, Checked: time.Now()}
	}
	own, err := w.resolver.LookupHost(ctx, ownService)
	out := status.DNS{State: status.DNSNotServed, Problem: problem, Checked: time.Now()}
	switch {
	case err != nil && problem != "":
		out.State, out.Problem = status.DNSUnknown, fmt.Sprintf("the DNS of the controller's pod does not resolve %s either: %s", ownService, textOf(err))
	case problem != "":
	case err == nil && slices.ContainsFunc(exposed, func(ip string) bool { return slices.Contains(own, ip) }):
		out.Problem = fmt.Sprintf("names of %s resolve to the Services of this cluster: the option multicluster of CoreDNS is missing", coredns.Zone)
	default: // an import of that name
		out.State = status.DNSServed
	}
	return out
}

// versionProblem returns why versionName does not resolve, "" if it does.
func (w *Watcher) versionProblem(ctx context.Context) string {
	texts, err := w.resolver.LookupTXT(ctx, versionName)
	if err == nil && !slices.ContainsFunc(texts, version.MatchString) {
		err = fmt.Errorf("the answer %q is not a version", texts)
	}
	if err != nil {
		return fmt.Sprintf("the cluster's DNS does not resolve %s (TXT): %s", versionName, textOf(err))
	}
	return ""
}

// textOf returns the text of an error of the resolver without the name, which is shown beside it.
func textOf(err error) string {
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return lookup.Err
	}
	return err.Error()
}

// resolve sets the resolution after a check. A check without a result changes nothing.
func (w *Watcher) resolve(ctx context.Context, state status.DNS) {
	before := w.Resolution()
	now := before
	switch state.State {
	case status.DNSServed:
		now, w.failing = mcs.Resolvable, time.Time{}
	case status.DNSNotServed:
		if w.failing.IsZero() {
			w.failing = state.Checked
		}
		if state.Checked.Sub(w.failing) >= lasting {
			now = mcs.NotResolvable
		}
	}
	if now == before {
		return
	}
	w.resolution.Store(int32(now))
	if err := w.requeue(ctx); err != nil {
		w.log.Error(err, "Failed to update the ServiceImports after a change of the DNS: each shows it when it changes")
	}
}

// report logs the beginning and the end of a failure.
func (w *Watcher) report(state status.DNS) {
	before := w.State().State
	switch {
	case state.State == before:
	case state.State == status.DNSNotServed:
		w.log.Error(errors.New(state.Problem), "Failed to resolve the names of the clusterset")
	case state.State == status.DNSServed && before == status.DNSNotServed:
		w.log.Info("The names of the clusterset resolve again")
	}
}

// Describe implements prometheus.Collector.
func (w *Watcher) Describe(ch chan<- *prometheus.Desc) { ch <- w.served }

// Collect implements prometheus.Collector.
func (w *Watcher) Collect(ch chan<- prometheus.Metric) {
	switch w.State().State {
	case status.DNSServed:
		ch <- prometheus.MustNewConstMetric(w.served, prometheus.GaugeValue, 1)
	case status.DNSNotServed:
		ch <- prometheus.MustNewConstMetric(w.served, prometheus.GaugeValue, 0)
	}
}
