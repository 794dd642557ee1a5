package cloudmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/go-logr/logr/testr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// world is a Cloud Map and the clusters that use it, in the virtual time of a testing/synctest bubble: every interval is
// the real one, and an hour takes a second. Requests go from the AWS SDK to the server without a network; what goes wrong
// with them is the server's fault plan.
type world struct {
	t      *testing.T
	seed   uint64
	server *cloudmaplocal.Server
	// wrote gets of each request that the server has accepted and that changes something.
	wrote func(request)
	// history keeps what happened last, for the analysis of a failure; nil keeps nothing.
	history *registrytest.Trace
	// tally has the numbers of things that were done; nil keeps none.
	tally *registrytest.Counts

	mu     sync.Mutex
	counts map[string]int
	// ids are the stored resource IDs, by access key.
	ids stores
	// intercept, if set, may answer a request in place of the server: with an error code or a body.
	intercept func(request) (code, body string, ok bool)
}

// warmUp lets zstd make its channels: a bubble's would not be usable in the next one.
func warmUp(t *testing.T) {
	t.Helper()
	data, err := record.Encode([]mcs.Export{registry.Published(webExport("cls1", 0, 1))})
	if err == nil {
		_, err = record.Decode(data, "cls1")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// request is one that a cluster makes.
type request struct {
	cluster, operation string
	body               []byte
}

// names reports whether the request is about text: a service's name, an instance's ID.
func (r request) names(text string) bool { return bytes.Contains(r.body, []byte(`"`+text)) }

func newWorld(t *testing.T, seed uint64, options cloudmaplocal.Options) *world {
	t.Helper()
	options.Now = time.Now
	server, err := cloudmaplocal.New(options)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, seed: seed, server: server, counts: map[string]int{}}
}

// plan is what goes wrong from now on: nothing without rules.
func (w *world) plan(seed uint64, rules ...cloudmaplocal.FaultRule) {
	w.t.Helper()
	if err := w.server.SetFaults(cloudmaplocal.FaultPlan{Seed: seed, Rules: rules}); err != nil {
		w.t.Fatal(err)
	}
}

// count is how many requests there were so far, by operation. Writes of instances get apart: "RegisterInstance
// members" is one of a record.
func (w *world) count() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := make(map[string]int, len(w.counts))
	for name, n := range w.counts {
		counts[name] = n
	}
	return counts
}

// wire connects one life of a controller with Cloud Map.
type wire struct {
	world   *world
	cluster string
	// asked is how often each request was made.
	mu    sync.Mutex
	asked map[uint64]uint64
	// cut wires carry nothing any more: the process was killed.
	cut atomic.Bool
	// unsigned wires carry requests without a signature: faults of access keys do not concern them.
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
	w.world.noteRequest(req)
	if w.unsigned {
		r.Header.Del("Authorization")
	}
	answer, err := w.world.answer(req, r)
	w.world.trace(req, answer, err)
	switch {
	case w.cut.Load():
		return nil, errCut
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	case err != nil:
		return nil, err
	}
	if wrote := w.world.wrote; wrote != nil && answer.StatusCode == http.StatusOK && !isRead(operation) {
		wrote(req)
	}
	return answer, nil
}

// latency is how long a request is under way: 5 to 25 ms, by what it is about and how often this process has asked for that.
func (w *wire) latency(req request) time.Duration {
	h := fnv.New64a()
	fmt.Fprint(h, w.cluster, req.operation, string(bytes.Join(subject.FindAll(req.body, -1), nil)))
	sum := h.Sum64()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[sum]++
	dice := rand.New(rand.NewPCG(w.world.seed, sum+w.asked[sum]))
	return 5*time.Millisecond + time.Duration(dice.IntN(20))*time.Millisecond
}

// subject finds in a request what it is about; the IDs that the server makes are others in every run.
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

// answer has the server answer, unless something stands before it.
func (w *world) answer(req request, r *http.Request) (*http.Response, error) {
	if w.intercept == nil {
		return cloudmaptest.Serve(w.server, r)
	}
	code, body, ok := w.intercept(req)
	if !ok {
		return cloudmaptest.Serve(w.server, r)
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

// trace logs requests to replay a failure by: those that write, and those that fail.
func (w *world) trace(req request, answer *http.Response, err error) {
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

// payload is what no cluster reads in a trace.
var payload = regexp.MustCompile(`"(DATA\d+|CLUSTERSET_ID|FORMAT|VERSION|CreatorRequestId)":"[^"]*",?`)

func (w *world) noteRequest(req request) {
	name := req.operation
	if name == "RegisterInstance" && req.names("HEARTBEAT") {
		name += " members"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[name]++
	w.counts[req.cluster]++
}

// client makes requests with an access key of its own, through a wire of its own.
func (w *world) client(key string) (*api.Client, *wire) {
	w.t.Helper()
	return w.clientAt(key, nil)
}

// clientAt is client with its own rates.
func (w *world) clientAt(key string, rates map[string]api.Rate) (*api.Client, *wire) {
	w.t.Helper()
	line := &wire{world: w, cluster: key, asked: map[uint64]uint64{}}
	client, err := api.NewClient(w.t.Context(), api.Config{
		Region: "us-east-1", Endpoint: "https://cloudmap.test", HTTPClient: line, Rates: rates,
		Credentials: credentials.NewStaticCredentialsProvider(key, "secret", ""),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return client, line
}

// processPins are the pins that a process saves until it is killed.
type processPins struct {
	trust.Store
	wire *wire
}

func (p processPins) SavePins(ctx context.Context, pins map[string]trust.Pin) error {
	if p.wire.cut.Load() {
		return errCut
	}
	return p.Store.SavePins(ctx, pins)
}

// life is one process of a cluster's controller.
type life struct {
	*Registry
	world *world
	wire  *wire
	began time.Time
	stop  context.CancelCauseFunc
	ended chan error // closed when the process has ended
}

// begin starts a controller, with an access key like its cluster's ID. notify may be nil.
func (w *world) begin(identity mcs.Identity, notify func(*life, mcs.Key), change ...func(*Config)) *life {
	w.t.Helper()
	return w.beginAs(identity.ClusterID, identity, notify, change...)
}

// beginAs is begin with another access key.
func (w *world) beginAs(key string, identity mcs.Identity, notify func(*life, mcs.Key), change ...func(*Config)) *life {
	w.t.Helper()
	client, line := w.client(key)
	cfg := defaultConfig(identity)
	cfg.ResourceIDs = w.ids.of(key)
	cfg.Keyring = keyring(identity, cfg.StaleAfter, processPins{w.ids.pinsOf(key), line})
	cfg.times.instanceList = time.Minute // what happens once after a start is over before any cluster counts requests
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
	ctx, cancel := context.WithCancelCause(context.Background())
	l := &life{Registry: reg, world: w, wire: line, began: time.Now(), stop: cancel, ended: make(chan error, 1)}
	var saving sync.WaitGroup
	saving.Go(func() { runKeyring(ctx, reg) })
	go func() {
		defer saving.Wait()
		l.ended <- reg.Run(ctx, func(key mcs.Key) {
			if notify != nil {
				notify(l, key)
			}
		})
		close(l.ended)
	}()
	w.t.Cleanup(l.kill)
	return l
}

// end stops the controller in good order, and waits for it.
func (l *life) end(cause error) error {
	l.stop(cause)
	return <-l.ended
}

// kill ends the controller in the middle of whatever it does.
func (l *life) kill() {
	l.wire.cut.Store(true)
	l.stop(nil)
	<-l.ended //nolint:errcheck // how it ended does not matter
}

// until waits for a condition, in virtual time.
func (w *world) until(patience time.Duration, what string, met func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); !met(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("seed %d: not within %v: %s", w.seed, patience, what)
		}
	}
}

// viewOf is what a registry knows of key; ok is false when it knows nothing yet.
func viewOf(t *testing.T, reg *Registry, key mcs.Key, imported ...string) (view registry.View, ok bool) {
	t.Helper()
	view, err := reg.Lookup(context.Background(), key, imported...)
	if err != nil && !errors.Is(err, registry.ErrNotSynced) {
		t.Fatal(err)
	}
	return view, err == nil
}
