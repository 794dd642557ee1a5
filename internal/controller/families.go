package controller

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

// families finds out which IP families this cluster gives its Services. No object of the API says so in every version
// of Kubernetes, so it asks with a dry run: what would a Service get that takes what it can? They do not change while a
// cluster runs, but for an operation that restarts its API server, and are asked for once.
type families struct {
	client client.Client

	mu    sync.Mutex
	known []corev1.IPFamily
}

// supported are the families, the cluster's primary one first; nil when an admission policy refuses the question, in which
// case the answer is left to each derived Service.
func (f *families) supported(ctx context.Context, namespace string) ([]corev1.IPFamily, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known != nil {
		return f.known, nil
	}
	policy := corev1.IPFamilyPolicyPreferDualStack
	answer, err := dryRunService(ctx, f.client, namespace, corev1.ServiceSpec{IPFamilyPolicy: &policy})
	switch {
	case refused(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("asking, with a dry run, which IP families Services are given: %w", err)
	}
	f.known = answer.Spec.IPFamilies
	return f.known, nil
}

// dryRunService is what the API server would make of a Service of spec.
func dryRunService(ctx context.Context, c client.Client, namespace string, spec corev1.ServiceSpec) (*corev1.Service, error) {
	spec.Ports = []corev1.ServicePort{{Port: 80}}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: names.DryRunPrefix}, Spec: spec}
	err := c.Create(ctx, svc, client.DryRunAll, client.DisableReadYourWritesConsistency)
	return svc, err
}

// refused says whether the API server understood a request and would not have it, as admission policies do.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}
