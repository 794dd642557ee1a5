package kube

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// The fake client ignores preconditions, so the test checks those of the request.
func TestDelete_SendsUIDPrecondition(t *testing.T) {
	var got []types.UID
	c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
			o := (&client.DeleteOptions{}).ApplyOptions(opts)
			if o.Preconditions != nil && o.Preconditions.UID != nil {
				got = append(got, *o.Preconditions.UID)
			}
			return nil
		},
	}).Build()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web", UID: "uid-1"}}
	if err := Delete(t.Context(), c, svc); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]types.UID{"uid-1"}, got); d != "" {
		t.Errorf("preconditions (-want +got):\n%s", d)
	}
}
