// Package tracing exports the steps of a change on its way from one cluster to the others as
// OpenTelemetry spans, by OTLP.
//
// Clusters exchange nothing for it. The ID of a trace is a hash of what each controller knows of
// the export, so that the spans of all clusters are in one trace. Spans name the service and the
// clusters; they have no addresses, labels or annotations.
package tracing

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// The steps of a change, in their order. Export is the root of the trace, all others are its
// children.
const (
	// Export reads the objects of a service and makes the export of them.
	Export = "export"
	// EncodePage, WritePage and WriteRecord are those of Cloud Map, WriteExport that of etcd.
	EncodePage  = "encode page"
	WritePage   = "write page"
	WriteRecord = "write record"
	WriteExport = "write export"
	// AwaitRead is the time from a peer notification to the read that it causes.
	AwaitRead   = "await read"
	ReadMembers = "read members"
	ReadPage    = "read page"
	// ReceivePage is in place of these and of Decode if the cluster has sent the page.
	ReceivePage = "receive page"
	// Decode verifies and decodes what was read. ReadExport is that of etcd, from the event of the
	// watch.
	Decode     = "decode"
	ReadExport = "read export"
	// Import looks the service up, decides and writes its objects. WriteSlices is the last part of
	// it.
	Import      = "import"
	WriteSlices = "write EndpointSlices"
)

// Config configures New.
type Config struct {
	// Endpoint is the host and port of an OTLP receiver for gRPC.
	Endpoint string
	// Insecure connects without TLS. With TLS, the environment variables of OTLP exporters name
	// certificates, such as OTEL_EXPORTER_OTLP_CERTIFICATE.
	Insecure bool
	// Ratio is the part of the changes that are traced, the same ones in all clusters with the same
	// ratio.
	Ratio   float64
	Version string
	Logger  logr.Logger
}

// Tracer exports spans. The nil *Tracer does nothing.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New returns a Tracer. It connects when there are spans, and drops those that the receiver does
// not take in time.
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	otel.SetErrorHandler(&errorLog{log: cfg.Logger})
	options := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(cfg.Endpoint)}
	if cfg.Insecure {
		options = append(options, otlptracegrpc.WithInsecure())
	}
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("creating the exporter of traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(time.Second)),
		sdktrace.WithIDGenerator(idGenerator{}),
		sdktrace.WithSampler(sdktrace.TraceIDRatioBased(cfg.Ratio)),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", names.Product), attribute.String("service.version", cfg.Version))),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer(names.Product)}, nil
}

// Close exports the spans that are left, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Of returns the recorder of the steps that a cluster does.
func (t *Tracer) Of(identity mcs.Identity) *Cluster {
	if t == nil {
		return nil
	}
	return &Cluster{tracer: t.tracer, identity: identity}
}

// Cluster records the steps that one cluster does. The nil *Cluster does nothing.
type Cluster struct {
	tracer   trace.Tracer
	identity mcs.Identity
}

// Record records a step of the change that made exp as it is. It does no I/O. An export that does
// not say when it changed is not traced.
func (c *Cluster) Record(step string, exp mcs.Export, began, ended time.Time) {
	if c == nil || exp.Changed.IsZero() {
		return
	}
	ids := idsOf(c.identity.ClusterSetID, exp)
	ctx := context.WithValue(context.Background(), idsKey{}, ids)
	options := []trace.SpanStartOption{trace.WithTimestamp(began), trace.WithNewRoot()}
	if step != Export {
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: ids.trace, SpanID: ids.root, Remote: true}))
		options = options[:1]
	}
	_, span := c.tracer.Start(ctx, step, options...)
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("cluster", c.identity.ClusterID), attribute.String("source_cluster", exp.Cluster),
			attribute.String("k8s.namespace.name", exp.Key.Namespace), attribute.String("k8s.service.name", exp.Key.Name))
	}
	span.End(trace.WithTimestamp(ended))
}

// ids are those of a trace.
type ids struct {
	trace trace.TraceID
	root  trace.SpanID
}

type idsKey struct{}

// idsOf derives the IDs of a trace from a version of an export.
func idsOf(clusterSetID string, exp mcs.Export) (i ids) {
	var text []byte
	for _, part := range []string{clusterSetID, exp.Cluster, exp.Key.Namespace, exp.Key.Name} {
		text = append(append(text, part...), 0) // names have no zero bytes
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(text, uint64(exp.Changed.UnixMilli())))
	copy(i.root[:], sum[copy(i.trace[:], sum[:]):])
	return i
}

// idGenerator returns the IDs of the context, and random ones for the other spans.
type idGenerator struct{}

// NewIDs implements sdktrace.IDGenerator.
func (idGenerator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	i, _ := ctx.Value(idsKey{}).(ids)
	return i.trace, i.root
}

// NewSpanID implements sdktrace.IDGenerator.
func (idGenerator) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1) // zero is not valid
	return id
}

// errorLog logs failures to export, those with the same text once in a row.
type errorLog struct {
	log  logr.Logger
	mu   sync.Mutex
	last string
}

// Handle implements otel.ErrorHandler.
func (l *errorLog) Handle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err.Error() != l.last {
		l.last = err.Error()
		l.log.Info("Failed to export traces; the controller works without them", "error", l.last)
	}
}
