package registrytest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// harness is a Backend under test.
type harness struct{ Backend }

// start creates a registry and runs it until the test ends.
func (h *harness) start(t *testing.T, identity mcs.Identity) *node {
	t.Helper()
	return h.run(t, h.New(t, identity, Options{}))
}

// startPublishing starts a registry that has all exports of its cluster before it runs, as a
// controller that starts does.
func (h *harness) startPublishing(t *testing.T, identity mcs.Identity, exports ...mcs.Export) *node {
	t.Helper()
	return h.runPublishing(t, h.New(t, identity, Options{}), exports...)
}

// runPublishing publishes exports before it runs reg, as a controller does.
func (h *harness) runPublishing(t *testing.T, reg registry.Registry, exports ...mcs.Export) *node {
	t.Helper()
	for _, exp := range exports {
		if err := reg.Publish(t.Context(), exp); err != nil {
			t.Fatalf("Publish(%v): %v", exp.Key, err)
		}
	}
	return h.run(t, reg)
}

// run runs reg until the test ends.
func (h *harness) run(t *testing.T, reg registry.Registry) *node {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	n := &node{t: t, h: h, reg: reg, cancel: cancel, done: make(chan struct{}), notified: map[mcs.Key]int{}, changed: make(chan struct{})}
	go func() {
		defer close(n.done)
		if err := reg.Run(ctx, n.notify); err != nil {
			t.Errorf("Run returned an error: %v", err)
		}
	}()
	t.Cleanup(func() { n.stop(nil) })
	return n
}

// leavingHeartbeat is the time between two heartbeats of a registry that leaves at once, five times
// as long as those of the others. From it the registry derives how long a record must not change
// until its writer counts as ended. With the interval of the others that is half a second, and a
// live clone may write nothing for so long while the machine has other work.
const leavingHeartbeat = time.Second

// leaveAs runs a registry that leaves at once.
func (h *harness) leaveAs(t *testing.T, identity mcs.Identity) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(registry.ErrLeave)
	if err := h.New(t, identity, Options{HeartbeatInterval: leavingHeartbeat}).Run(ctx, func(mcs.Key) {}); err != nil {
		t.Errorf("leaving: %v", err)
	}
}

func (h *harness) writes() int {
	if h.Writes == nil {
		return 0
	}
	return h.Writes()
}

// until polls until a condition without notifications is met.
func (h *harness) until(t *testing.T, what string, met func() bool) {
	t.Helper()
	deadline := time.Now().Add(h.Timeout)
	for !met() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", h.Timeout, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// node is one running registry with its notifications.
type node struct {
	t      *testing.T
	h      *harness
	reg    registry.Registry
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu sync.Mutex
	// imported are the clusters that every lookup names as imported.
	imported []string
	// notified counts notifications by key; changed is closed and replaced with each.
	notified map[mcs.Key]int
	changed  chan struct{}
	// forbidden is the check of the Views after notifications, nil for none, and rules counts its
	// changes.
	forbidden func(mcs.Key, registry.View) string
	rules     int
}

func (n *node) notify(k mcs.Key) {
	n.mu.Lock()
	n.notified[k]++
	close(n.changed)
	n.changed = make(chan struct{})
	forbidden, rule := n.forbidden, n.rules
	n.mu.Unlock()
	if forbidden == nil {
		return
	}
	view, err := n.reg.Lookup(context.Background(), k, n.importedClusters()...)
	n.mu.Lock()
	isInForce := n.rules == rule // the test may have changed the rule during the lookup
	n.mu.Unlock()
	if err != nil {
		n.t.Errorf("Lookup(%v) after a notification: %v", k, err)
	} else if what := forbidden(k, view); what != "" && isInForce {
		n.t.Errorf("%v has a forbidden state: %s", k, what)
	}
}

// imports makes every lookup from now on name these clusters as imported.
func (n *node) imports(clusterIDs ...string) *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.imported = clusterIDs
	return n
}

func (n *node) importedClusters() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.imported
}

// forbid checks the View at every notification from now on.
func (n *node) forbid(check func(mcs.Key, registry.View) string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forbidden = check
	n.rules++
}

// stop ends Run with cause and waits for it.
func (n *node) stop(cause error) {
	n.t.Helper()
	n.cancel(cause)
	select {
	case <-n.done:
	case <-time.After(n.h.Timeout):
		n.t.Errorf("Run did not end within %v of its context", n.h.Timeout)
	}
}

func (n *node) publish(exp mcs.Export) {
	n.t.Helper()
	if err := n.reg.Publish(n.t.Context(), exp); err != nil {
		n.t.Fatalf("Publish(%v): %v", exp.Key, err)
	}
}

func (n *node) withdraw(k mcs.Key) {
	n.t.Helper()
	if err := n.reg.Withdraw(n.t.Context(), k); err != nil {
		n.t.Fatalf("Withdraw(%v): %v", k, err)
	}
}

func (n *node) lookup(k mcs.Key) registry.View {
	n.t.Helper()
	view, err := n.reg.Lookup(n.t.Context(), k, n.importedClusters()...)
	if err != nil {
		n.t.Fatalf("Lookup(%v): %v", k, err)
	}
	return view
}

// condition returns the reason why a View does not meet it, or "".
type condition func(registry.View) string

// await looks k up once and then after each notification, until the condition is met: a change
// without a notification is a failure, as it would be for the controller.
func (n *node) await(k mcs.Key, met condition) {
	n.t.Helper()
	timeout := time.NewTimer(n.h.Timeout)
	defer timeout.Stop()
	for {
		count, changed := n.notifications(k)
		lacks := n.lacks(k, met)
		if lacks == "" {
			return
		}
		for count == n.count(k) {
			select {
			case <-changed:
				_, changed = n.notifications(k)
			case <-timeout.C:
				if n.lacks(k, met) == "" {
					n.t.Fatalf("the View of %v is as wanted, but there was no notification", k)
				}
				n.t.Fatalf("%v not within %v: %s", k, n.h.Timeout, lacks)
			}
		}
	}
}

// awaitNotified waits for a first notification of k.
func (n *node) awaitNotified(k mcs.Key) {
	n.t.Helper()
	n.h.until(n.t, fmt.Sprintf("a notification of %v", k), func() bool { return n.count(k) > 0 })
}

func (n *node) lacks(k mcs.Key, met condition) string {
	view, err := n.reg.Lookup(n.t.Context(), k, n.importedClusters()...)
	if err != nil {
		return err.Error()
	}
	return met(view)
}

// notifications returns how often k was notified, and a channel that the next notification closes.
func (n *node) notifications(k mcs.Key) (int, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.notified[k], n.changed
}

func (n *node) count(k mcs.Key) int {
	count, _ := n.notifications(k)
	return count
}

func (n *node) awaitMembers(want ...string) {
	n.t.Helper()
	n.h.until(n.t, fmt.Sprintf("members %v", want), func() bool {
		members, err := n.reg.Members(n.t.Context())
		if err != nil {
			return false
		}
		var got []string
		for _, m := range members {
			got = append(got, m.ClusterID)
		}
		return slices.Equal(got, want)
	})
}

// member returns a member, the zero value if it is not known.
func (n *node) member(clusterID string) registry.Member {
	members, err := n.reg.Members(n.t.Context())
	if err != nil {
		return registry.Member{}
	}
	for _, m := range members {
		if m.ClusterID == clusterID {
			return m
		}
	}
	return registry.Member{}
}

func (n *node) awaitProblem(clusterID string) {
	n.t.Helper()
	n.h.until(n.t, "a problem reported of member "+clusterID, func() bool {
		members, err := n.reg.Members(n.t.Context())
		return err == nil && slices.ContainsFunc(members, func(m registry.Member) bool {
			return m.ClusterID == clusterID && len(m.Problems) > 0
		})
	})
}

func all(conditions ...condition) condition {
	return func(v registry.View) string {
		var lacks []string
		for _, c := range conditions {
			if what := c(v); what != "" {
				lacks = append(lacks, what)
			}
		}
		return strings.Join(lacks, "; ")
	}
}

func isState(want registry.PublishState) condition {
	return func(v registry.View) string {
		if v.Local.State != want {
			return fmt.Sprintf("own status is %v (%v), want %v", v.Local.State, v.Local.Err, want)
		}
		return ""
	}
}

func unknownAre(want ...string) condition {
	return func(v registry.View) string {
		if !slices.Equal(v.In(registry.Unknown), want) {
			return fmt.Sprintf("unknown clusters %v, want %v", v.In(registry.Unknown), want)
		}
		return ""
	}
}

// oneExport is met by exactly one export, of any content.
func oneExport(v registry.View) string {
	if len(v.Exports()) != 1 {
		return fmt.Sprintf("%d exports, want 1", len(v.Exports()))
	}
	return ""
}

var comparers = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
}

var (
	created = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	changed = time.Date(2026, 11, 20, 10, 0, 1, 250e6, time.UTC)
)

// export returns the export of a ClusterIP Service with n IPv4 endpoints in three zones.
func export(clusterID string, k mcs.Key, n int) mcs.Export {
	return mcs.Export{
		Key: k, Cluster: clusterID, Created: created, Changed: changed,
		Type:            mcsv1beta1.ClusterSetIP,
		Ports:           []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		SessionAffinity: corev1.ServiceAffinityNone,
		IPFamilies:      []corev1.IPFamily{corev1.IPv4Protocol},
		Backends: []mcs.Backends{{
			Ports:     []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
			Endpoints: endpoints(netip.AddrFrom4([4]byte{10, 10, 0, 1}), n),
		}},
	}
}

// dualStackExport returns an export with n endpoints, half of them IPv4 and half IPv6.
func dualStackExport(clusterID string, k mcs.Key, n int) mcs.Export {
	exp := export(clusterID, k, n/2)
	exp.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, endpoints(netip.MustParseAddr("fd00:10:10::1"), n-n/2)...)
	return exp
}

func endpoints(first netip.Addr, n int) []mcs.Endpoint {
	result := make([]mcs.Endpoint, n)
	for i := range result {
		result[i] = mcs.Endpoint{Address: first, Ready: true, Serving: true, Zone: fmt.Sprintf("eu-west-1%c", 'a'+i%3)}
		first = first.Next()
	}
	return result
}

// fullExport returns an export with every field that is published, and those that are not: Node,
// Pod, InstanceAttributes, Region and InstanceDNS.
func fullExport(clusterID string, k mcs.Key) mcs.Export {
	timeout := int32(10)
	return mcs.Export{
		Key: k, Cluster: clusterID, Created: created, Changed: changed,
		Type: mcsv1beta1.Headless,
		Ports: []mcs.Port{
			{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, AppProtocol: "kubernetes.io/h2c", TargetPort: "web"},
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: "5353"},
			{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 9000, TargetPort: "9000"},
		},
		SessionAffinity:       corev1.ServiceAffinityClientIP,
		SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}},
		InternalTrafficPolicy: corev1.ServiceInternalTrafficPolicyLocal,
		TrafficDistribution:   corev1.ServiceTrafficDistributionPreferClose,
		IPFamilies:            []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol},
		Labels:                map[string]string{"team": "a", "example.com/tier": "front"},
		Annotations:           map[string]string{"example.com/note": "a text, with spaces and ünïcode"},
		InstanceAttributes:    "region=$(region)",
		Region:                "eu-west-1",
		InstanceDNS:           mcs.InstanceDNSAuto,
		Backends: []mcs.Backends{
			{
				Ports: []mcs.BackendPort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 5353}, {Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}, {Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 9000}},
				Endpoints: []mcs.Endpoint{
					{Address: netip.MustParseAddr("10.10.1.1"), Ready: true, Serving: true, Hostname: "web-0", Zone: "eu-west-1a", Node: "node-1", Pod: "web-0"},
					{Address: netip.MustParseAddr("10.10.1.1"), Ready: true, Serving: true, Hostname: "web-3", Zone: "eu-west-1a", Node: "node-1", Pod: "web-3"},
					{Address: netip.MustParseAddr("10.10.1.2"), Serving: true, Terminating: true, Hostname: "web-1", Zone: "eu-west-1b", Node: "node-2"},
					{Address: netip.MustParseAddr("fd00:10:10::2"), Hostname: "web-1", Node: "node-2"},
				},
			},
			{
				Ports:     []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 9090, AppProtocol: "example.com/own"}},
				Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.10.1.3"), Ready: true, Serving: true, Zone: "eu-west-1a"}},
			},
		},
	}
}

// selectingExport returns an export with the fields that fullExport, a headless one, cannot have.
func selectingExport(clusterID string, k mcs.Key) mcs.Export {
	exp := export(clusterID, k, 1)
	exp.ClusterSelectors = `[{"propertySelector":{"matchProperties":{"region.topology.k8s.io":"@SameAsImporter@"}}}]`
	exp.MinimumReady = 20
	exp.Drain = "30%"
	exp.Recipients = `[{"propertySelector":{"matchExpressions":[{"key":"cluster.clusterset.k8s.io","operator":"In","values":["cls2"]}]}}]`
	return exp
}

// overwrite changes everything that exp points to.
func overwrite(exp *mcs.Export) {
	exp.Ports[0].Port = 1
	exp.Labels["team"] = "overwritten"
	exp.Annotations["example.com/note"] = "overwritten"
	exp.IPFamilies[0] = corev1.IPv4Protocol
	*exp.SessionAffinityConfig.ClientIP.TimeoutSeconds = 1
	exp.Backends[0].Ports[0].Port = 1
	exp.Backends[0].Endpoints[0].Ready = false
}
