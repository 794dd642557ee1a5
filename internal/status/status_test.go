package status

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

type source struct{ err error }

func (s source) Status(context.Context) Status { return Status{Version: "v1", Leader: true} }
func (s source) Service(_ context.Context, key mcs.Key) (Service, error) {
	return Service{Key: key, Exports: []mcs.Export{{Key: key, Cluster: "cls2", Backends: []mcs.Backends{{
		Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.0.0.1"), Ready: true}},
	}}}}}, s.err
}
func (s source) Services(context.Context) ([]Service, error)         { return []Service{}, s.err }
func (s source) Probe(_ context.Context, key mcs.Key) (Probe, error) { return Probe{Key: key}, s.err }
func (s source) Reach(_ context.Context, ip netip.Addr) (out Connection) {
	out.Address = ip.String()
	return out
}

var metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("go_goroutines 7\n")) })

func TestHandler(t *testing.T) {
	key := mcs.Key{Namespace: "demo", Name: "web"}
	tests := []struct {
		path, method string
		err          error
		wantCode     int
		want         string
	}{
		{path: PathStatus, wantCode: 200, want: `"version":"v1"`},
		{path: PathServices, wantCode: 200, want: `[]`},
		{path: ServicePath(key), wantCode: 200, want: `"exports":[{"key":{"namespace":"demo","name":"web"},"cluster":"cls2"`},
		{path: ServicePath(key), wantCode: 200, want: `"endpoints":[{"address":"10.0.0.1","ready":true,"serving":false}]`},
		{path: ProbePath(key), wantCode: 200, want: `{"key":{"namespace":"demo","name":"web"}`},
		{path: PathMetrics, wantCode: 200, want: "go_goroutines 7"},
		{path: ReachPath("10.0.0.9"), wantCode: 200, want: `{"address":"10.0.0.9","milliseconds":0}`},
		{path: ReachPath("2001:db8::1"), wantCode: 200, want: `{"address":"2001:db8::1"`},
		{path: ReachPath("example.com"), wantCode: 400, want: `"example.com" is not an IP address`},
		{path: PathServices, err: errors.New("not read yet"), wantCode: 503, want: "not read yet"},
		{path: PathStatus, method: http.MethodPost, wantCode: 405},
		{path: "/", wantCode: 404},
	}
	for _, tt := range tests {
		method := tt.method
		if method == "" {
			method = http.MethodGet
		}
		w := httptest.NewRecorder()
		NewHandler(source{tt.err}, metrics).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, tt.path, nil))
		if w.Code != tt.wantCode || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s %s: %d %s, want %d with %s", method, tt.path, w.Code, w.Body, tt.wantCode, tt.want)
		}
	}
}

// future has an export that JSON cannot encode.
type future struct{ source }

func (future) Services(context.Context) ([]Service, error) {
	return []Service{{Exports: []mcs.Export{{Created: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}}}}, nil
}

// TestHandlerReportsEncodingErrors: an empty answer with code 200 would look like a clusterset
// without services.
func TestHandlerReportsEncodingErrors(t *testing.T) {
	w := httptest.NewRecorder()
	NewHandler(future{}, metrics).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, PathServices, nil))
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "encoding the response") {
		t.Errorf("code %d with %q, want 500 with the reason", w.Code, w.Body)
	}
}

// TestStatusRoundTrip: the plugin decodes what a controller encodes.
func TestStatusRoundTrip(t *testing.T) {
	want, _ := source{}.Service(t.Context(), mcs.Key{Namespace: "demo", Name: "web"})
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Service
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestProbe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()

	key := mcs.Key{Namespace: "demo", Name: "web"}
	p := Prober{lookup: func(_ context.Context, name string) ([]string, error) {
		if name != "web.demo.svc.clusterset.local." {
			t.Errorf("looked up %s", name)
		}
		return []string{"10.0.0.2", "10.0.0.1"}, nil
	}}
	got := p.Probe(t.Context(), key, []Target{{Address: listener.Addr().String()}, {Address: closed.Addr().String(), Cluster: "cls2"}})
	want := Probe{Key: key, Name: "web.demo.svc.clusterset.local", Addresses: []string{"10.0.0.1", "10.0.0.2"}, Connections: []Connection{
		{Target: Target{Address: listener.Addr().String()}},
		{Target: Target{Address: closed.Addr().String(), Cluster: "cls2"}, Problem: "connect: connection refused"},
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Connection{}, "Milliseconds")); diff != "" {
		t.Error(diff)
	}
}

func TestProbeProblems(t *testing.T) {
	ended, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if got := (Prober{}).Connect(ended, Target{Address: "192.0.2.1:80"}); got.Problem != "no answer" {
		t.Errorf("a connection that times out: %+v", got)
	}
	p := Prober{lookup: func(context.Context, string) ([]string, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "x", Server: "10.96.0.10:53"}
	}}
	if got := p.Probe(t.Context(), mcs.Key{}, nil); got.LookupProblem != "no such host" {
		t.Errorf("a name that is not there: %+v", got)
	}
}
