package cloudmaplocal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Server is the Cloud Map API as an http.Handler. It also serves /healthz, /metrics, /faults,
// /shares, and as much of AWS STS as credential providers need.
//
// Unless Behaviors has StrictHosts, the host name of a request is ignored, so requests to
// data-<host> and requests through it as an HTTP proxy work like any other.
type Server struct {
	opts        Options
	credentials *credentialStore
	shares      shareList
	faults      faults
	regions     *regions
	metrics     *metrics
	sts         *stsHandler
	saver       *saver // nil without a state file
	mux         *http.ServeMux
}

var _ http.Handler = (*Server)(nil)

// New returns a server with the content of the state file, if there is one. Close completes the
// state file.
func New(opts Options) (*Server, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("checking the options of cloudmap-local: %w", err)
	}
	s := &Server{opts: opts, credentials: newCredentialStore(opts.AccessKeys, opts.Account, opts.Region), mux: http.NewServeMux()}
	s.shares.setShares(opts.Shares)
	s.regions = newRegions(&s.opts, &s.shares, &s.faults)
	s.metrics = newMetrics(s.regions.countResources)
	s.sts = &stsHandler{roles: opts.Roles, credentials: s.credentials, metrics: s.metrics, now: opts.Now, log: opts.Logger}
	if opts.StateFile != "" {
		if err := s.regions.loadState(opts.StateFile); err != nil {
			return nil, fmt.Errorf("loading the state file %s: %w", opts.StateFile, err)
		}
		s.saver = startSaver(opts.StateFile, s.regions.snapshot, opts.Logger)
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

// SetFaults replaces the current plan and resets its random state and its counts. The empty plan
// ends all faults. An invalid plan is an error and changes nothing.
func (s *Server) SetFaults(plan FaultPlan) error {
	if err := plan.validate(); err != nil {
		return fmt.Errorf("checking the fault plan: %w", err)
	}
	s.faults.setPlan(plan)
	s.regions.updateRetention()
	return nil
}

// Faults returns the current plan and the number of hits of each rule.
func (s *Server) Faults() (FaultPlan, []int) { return s.faults.currentPlan() }

// SetShares replaces the current shares. Accounts lose access to resources that are no longer
// shared, also to the ones that they created. An invalid list is an error and changes nothing.
func (s *Server) SetShares(shares []Share) error {
	shares, err := checkShares(shares, s.opts.Account)
	if err != nil {
		return fmt.Errorf("checking the shares: %w", err)
	}
	s.shares.setShares(shares)
	return nil
}

// Shares returns the current shares.
func (s *Server) Shares() []Share { return slices.Clone(s.shares.currentShares()) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// serveAPI serves one request to the API: it counts and writes the result of handleRequest.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request) {
	if isSTSRequest(r) {
		s.sts.ServeHTTP(w, r)
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

// handleRequest finds the operation, the caller and the caller's region, applies the fault plan and
// the throttle, and runs the operation. Every request passes it.
func (s *Server) handleRequest(r *http.Request, name string) (any, error) {
	if !isOperation(name) {
		return nil, failure("UnknownOperationException", "X-Amz-Target '%s' names no operation of Cloud Map.", r.Header.Get("X-Amz-Target"))
	}
	if s.opts.Behaviors.StrictHosts && isDataPlane(r) != isDiscovery(name) {
		return nil, failure("UnknownOperationException", "The host %s does not answer %s.", r.Host, name)
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	caller, err := s.credentials.authenticate(r, body, signingService, s.opts.Now())
	if err != nil {
		return nil, err
	}
	target := s.regions.targetRegion(caller, body)
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

// DataPlane returns the server as the hosts of AWS's data plane are, whatever their names: with
// StrictHosts it answers DiscoverInstances and DiscoverInstancesRevision alone.
func (s *Server) DataPlane() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), dataPlaneKey{}, true)))
	})
}

// dataPlaneKey is the key of the context of requests to DataPlane.
type dataPlaneKey struct{}

// isDataPlane reports whether a request is to AWS's data plane. SDKs put the prefix before the name
// of every endpoint.
func isDataPlane(r *http.Request) bool {
	return r.Context().Value(dataPlaneKey{}) != nil || strings.HasPrefix(r.Host, "data-")
}

// isDiscovery reports whether an operation is of the data plane.
func isDiscovery(operation string) bool { return strings.HasPrefix(operation, "Discover") }

// runOperation applies the caller's throttle and runs the operation.
func (s *Server) runOperation(target *region, req request) (any, error) {
	if err := s.regions.getRegion(req.caller.homeRegion()).throttle.admit(req.operation, s.opts.Now()); err != nil {
		return nil, err
	}
	if req.operation == "ListNamespaces" || req.operation == "ListServices" {
		req.shared = s.regions.sharedResources(req.caller)
	}
	op := handlers[req.operation]
	result, err := op.run(target, req)
	if err == nil && op.writes && s.saver != nil {
		s.saver.markDirty()
	}
	return result, err
}

// operationName returns the operation of a request. Unknown names are "unknown", since names become
// metric labels.
func operationName(r *http.Request) string {
	name, _ := strings.CutPrefix(r.Header.Get("X-Amz-Target"), targetPrefix)
	if isOperation(name) {
		return name
	}
	return "unknown"
}

// The endpoints that are not AWS's. They need no credentials.

// faultStatus is the answer to GET /faults: the plan, and the number of hits of each rule.
type faultStatus struct {
	FaultPlan
	Hits []int `json:"hits"`
}

func (s *Server) serveFaults(mux *http.ServeMux) {
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) {
		plan, hits := s.Faults()
		writeJSON(w, faultStatus{FaultPlan: plan, Hits: hits})
	})
	mux.HandleFunc("PUT /faults", func(w http.ResponseWriter, r *http.Request) { putYAML(w, r, s.SetFaults) })
	mux.HandleFunc("DELETE /faults", func(w http.ResponseWriter, _ *http.Request) {
		_ = s.SetFaults(FaultPlan{}) // the empty plan is valid
		w.WriteHeader(http.StatusNoContent)
	})
}

func (s *Server) serveShares(mux *http.ServeMux) {
	mux.HandleFunc("GET /shares", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Shares()) })
	mux.HandleFunc("PUT /shares", func(w http.ResponseWriter, r *http.Request) { putYAML(w, r, s.SetShares) })
}
