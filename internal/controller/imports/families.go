package imports

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// familyDetector detects the IP families that this cluster assigns to Services. No API object shows
// them in every version of Kubernetes, so it creates a Service with PreferDualStack as a dry run.
// They change when the API server restarts with other flags, as in the conversion to dual-stack, so
// the result expires.
type familyDetector struct {
	client client.Client
	now    func() time.Time

	mu    sync.Mutex
	known []corev1.IPFamily
	// detected is the time of the last detection. While detecting is true, other reconciles use
	// known.
	detected  time.Time
	detecting bool
}

const (
	// familiesMaxAge is the age at which the families are detected again.
	familiesMaxAge = time.Hour
	// familiesMinAge replaces familiesMaxAge while an import needs a family that is not known.
	familiesMinAge = time.Minute
)

// supported returns the families, the cluster's primary one first, or nil if an admission policy
// rejects the dry run. The families of an import are then those that the API server assigns to its
// derived Service. wanted are the families that an import needs.
func (f *familyDetector) supported(ctx context.Context, namespace string, wanted []corev1.IPFamily) ([]corev1.IPFamily, error) {
	known, due := f.begin(wanted)
	if !due {
		return known, nil
	}
	// Without the lock: an admission webhook of this namespace may be slow.
	policy := corev1.IPFamilyPolicyPreferDualStack
	answer, err := dryRunService(ctx, f.client, namespace, corev1.ServiceSpec{IPFamilyPolicy: &policy})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.detecting = false
	switch {
	case err == nil:
		f.known, f.detected = answer.Spec.IPFamilies, f.now()
		return f.known, nil
	case len(known) > 0:
		f.detected = f.now()
		return known, nil
	case kube.IsRefused(err):
		return nil, nil
	}
	return nil, fmt.Errorf("detecting the IP families of Services with a dry run: %w", err)
}

// begin returns the known families and reports whether the caller must detect them.
func (f *familyDetector) begin(wanted []corev1.IPFamily) (known []corev1.IPFamily, due bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.known) == 0 {
		return nil, true
	}
	age := f.now().Sub(f.detected)
	due = !f.detecting && (age >= familiesMaxAge || age >= familiesMinAge && !containsAll(f.known, wanted))
	f.detecting = f.detecting || due
	return f.known, due
}

// containsAll reports whether families contain all of wanted. Families that are not known (nil) do.
func containsAll(families, wanted []corev1.IPFamily) bool {
	return len(families) == 0 || !slices.ContainsFunc(wanted, func(w corev1.IPFamily) bool { return !slices.Contains(families, w) })
}

// dryRunService returns the Service that the API server would create from spec.
func dryRunService(ctx context.Context, c client.Client, namespace string, spec corev1.ServiceSpec) (*corev1.Service, error) {
	spec.Ports = []corev1.ServicePort{{Port: 80}}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, GenerateName: names.DryRunPrefix, Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy},
	}, Spec: spec}
	err := c.Create(ctx, svc, client.DryRunAll, client.DisableReadYourWritesConsistency)
	return svc, err
}
