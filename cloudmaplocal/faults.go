package cloudmaplocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"sync"
	"time"
)

// matchesRequest reports whether the rule can apply to a request.
func (f FaultRule) matchesRequest(caller principal, operation string, about targetNames) bool {
	allowed := f.Operations
	if len(allowed) == 0 {
		allowed = allowedOperations[f.Kind]
	}
	return (len(allowed) == 0 || slices.Contains(allowed, operation)) && (f.Account == "" || f.Account == caller.account) &&
		matchesPattern(f.AccessKey, caller.keyID) && matchesPattern(f.Service, about.service) && matchesPattern(f.Instance, about.instance)
}

// matchesPattern reports whether a name matches a pattern. The empty pattern matches all names;
// other patterns do not match a missing name.
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

// setPlan replaces the plan.
func (f *faults) setPlan(plan FaultPlan) {
	plan.Rules = slices.Clone(plan.Rules)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan, f.hits, f.requestCounts = plan, make([]int, len(plan.Rules)), map[uint64]uint64{}
}

// currentPlan returns the plan and the number of hits of each rule.
func (f *faults) currentPlan() (FaultPlan, []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.plan, slices.Clone(f.hits)
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

// beforeRequest applies the fault before the request is processed; after an error the request is
// not processed.
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

// statusOf has the HTTP statuses of errors that are not 400.
var statusOf = map[string]int{
	"InternalFailure":      http.StatusInternalServerError,
	"ServiceUnavailable":   http.StatusServiceUnavailable,
	"RequestLimitExceeded": http.StatusTooManyRequests,
}

// responseError returns the error for the caller, unless the caller gave up before; nil for other
// kinds of faults.
func (f fault) responseError(ctx context.Context) error {
	switch {
	case f.isKind(FaultHang):
		<-ctx.Done()
		return errDropped
	case f.isKind(FaultDrop):
		return errDropped
	case f.isKind(FaultError):
		return &apiError{
			code: f.rule.Code, members: f.rule.Members, message: f.errorMessage(),
			status: cmp.Or(f.rule.Status, statusOf[f.rule.Code], http.StatusBadRequest),
		}
	}
	return nil
}

func (f fault) errorMessage() string {
	return cmp.Or(f.rule.Message, "Injected by the fault plan of cloudmap-local.")
}

// applyTo makes the operation fail or hang if the fault is of such a kind.
func (f fault) applyTo(op *operation) {
	switch {
	case f.isKind(FaultFail):
		op.Due = op.Due.Add(time.Duration(f.rule.Delay))
		op.Fails = &operationError{Code: cmp.Or(f.rule.Code, opInternal), Message: f.errorMessage()}
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
