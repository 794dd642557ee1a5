// Package check has the type that dns status, check and diagnose share: one check and its result.
package check

import (
	"fmt"
	"slices"
)

// Result is the result of a check.
type Result string

// The results of a check.
const (
	OK      Result = "ok"
	Warning Result = "warning"
	Failed  Result = "failed"
	Missing Result = "missing" // a failure: a required configuration or permission is not present
	Unknown Result = "unknown" // the check could not run
)

// A Check is the result of checking one requirement.
type Check struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	Detail string `json:"detail"`
	// Remedy is the action that repairs the problem; empty when no action is required.
	Remedy string `json:"remedy,omitempty"`
}

// IsFailure reports whether a requirement is not met. Warnings and unknown results are not
// failures.
func (c Check) IsFailure() bool { return c.Result == Failed || c.Result == Missing }

// AnyFailure reports whether one of checks is a failure.
func AnyFailure(checks []Check) bool { return slices.ContainsFunc(checks, Check.IsFailure) }

// Summarize returns the first n items of list and the number of the others.
func Summarize(list []string, n int) []string {
	if len(list) <= n {
		return list
	}
	return append(slices.Clone(list[:n]), fmt.Sprintf("and %d more", len(list)-n))
}
