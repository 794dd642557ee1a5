package imports

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
)

// outcome collects the errors of the writes of one reconcile, each of which is attempted whatever
// became of the others.
type outcome struct {
	errs []error
	// conflict is the first write conflict, which is part of normal operation.
	conflict error
}

// add records err and reports whether it is nil. A creation in a namespace that is being deleted is
// no error, but it did not happen.
func (o *outcome) add(err error) bool {
	switch {
	case err == nil:
		return true
	case kube.IgnoreTerminatingNamespace(err) == nil:
	case !apierrors.IsConflict(err):
		o.errs = append(o.errs, err)
	case o.conflict == nil:
		o.conflict = err
	}
	return false
}

// failed reports whether a write did not happen because of an error or a conflict.
func (o *outcome) failed() bool { return len(o.errs) > 0 || o.conflict != nil }

// count returns the number of errors.
func (o *outcome) count() int { return len(o.errs) }

// refusedSince reports whether one of the errors after the first n is a refusal.
func (o *outcome) refusedSince(n int) bool {
	for _, err := range o.errs[n:] {
		if kube.IsRefused(err) || apierrors.IsAlreadyExists(err) {
			return true
		}
	}
	return false
}

// isRefused reports whether one of the errors is a refusal.
func (o *outcome) isRefused() bool { return o.refusedSince(0) }

// isCancelled reports whether the process ends.
func (o *outcome) isCancelled() bool { return errors.Is(errors.Join(o.errs...), context.Canceled) }

// err returns the errors, joined, without conflicts. It is nil if there is none.
func (o *outcome) err() error { return errors.Join(o.errs...) }

// result returns the errors, or if there is none the conflict.
func (o *outcome) result() error {
	if err := o.err(); err != nil {
		return err
	}
	return o.conflict
}

// maxMessages bounds the errors in a condition: five of some 200 characters fit an event's note of
// 1,024.
const maxMessages = 5

// message returns the errors for users, on one line.
func (o *outcome) message() string {
	var lines []string
	for _, err := range o.errs[:min(len(o.errs), maxMessages)] {
		lines = append(lines, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if more := len(o.errs) - maxMessages; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "; ")
}
