package session

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// A NoPermissionError is the error of a request that the API server has refused, because no role
// gives the user the permission.
type NoPermissionError struct {
	verb, resource string
	// namespace is "" for the whole cluster.
	namespace string
	cause     error
}

// Error implements error. It names the missing rule.
func (e *NoPermissionError) Error() string {
	where := "in the whole cluster"
	if e.namespace != "" {
		where = "in namespace " + e.namespace
	}
	return fmt.Sprintf("no permission to %s %s %s", e.verb, e.resource, where)
}

// Unwrap returns the error of the API server.
func (e *NoPermissionError) Unwrap() error { return e.cause }

// IsNoPermission reports whether err says that the user does not have a permission.
func IsNoPermission(err error) bool {
	var e *NoPermissionError
	return errors.As(err, &e)
}

// WithRule returns a NoPermissionError with the missing rule if the API server has refused a
// request, else err.
func WithRule(err error, verb, namespace string) error {
	var refused apierrors.APIStatus
	if !apierrors.IsForbidden(err) || !errors.As(err, &refused) || refused.Status().Details == nil {
		return err
	}
	resource := schema.GroupResource{Group: refused.Status().Details.Group, Resource: refused.Status().Details.Kind}
	return &NoPermissionError{verb, resource.String(), namespace, err}
}

// seePermissions says where the permissions are that each command needs.
func seePermissions() string { return "see " + docs.URL("kubectl-mcs.md#permissions") }

// CanForwardTo reports whether the user may port-forward to the pods of a namespace.
func (k *Cluster) CanForwardTo(ctx context.Context, namespace string) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: "create", Resource: "pods", Subresource: "portforward",
		},
	}}
	review, err := k.Kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("checking the permission to port-forward: %w", err)
	}
	return review.Status.Allowed, nil
}
