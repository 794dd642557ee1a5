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

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

const (
	targetPrefix = "Route53AutoNaming_v20170314."
	contentType  = "application/x-amz-json-1.1"

	// maxBody is far above the largest valid request: 30 service attributes of 255+1,024 characters are 230 kB if JSON escapes
	// each character as six (\u0041).
	maxBody = 1 << 20
)

// Server is the Cloud Map API as an http.Handler. It also serves /healthz, /metrics, /faults, /shares, and as much of AWS STS as credential
// providers need.
//
// The host name of a request is ignored, so requests to data-<host> and requests through it as an HTTP proxy work like any
// other.
type Server struct {
	opts        Options
	credentials *credentialStore
	metrics     *metrics
	mux         *http.ServeMux
	saver       *saver // nil without a state file
	faults      faults

	mu      sync.Mutex
	regions map[regionKey]*region
	shares  []Share
}

var _ http.Handler = (*Server)(nil)

// New returns a server with the content of the state file, if there is one. Close completes the state file.
func New(opts Options) (*Server, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("checking the options of cloudmap-local: %w", err)
	}
	s := &Server{
		opts: opts, credentials: newCredentialStore(opts.AccessKeys), shares: opts.Shares, regions: map[regionKey]*region{},
		mux: http.NewServeMux(),
	}
	s.metrics = newMetrics(s.countResources)
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

// Close saves the last changes and stops saving. The handler must not be called afterwards.
func (s *Server) Close() error {
	if s.saver == nil {
		return nil
	}
	return s.saver.close()
}

// Requests returns the number of requests so far by operation, with any result.
func (s *Server) Requests() map[string]int { return s.metrics.requestCounts() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// serveAPI serves one request to the API: it counts and writes the result of handleRequest.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request) {
	if isSTSRequest(r) {
		s.serveSTS(w, r)
		return
	}
	name := operationName(r)
	start := time.Now()
	result, err := s.handleRequest(r, name)
	if errors.Is(err, errDropped) {
		s.metrics.countRequest(name, "dropped")
		panic(http.ErrAbortHandler) // net/http's way of closing a connection without an answer
	}
	status, code, body := http.StatusOK, "ok", any(result)
	if err != nil {
		failed := asAPIError(err)
		status, code, body = failed.status, failed.code, failed
	}
	s.metrics.countRequest(name, code)
	s.opts.Logger.Debug("request", "operation", name, "result", code, "error", err, "duration", time.Since(start))
	writeResponse(w, status, code, body)
}

// handleRequest finds the operation, the caller and the caller's region, applies the fault plan and the throttle, and
// runs the operation. Every request passes it.
func (s *Server) handleRequest(r *http.Request, name string) (any, error) {
	if _, known := operations[name]; !known {
		return nil, failure("UnknownOperationException", "X-Amz-Target '%s' names no operation of Cloud Map.", r.Header.Get("X-Amz-Target"))
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	caller, err := s.authenticate(r, body, signingService, s.opts.Now())
	if err != nil {
		return nil, err
	}
	target := s.targetRegion(caller, body)
	var fault fault
	if !s.faults.isEmpty() {
		fault = s.faults.chooseFault(caller, name, target.resolveTargetNames(body))
	}
	if err := fault.beforeRequest(r.Context()); err != nil {
		return nil, err
	}
	result, err := s.runOperation(target, request{operation: name, caller: caller, body: body, fault: fault})
	return result, fault.afterRequest(r.Context(), err)
}

// request is a request with its caller and its fault.
type request struct {
	operation string
	caller    principal
	body      []byte
	fault     fault
	// shared are the resources that other accounts share with the caller, for list operations.
	shared visibleResources
}

// runOperation applies the caller's throttle and runs the operation.
func (s *Server) runOperation(target *region, req request) (any, error) {
	if err := s.region(req.caller.homeRegion()).throttle.admit(req.operation, s.opts.Now()); err != nil {
		return nil, err
	}
	if req.operation == "ListNamespaces" || req.operation == "ListServices" {
		req.shared = s.sharedResources(req.caller)
	}
	op := operations[req.operation]
	result, err := op.run(target, req)
	if err == nil && op.writes && s.saver != nil {
		s.saver.markDirty()
	}
	return result, err
}

// region returns the store of an account in a Region. It creates the store on first use.
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

// newRegion returns a region with the current shares and fault plan.
func (s *Server) newRegion(key regionKey) *region {
	r := newRegion(key, &s.opts)
	r.replica.retention, r.shares = s.faults.longestAge(), s.shares
	return r
}

// operationName returns the operation of a request. Unknown names are "unknown", since names become metric labels.
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

// writeResponse writes an answer or an error in AWS JSON 1.1.
func writeResponse(w http.ResponseWriter, status int, code string, body any) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("X-Amzn-Requestid", uuid.NewString())
	if status != http.StatusOK {
		header.Set("X-Amzn-Errortype", code)
	}
	if _, none := body.(wire.NoBody); none {
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

// apiOperation is an operation of the API. writes reports whether it changes the state.
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

// runner decodes the request before the region is locked; the answer is encoded after that.
func runner[In, Out any](f func(*region, In) (Out, error)) func(*region, request) (any, error) {
	return func(r *region, req request) (any, error) {
		in, err := decode[In](req.body)
		if err != nil {
			return nil, err
		}
		var out Out
		err = r.withLock(func() error {
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

// decode reads a request. An empty body means {}; unknown members are ignored.
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
