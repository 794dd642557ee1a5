package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// distributions finds out whether the API server knows PreferSameZone and PreferSameNode. One older than Kubernetes 1.34
// knows PreferClose only: it refuses a Service with another trafficDistribution, and it drops hints for nodes without a
// word, so that they would be written again at every look.
type distributions struct {
	client client.Client
	// known is a yes. A no is asked for again each time, since an upgrade turns it into a yes.
	known atomic.Bool
}

// usable is the trafficDistribution nearest to wanted that the API server takes.
func (d *distributions) usable(ctx context.Context, namespace, wanted string) (string, error) {
	if wanted == "" || wanted == corev1.ServiceTrafficDistributionPreferClose || d.known.Load() {
		return wanted, nil
	}
	_, err := dryRunService(ctx, d.client, namespace, corev1.ServiceSpec{
		TrafficDistribution: new(corev1.ServiceTrafficDistributionPreferSameNode),
	})
	switch {
	case apierrors.IsInvalid(err) && concerns(err, "spec.trafficDistribution"):
		return corev1.ServiceTrafficDistributionPreferClose, nil
	case refused(err):
		return wanted, nil // an admission policy is in the way: the derived Service itself will tell
	case err != nil:
		return "", fmt.Errorf("asking, with a dry run, which trafficDistribution Services may have: %w", err)
	}
	d.known.Store(true)
	return wanted, nil
}

// concerns says whether err is about a field.
func concerns(err error, field string) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == field })
}
