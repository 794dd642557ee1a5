package cloudmaplocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// FaultPlan is a set of injected faults. It is deterministic: the fault of a caller's n-th request of an operation on
// one instance or one service (by name), or on none, depends on the seed alone, whatever other requests arrive between.
// Only Next depends on the order of requests.
type FaultPlan struct {
	// Seed of all random decisions.
	Seed uint64 `json:"seed,omitempty"`
	// Rules in order of precedence: the delays of all matching rules add up; of the others the first matching rule applies.
	Rules []FaultRule `json:"rules"`
}

// FaultRule selects requests and the fault that they get.
type FaultRule struct {
	// Operations to match, for example RegisterInstance. Empty: all operations that this kind of fault applies to.
	Operations []string `json:"operations,omitempty"`
	// Account and AccessKey of the caller. Empty: every caller. The key is that of the signature, known or not, with * and ?
	// as in file names: "ASIA*" matches all sessions of roles.
	Account   string `json:"account,omitempty"`
	AccessKey string `json:"accessKey,omitempty"`
	// Service is the name of the service and Instance the ID of the instance of the request, with * and ? as in file names.
	// Empty: every request. Discovery requests name no instance.
	Service  string `json:"service,omitempty"`
	Instance string `json:"instance,omitempty"`

	// Probability of the fault for a matching request. 0 means 1: every request.
	Probability float64 `json:"probability,omitempty"`
	// Next is the number of hits after which the rule ends. 0: never.
	Next int `json:"next,omitempty"`

	// Kind of fault. Required.
	Kind FaultKind `json:"kind"`
	// Delay before the request is processed, in real time even if Options.Now is another clock. It is the only field of the
	// kind delay. With the kind fail it is how much later than others the operation fails, by Options.Now.
	Delay Duration `json:"delay,omitempty"`
	// Applied injects error, drop and hang after the request has been processed, unless it failed by itself.
	Applied bool `json:"applied,omitempty"`
	// Code of an error, required for that kind; of a failed operation, default INTERNAL_FAILURE.
	Code string `json:"code,omitempty"`
	// Status is the HTTP status of an error. Default: 400, or the status that AWS uses with the code.
	Status int `json:"status,omitempty"`
	// Message of an error or of a failed operation. Default: a text that names the fault plan.
	Message string `json:"message,omitempty"`
	// Members are further members of an error, for example DuplicateOperationId.
	Members map[string]string `json:"members,omitempty"`
	// Age is the maximum staleness of a stale read.
	Age Duration `json:"age,omitempty"`
	// Share of the instances that a partial read omits, above 0 and at most 1.
	Share float64 `json:"share,omitempty"`
}

// FaultKind is the kind of an injected fault.
type FaultKind string

// Kinds of faults.
const (
	// FaultError returns an error.
	FaultError FaultKind = "error"
	// FaultDelay delays the answer.
	FaultDelay FaultKind = "delay"
	// FaultDrop closes the connection without an answer, after Delay.
	FaultDrop FaultKind = "drop"
	// FaultHang neither answers nor closes the connection, until the caller gives up.
	FaultHang FaultKind = "hang"
	// FaultFail accepts a request; its operation fails without an effect.
	FaultFail FaultKind = "fail"
	// FaultLost accepts a request; its operation has no effect and never ends.
	FaultLost FaultKind = "lost"
	// FaultStale shows each instance as it was at a random time within the last Age, but not before the plan was set.
	// Instances can appear in another order than they were written, and a later read can show less. A new service may not be
	// found.
	FaultStale FaultKind = "stale"
	// FaultPartial omits instances.
	FaultPartial FaultKind = "partial"
)

// Operations that only some kinds of fault can hit.
var (
	instanceReads = []string{"DiscoverInstances", "DiscoverInstancesRevision", "ListInstances"}

	asynchronous = []string{
		"CreateHttpNamespace", "CreatePrivateDnsNamespace", "CreatePublicDnsNamespace", "UpdateHttpNamespace",
		"UpdatePrivateDnsNamespace", "UpdatePublicDnsNamespace", "DeleteNamespace", "UpdateService", "RegisterInstance",
		"DeregisterInstance",
	}

	// allowedOperations are the operations that a kind applies to; nil means all.
	allowedOperations = map[FaultKind][]string{
		FaultError: nil, FaultDelay: nil, FaultDrop: nil, FaultHang: nil, FaultFail: asynchronous, FaultLost: asynchronous,
		FaultStale: instanceReads, FaultPartial: instanceReads,
	}
)

// statusOf has the HTTP statuses of errors that are not 400.
var statusOf = map[string]int{
	"InternalFailure":      http.StatusInternalServerError,
	"ServiceUnavailable":   http.StatusServiceUnavailable,
	"RequestLimitExceeded": http.StatusTooManyRequests,
}

// maxFaultDelay is longer than any client waits.
const maxFaultDelay = time.Hour

// validate returns an error for the first invalid rule, counting from 1.
func (p FaultPlan) validate() error {
	for i, rule := range p.Rules {
		if err := rule.validate(); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return nil
}

func (f FaultRule) validate() error {
	allowed, known := allowedOperations[f.Kind]
	if !known {
		return fmt.Errorf("kind %q: must be one of %v", f.Kind, slices.Sorted(maps.Keys(allowedOperations)))
	}
	for _, name := range f.Operations {
		if _, exists := operations[name]; !exists {
			return fmt.Errorf("operation %q: no such operation; the operations are %v", name, sortedKeys(operations))
		}
		if allowed != nil && !slices.Contains(allowed, name) {
			return fmt.Errorf("operation %s: the kind %s is for %v", name, f.Kind, allowed)
		}
	}
	return cmp.Or(f.validatePatterns(), f.validateNumbers(), f.validateUnused(), f.validateRequired())
}

func (f FaultRule) validatePatterns() error {
	for name, pattern := range map[string]string{"accessKey": f.AccessKey, "service": f.Service, "instance": f.Instance} {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("%s %q: %w", name, pattern, err)
		}
	}
	return nil
}

func (f FaultRule) validateNumbers() error {
	switch {
	case f.Probability < 0 || f.Probability > 1:
		return fmt.Errorf("probability %v: must be between 0 and 1", f.Probability)
	case f.Next < 0:
		return fmt.Errorf("next %d: must not be negative", f.Next)
	case f.Delay < 0 || time.Duration(f.Delay) > maxFaultDelay:
		return fmt.Errorf("delay %s: must be between 0 and %s", time.Duration(f.Delay), maxFaultDelay)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status %d: must be between 400 and 599", f.Status)
	}
	return nil
}

// validateUnused rejects fields that have no effect with the kind.
func (f FaultRule) validateUnused() error {
	for _, field := range []struct {
		name string
		set  bool
		of   []FaultKind
	}{
		{"applied", f.Applied, []FaultKind{FaultError, FaultDrop, FaultHang}},
		{"code", f.Code != "", []FaultKind{FaultError, FaultFail}},
		{"message", f.Message != "", []FaultKind{FaultError, FaultFail}},
		{"status", f.Status != 0, []FaultKind{FaultError}},
		{"members", f.Members != nil, []FaultKind{FaultError}},
		{"age", f.Age != 0, []FaultKind{FaultStale}},
		{"share", f.Share != 0, []FaultKind{FaultPartial}},
	} {
		if field.set && !slices.Contains(field.of, f.Kind) {
			return fmt.Errorf("%s: not for the kind %s, only for %v", field.name, f.Kind, field.of)
		}
	}
	return nil
}

// validateRequired rejects rules without the fields that the kind needs.
func (f FaultRule) validateRequired() error {
	switch {
	case f.Kind == FaultError && f.Code == "":
		return errors.New("code: required for the kind error, for example ThrottlingException")
	case f.Kind == FaultDelay && f.Delay == 0:
		return errors.New("delay: required for the kind delay, for example 500ms")
	case f.Kind == FaultStale && (f.Age <= 0 || time.Duration(f.Age) > maxConfigurableDuration):
		return fmt.Errorf("age %s: must be above 0 and at most %s", time.Duration(f.Age), maxConfigurableDuration)
	case f.Kind == FaultPartial && (f.Share <= 0 || f.Share > 1):
		return fmt.Errorf("share %v: must be above 0 and at most 1", f.Share)
	}
	return nil
}

// matchesRequest reports whether the rule can apply to a request.
func (f FaultRule) matchesRequest(caller principal, operation string, about targetNames) bool {
	allowed := f.Operations
	if len(allowed) == 0 {
		allowed = allowedOperations[f.Kind]
	}
	return (len(allowed) == 0 || slices.Contains(allowed, operation)) && (f.Account == "" || f.Account == caller.account) &&
		matchesPattern(f.AccessKey, caller.keyID) && matchesPattern(f.Service, about.service) && matchesPattern(f.Instance, about.instance)
}

// matchesPattern reports whether a name matches a pattern. The empty pattern matches all names; other patterns do not
// match a missing name.
func matchesPattern(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	matched, _ := path.Match(pattern, name) // validated
	return matched && name != ""
}

// faults has the current plan.
type faults struct {
	mu   sync.Mutex
	plan FaultPlan
	hits []int // by rule
	// requestCounts is the number of equal requests by caller, by a hash of both.
	requestCounts map[uint64]uint64
}

// SetFaults replaces the current plan and resets its random state and its counts. The empty plan ends all faults. An
// invalid plan is an error and changes nothing.
func (s *Server) SetFaults(plan FaultPlan) error {
	if err := plan.validate(); err != nil {
		return fmt.Errorf("checking the fault plan: %w", err)
	}
	plan.Rules = slices.Clone(plan.Rules)
	s.faults.mu.Lock()
	s.faults.plan, s.faults.hits, s.faults.requestCounts = plan, make([]int, len(plan.Rules)), map[uint64]uint64{}
	s.faults.mu.Unlock()
	keep := s.faults.longestAge()
	for _, r := range s.allRegions() {
		_ = r.withLock(func() error { r.replica.retention = keep; return nil }) // cannot fail
	}
	return nil
}

// longestAge returns how far back replicas must keep past states for stale reads.
func (f *faults) longestAge() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var longest Duration
	for _, rule := range f.plan.Rules {
		longest = max(longest, rule.Age)
	}
	return time.Duration(longest)
}

// Faults returns the current plan and the number of hits of each rule.
func (s *Server) Faults() (FaultPlan, []int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.plan, slices.Clone(s.faults.hits)
}

// isEmpty reports whether the plan has no rules.
func (f *faults) isEmpty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.plan.Rules) == 0
}

// chooseFault returns the fault of a request.
func (f *faults) chooseFault(caller principal, operation string, about targetNames) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	var chosen fault
	request := hashOf(caller.account, caller.region, caller.keyID, operation, about.service, about.instance)
	f.requestCounts[request]++
	for i, rule := range f.plan.Rules {
		ended := rule.Next > 0 && f.hits[i] >= rule.Next
		shadowed := chosen.rule != nil && rule.Kind != FaultDelay
		if ended || shadowed || !rule.matchesRequest(caller, operation, about) {
			continue
		}
		dice := rand.New(rand.NewPCG(f.plan.Seed, hashOf(i, request, f.requestCounts[request])))
		if rule.Probability > 0 && dice.Float64() >= rule.Probability {
			continue
		}
		f.hits[i]++
		if rule.Kind != FaultFail {
			chosen.delay += time.Duration(rule.Delay)
		}
		if rule.Kind != FaultDelay {
			chosen.rule, chosen.dice = &rule, dice
		}
	}
	return chosen
}

// hashOf returns a hash of the values.
func hashOf(values ...any) uint64 {
	hash := fnv.New64a()
	for _, value := range values {
		_, _ = fmt.Fprintf(hash, "%v\x00", value) // a hash takes everything
	}
	return hash.Sum64()
}

// fault is the fault of one request. The zero value is none.
type fault struct {
	delay time.Duration
	rule  *FaultRule
	dice  *rand.Rand
}

// isKind reports whether the fault is of a kind.
func (f fault) isKind(kind FaultKind) bool { return f.rule != nil && f.rule.Kind == kind }

// errDropped marks a request that gets no answer.
var errDropped = errors.New("the fault plan closes the connection without an answer")

// beforeRequest applies the fault before the request is processed; after an error the request is not processed.
func (f fault) beforeRequest(ctx context.Context) error {
	if f.delay > 0 {
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return errDropped // the caller gave up
		}
	}
	if f.rule != nil && f.rule.Applied {
		return nil
	}
	return f.responseError(ctx)
}

// afterRequest applies the fault after the request has been processed.
func (f fault) afterRequest(ctx context.Context, err error) error {
	if err != nil || f.rule == nil || !f.rule.Applied {
		return err
	}
	return f.responseError(ctx)
}

// responseError returns the error for the caller, unless the caller gave up before; nil for other kinds of faults.
func (f fault) responseError(ctx context.Context) error {
	switch {
	case f.isKind(FaultHang):
		<-ctx.Done()
		return errDropped
	case f.isKind(FaultDrop):
		return errDropped
	case f.isKind(FaultError):
		return &apiError{
			code: f.rule.Code, members: f.rule.Members, message: f.message(),
			status: cmp.Or(f.rule.Status, statusOf[f.rule.Code], http.StatusBadRequest),
		}
	}
	return nil
}

func (f fault) message() string {
	return cmp.Or(f.rule.Message, "Injected by the fault plan of cloudmap-local.")
}

// applyTo makes the operation fail or never end, if the fault is of such a kind.
func (f fault) applyTo(op *operation) {
	switch {
	case f.isKind(FaultFail):
		op.Due = op.Due.Add(time.Duration(f.rule.Delay))
		op.Fails = &operationError{Code: cmp.Or(f.rule.Code, "INTERNAL_FAILURE"), Message: f.message()}
	case f.isKind(FaultLost):
		op.Lost = true
	}
}

// visibleInstances returns the instances of a service that a read shows.
func (f fault) visibleInstances(svc *replicaService, now time.Time) map[string]*instance {
	shown := svc.instances
	if f.isKind(FaultStale) {
		shown = map[string]*instance{}
		for _, id := range svc.knownIDs() {
			if inst := svc.instanceAt(id, f.staleTime(now)); inst != nil {
				shown[id] = inst
			}
		}
	}
	if f.isKind(FaultPartial) {
		shown = map[string]*instance{}
		for _, id := range sortedKeys(svc.instances) {
			if f.dice.Float64() >= f.rule.Share {
				shown[id] = svc.instances[id]
			}
		}
	}
	return shown
}

// visibleRevision returns the revision of a service that a read shows.
func (f fault) visibleRevision(svc *replicaService, now time.Time) int64 {
	if f.isKind(FaultStale) {
		return svc.revisionAt(f.staleTime(now))
	}
	return svc.revision
}

// isHidden reports whether a service is too new for a stale read to find it.
func (f fault) isHidden(svc *replicaService, now time.Time) bool {
	return f.isKind(FaultStale) && f.staleTime(now).Before(svc.visibleSince)
}

// staleTime returns a random time within the last Age.
func (f fault) staleTime(now time.Time) time.Time {
	return now.Add(-time.Duration(f.dice.Float64() * float64(f.rule.Age)))
}

// Duration is a time.Duration that is written like 1m30s.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(strings.TrimSpace(string(text)))
	*d = Duration(parsed)
	return err
}
