// Package tracingtest is an OTLP receiver for gRPC that keeps the spans it gets.
package tracingtest

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Span is a span as it arrived.
type Span struct {
	Trace, ID, Parent string
	Name              string
	Began, Ended      time.Time
	// Attributes are those of the span and its resource.
	Attributes map[string]string
}

// Receiver receives spans.
type Receiver struct {
	collector.UnimplementedTraceServiceServer
	// Address is the host and port that it listens on.
	Address string
	server  *grpc.Server

	mu      sync.Mutex
	spans   []Span
	arrived chan struct{}
}

// Start starts a Receiver on a free port. The caller closes it.
func Start(options ...grpc.ServerOption) (*Receiver, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for traces: %w", err)
	}
	r := &Receiver{Address: listener.Addr().String(), server: grpc.NewServer(options...), arrived: make(chan struct{})}
	collector.RegisterTraceServiceServer(r.server, r)
	go func() { _ = r.server.Serve(listener) }() // ends with Close
	return r, nil
}

// Close ends the receiver.
func (r *Receiver) Close() { r.server.Stop() }

// Export implements the collector's service.
func (r *Receiver) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ofResource := range request.GetResourceSpans() {
		for _, ofScope := range ofResource.GetScopeSpans() {
			for _, s := range ofScope.GetSpans() {
				span := newSpan(s)
				for _, a := range ofResource.GetResource().GetAttributes() {
					span.Attributes[a.GetKey()] = a.GetValue().GetStringValue()
				}
				r.spans = append(r.spans, span)
			}
		}
	}
	close(r.arrived)
	r.arrived = make(chan struct{})
	return &collector.ExportTraceServiceResponse{}, nil
}

func newSpan(s *otlp.Span) Span {
	span := Span{
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()), Name: s.GetName(),
		Began: time.Unix(0, int64(s.GetStartTimeUnixNano())), Ended: time.Unix(0, int64(s.GetEndTimeUnixNano())), Attributes: map[string]string{},
	}
	for _, a := range s.GetAttributes() {
		span.Attributes[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return span
}

// Spans returns the spans that have arrived, by their begin.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	spans := slices.Clone(r.spans)
	slices.SortStableFunc(spans, func(a, b Span) int { return cmp.Or(a.Began.Compare(b.Began), b.Ended.Compare(a.Ended)) })
	return spans
}

// Await returns the spans of the first trace that is complete, as done decides, or what has arrived
// when ctx ends.
func (r *Receiver) Await(ctx context.Context, done func(trace []Span) bool) ([]Span, error) {
	for {
		r.mu.Lock()
		arrived := r.arrived
		r.mu.Unlock()
		for _, trace := range ByTrace(r.Spans()) {
			if done(trace) {
				return trace, nil
			}
		}
		select {
		case <-ctx.Done():
			return r.Spans(), fmt.Errorf("waiting for a trace: %w", ctx.Err())
		case <-arrived:
		}
	}
}

// ByTrace groups spans by their traces, in the order of their first spans.
func ByTrace(spans []Span) (traces [][]Span) {
	number := map[string]int{}
	for _, s := range spans {
		i, known := number[s.Trace]
		if !known {
			i, number[s.Trace] = len(traces), len(traces)
			traces = append(traces, nil)
		}
		traces[i] = append(traces[i], s)
	}
	return traces
}

// Print formats a trace: the cluster, the begin of each span after that of the first one, and its
// duration, in milliseconds.
func Print(trace []Span) string {
	var out strings.Builder
	for _, s := range trace {
		fmt.Fprintf(&out, "%-10s %-22s %8.1f %8.1f\n", s.Attributes["cluster"], s.Name, milliseconds(s.Began.Sub(trace[0].Began)), milliseconds(s.Ended.Sub(s.Began)))
	}
	return out.String()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
