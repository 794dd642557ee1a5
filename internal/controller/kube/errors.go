package kube

import (
	"errors"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// conflictRetry is the delay of a retry after a write conflict. The cache catches up within a few
// milliseconds.
const conflictRetry = 50 * time.Millisecond

// RequeueOnConflict turns a write conflict, which is part of normal operation, into a requeue:
// another client changed the object and the cache does not show it yet. Other errors are returned,
// logged and retried with backoff.
func RequeueOnConflict(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	return reconcile.Result{}, err
}

// IgnoreTerminatingNamespace returns nil for the error of a creation in a namespace that is being
// deleted.
func IgnoreTerminatingNamespace(err error) error {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

// webhookText is in the errors with status 500 of webhooks, those that deny and those that do not
// answer.
const webhookText = "webhook"

// IsRefused reports whether the API server refused a request that it understood, by validation, a
// quota, an admission policy or a webhook: it refuses the same request again until an administrator
// changes something.
func IsRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	case http.StatusInternalServerError:
		return strings.Contains(err.Error(), webhookText)
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}
