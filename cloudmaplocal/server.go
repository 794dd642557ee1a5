package cloudmaplocal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	targetPrefix = "Route53AutoNaming_v20170314."
	contentType  = "application/x-amz-json-1.1"

	// maxBody is far above the largest valid request: 30 service attributes of 255+1,024 characters, each of which JSON may
	// write as six (\u0041), are 230 kB.
	maxBody = 1 << 20
)

// Server is the Cloud Map API as an http.Handler. It also serves /healthz, /metrics, /faults, /shares, and as much of AWS STS as credential
// providers need.
//
// The host name of a request means nothing, so requests to data-<host> and those sent through it as an HTTP proxy arrive
// like any other.
type Server struct {
	opts    Options
	keys    *keyring
	metrics *metrics
	mux     *http.ServeMux
	saver   *saver // nil without a state file
	faults  faults

	mu      sync.Mutex
	regions map[regionKey]*region
	shares  []Share
}

var _ http.Handler = (*Server)(nil)

// New makes a server, with the content of the state file if there is one. Close it, so that the state file is complete.
func New(opts Options) (*Server, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("checking the options of cloudmap-local: %w", err)
	}
	s := &Server{
		opts: opts, keys: newKeyring(opts.AccessKeys), shares: opts.Shares, regions: map[regionKey]*region{},
		mux: http.NewServeMux(),
	}
	s.metrics = newMetrics(s.stock)
	if opts.StateFile != "" {
		if err := s.load(opts.StateFile); err != nil {
			return nil, fmt.Errorf("loading the state file %s: %w", opts.StateFile, err)
		}
		s.saver = startSaver(opts.StateFile, s.snapshot, opts.Logger)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.metrics)
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	s.mux.HandleFunc("POST /", s.serveAPI)
	s.serveFaults(s.mux)
	s.serveShares(s.mux)
	return s, nil
}

// Close saves what is not yet saved and stops saving. The handler must not be called any more.
func (s *Server) Close() error {
	if s.saver == nil {
		return nil
	}
	return s.saver.close()
}

// Requests is the number of requests so far by operation, whatever their results were.
func (s *Server) Requests() map[string]int { return s.metrics.requests() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// serveAPI answers one request to the API: whatever happens to it is decided by answer, and counted and written here.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request) {
	if isSTS(r) {
		s.serveSTS(w, r)
		return
	}
	name := operationName(r)
	start := time.Now()
	result, err := s.answer(r, name)
	if errors.Is(err, errDropped) {
		s.metrics.count(name, "dropped")
		panic(http.ErrAbortHandler) // net/http's way of closing a connection without an answer
	}
	status, code, body := http.StatusOK, "ok", any(result)
	if err != nil {
		failed := asAPIError(err)
		status, code, body = failed.status, failed.code, failed
	}
	s.metrics.count(name, code)
	s.opts.Logger.Debug("request", "operation", name, "result", code, "error", err, "duration", time.Since(start))
	respond(w, status, code, body)
}

// answer is the one place that every request passes: it finds the operation, the caller and the caller's region, lets the
// fault plan and the throttle have their say, and runs the operation.
func (s *Server) answer(r *http.Request, name string) (any, error) {
	if _, known := operations[name]; !known {
		return nil, failure("UnknownOperationException", "X-Amz-Target '%s' names no operation of Cloud Map.", r.Header.Get("X-Amz-Target"))
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	by, err := s.authenticate(r, body, signingService, s.opts.Now())
	if err != nil {
		return nil, err
	}
	target := s.regionFor(by, body)
	var fault fault
	if !s.faults.none() {
		fault = s.faults.choose(by, name, target.aimOf(body))
	}
	if err := fault.before(r.Context()); err != nil {
		return nil, err
	}
	result, err := s.carryOut(target, request{operation: name, by: by, body: body, fault: fault})
	return result, fault.after(r.Context(), err)
}

// request is what is known of a request when it is carried out.
type request struct {
	operation string
	by        caller
	body      []byte
	fault     fault
	// shared is what other accounts share with the caller, for the operations that list.
	shared listed
}

// carryOut lets the caller's own throttle have its say, and runs the operation.
func (s *Server) carryOut(target *region, req request) (any, error) {
	if err := s.region(req.by.home()).throttle.admit(req.operation, s.opts.Now()); err != nil {
		return nil, err
	}
	if req.operation == "ListNamespaces" || req.operation == "ListServices" {
		req.shared = s.sharedWith(req.by)
	}
	op := operations[req.operation]
	result, err := op.run(target, req)
	if err == nil && op.writes && s.saver != nil {
		s.saver.changed()
	}
	return result, err
}

// region is the store of an account in a Region, made when it is first asked for.
func (s *Server) region(key regionKey) *region {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.regions[key]
	if r == nil {
		r = s.newRegion(key)
		s.regions[key] = r
	}
	return r
}

// newRegion makes one that knows what is in force.
func (s *Server) newRegion(key regionKey) *region {
	r := newRegion(key, &s.opts)
	r.replica.keep, r.shares = s.faults.memory(), s.shares
	return r
}

// operationName is the operation that a request names. Only known names come through: they become metric labels.
func operationName(r *http.Request) string {
	name, _ := strings.CutPrefix(r.Header.Get("X-Amz-Target"), targetPrefix)
	if _, known := operations[name]; known {
		return name
	}
	return "unknown"
}

func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		tooMuch := failure("RequestEntityTooLargeException", "The request is larger than %d bytes.", maxBody)
		tooMuch.status = http.StatusRequestEntityTooLarge
		return nil, tooMuch
	}
	if err != nil {
		return nil, failure("SerializationException", "Reading the request: %v", err)
	}
	return body, nil
}

// respond writes an answer or an error in the way of AWS JSON 1.1.
func respond(w http.ResponseWriter, status int, code string, body any) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("X-Amzn-Requestid", uuid.NewString())
	if status != http.StatusOK {
		header.Set("X-Amzn-Errortype", code)
	}
	if _, none := body.(noBody); none {
		w.WriteHeader(status)
		return
	}
	raw, err := json.Marshal(body)
	if err != nil { // cannot be: the shapes are plain data
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(status)
	_, _ = w.Write(raw) // a client that went away needs no answer
}

// operation of the API: what runs it, and whether it changes anything.
type apiOperation struct {
	run    func(*region, request) (any, error)
	writes bool
}

// operations is the whole API.
var operations = map[string]apiOperation{
	"CreateHttpNamespace":       writes((*region).createHTTPNamespace),
	"CreatePrivateDnsNamespace": writes((*region).createPrivateDNSNamespace),
	"CreatePublicDnsNamespace":  writes((*region).createPublicDNSNamespace),
	"GetNamespace":              reads((*region).getNamespace),
	"ListNamespaces":            reads((*region).listNamespaces),
	"UpdateHttpNamespace":       writes((*region).updateHTTPNamespace),
	"UpdatePrivateDnsNamespace": writes((*region).updatePrivateDNSNamespace),
	"UpdatePublicDnsNamespace":  writes((*region).updatePublicDNSNamespace),
	"DeleteNamespace":           writes((*region).deleteNamespace),

	"CreateService":           writes((*region).createService),
	"GetService":              reads((*region).getService),
	"ListServices":            reads((*region).listServices),
	"UpdateService":           writes((*region).updateService),
	"DeleteService":           writes((*region).deleteService),
	"GetServiceAttributes":    reads((*region).getServiceAttributes),
	"UpdateServiceAttributes": writes((*region).updateServiceAttributes),
	"DeleteServiceAttributes": writes((*region).deleteServiceAttributes),

	"RegisterInstance":                 writes((*region).registerInstance),
	"DeregisterInstance":               writes((*region).deregisterInstance),
	"GetInstance":                      reads((*region).getInstance),
	"ListInstances":                    reads((*region).listInstances),
	"UpdateInstanceCustomHealthStatus": writes((*region).updateCustomHealth),
	"GetInstancesHealthStatus":         reads((*region).healthStatus),

	"DiscoverInstances":         reads((*region).discoverInstances),
	"DiscoverInstancesRevision": reads((*region).discoverRevision),

	"GetOperation":   reads((*region).getOperation),
	"ListOperations": reads((*region).listOperations),

	"ListTagsForResource": reads((*region).listTags),
	"TagResource":         writes((*region).tagResource),
	"UntagResource":       writes((*region).untagResource),
}

func writes[In, Out any](f func(*region, In) (Out, error)) apiOperation {
	return apiOperation{run: runner(f), writes: true}
}

func reads[In, Out any](f func(*region, In) (Out, error)) apiOperation {
	return apiOperation{run: runner(f)}
}

// runner decodes before and lets the answer be encoded after the region is locked.
func runner[In, Out any](f func(*region, In) (Out, error)) func(*region, request) (any, error) {
	return func(r *region, req request) (any, error) {
		in, err := decode[In](req.body)
		if err != nil {
			return nil, err
		}
		var out Out
		err = r.do(func() error {
			r.req = req
			if err := r.authorize(); err != nil {
				return err
			}
			out, err = f(r, in)
			return err
		})
		return out, err
	}
}

// decode reads a request. No body at all means {}; members that nobody knows are ignored.
func decode[In any](body []byte) (In, error) {
	var in In
	if len(body) == 0 {
		return in, nil
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return in, failure("SerializationException", "Reading the request: %v", err)
	}
	return in, nil
}
