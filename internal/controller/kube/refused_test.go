package kube

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestIsRefused(t *testing.T) {
	resource := schema.GroupResource{Resource: "services"}
	ofWebhook := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: `admission webhook "x" denied the request`}}
	}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"no error":                  {nil, false},
		"a quota":                   {apierrors.NewForbidden(resource, "web", errors.New("exceeded quota")), true},
		"wrapped":                   {fmt.Errorf("creating: %w", apierrors.NewForbidden(resource, "web", nil)), true},
		"an invalid value":          {apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "web", nil), true},
		"a webhook":                 {ofWebhook(400), true},
		"a webhook with code 413":   {ofWebhook(413), true},
		"a webhook with code 500":   {ofWebhook(500), true},
		"a webhook without answer":  {apierrors.NewInternalError(errors.New(`failed calling webhook "x": timeout`)), true},
		"a fault of the API server": {apierrors.NewInternalError(errors.New("etcdserver: request timed out")), false},
		"a conflict":                {apierrors.NewConflict(resource, "web", nil), false},
		"too many requests":         {apierrors.NewTooManyRequests("slow down", 1), false},
		"not found":                 {apierrors.NewNotFound(resource, "web"), false},
		"no connection":             {errors.New("connection refused"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsRefused(tt.err); got != tt.want {
				t.Errorf("IsRefused(%v) = %t, want %t", tt.err, got, tt.want)
			}
		})
	}
}
