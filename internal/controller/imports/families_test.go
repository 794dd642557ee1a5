package imports

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
)

// A cluster that is converted to dual-stack keeps its controller.
func TestFamiliesAreDetectedAgain(t *testing.T) {
	has := []corev1.IPFamily{corev1.IPv4Protocol}
	dryRuns := 0
	c := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.CreateOption) error {
			dryRuns++
			obj.(*corev1.Service).Spec.IPFamilies = has
			return nil
		},
	}).Build()
	now := time.Now()
	f := &familyDetector{client: c, now: func() time.Time { return now }}
	v4, v6 := has, []corev1.IPFamily{corev1.IPv6Protocol}
	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for _, step := range []struct {
		name        string
		after       time.Duration
		has, wanted []corev1.IPFamily
		want        []corev1.IPFamily
		wantDryRuns int
	}{
		{"first", 0, v4, v4, v4, 1},
		{"again", time.Second, v4, v4, v4, 1},
		{"an import needs another family", time.Second, v4, v6, v4, 1},
		{"it still does after a minute", time.Minute, v4, v6, v4, 2},
		{"the cluster has both now", 10 * time.Second, both, v6, v4, 2},
		{"the import is reconciled later", time.Minute, both, v6, both, 3},
		{"an import that needs no other", 59 * time.Minute, v4, v4, both, 3},
		{"after an hour", time.Minute, v4, v4, v4, 4},
	} {
		now, has = now.Add(step.after), step.has
		got, err := f.supported(t.Context(), "n", step.wanted)
		if err != nil || !slices.Equal(got, step.want) || dryRuns != step.wantDryRuns {
			t.Errorf("%s: families %v (%v) after %d dry runs, want %v after %d", step.name, got, err, dryRuns, step.want, step.wantDryRuns)
		}
	}
}
