package paths

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func TestClassify(t *testing.T) {
	connect := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	tests := map[string]struct {
		err  error
		want outcome
	}{
		"accepted":            {nil, reached},
		"refused":             {connect(syscall.ECONNREFUSED), reached},
		"reset":               {connect(syscall.ECONNRESET), reached},
		"timed out":           {&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, unreached},
		"deadline":            {context.DeadlineExceeded, unreached},
		"no route to host":    {connect(syscall.EHOSTUNREACH), unreached},
		"network unreachable": {connect(syscall.ENETUNREACH), unreached},
		"not permitted":       {connect(syscall.EPERM), inconclusive},
		"the process ends":    {context.Canceled, inconclusive},
		"no local port":       {connect(syscall.EADDRNOTAVAIL), inconclusive},
		"anything else":       {errors.New("x"), inconclusive},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := classify(tt.err); got != tt.want {
				t.Errorf("outcome %d of %v, want %d", got, tt.err, tt.want)
			}
		})
	}
}

// members is a registry that has members only.
type members struct {
	registry.Registry
	list []registry.Member
}

func (m *members) Members(context.Context) ([]registry.Member, error) { return m.list, nil }

func webExport(cluster, name string, protocol corev1.Protocol, addresses ...string) mcs.Export {
	e := mcs.Export{Key: mcs.Key{Namespace: "demo", Name: name}, Cluster: cluster}
	b := mcs.Backends{Ports: []mcs.BackendPort{{Protocol: protocol, Port: 8080}}}
	for _, a := range addresses {
		b.Endpoints = append(b.Endpoints, mcs.Endpoint{Address: netip.MustParseAddr(a), Ready: true})
	}
	e.Backends = []mcs.Backends{b}
	return e
}

// newTestPaths returns the paths of cls1 to cls2, whose controller has an address if it is not "".
func newTestPaths(controller string) *Paths {
	m := registry.Member{ClusterID: "cls2"}
	if controller != "" {
		m.Address = netip.MustParseAddr(controller)
	}
	state := &membership.State{Session: &membership.Session{
		Identity: mcs.Identity{ClusterID: "cls1"}, Registry: &members{list: []registry.Member{{ClusterID: "cls1"}, m}},
	}}
	p := New(Config{
		Mode: mcs.PathHealthWithdraw, HealthPort: 8081, State: func() *membership.State { return state },
		CheckAddress: func(_ string, a netip.Addr) error {
			if netip.MustParsePrefix("10.9.0.0/16").Contains(a) {
				return errors.New("refused by the import policy")
			}
			return nil
		},
	})
	p.tracker = pathhealth.NewTracker(pathhealth.DefaultRules, nil)
	return p
}

// simulate runs rounds without a network, every 5 s, and returns the probed addresses of each.
// answers reports whether an address answers.
func (p *Paths) simulate(t *testing.T, start time.Time, rounds int, answers func(address string) bool) (probed [][]string) {
	t.Helper()
	for i := range rounds {
		now := start.Add(time.Duration(i) * defaultTimes.Round)
		r, ok := p.plan(t.Context(), now)
		if !ok {
			t.Fatal("no round")
		}
		var addresses []string
		for j := range r.probes {
			addresses = append(addresses, r.probes[j].address.String())
			r.probes[j].outcome = unreached
			if answers(r.probes[j].address.String()) {
				r.probes[j].outcome = reached
			}
		}
		slices.Sort(addresses)
		probed = append(probed, addresses)
		p.observe(r, now)
		v := p.tracker.Decide(now)
		p.verdict.Store(&v)
	}
	return probed
}

var began = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

const controllerAddress = "10.2.9.9:8081"

func always(string) bool { return true }

func TestPaths_ProbesEndpointsRarelyWhileTheControllerAnswers(t *testing.T) {
	p := newTestPaths("10.2.9.9")
	for i := range 10 {
		name := fmt.Sprint("web-", i)
		p.SetExports(mcs.Key{Namespace: "demo", Name: name}, []mcs.Export{webExport("cls2", name, corev1.ProtocolTCP, fmt.Sprintf("10.2.0.%d", i+1))})
	}
	probed := p.simulate(t, began, 13, always)
	for i, addresses := range probed {
		want := 1
		if i == 0 || i == 12 {
			want = 1 + maxEndpoints
		}
		if len(addresses) != want || !slices.Contains(addresses, controllerAddress) {
			t.Errorf("round %d probed %v, want the controller among %d", i, addresses, want)
		}
	}
	// No target answers any more: the second round from now probes the endpoints as well, and so do
	// all later ones.
	cut := began.Add(13 * defaultTimes.Round)
	probed = p.simulate(t, cut, 4, func(string) bool { return false })
	if len(probed[0]) != 1 {
		t.Errorf("the first round probed %v, want the controller", probed[0])
	}
	for _, addresses := range probed[2:] {
		if len(addresses) != 1+maxEndpoints {
			t.Errorf("a round while nothing answers probed %v", addresses)
		}
	}
}

func TestPaths_ProbesFirstEndpointsAtOnce(t *testing.T) {
	p := newTestPaths("")
	p.simulate(t, began, 20, always)
	if got := p.Verdict().State("cls2"); got != pathhealth.Unknown {
		t.Fatalf("state %q without targets, want Unknown", got)
	}
	p.SetExports(mcs.Key{Namespace: "demo", Name: "web"}, []mcs.Export{webExport("cls2", "web", corev1.ProtocolTCP, "10.2.0.1")})
	probed := p.simulate(t, began.Add(20*defaultTimes.Round), 3, always)
	if len(probed[0]) != 1 {
		t.Errorf("the first round with an endpoint probed %v", probed[0])
	}
	if got := p.Verdict().State("cls2"); got != pathhealth.Reachable {
		t.Errorf("state %q, want Reachable", got)
	}
}

func TestPaths_DetectsWithin30s(t *testing.T) {
	for _, controller := range []string{"10.2.9.9", ""} {
		p := newTestPaths(controller)
		for i := range 4 {
			name := fmt.Sprint("web-", i)
			p.SetExports(mcs.Key{Namespace: "demo", Name: name}, []mcs.Export{webExport("cls2", name, corev1.ProtocolTCP, fmt.Sprintf("10.2.0.%d", i+1))})
		}
		p.simulate(t, began, 20, always)
		if got := p.Verdict().State("cls2"); got != pathhealth.Reachable {
			t.Fatalf("with controller %q: state %q, want Reachable", controller, got)
		}
		lastSuccess := began.Add(19 * defaultTimes.Round)
		p.simulate(t, began.Add(20*defaultTimes.Round), 6, func(string) bool { return false })
		if v := p.tracker.Decide(lastSuccess.Add(pathhealth.DefaultRules.UnreachableAfter)); v.State("cls2") != pathhealth.Unreachable {
			t.Errorf("with controller %q: state %q 30 s after the last success, want Unreachable", controller, v.State("cls2"))
		}
	}
}

// A service is scaled to 0 and back, and the path fails in between. The cluster has no other
// endpoints and no address of its controller.
func TestPaths_DetectsWithin30sOfEndpointsThatReturn(t *testing.T) {
	// rounds; after 12 of them the state is Unknown, and probes are rare
	for _, without := range []int{1, 3, 12, 13, 24, 25, 100} {
		p := newTestPaths("")
		set := func(ready bool) {
			for i := range 3 {
				name := fmt.Sprint("web-", i)
				e := webExport("cls2", name, corev1.ProtocolTCP, fmt.Sprintf("10.2.0.%d", i+1))
				e.Backends[0].Endpoints[0].Ready = ready
				p.SetExports(e.Key, []mcs.Export{e})
			}
		}
		set(true)
		p.simulate(t, began, 20, always)
		set(false)
		p.simulate(t, began.Add(20*defaultTimes.Round), without, always)
		set(true)
		back := began.Add(time.Duration(20+without) * defaultTimes.Round)
		p.simulate(t, back, 6, func(string) bool { return false })
		if v := p.tracker.Decide(back.Add(pathhealth.DefaultRules.UnreachableAfter)); v.State("cls2") != pathhealth.Unreachable {
			t.Errorf("%d rounds without endpoints: state %q 30 s after they returned, want Unreachable", without, v.State("cls2"))
		}
	}
}

// The records of a member determine which addresses are probed, within limits: no address that the
// import policy refuses, at most the controller and three endpoints in a round, and one round a
// minute if none answers.
func TestPaths_BoundsWhatAMemberHasProbed(t *testing.T) {
	p := newTestPaths("10.9.0.1") // refused
	for i := range 1000 {
		name := fmt.Sprint("scan-", i)
		// every other one is refused
		address := fmt.Sprintf("10.%d.%d.%d", 2+7*(i%2), i/200, i%200+1)
		p.SetExports(mcs.Key{Namespace: "demo", Name: name}, []mcs.Export{webExport("cls2", name, corev1.ProtocolTCP, address)})
	}
	probed := p.simulate(t, began, 12*10, func(string) bool { return false })
	total := 0
	for i, addresses := range probed {
		total += len(addresses)
		if len(addresses) > maxEndpoints {
			t.Errorf("round %d probed %v", i, addresses)
		}
		for _, a := range addresses {
			if netip.MustParsePrefix("10.9.0.0/16").Contains(netip.MustParseAddrPort(a).Addr()) {
				t.Errorf("round %d probed %s, which the import policy refuses", i, a)
			}
		}
	}
	// 13 rounds until the state is Unknown, then one of twelve.
	if limit := maxEndpoints * (13 + 10); total > limit {
		t.Errorf("%d connections in ten minutes, want at most %d", total, limit)
	}
}

func TestPaths_SetExports(t *testing.T) {
	p := newTestPaths("")
	key := mcs.Key{Namespace: "demo", Name: "web"}
	targets := func() (out []string) {
		for cluster, endpoints := range p.endpoints {
			for _, a := range endpoints {
				out = append(out, cluster+" "+a.String())
			}
		}
		slices.Sort(out)
		return out
	}
	notReady := webExport("cls2", "web", corev1.ProtocolTCP, "10.2.0.1", "10.2.0.2")
	notReady.Backends[0].Endpoints[0].Ready = false
	steps := []struct {
		exports []mcs.Export
		want    []string
	}{
		{[]mcs.Export{webExport("cls2", "web", corev1.ProtocolTCP, "10.2.0.1"), webExport("cls3", "web", corev1.ProtocolTCP, "10.3.0.1")}, []string{"cls2 10.2.0.1:8080", "cls3 10.3.0.1:8080"}},
		{[]mcs.Export{notReady}, []string{"cls2 10.2.0.2:8080"}},
		{[]mcs.Export{webExport("cls2", "web", corev1.ProtocolUDP, "10.2.0.1")}, nil},
		{[]mcs.Export{webExport("cls2", "web", corev1.ProtocolTCP, "10.2.0.1")}, []string{"cls2 10.2.0.1:8080"}},
		{nil, nil},
	}
	for i, step := range steps {
		p.SetExports(key, step.exports)
		if got := targets(); !slices.Equal(got, step.want) {
			t.Errorf("step %d: targets %v, want %v", i, got, step.want)
		}
	}
}

func TestPaths_NilIsOff(t *testing.T) {
	p := New(Config{Mode: mcs.PathHealthOff})
	p.SetExports(mcs.Key{}, nil)
	if v := p.Verdict(); p != nil || len(v.Paths) != 0 || p.Mode() != mcs.PathHealthOff {
		t.Errorf("paths %v in mode %s with %v", p, p.Mode(), v)
	}
}
