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

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// world is a Cloud Map and the clusters that use it, in the virtual time of a testing/synctest bubble: every interval is
// the real one, and an hour takes a second. Requests go from the AWS SDK to the server without a network, through wires
// that can do to them what a network and AWS do.
type world struct {
	t      *testing.T
	seed   uint64
	server *cloudmaplocal.Server
	// weather says what happens to a request; nil is fine weather.
	weather func(request) fate
	// wrote is told of each request that changed something.
	wrote func(request)

	mu     sync.Mutex
	counts map[string]int
	// shown are the answers of the last seconds to each read.
	shown map[string][]answered
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
	// dice are this request's own, the same in every run with this seed.
	dice *rand.Rand
}

// names says whether the request is about text: a service's name, an instance's ID.
func (r request) names(text string) bool { return bytes.Contains(r.body, []byte(`"`+text)) }

// fate is what becomes of a request; the zero fate is that it is carried out and answered.
type fate struct {
	// delay passes before the request arrives.
	delay time.Duration
	// code is the error that it is answered with, as carried out as carriedOut says.
	code       string
	status     int
	carriedOut bool
	// silent requests are not answered at all.
	silent bool
	// swallowed ones are answered as if they were carried out.
	swallowed bool
	// stale reads get an answer that was given so long ago, at most.
	stale time.Duration
}

// answered is an earlier answer.
type answered struct {
	at   time.Time
	body []byte
}

// keepAnswers is how long answers are kept for stale reads.
const keepAnswers = 5 * time.Second

func newWorld(t *testing.T, seed uint64, options cloudmaplocal.Options) *world {
	t.Helper()
	options.Now = time.Now
	server, err := cloudmaplocal.New(options)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, seed: seed, server: server, counts: map[string]int{}, shown: map[string][]answered{}}
}

// count is how many requests there were so far, by operation. Writes of instances are told apart: "RegisterInstance
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
}

var errCut = errors.New("the process was killed")

// Do implements the SDK's HTTPClient.
func (w *wire) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	req := request{cluster: w.cluster, operation: operation, body: body, dice: w.dice(operation, body)}
	var f fate
	if weather := w.world.weather; weather != nil {
		f = weather(req)
	}
	// A request takes 5 to 25 ms.
	if err := pass(r.Context(), f.delay+5*time.Millisecond+time.Duration(req.dice.IntN(20))*time.Millisecond); err != nil {
		return nil, err
	}
	if w.cut.Load() {
		return nil, errCut
	}
	response := w.world.carry(req, f)
	if w.cut.Load() {
		return nil, errCut
	}
	if f.silent {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return response, nil
}

// dice are a request's own. They depend on nothing but the seed and how often this cluster made the same request.
func (w *wire) dice(operation string, body []byte) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, w.cluster, operation, string(body))
	sum := h.Sum64()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[sum]++
	return rand.New(rand.NewPCG(w.world.seed, sum+w.asked[sum]))
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

// carry has the server answer, as far as it is asked at all.
func (w *world) carry(req request, f fate) *http.Response {
	w.noteRequest(req)
	w.trace(req, f)
	isRead := strings.HasPrefix(req.operation, "Discover")
	switch {
	case f.code != "" && !f.carriedOut:
		return failing(f)
	case f.swallowed:
		return recorded(http.StatusOK, []byte(`{"OperationId":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-aaaaaaaa"}`))
	case f.silent && !f.carriedOut:
		return nil
	}
	if isRead && f.stale > 0 {
		if body := w.earlier(req, f.stale); body != nil {
			return recorded(http.StatusOK, body)
		}
	}
	answer := httptest.NewRecorder()
	w.server.ServeHTTP(answer, w.serverRequest(req))
	if answer.Code == http.StatusOK {
		if isRead {
			w.keep(req, answer.Body.Bytes())
		} else if w.wrote != nil {
			w.wrote(req)
		}
	}
	if f.code != "" {
		return failing(f)
	}
	response := answer.Result()
	response.Body = io.NopCloser(bytes.NewReader(answer.Body.Bytes()))
	return response
}

// trace logs requests to replay a failure by: those that write, and those that something happens to.
func (w *world) trace(req request, f fate) {
	if testing.Verbose() && w.seed != 0 && (f != fate{} || !strings.HasPrefix(req.operation, "Discover")) {
		w.t.Logf("%s %s %s %.1200s %+v", time.Now().Format("04:05.000"), req.cluster, req.operation, payload.ReplaceAll(req.body, nil), f)
	}
}

// payload is what nobody reads in a trace.
var payload = regexp.MustCompile(`"(DATA\d+|CLUSTERSET_ID|FORMAT|VERSION|CreatorRequestId)":"[^"]*",?`)

func (w *world) serverRequest(req request) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(req.body))
	r.Header.Set("X-Amz-Target", "Route53AutoNaming_v20170314."+req.operation)
	return r
}

func failing(f fate) *http.Response {
	status := f.status
	if status == 0 {
		status = http.StatusBadRequest
	}
	response := recorded(status, fmt.Appendf(nil, `{"__type":%q,"message":"as the test wants it"}`, f.code))
	response.Header.Set("X-Amzn-Errortype", f.code)
	return response
}

func recorded(status int, body []byte) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}
}

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

// keep remembers an answer.
func (w *world) keep(req request, body []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, list := time.Now(), w.shown[string(req.body)]
	for len(list) > 0 && now.Sub(list[0].at) > keepAnswers {
		list = list[1:]
	}
	w.shown[string(req.body)] = append(list, answered{now, bytes.Clone(body)})
}

// earlier is an answer to the same request that was given at most that long ago, nil if there is none.
func (w *world) earlier(req request, atMost time.Duration) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, a := range w.shown[string(req.body)] {
		if now.Sub(a.at) <= atMost {
			return a.body
		}
	}
	return nil
}

// client makes requests for a cluster through a wire of its own.
func (w *world) client(cluster string) (*Client, *wire) {
	w.t.Helper()
	client, err := NewClient(w.t.Context(), ClientConfig{Region: "us-east-1", Endpoint: "http://cloudmap.test"})
	if err != nil {
		w.t.Fatal(err)
	}
	line := &wire{world: w, cluster: cluster, asked: map[uint64]uint64{}}
	client.sdk = servicediscovery.New(client.sdk.Options(), func(o *servicediscovery.Options) { o.HTTPClient = line })
	return client, line
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

// begin starts a controller. notify may be nil.
func (w *world) begin(identity mcs.Identity, notify func(*life, mcs.Key), change ...func(*Config)) *life {
	w.t.Helper()
	cfg := Config{Identity: identity, Version: "test", Logger: logr.Discard(), times: defaultTimes()}
	cfg.times.scan = time.Minute // what happens once after a start is over before anybody counts requests
	for _, c := range change {
		c(&cfg)
	}
	client, line := w.client(identity.ClusterID)
	if testing.Verbose() && w.seed != 0 {
		cfg.Logger = testr.New(w.t).WithName(identity.ClusterID)
	}
	reg, err := New(client, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	l := &life{Registry: reg, world: w, wire: line, began: time.Now(), stop: cancel, ended: make(chan error, 1)}
	go func() {
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
func viewOf(t *testing.T, reg *Registry, key mcs.Key) (view registry.View, ok bool) {
	t.Helper()
	view, err := reg.Look(context.Background(), key)
	if err != nil && !errors.Is(err, registry.ErrNotSynced) {
		t.Fatal(err)
	}
	return view, err == nil
}
