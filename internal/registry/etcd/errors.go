package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

var (
	// errFenceLost means that the key "alive" changed since this process wrote it. The transaction
	// had no effect.
	errFenceLost = errors.New("another process changed the cluster's key alive")
	// errTooLarge means that etcd refuses the size or the number of operations of a request.
	errTooLarge = errors.New("etcd refuses a request of this size: raise its --max-request-bytes and --max-txn-ops to their defaults or more, or export fewer endpoints")
)

// knownErrors maps errors of etcd to their result in metrics and to advice for the user.
var knownErrors = []struct {
	err    error
	result string
	advice string
}{
	{rpctypes.ErrNoSpace, "error", "etcd's storage quota is used up and it rejects writes; existing exports stay: compact and defragment it, then etcdctl alarm disarm"},
	{rpctypes.ErrPermissionDenied, "denied", "etcd's user must have the permissions of " + docs.URL("etcd.md#a-user-for-each-cluster")},
	{rpctypes.ErrAuthFailed, "denied", "etcd refuses user or password: check --etcd-username and --etcd-password-file"},
	{rpctypes.ErrUserEmpty, "denied", "etcd requires authentication: set --etcd-username and --etcd-password-file, or --etcd-cert and --etcd-key"},
	{rpctypes.ErrInvalidAuthToken, "denied", ""},
	{rpctypes.ErrAuthOldRevision, "denied", ""},
	{rpctypes.ErrTooManyRequests, "throttled", ""},
	{rpctypes.ErrCompacted, "conflict", ""},
	{rpctypes.ErrFutureRev, "conflict", ""},
	{rpctypes.ErrLeaseNotFound, "not_found", ""},
	{rpctypes.ErrRequestTooLarge, "invalid", ""},
	{rpctypes.ErrTooManyOps, "invalid", ""},
	{errFenceLost, "conflict", ""},
}

// resultOf returns the result of a request for metrics.
func resultOf(err error) string {
	if err == nil {
		return "ok"
	}
	for _, k := range knownErrors {
		if errors.Is(err, k.err) {
			return k.result
		}
	}
	if errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return "canceled"
	}
	return "error"
}

// isRejected reports whether etcd rejected the request, so that it certainly has no effect, not
// even later.
func isRejected(err error) bool {
	switch resultOf(err) {
	case "denied", "throttled", "invalid":
		return true
	}
	return errors.Is(err, rpctypes.ErrNoSpace)
}

// isTooLong reports whether the client has refused an answer because of its size.
func isTooLong(err error) bool {
	var e rpctypes.EtcdError
	return errors.As(err, &e) && e.Code() == codes.ResourceExhausted || status.Code(err) == codes.ResourceExhausted
}

// isUnanswered reports whether etcd did not answer in time, or could not be reached.
func isUnanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.Unavailable
}

// withAdvice adds advice for the user to err.
func withAdvice(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: %w", errTooLarge, err)
	case isUnanswered(err):
		return fmt.Errorf("etcd does not answer: check --etcd-endpoints, its members and the network between: %w", err)
	}
	for _, k := range knownErrors {
		if k.advice != "" && errors.Is(err, k.err) {
			return fmt.Errorf("%s: %w", k.advice, err)
		}
	}
	return err
}
