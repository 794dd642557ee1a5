package imports

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestOutcome(t *testing.T) {
	resource := schema.GroupResource{Resource: "services"}
	refused := apierrors.NewForbidden(resource, "web", errors.New("exceeded quota"))
	conflict := apierrors.NewConflict(resource, "web", errors.New("the object has been modified"))
	terminating := apierrors.NewForbidden(resource, "web", errors.New("the namespace is being deleted"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, tt := range map[string]struct {
		errs        []error
		failed      bool
		refused     bool
		result      error
		wantMessage string
	}{
		"no error":                {errs: []error{nil, nil}},
		"a refusal":               {errs: []error{nil, refused}, failed: true, refused: true, result: refused, wantMessage: "exceeded quota"},
		"a conflict":              {errs: []error{conflict}, failed: true, result: conflict},
		"a conflict, a refusal":   {errs: []error{conflict, refused}, failed: true, refused: true, result: refused, wantMessage: "exceeded quota"},
		"a terminating namespace": {errs: []error{terminating}},
		"the end of the process":  {errs: []error{fmt.Errorf("creating: %w", context.Canceled)}, failed: true, result: context.Canceled, wantMessage: "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			var out outcome
			for _, err := range tt.errs {
				if out.add(err) != (err == nil) {
					t.Errorf("add(%v) returns %t", err, err != nil)
				}
			}
			if out.failed() != tt.failed || out.isRefused() != tt.refused || !errors.Is(out.result(), tt.result) {
				t.Errorf("failed %t, refused %t, result %v; want %t, %t, %v", out.failed(), out.isRefused(), out.result(), tt.failed, tt.refused, tt.result)
			}
			if !strings.Contains(out.message(), tt.wantMessage) {
				t.Errorf("message %q does not contain %q", out.message(), tt.wantMessage)
			}
		})
	}
}

func TestOutcomeMessageIsBounded(t *testing.T) {
	var out outcome
	for i := range 40 {
		out.add(fmt.Errorf("slice %d\nrefused", i))
	}
	if m := out.message(); strings.Contains(m, "\n") || strings.Count(m, "slice") != maxMessages || !strings.HasSuffix(m, "and 35 more") {
		t.Errorf("message %q, want %d errors on one line and the number of the others", m, maxMessages)
	}
}
