package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing/tracingtest"
)

// LatencyOptions are the options of MeasureLatency.
type LatencyOptions struct {
	Controller, Assets string
	Registry           string
	// Changes is the number of changes of an endpoint, one after the other.
	Changes int
	// Rest is the longest pause between two changes.
	Rest time.Duration
	Out  io.Writer
}

// Step is a step of a change, with its durations.
type Step struct {
	Name      string
	Durations []time.Duration
}

// The last steps of MeasureLatency: the one that no trace has, all steps, and the floor: writes of
// the same EndpointSlices to both API servers without the controllers.
const (
	SeenStep  = "seen by a watch"
	TotalStep = "all steps"
	FloorStep = "EndpointSlices alone"
)

const (
	latencyNamespace = "latency"
	latencyService   = "service"
	exporterID       = "exporter"
)

// MeasureLatency runs two controllers on API servers without nodes, changes an endpoint again and
// again, and returns the durations of the steps of these changes by the controllers' traces.
func MeasureLatency(ctx context.Context, options LatencyOptions) (steps []Step, err error) {
	if err := os.Setenv("KUBEBUILDER_ASSETS", options.Assets); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &latencyRun{options: options}
	defer func() {
		for _, end := range slices.Backward(r.ends) {
			end()
		}
	}()
	if err := r.setUp(ctx); err != nil {
		return nil, r.problem(err)
	}
	if err := r.change(ctx); err != nil {
		return nil, r.problem(err)
	}
	floor, err := r.floor(ctx)
	if err != nil {
		return nil, r.problem(err)
	}
	steps, err = r.stepsOf(tracingtest.ByTrace(r.receiver.Spans()))
	return append(steps, Step{FloorStep, floor}), err
}

type latencyRun struct {
	options            LatencyOptions
	folder             string
	receiver           *tracingtest.Receiver
	exporter, importer *cluster
	programs           []*program
	view               *view
	ends               []func()
	changes            []latencyChange
}

// latencyChange has when a change was sent, and when a watch in the importing cluster showed it.
type latencyChange struct{ sent, seen time.Time }

func (r *latencyRun) problem(err error) error {
	for _, p := range r.programs {
		err = p.problem(err)
	}
	return err
}

func (r *latencyRun) setUp(ctx context.Context) (err error) {
	if r.folder, err = os.MkdirTemp("", "latency-"); err != nil {
		return err
	}
	r.ends = append(r.ends, func() { _ = os.RemoveAll(r.folder) })
	if r.receiver, err = tracingtest.Start(); err != nil {
		return err
	}
	r.ends = append(r.ends, r.receiver.Close)
	arguments, err := r.openRegistry(ctx)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		id string
		at **cluster
	}{{exporterID, &r.exporter}, {importerID, &r.importer}} {
		if *c.at, err = startCluster(ctx, []string{latencyNamespace}); err != nil {
			return err
		}
		r.ends = append(r.ends, (*c.at).stop)
		if err := r.startController(*c.at, c.id, arguments(c.id)); err != nil {
			return err
		}
	}
	r.view = r.importer.watchImports(ctx)
	return r.export(ctx)
}

// openRegistry starts the registry, and returns the arguments of a cluster's controller.
func (r *latencyRun) openRegistry(ctx context.Context) (arguments func(id string) []string, err error) {
	if r.options.Registry == config.RegistryCloudMap {
		server, err := cloudmaplocal.New(cloudmaplocal.Options{})
		if err != nil {
			return nil, err
		}
		listener := httptest.NewServer(server)
		r.ends = append(r.ends, listener.Close)
		return func(string) []string { return []string{"--aws-region=" + region, "--aws-endpoint=" + listener.URL} }, nil
	}
	s, err := openStore(ctx, Options{Registry: r.options.Registry, Clusters: 2})
	if s != nil {
		r.ends = append(r.ends, s.close)
	}
	if err != nil {
		return nil, err
	}
	importer := s.arguments()
	if s.user, s.passwordFile, err = s.cluster.AddCluster(ctx, names.EtcdPrefix, clusterSet, exporterID); err != nil {
		return nil, err
	}
	exporter := s.arguments()
	return func(id string) []string {
		if id == importerID {
			return importer
		}
		return exporter
	}, nil
}

func (r *latencyRun) startController(c *cluster, id string, arguments []string) error {
	folder := filepath.Join(r.folder, id)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	kubeconfig, err := c.kubeconfig(folder)
	if err != nil {
		return err
	}
	port, err := testprocess.FreePort()
	if err != nil {
		return err
	}
	p, err := startProgram(r.options.Controller, folder, id, kubeconfig, net.JoinHostPort("127.0.0.1", port),
		append(arguments, "--tracing-endpoint="+r.receiver.Address, "--tracing-insecure")...)
	if p != nil {
		r.programs = append(r.programs, p)
		r.ends = append(r.ends, p.stop)
	}
	return err
}

// export creates and exports the service, and waits for the import and for the first heartbeats
// after it.
func (r *latencyRun) export(ctx context.Context) error {
	meta := metav1.ObjectMeta{Namespace: latencyNamespace, Name: latencyService}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	err := errors.Join(r.exporter.client.Create(ctx, service), r.exporter.client.Create(ctx, latencySlice(0)),
		r.exporter.client.Create(ctx, &mcsv1beta1.ServiceExport{ObjectMeta: meta}))
	if err != nil {
		return err
	}
	if _, err := r.view.await(ctx, marker(0), time.Minute); err != nil {
		return err
	}
	const settle = 30 * time.Second // the importer knows the contacts, and each process has joined
	return pause(ctx, settle)
}

// latencySlice has ten endpoints, the last of which is that of version v.
func latencySlice(v int) *discoveryv1.EndpointSlice {
	port, protocol, portName, ready := int32(8080), corev1.ProtocolTCP, "http", true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: latencyNamespace, Name: latencyService, Labels: map[string]string{
			discoveryv1.LabelServiceName: latencyService, discoveryv1.LabelManagedBy: "bench",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	}
	for i := range EndpointsPerService {
		address := fmt.Sprintf("172.16.0.%d", i+1)
		if i == EndpointsPerService-1 {
			address = marker(v).String()
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

// change makes all changes.
func (r *latencyRun) change(ctx context.Context) error {
	for v := 1; v <= r.options.Changes; v++ {
		if err := pause(ctx, rand.N(r.options.Rest)); err != nil {
			return err
		}
		c := latencyChange{sent: time.Now()}
		if err := r.exporter.client.Update(ctx, latencySlice(v)); err != nil {
			return err
		}
		var err error
		if c.seen, err = r.view.await(ctx, marker(v), time.Minute); err != nil {
			return err
		}
		r.changes = append(r.changes, c)
	}
	const flush = 3 * time.Second // of the exporters of the spans
	return pause(ctx, flush)
}

// floor writes as many EndpointSlices of a service that is not exported to the exporting API server
// and then to the importing one, and returns the times until its watch showed them.
func (r *latencyRun) floor(ctx context.Context) (durations []time.Duration, err error) {
	of := func(v int) *discoveryv1.EndpointSlice {
		s := latencySlice(v)
		s.Name += "-floor"
		s.Labels[discoveryv1.LabelServiceName] += "-floor"
		s.Labels[mcsv1beta1.LabelSourceCluster] = exporterID // the view shows these only
		return s
	}
	if err := errors.Join(r.exporter.client.Create(ctx, of(0)), r.importer.client.Create(ctx, of(0))); err != nil {
		return nil, err
	}
	for v := r.options.Changes + 1; v <= 2*r.options.Changes; v++ {
		if err := pause(ctx, rand.N(r.options.Rest)); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := r.exporter.client.Update(ctx, of(v)); err != nil {
			return nil, err
		}
		if err := r.importer.client.Update(ctx, of(v)); err != nil {
			return nil, err
		}
		seen, err := r.view.await(ctx, marker(v), time.Minute)
		if err != nil {
			return nil, err
		}
		durations = append(durations, seen.Sub(began))
	}
	return durations, nil
}

// mark is a point in time in a trace: when a span began or ended.
type mark struct {
	// step is the time until it.
	step, span string
	ended      bool
}

// latencyMarks are the points in time of a change in their order, by registry. The last is when the
// write in the importing cluster was answered.
var latencyMarks = map[string][]mark{
	config.RegistryCloudMap: {
		{"EndpointSlice written, watch event, reconcile", tracing.Export, false},
		{"objects read, export made, published", tracing.Export, true},
		{"further changes awaited", tracing.EncodePage, false},
		{"page encoded and signed", tracing.EncodePage, true},
		{"page written", tracing.WritePage, true},
		{"own record awaited", tracing.WriteRecord, false},
		{"own record signed and written", tracing.WriteRecord, true},
		{"page sent and received", tracing.ReceivePage, false},
		{"page verified and decoded", tracing.ReceivePage, true},
		{"key requeued, reconcile", tracing.Import, false},
		{"looked up, planned", tracing.WriteSlices, false},
		{"EndpointSlice written", tracing.WriteSlices, true},
	},
	config.RegistryEtcd: {
		{"EndpointSlice written, watch event, reconcile", tracing.Export, false},
		{"objects read, export made, published", tracing.Export, true},
		{"write awaited", tracing.WriteExport, false},
		// which comes before the answer of the write
		{"export and own record signed and written, event of the watch", tracing.ReadExport, false},
		{"verified and decoded", tracing.ReadExport, true},
		{"key requeued, reconcile", tracing.Import, false},
		{"looked up, planned", tracing.WriteSlices, false},
		{"EndpointSlice written", tracing.WriteSlices, true},
	},
}

// stepsOf returns the durations of the steps by the traces of the changes.
func (r *latencyRun) stepsOf(traces [][]tracingtest.Span) ([]Step, error) {
	marks := latencyMarks[r.options.Registry]
	steps := make([]Step, len(marks)+2)
	last := len(marks)
	steps[last].Name, steps[last+1].Name = SeenStep, TotalStep
	incomplete := 0
	for _, c := range r.changes {
		times, missing := c.times(traces, marks)
		if missing != "" {
			fmt.Fprintf(r.options.Out, "the trace of a change of %v has no %s\n", c.seen.Sub(c.sent), missing)
			incomplete++
			continue
		}
		for i, m := range marks {
			steps[i].Name = m.step
			steps[i].Durations = append(steps[i].Durations, times[i+1].Sub(times[i]))
		}
		steps[last].Durations = append(steps[last].Durations, c.seen.Sub(times[last]))
		steps[last+1].Durations = append(steps[last+1].Durations, c.seen.Sub(c.sent))
	}
	if 10*incomplete > len(r.changes) {
		return nil, fmt.Errorf("the traces of %d of %d changes are not complete", incomplete, len(r.changes))
	}
	return steps, nil
}

// times returns when the change was sent, and the times of the marks in its trace. missing is a
// span that the trace does not have.
func (c latencyChange) times(traces [][]tracingtest.Span, marks []mark) (times []time.Time, missing string) {
	times = append(times, c.sent)
	for _, trace := range traces {
		if first := trace[0]; first.Name != tracing.Export || first.Began.Before(c.sent) || first.Began.After(c.seen) {
			continue
		}
		for _, m := range marks {
			i := slices.IndexFunc(trace, func(s tracingtest.Span) bool { return s.Name == m.span })
			if i < 0 {
				return nil, strings.TrimSpace("span " + m.span + " " + trace[0].Trace)
			}
			at := trace[i].Began
			if m.ended {
				at = trace[i].Ended
			}
			times = append(times, at)
		}
		return times, ""
	}
	return nil, "trace"
}
