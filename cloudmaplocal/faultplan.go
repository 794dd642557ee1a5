package cloudmaplocal

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"
)

// FaultPlan is a set of injected faults. It is deterministic: the fault of a caller's n-th request
// of an operation on one instance or one service (by name), or on none, depends on the seed alone,
// whatever other requests arrive between. Only Next depends on the order of requests.
type FaultPlan struct {
	// Seed of all random decisions.
	Seed uint64 `json:"seed,omitempty"`
	// Rules in order of precedence: the delays of all matching rules add up; of the others the
	// first matching rule applies.
	Rules []FaultRule `json:"rules"`
}

// FaultRule selects requests and the fault that they get.
type FaultRule struct {
	// Operations to match, for example RegisterInstance. Empty: all operations that this kind of
	// fault applies to.
	Operations []string `json:"operations,omitempty"`
	// Account and AccessKey of the caller. Empty: every caller. The key is that of the signature,
	// known or not, with * and ? as in file names: "ASIA*" matches all sessions of roles.
	Account   string `json:"account,omitempty"`
	AccessKey string `json:"accessKey,omitempty"`
	// Service is the name of the service and Instance the ID of the instance of the request, with *
	// and ? as in file names. Empty: every request. Discovery requests name no instance.
	Service  string `json:"service,omitempty"`
	Instance string `json:"instance,omitempty"`

	// Probability of the fault for a matching request. 0 means 1: every request.
	Probability float64 `json:"probability,omitempty"`
	// Next is the number of injected faults after which the rule ends. 0: never.
	Next int `json:"next,omitempty"`

	// Kind of fault. Required.
	Kind FaultKind `json:"kind"`
	// Delay before the request is processed, in real time even if Options.Now is another clock. It
	// is the only field of the kind delay. With the kind fail it is an additional time until the
	// operation fails, by Options.Now.
	Delay Duration `json:"delay,omitempty"`
	// Applied injects error, drop and hang after the request has been processed, unless it failed
	// by itself.
	Applied bool `json:"applied,omitempty"`
	// Code of an error, required for that kind; of a failed operation, default INTERNAL_FAILURE.
	Code string `json:"code,omitempty"`
	// Status is the HTTP status of an error. Default: 400, or the status that AWS uses with the
	// code.
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
	// FaultStale shows each instance as it was at a random time within the last Age, but not before
	// the plan was set. Instances can appear in another order than they were written, and a later
	// read can show less. A new service may not be found.
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
		if !isOperation(name) {
			return fmt.Errorf("operation %q: no such operation; the operations are %v", name, operationNames())
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
