package imports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
)

// distributions detects whether the API server supports PreferSameZone and PreferSameNode. Before
// Kubernetes 1.34 it supports PreferClose only: it rejects a Service with another
// trafficDistribution, and silently drops topology hints for nodes, which would then be written
// again at every reconcile.
type distributions struct {
	client client.Client
	// supported is set once they are supported. Until then each use is checked again, since an
	// upgrade may add them.
	supported atomic.Bool
}

// usable returns the trafficDistribution nearest to wanted that the API server supports.
func (d *distributions) usable(ctx context.Context, namespace, wanted string) (string, error) {
	if wanted == "" || wanted == corev1.ServiceTrafficDistributionPreferClose || d.supported.Load() {
		return wanted, nil
	}
	_, err := dryRunService(ctx, d.client, namespace, corev1.ServiceSpec{
		TrafficDistribution: new(corev1.ServiceTrafficDistributionPreferSameNode),
	})
	switch {
	case apierrors.IsInvalid(err) && isAboutField(err, "spec.trafficDistribution"):
		return corev1.ServiceTrafficDistributionPreferClose, nil
	case kube.IsRefused(err):
		// by an admission policy: the write of the derived Service shows the result
		return wanted, nil
	case err != nil:
		return "", fmt.Errorf("detecting the supported trafficDistribution with a dry run: %w", err)
	}
	d.supported.Store(true)
	return wanted, nil
}

// isAboutField reports whether err is about a field whose path begins with field.
func isAboutField(err error, field string) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return strings.HasPrefix(c.Field, field) })
}
