package dns

import (
	"context"
	"maps"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A server answers queries from records, by name and type. The key is "NAME TYPE", the value the
// data, "SERVFAIL" or "REFUSED". Other names do not exist.
type server struct {
	mu      sync.Mutex
	records map[string]string
	queries atomic.Int32
}

// zones returns the records of a DNS server, changed by others.
func zones(changes ...map[string]string) map[string]string {
	all := map[string]string{
		versionName + " TXT":  "1.1.0",
		ownService + ". A":    "10.96.0.1",
		ownService + ". AAAA": "fd00:96::1",
	}
	for _, c := range changes {
		maps.Copy(all, c)
	}
	return all
}

func (s *server) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	question := query.Question[0]
	name := question.Name
	if strings.HasPrefix(name, ownService+".") && name != exposedService {
		name = ownService + "." // whatever the search domains of this host are
	}
	kind := dns.TypeToString[question.Qtype]
	s.mu.Lock()
	defer s.mu.Unlock()
	switch data := s.records[name+" "+kind]; data {
	case "":
		reply.Rcode = dns.RcodeNameError
	case "SERVFAIL", "REFUSED":
		reply.Rcode = dns.StringToRcode[data]
	default:
		rr, err := dns.NewRR(question.Name + " 5 IN " + kind + " " + data)
		if err != nil {
			panic(err)
		}
		reply.Answer = []dns.RR{rr}
	}
	_ = w.WriteMsg(reply)
}

// set sets the records.
func (s *server) set(records map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = records
}

// resolver returns a resolver that asks the server through a pipe, so that a test can use virtual
// time.
func (s *server) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		client, conn := net.Pipe()
		go s.serve(conn)
		context.AfterFunc(ctx, func() { _, _ = client.Close(), conn.Close() })
		return client, nil
	}}
}

// serve serves one connection.
func (s *server) serve(conn net.Conn) {
	c := &dns.Conn{Conn: conn}
	for {
		query, err := c.ReadMsg()
		if err != nil {
			return
		}
		s.queries.Add(1)
		s.ServeDNS(pipeWriter{c}, query)
	}
}

type pipeWriter struct{ *dns.Conn }

func (pipeWriter) TsigStatus() error           { return nil }
func (pipeWriter) TsigTimersOnly(bool)         {}
func (pipeWriter) Hijack()                     {}
func (pipeWriter) Network() string             { return "tcp" }
func (w pipeWriter) WriteMsg(m *dns.Msg) error { return w.Conn.WriteMsg(m) }

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		records map[string]string
		want    status.DNS
	}{
		"served": {zones(), status.DNS{State: status.DNSServed}},
		"not served": {
			zones(map[string]string{versionName + " TXT": ""}),
			status.DNS{State: status.DNSNotServed, Problem: "the cluster's DNS does not resolve dns-version.clusterset.local. (TXT): no such host"},
		},
		"an upstream server refuses the zone": {
			zones(map[string]string{versionName + " TXT": "REFUSED"}),
			status.DNS{State: status.DNSNotServed, Problem: "the cluster's DNS does not resolve dns-version.clusterset.local. (TXT): server misbehaving"},
		},
		"an upstream server answers every name": {
			zones(map[string]string{versionName + " TXT": "parked", exposedService + " A": "192.0.2.1"}),
			status.DNS{State: status.DNSNotServed, Problem: `the cluster's DNS does not resolve dns-version.clusterset.local. (TXT): the answer ["parked"] is not a version`},
		},
		"Services instead of ServiceImports": {
			zones(map[string]string{exposedService + " A": "10.96.0.1"}),
			status.DNS{State: status.DNSNotServed, Problem: "names of clusterset.local resolve to the Services of this cluster: the option multicluster of CoreDNS is missing"},
		},
		"an import default/kubernetes": {
			zones(map[string]string{exposedService + " A": "10.96.7.7"}), status.DNS{State: status.DNSServed},
		},
		"the DNS of another host": {
			nil, status.DNS{State: status.DNSUnknown, Problem: "the DNS of the controller's pod does not resolve kubernetes.default.svc either: no such host"},
		},
		"the DNS fails": {
			map[string]string{versionName + " TXT": "SERVFAIL", ownService + ". A": "SERVFAIL", ownService + ". AAAA": "SERVFAIL"},
			status.DNS{State: status.DNSUnknown, Problem: "the DNS of the controller's pod does not resolve kubernetes.default.svc either: server misbehaving"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := NewWatcher((&server{records: tt.records}).resolver(), nil, logr.Discard()).check(t.Context())
			if got.Checked.IsZero() {
				t.Error("no time")
			}
			if got.Checked = (time.Time{}); got != tt.want {
				t.Errorf("got %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// TestStart: names that stop and start again to resolve, in virtual time.
func TestStart(t *testing.T) {
	// The resolver makes a channel at its first use, which must not belong to a bubble.
	_, _ = (&server{}).resolver().LookupTXT(t.Context(), versionName)
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := &server{records: zones()}
		requeued := 0
		w := NewWatcher(s.resolver(), func(context.Context) error { requeued++; return nil }, funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{}))
		if got := w.State(); got.State != status.DNSUnknown || got.Problem == "" || len(collect(w)) != 0 {
			t.Errorf("before the first check: %+v, metrics %v", got, collect(w))
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Start(ctx) }()
		after := func(d time.Duration, want string, metric float64) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := w.State().State; got != want || len(collect(w)) != 1 || collect(w)[0] != metric {
				t.Errorf("after %s: %s, metrics %v, want %s, %v", d, got, collect(w), want, metric)
			}
		}
		shown := func(want mcs.Resolution, wantRequeued int) {
			t.Helper()
			if got := w.Resolution(); got != want || requeued != wantRequeued {
				t.Errorf("imports show %d and were requeued %d times, want %d and %d", got, requeued, want, wantRequeued)
			}
		}
		after(0, status.DNSServed, 1)
		shown(mcs.Resolvable, 1)
		if n := s.queries.Load(); n != 3 {
			t.Errorf("%d queries for a name that resolves, want 3: TXT, A and AAAA", n)
		}
		s.set(zones(map[string]string{versionName + " TXT": ""}))
		after(interval-time.Second, status.DNSServed, 1)
		after(time.Second, status.DNSNotServed, 0)
		s.set(zones())
		after(retryInterval-time.Second, status.DNSNotServed, 0)
		after(time.Second, status.DNSServed, 1)
		shown(mcs.Resolvable, 1) // a short failure
		s.set(zones(map[string]string{versionName + " TXT": ""}))
		after(interval, status.DNSNotServed, 0)
		after(lasting-time.Second, status.DNSNotServed, 0)
		shown(mcs.Resolvable, 1)
		after(time.Second, status.DNSNotServed, 0)
		shown(mcs.NotResolvable, 2)
		s.set(nil) // no server answers: nothing new is known
		time.Sleep(retryInterval)
		synctest.Wait()
		shown(mcs.NotResolvable, 2)
		s.set(zones())
		after(retryInterval, status.DNSServed, 1)
		shown(mcs.Resolvable, 3)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if lines := strings.Split(log.String(), "\n"); len(lines) != 4 || !strings.Contains(lines[0], "Failed to resolve") || !strings.Contains(lines[1], "resolve again") {
			t.Errorf("log:\n%s", log.String())
		}
	})
}

// TestDial queries a server over UDP, as a pod does, and ends while the server does not answer.
func TestDial(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := &dns.Server{PacketConn: conn, Handler: &server{records: zones()}}
	go func() { _ = s.ActivateAndServe() }()
	defer func() { _ = s.Shutdown() }()
	to := func(address net.Addr) *net.Resolver {
		return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, address.String())
		}}
	}
	if got := NewWatcher(to(conn.LocalAddr()), nil, logr.Discard()).check(t.Context()); got.State != status.DNSServed {
		t.Errorf("got %+v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := NewWatcher(to(silent.LocalAddr()), nil, logr.Discard()).Start(ctx); err != nil || time.Since(began) > 3*time.Second {
		t.Errorf("a query took %s after the end of its context (%v)", time.Since(began), err)
	}
}

// collect returns the values of the metrics.
func collect(w *Watcher) (values []float64) {
	r := prometheus.NewRegistry()
	r.MustRegister(w)
	families, err := r.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values = append(values, m.GetGauge().GetValue())
		}
	}
	return values
}
