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

// FaultPlan is what goes wrong on purpose. The same plan does the same to the same requests: what happens to a caller's
// n-th request of an operation about one instance, one service or none, by name, depends on the seed and on nothing else, whatever
// other requests come in between. Only which requests Next lets through depends on their order.
type FaultPlan struct {
	// Seed of everything that is left to chance.
	Seed uint64 `json:"seed,omitempty"`
	// Rules in their order: the delays of all that hit a request add up, and of the rest the first that hits counts.
	Rules []FaultRule `json:"rules"`
}

// FaultRule says which requests go wrong and how.
type FaultRule struct {
	// Operations that are hit, for example RegisterInstance. Empty: all that this kind of fault can hit.
	Operations []string `json:"operations,omitempty"`
	// Account and AccessKey of the caller. Empty: every one. The key is that of the signature, known or not, with * and ? as in
	// file names: "ASIA*" are all sessions of roles.
	Account   string `json:"account,omitempty"`
	AccessKey string `json:"accessKey,omitempty"`
	// Service is the name of the service and Instance the ID of the instance that the request is about, with * and ? as in file
	// names. Empty: every request. Discovery is about no instance.
	Service  string `json:"service,omitempty"`
	Instance string `json:"instance,omitempty"`

	// Probability of hitting a request that fits. 0 means 1: every one.
	Probability float64 `json:"probability,omitempty"`
	// Next is after how many hits the rule ends. 0: never.
	Next int `json:"next,omitempty"`

	// Kind of fault. Required.
	Kind FaultKind `json:"kind"`
	// Delay before the request is looked at, in real time, whatever Options.Now says. The kind delay has only this. With
	// the kind fail it is how much longer than others the operation takes to fail, by Options.Now.
	Delay Duration `json:"delay,omitempty"`
	// Applied makes error, drop and hang come after the request has been carried out, unless it failed by itself.
	Applied bool `json:"applied,omitempty"`
	// Code of an error, required for that kind; of a failed operation, default INTERNAL_FAILURE.
	Code string `json:"code,omitempty"`
	// Status is the HTTP status of an error. Default: 400, or what AWS answers with the code.
	Status int `json:"status,omitempty"`
	// Message of an error or of a failed operation. Default: one that says that it was made on purpose.
	Message string `json:"message,omitempty"`
	// Members are further members of an error, for example DuplicateOperationId.
	Members map[string]string `json:"members,omitempty"`
	// Age is the most by which a stale read is behind.
	Age Duration `json:"age,omitempty"`
	// Share of the instances that a partial read lacks, above 0 and at most 1.
	Share float64 `json:"share,omitempty"`
}

// FaultKind is what goes wrong.
type FaultKind string

// Kinds of faults.
const (
	// FaultError answers an error.
	FaultError FaultKind = "error"
	// FaultDelay answers late.
	FaultDelay FaultKind = "delay"
	// FaultDrop closes the connection without an answer; with a long delay, nothing happens for that long.
	FaultDrop FaultKind = "drop"
	// FaultHang neither answers nor closes the connection: it is the caller who gives up.
	FaultHang FaultKind = "hang"
	// FaultFail accepts a request, and its operation fails without having done anything.
	FaultFail FaultKind = "fail"
	// FaultLost accepts a request, and its operation neither does anything nor ends.
	FaultLost FaultKind = "lost"
	// FaultStale shows each instance as it was at a time of its own within the last Age, but not from before the plan was
	// set. So what was written first may be seen last, and a later read may see less. A service that new may not be found.
	FaultStale FaultKind = "stale"
	// FaultPartial leaves instances out.
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

	// hits is the operations that a kind can hit; nil is all of them.
	hits = map[FaultKind][]string{
		FaultError: nil, FaultDelay: nil, FaultDrop: nil, FaultHang: nil, FaultFail: asynchronous, FaultLost: asynchronous,
		FaultStale: instanceReads, FaultPartial: instanceReads,
	}
)

// statusOf is the HTTP statuses of errors that are not 400.
var statusOf = map[string]int{
	"InternalFailure":      http.StatusInternalServerError,
	"ServiceUnavailable":   http.StatusServiceUnavailable,
	"RequestLimitExceeded": http.StatusTooManyRequests,
}

// maxFaultDelay is longer than any client waits.
const maxFaultDelay = time.Hour

// validate names the first rule that cannot be, counting from 1.
func (p FaultPlan) validate() error {
	for i, rule := range p.Rules {
		if err := rule.validate(); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return nil
}

func (f FaultRule) validate() error {
	allowed, known := hits[f.Kind]
	if !known {
		return fmt.Errorf("kind %q: must be one of %v", f.Kind, slices.Sorted(maps.Keys(hits)))
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

// validateUnused is about what a kind has no use for: a field without effect is a mistake.
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

// validateRequired is about what a kind needs.
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

// fits reports whether a request is one that the rule can hit.
func (f FaultRule) fits(by caller, operation string, about aim) bool {
	allowed := f.Operations
	if len(allowed) == 0 {
		allowed = hits[f.Kind]
	}
	return (len(allowed) == 0 || slices.Contains(allowed, operation)) && (f.Account == "" || f.Account == by.account) &&
		fitsPattern(f.AccessKey, by.keyID) && fitsPattern(f.Service, about.service) && fitsPattern(f.Instance, about.instance)
}

// fitsPattern reports whether a name fits a pattern. No pattern fits all, and a pattern fits no missing name.
func fitsPattern(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	matched, _ := path.Match(pattern, name) // validated
	return matched && name != ""
}

// faults is the plan in force.
type faults struct {
	mu   sync.Mutex
	plan FaultPlan
	hits []int // by rule
	// asked is how often each caller has asked for the same, by a hash of both.
	asked map[uint64]uint64
}

// SetFaults puts a plan in the place of the one in force, and starts its dice and counts anew. The empty plan ends all
// faults. A plan that cannot be is an error and changes nothing.
func (s *Server) SetFaults(plan FaultPlan) error {
	if err := plan.validate(); err != nil {
		return fmt.Errorf("checking the fault plan: %w", err)
	}
	plan.Rules = slices.Clone(plan.Rules)
	s.faults.mu.Lock()
	s.faults.plan, s.faults.hits, s.faults.asked = plan, make([]int, len(plan.Rules)), map[uint64]uint64{}
	s.faults.mu.Unlock()
	keep := s.faults.memory()
	for _, r := range s.allRegions() {
		_ = r.do(func() error { r.replica.keep = keep; return nil }) // cannot fail
	}
	return nil
}

// memory is how far back replicas must remember for stale reads.
func (f *faults) memory() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var longest Duration
	for _, rule := range f.plan.Rules {
		longest = max(longest, rule.Age)
	}
	return time.Duration(longest)
}

// Faults is the plan in force, and how often each of its rules has hit.
func (s *Server) Faults() (FaultPlan, []int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.plan, slices.Clone(s.faults.hits)
}

// none reports whether nothing goes wrong on purpose.
func (f *faults) none() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.plan.Rules) == 0
}

// choose rolls the dice for a request.
func (f *faults) choose(by caller, operation string, about aim) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	var chosen fault
	request := hashOf(by.account, by.region, by.keyID, operation, about.service, about.instance)
	f.asked[request]++
	for i, rule := range f.plan.Rules {
		ended := rule.Next > 0 && f.hits[i] >= rule.Next
		shadowed := chosen.rule != nil && rule.Kind != FaultDelay
		if ended || shadowed || !rule.fits(by, operation, about) {
			continue
		}
		dice := rand.New(rand.NewPCG(f.plan.Seed, hashOf(i, request, f.asked[request])))
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

// hashOf is the same for the same values.
func hashOf(values ...any) uint64 {
	hash := fnv.New64a()
	for _, value := range values {
		_, _ = fmt.Fprintf(hash, "%v\x00", value) // a hash takes everything
	}
	return hash.Sum64()
}

// fault is what happens to one request. The zero value is nothing.
type fault struct {
	delay time.Duration
	rule  *FaultRule
	dice  *rand.Rand
}

// is reports whether the fault is of a kind.
func (f fault) is(kind FaultKind) bool { return f.rule != nil && f.rule.Kind == kind }

// errDropped is a request that gets no answer.
var errDropped = errors.New("the connection is closed without an answer, as the fault plan says")

// before is what happens before the request is carried out: with an error it is not.
func (f fault) before(ctx context.Context) error {
	if f.delay > 0 {
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return errDropped // nobody waits for an answer
		}
	}
	if f.rule != nil && f.rule.Applied {
		return nil
	}
	return f.err(ctx)
}

// after is what happens after the request has been carried out.
func (f fault) after(ctx context.Context, err error) error {
	if err != nil || f.rule == nil || !f.rule.Applied {
		return err
	}
	return f.err(ctx)
}

// err is the error that the caller gets, if the caller has not given up before; nil for other faults.
func (f fault) err(ctx context.Context) error {
	switch {
	case f.is(FaultHang):
		<-ctx.Done()
		return errDropped
	case f.is(FaultDrop):
		return errDropped
	case f.is(FaultError):
		return &apiError{
			code: f.rule.Code, members: f.rule.Members, message: f.message(),
			status: cmp.Or(f.rule.Status, statusOf[f.rule.Code], http.StatusBadRequest),
		}
	}
	return nil
}

func (f fault) message() string {
	return cmp.Or(f.rule.Message, "cloudmap-local's fault plan says so.")
}

// onOperation gives the operation the end that the fault decides.
func (f fault) onOperation(op *operation) {
	switch {
	case f.is(FaultFail):
		op.Due = op.Due.Add(time.Duration(f.rule.Delay))
		op.Fails = &operationError{Code: cmp.Or(f.rule.Code, "INTERNAL_FAILURE"), Message: f.message()}
	case f.is(FaultLost):
		op.Lost = true
	}
}

// instances is those of a service that a read shows.
func (f fault) instances(svc *replicaService, now time.Time) map[string]*instance {
	shown := svc.instances
	if f.is(FaultStale) {
		shown = map[string]*instance{}
		for _, id := range svc.knownIDs() {
			if inst := svc.at(id, f.moment(now)); inst != nil {
				shown[id] = inst
			}
		}
	}
	if f.is(FaultPartial) {
		shown = map[string]*instance{}
		for _, id := range sortedKeys(svc.instances) {
			if f.dice.Float64() >= f.rule.Share {
				shown[id] = svc.instances[id]
			}
		}
	}
	return shown
}

// revision is that of a service that a read shows.
func (f fault) revision(svc *replicaService, now time.Time) int64 {
	if f.is(FaultStale) {
		return svc.revisionAt(f.moment(now))
	}
	return svc.revision
}

// hides reports whether a service is too new for a stale read to find it.
func (f fault) hides(svc *replicaService, now time.Time) bool {
	return f.is(FaultStale) && f.moment(now).Before(svc.seen)
}

// moment of the past.
func (f fault) moment(now time.Time) time.Time {
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
