package imports

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// families detects the IP families that this cluster assigns to Services. No API object shows them in every version of
// Kubernetes, so it creates a Service with PreferDualStack as a dry run. They change only with an operation that restarts the
// API server, and are detected once.
type families struct {
	client client.Client

	mu    sync.Mutex
	known []corev1.IPFamily
}

// supported returns the families, the cluster's primary one first, or nil if an admission policy rejects the dry run. The
// families are then those that each derived Service gets.
func (f *families) supported(ctx context.Context, namespace string) ([]corev1.IPFamily, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known != nil {
		return f.known, nil
	}
	policy := corev1.IPFamilyPolicyPreferDualStack
	answer, err := dryRunService(ctx, f.client, namespace, corev1.ServiceSpec{IPFamilyPolicy: &policy})
	switch {
	case isRejected(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("detecting the IP families of Services with a dry run: %w", err)
	}
	f.known = answer.Spec.IPFamilies
	return f.known, nil
}

// dryRunService returns the Service that the API server would create from spec.
func dryRunService(ctx context.Context, c client.Client, namespace string, spec corev1.ServiceSpec) (*corev1.Service, error) {
	spec.Ports = []corev1.ServicePort{{Port: 80}}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: names.DryRunPrefix}, Spec: spec}
	err := c.Create(ctx, svc, client.DryRunAll, client.DisableReadYourWritesConsistency)
	return svc, err
}

// isRejected reports whether the API server rejected a request that it understood, as admission policies do.
func isRejected(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}
