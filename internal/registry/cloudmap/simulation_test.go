package cloudmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/go-logr/logr/testr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// simulation is a Cloud Map and the clusters that use it, in the virtual time of a testing/synctest
// bubble: every interval is the real one, and an hour takes a second. Requests go from the AWS SDK
// to the server without a network. The server's fault plan makes them fail.
type simulation struct {
	t      *testing.T
	seed   uint64
	server *cloudmaplocal.Server
	// history keeps the last requests and log lines for the analysis of a failure; nil keeps none.
	history *registrytest.Trace
	// tally counts the actions of a random test; nil counts none.
	tally *registrytest.Counts

	mu     sync.Mutex
	counts map[string]int
	// ids are the stored resource IDs, by access key.
	ids stores
	// endpoint is that of the clients of the clusters, "" for the hosts of AWS.
	endpoint string
	hooked   hooks
}

// hooks are functions of a test that see the requests.
type hooks struct {
	// wrote, if set, is called for each write that the server has accepted.
	wrote func(request)
	// intercept, if set, may answer a request in place of the server: with an error code or a body.
	intercept func(request) (code, body string, ok bool)
}

func (w *simulation) setWrote(wrote func(request)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hooked.wrote = wrote
}

func (w *simulation) setIntercept(intercept func(request) (code, body string, ok bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hooked.intercept = intercept
}

// setServer replaces the server while clusters use it.
func (w *simulation) setServer(server *cloudmaplocal.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server = server
}

func (w *simulation) currentServer() *cloudmaplocal.Server {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.server
}

func (w *simulation) hooks() hooks {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hooked
}

// inBubble runs a test in a testing/synctest bubble, beside those in other bubbles: they share
// nothing, and none depends on the speed of the machine. Only one bubble can be in a test.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	if err := warmUp(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, test)
}

// warmUp makes zstd create its channels outside of a bubble: channels of one bubble must not be
// used in the next one.
var warmUp = sync.OnceValue(func() error {
	data, err := record.Encode([]mcs.Export{registry.Published(webExport("cls1", 0, 1))})
	if err == nil {
		_, err = record.Decode(data, "cls1")
	}
	return err
})

// request is a request of a cluster.
type request struct {
	cluster, operation string
	body               []byte
}

// names reports whether the request contains text as a value, such as the name of a service or the
// ID of an instance.
func (r request) names(text string) bool { return bytes.Contains(r.body, []byte(`"`+text)) }

func newSimulation(t *testing.T, seed uint64, options cloudmaplocal.Options) *simulation {
	t.Helper()
	options.Now = time.Now
	server, err := cloudmaplocal.New(options)
	if err != nil {
		t.Fatal(err)
	}
	return &simulation{t: t, seed: seed, server: server, endpoint: "https://cloudmap.test", counts: map[string]int{}}
}

// plan sets the fault plan of the server. Without rules there are no faults.
func (w *simulation) plan(seed uint64, rules ...cloudmaplocal.FaultRule) {
	w.t.Helper()
	if err := w.server.SetFaults(cloudmaplocal.FaultPlan{Seed: seed, Rules: rules}); err != nil {
		w.t.Fatal(err)
	}
}

// count returns the number of requests so far, by operation and by cluster. "RegisterInstance
// members" counts writes of member records.
func (w *simulation) count() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := make(map[string]int, len(w.counts))
	for name, n := range w.counts {
		counts[name] = n
	}
	return counts
}

// wire is the HTTP client of one process of a controller.
type wire struct {
	simulation *simulation
	cluster    string
	mu         sync.Mutex
	// asked is the number of equal requests, by their hash.
	asked map[uint64]uint64
	// cut is set when the process was killed: all requests fail.
	cut atomic.Bool
	// unsigned removes the signature of requests, so that faults of access keys do not apply.
	unsigned bool
}

var errCut = errors.New("the process was killed")

// Do implements the SDK's HTTPClient.
func (w *wire) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	req := request{cluster: w.cluster, operation: operation, body: body}
	if err := pass(r.Context(), w.latency(req)); err != nil {
		return nil, err
	}
	if w.cut.Load() {
		return nil, errCut
	}
	w.simulation.noteRequest(req)
	if w.unsigned {
		r.Header.Del("Authorization")
	}
	answer, err := w.simulation.answer(req, r)
	w.simulation.trace(req, answer, err)
	switch {
	case w.cut.Load():
		return nil, errCut
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	case err != nil:
		return nil, err
	}
	if wrote := w.simulation.hooks().wrote; wrote != nil && answer.StatusCode == http.StatusOK && !isRead(operation) {
		wrote(req)
	}
	return answer, nil
}

// latency returns the latency of a request: 5 to 25 ms. It depends on the subject of the request
// and the number of equal requests of this process.
func (w *wire) latency(req request) time.Duration {
	h := fnv.New64a()
	fmt.Fprint(h, w.cluster, req.operation, string(bytes.Join(subject.FindAll(req.body, -1), nil)))
	sum := h.Sum64()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[sum]++
	dice := rand.New(rand.NewPCG(w.simulation.seed, sum+w.asked[sum]))
	return 5*time.Millisecond + time.Duration(dice.IntN(20))*time.Millisecond
}

// subject matches the names in a request. The IDs that the server generates differ in every run.
var subject = regexp.MustCompile(`"(InstanceId|ServiceName|Name|PAGE)":"[^"]*"`)

func isRead(operation string) bool {
	return strings.HasPrefix(operation, "Discover") || strings.HasPrefix(operation, "List") || strings.HasPrefix(operation, "Get")
}

func pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer returns the response of intercept, or else of the server.
func (w *simulation) answer(req request, r *http.Request) (*http.Response, error) {
	intercept, server := w.hooks().intercept, w.currentServer()
	if intercept == nil {
		return cloudmaptest.Serve(server, r)
	}
	code, body, ok := intercept(req)
	if !ok {
		return cloudmaptest.Serve(server, r)
	}
	answer := httptest.NewRecorder()
	if code != "" {
		answer.Header().Set("X-Amzn-Errortype", code)
		answer.WriteHeader(http.StatusBadRequest)
		body = fmt.Sprintf(`{"__type":%q,"message":"the share is gone"}`, code)
	}
	_, err := io.WriteString(answer, body)
	return answer.Result(), err
}

// trace logs the requests that write and those that fail, for the analysis of a failed test.
func (w *simulation) trace(req request, answer *http.Response, err error) {
	isLogged := testing.Verbose() && w.seed != 0
	if !isLogged && w.history == nil {
		return
	}
	outcome := ""
	switch {
	case err != nil:
		outcome = err.Error()
	case answer.StatusCode != http.StatusOK:
		outcome = answer.Header.Get("X-Amzn-Errortype")
	case isRead(req.operation):
		return
	}
	body := payload.ReplaceAll(req.body, nil)
	w.history.Logf("%s %s %.1200s %s", req.cluster, req.operation, body, outcome)
	if isLogged {
		w.t.Logf("%s %s %s %.1200s %s", time.Now().Format("04:05.000"), req.cluster, req.operation, body, outcome)
	}
}

// payload matches the attributes that a trace leaves out.
var payload = regexp.MustCompile(`"(DATA\d+|CLUSTERSET_ID|FORMAT|VERSION|CreatorRequestId)":"[^"]*",?`)

func (w *simulation) noteRequest(req request) {
	name := req.operation
	if name == "RegisterInstance" && req.names("HEARTBEAT") {
		name += " members"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[name]++
	w.counts[req.cluster]++
}

// client returns a client with an access key and a wire of its own.
func (w *simulation) client(key string) (*api.Client, *wire) {
	w.t.Helper()
	return w.clientAt(key, nil)
}

// clientAt is client with its own rates.
func (w *simulation) clientAt(key string, rates map[string]api.Rate) (*api.Client, *wire) {
	w.t.Helper()
	line := &wire{simulation: w, cluster: key, asked: map[uint64]uint64{}}
	client, err := api.NewClient(w.t.Context(), api.Config{
		Region: "us-east-1", Endpoint: w.endpoint, HTTPClient: line, Rates: rates,
		Credentials: credentials.NewStaticCredentialsProvider(key, "secret", ""),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return client, line
}

// seal sets the tag catalog-of of a cluster's catalog, as an administrator does.
func (w *simulation) seal(clusterID string) {
	w.t.Helper()
	_, catalog := (&otherWriter{simulation: w}).service(format.CatalogName(clusterID))
	sdk := servicediscovery.New(servicediscovery.Options{
		BaseEndpoint: aws.String("https://cloudmap.test"), Region: "us-east-1", HTTPClient: &wire{simulation: w, cluster: "admin", asked: map[uint64]uint64{}},
		Credentials: credentials.NewStaticCredentialsProvider("admin", "secret", ""),
	})
	sealCatalog(w.t, sdk, catalog, clusterID)
}

// processPins are the pins that a process saves until it is killed.
type processPins struct {
	*memoryPins
	wire *wire
	// loaded is the number of saves when this process last loaded or saved the pins.
	loaded int
}

func (p *processPins) LoadPins(context.Context) (map[string]trust.Pin, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loaded = p.saves
	return maps.Clone(p.pins), nil
}

func (p *processPins) SavePins(_ context.Context, pins map[string]trust.Pin) error {
	return p.write(func() { p.save(pins) })
}

func (p *processPins) SaveEnd(_ context.Context, ended time.Time) error {
	return p.write(func() { p.saves, p.ended = p.saves+1, ended })
}

// write runs save, unless the process was killed or another one has saved.
func (p *processPins) write(save func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.wire.cut.Load():
		return errCut
	case p.loaded != p.saves:
		return trust.ErrChanged
	}
	save()
	p.loaded = p.saves
	return nil
}

// processIDs are the resource IDs that a process saves until it is killed.
type processIDs struct {
	*memoryIDs
	wire *wire
}

func (p *processIDs) SaveResourceIDs(ctx context.Context, ids ResourceIDs) error {
	if p.wire.cut.Load() {
		return errCut
	}
	return p.memoryIDs.SaveResourceIDs(ctx, ids)
}

// process is one process of a cluster's controller.
type process struct {
	*Registry
	simulation *simulation
	wire       *wire
	began      time.Time
	stop       context.CancelCauseFunc
	ended      chan error // closed when the process has ended
}

// begin starts a controller, with an access key like its cluster's ID. notify may be nil.
func (w *simulation) begin(identity mcs.Identity, notify func(*process, mcs.Key), change ...func(*Config)) *process {
	w.t.Helper()
	return w.beginAs(identity.ClusterID, identity, notify, change...)
}

// exporting begins a world in which cls1 exports demo/web with one endpoint.
func exporting(t *testing.T) (w *simulation, exporter *process, exp mcs.Export) {
	t.Helper()
	w = newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
	exporter, exp = w.begin(cls1, nil), webExport("cls1", 0, 1)
	publish(t, exporter.Registry, exp)
	w.until(time.Minute, "it is exported", isExported(t, exporter.Registry, exp.Key))
	return w, exporter, exp
}

// beginAs is begin with another access key.
func (w *simulation) beginAs(key string, identity mcs.Identity, notify func(*process, mcs.Key), change ...func(*Config)) *process {
	w.t.Helper()
	l := w.create(key, identity, change...)
	l.run(notify)
	return l
}

// create creates a controller that does not run yet, with an access key.
func (w *simulation) create(key string, identity mcs.Identity, change ...func(*Config)) *process {
	w.t.Helper()
	client, line := w.client(key)
	cfg := defaultConfig(identity)
	cfg.ResourceIDs = &processIDs{memoryIDs: w.ids.of(key), wire: line}
	cfg.Keyring = keyring(identity, cfg.StaleAfter, &processPins{memoryPins: w.ids.pinsOf(key), wire: line})
	cfg.times.instanceList = time.Minute // the first list is over before any test counts requests
	for _, c := range change {
		c(&cfg)
	}
	switch {
	case w.history != nil:
		cfg.Logger = w.history.Logger(key)
	case testing.Verbose() && w.seed != 0:
		cfg.Logger = testr.New(w.t).WithName(key)
	}
	reg, err := New(client, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return &process{Registry: reg, simulation: w, wire: line, began: time.Now(), ended: make(chan error, 1)}
}

// run runs the controller until it is ended or killed. notify may be nil.
func (l *process) run(notify func(*process, mcs.Key)) {
	var ctx context.Context
	ctx, l.stop = context.WithCancelCause(context.Background())
	go func() {
		defer close(l.ended)
		l.ended <- runSaving(ctx, l.Registry, func(key mcs.Key) {
			if notify != nil {
				notify(l, key)
			}
		})
	}()
	l.simulation.t.Cleanup(l.kill)
}

// end stops the controller gracefully, and waits for it.
func (l *process) end(cause error) error {
	l.stop(cause)
	return <-l.ended
}

// kill ends the controller at once: its requests in progress fail.
func (l *process) kill() {
	l.wire.cut.Store(true)
	l.stop(nil)
	<-l.ended //nolint:errcheck // a killed process may end with any error
}

// until waits for a condition, in virtual time.
func (w *simulation) until(timeout time.Duration, condition string, isMet func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(timeout); !isMet(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("seed %d: not within %v: %s", w.seed, timeout, condition)
		}
	}
}

// viewOf returns a registry's view of key; ok is false if the registry has not been read.
func viewOf(t *testing.T, reg *Registry, key mcs.Key, imported ...string) (view registry.View, ok bool) {
	t.Helper()
	view, err := reg.Lookup(context.Background(), key, imported...)
	if err != nil && !errors.Is(err, registry.ErrNotSynced) {
		t.Fatal(err)
	}
	return view, err == nil
}
