package tracing_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing/tracingtest"
)

const timeout = 30 * time.Second

func receiver(t *testing.T, options ...grpc.ServerOption) *tracingtest.Receiver {
	t.Helper()
	r, err := tracingtest.Start(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func tracer(t *testing.T, cfg tracing.Config) *tracing.Tracer {
	t.Helper()
	tr, err := tracing.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close(context.Background()) })
	return tr
}

func export(changed int64) mcs.Export {
	return mcs.Export{Key: mcs.Key{Namespace: "shop", Name: "cart"}, Cluster: "cls1", Changed: time.UnixMilli(changed)}
}

func identity(id string) mcs.Identity { return mcs.Identity{ClusterID: id, ClusterSetID: "set1"} }

// flush exports what was recorded.
func flush(t *testing.T, tr *tracing.Tracer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := tr.Close(ctx); err != nil {
		t.Error(err)
	}
}

// The steps of two clusters are in one trace, although they have exchanged nothing.
func TestRecord_JoinsClusters(t *testing.T) {
	r := receiver(t)
	began := time.UnixMilli(1_800_000_000_000)
	for _, step := range []struct{ cluster, name string }{{"cls2", tracing.Import}, {"cls1", tracing.Export}, {"cls1", tracing.WritePage}} {
		tr := tracer(t, tracing.Config{Endpoint: r.Address, Insecure: true, Ratio: 1, Version: "1.2.3", Logger: logr.Discard()})
		tr.Of(identity(step.cluster)).Record(step.name, export(7), began, began.Add(5*time.Millisecond))
		// another version
		tr.Of(identity(step.cluster)).Record(step.name, export(0).Canonical(), began, began)
		tr.Of(identity(step.cluster)).Record(step.name, mcs.Export{Cluster: "cls1"}, began, began)
		flush(t, tr)
	}
	traces := tracingtest.ByTrace(r.Spans())
	if len(traces) != 2 || len(traces[0]) != 3 || len(traces[1]) != 3 {
		t.Fatalf("%d traces, want 2 of 3 spans: %+v", len(traces), traces)
	}
	got := map[string]tracingtest.Span{}
	for _, s := range traces[0] {
		got[s.Name] = s
	}
	root := got[tracing.Export]
	if root.Parent != "" || got[tracing.WritePage].Parent != root.ID || got[tracing.Import].Parent != root.ID {
		t.Errorf("the spans are not children of %q: %+v", root.ID, traces[0])
	}
	want := map[string]string{
		"cluster": "cls2", "source_cluster": "cls1", "k8s.namespace.name": "shop", "k8s.service.name": "cart",
		"service.name": "cloud-map-mcs-controller", "service.version": "1.2.3",
	}
	if d := cmp.Diff(want, got[tracing.Import].Attributes); d != "" {
		t.Errorf("attributes (-want +got):\n%s", d)
	}
	if s := got[tracing.Import]; !s.Began.Equal(began) || s.Ended.Sub(s.Began) != 5*time.Millisecond {
		t.Errorf("the span is from %v to %v", s.Began, s.Ended)
	}
}

// Clusters with the same ratio trace the same changes.
func TestRecord_Samples(t *testing.T) {
	const changes = 400
	sampled := map[string][]string{}
	for _, id := range []string{"cls1", "cls2"} {
		r := receiver(t)
		tr := tracer(t, tracing.Config{Endpoint: r.Address, Insecure: true, Ratio: 0.25, Logger: logr.Discard()})
		for i := range changes {
			tr.Of(identity(id)).Record(tracing.ReadPage, export(int64(1+i)), time.UnixMilli(int64(1+i)), time.UnixMilli(int64(2+i)))
		}
		flush(t, tr)
		for _, s := range r.Spans() {
			sampled[id] = append(sampled[id], s.Trace)
		}
	}
	if d := cmp.Diff(sampled["cls1"], sampled["cls2"]); d != "" {
		t.Errorf("the clusters trace different changes:\n%s", d)
	}
	if n := len(sampled["cls1"]); n < changes/8 || n > changes/2 {
		t.Errorf("%d of %d changes are traced, want a quarter", n, changes)
	}
}

func TestNew_VerifiesReceiver(t *testing.T) {
	certificate, file := selfSigned(t)
	t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", file)
	creds := refusals{credentials.NewServerTLSFromCert(&certificate), make(chan struct{}, 100)}
	r := receiver(t, grpc.Creds(creds))
	tr := tracer(t, tracing.Config{Endpoint: r.Address, Ratio: 1, Logger: logr.Discard()})
	tr.Of(identity("cls1")).Record(tracing.Export, export(1), time.UnixMilli(1), time.UnixMilli(2))
	flush(t, tr)
	if n := len(r.Spans()); n != 1 {
		t.Errorf("%d spans arrived, want 1", n)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "")
	tr = tracer(t, tracing.Config{Endpoint: r.Address, Ratio: 1, Logger: logr.Discard()})
	tr.Of(identity("cls1")).Record(tracing.Export, export(1), time.UnixMilli(1), time.UnixMilli(2))
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	go func() { <-creds.refused; cancel() }() // else it retries
	if err := tr.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("closing returns %v, want the end of the context after a refused connection", err)
	}
	if n := len(r.Spans()); n != 1 {
		t.Errorf("%d spans arrived at a receiver with an unknown certificate, want 0 more", n-1)
	}
}

// refusals are the credentials of a server that reports failed handshakes.
type refusals struct {
	credentials.TransportCredentials
	refused chan struct{}
}

func (r refusals) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := r.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		r.refused <- struct{}{}
	}
	return secure, info, err
}

// A problem is logged once.
func TestNew_LogsFailure(t *testing.T) {
	var logged int
	tracer(t, tracing.Config{Endpoint: "127.0.0.1:1", Insecure: true, Ratio: 1, Logger: funcr.New(func(string, string) { logged++ }, funcr.Options{})})
	for range 3 {
		otel.Handle(errors.New("no receiver"))
	}
	if logged != 1 {
		t.Errorf("the problem is logged %d times, want 1", logged)
	}
}

func TestNilTracer(t *testing.T) {
	var tr *tracing.Tracer
	tr.Of(identity("cls1")).Record(tracing.Export, export(1), time.Time{}, time.Time{})
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// BenchmarkRecord shows the cost of a step: without tracing, of a change that is not sampled, and
// of one that is.
func BenchmarkRecord(b *testing.B) {
	now := time.UnixMilli(1_800_000_000_000)
	run := func(name string, c *tracing.Cluster) {
		b.Run(name, func(b *testing.B) {
			exp := export(1)
			b.ReportAllocs()
			for b.Loop() {
				c.Record(tracing.WritePage, exp, now, now)
			}
		})
	}
	run("off", nil)
	for name, ratio := range map[string]float64{"unsampled": 0, "sampled": 1} {
		tr, err := tracing.New(b.Context(), tracing.Config{Endpoint: "127.0.0.1:1", Insecure: true, Ratio: ratio, Logger: logr.Discard()})
		if err != nil {
			b.Fatal(err)
		}
		run(name, tr.Of(identity("cls1")))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = tr.Close(ctx) // there is no receiver
	}
}

// selfSigned returns a certificate of 127.0.0.1 and a PEM file of it.
func selfSigned(t *testing.T) (certificate tls.Certificate, file string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}
