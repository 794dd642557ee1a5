package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// errFenceLost means that the key alive is not as this process wrote it: nothing was written.
	errFenceLost = errors.New("the cluster's key alive was changed by another process")
	// errTooLarge means that etcd refuses the size or the number of operations of a request.
	errTooLarge = errors.New("etcd refuses a request of this size: raise its --max-request-bytes and --max-txn-ops to their defaults or more, or export fewer endpoints")
)

// advice is what a user can do about an error of etcd, and the error's result in metrics.
var advice = []struct {
	err    error
	result string
	text   string
}{
	{rpctypes.ErrNoSpace, "error", "etcd's storage quota is used up and it accepts no exports; what was exported stays: compact and defragment it, then etcdctl alarm disarm"},
	{rpctypes.ErrPermissionDenied, "denied", "etcd's user must have the permissions of docs/etcd.md"},
	{rpctypes.ErrAuthFailed, "denied", "etcd refuses user or password: check --etcd-username and --etcd-password-file"},
	{rpctypes.ErrUserEmpty, "denied", "etcd wants a user: set --etcd-username and --etcd-password-file, or --etcd-cert and --etcd-key"},
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
	for _, a := range advice {
		if errors.Is(err, a.err) {
			return a.result
		}
	}
	if errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return "canceled"
	}
	return "error"
}

// isRefusal reports whether etcd certainly did not carry out a request, and will not do so later.
func isRefusal(err error) bool {
	switch resultOf(err) {
	case "denied", "throttled", "invalid":
		return true
	}
	return errors.Is(err, rpctypes.ErrNoSpace)
}

// explain returns err with what a user can do about it.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: %w", errTooLarge, err)
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded, status.Code(err) == codes.Unavailable:
		return fmt.Errorf("etcd does not answer: check --etcd-endpoints, its members and the network between: %w", err)
	}
	for _, a := range advice {
		if a.text != "" && errors.Is(err, a.err) {
			return fmt.Errorf("%s: %w", a.text, err)
		}
	}
	return err
}
