package session

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// List reads the objects of a kind, in one namespace or in all when it is "".
func (k *Cluster) List(ctx context.Context, namespace string, into client.ObjectList, opts ...client.ListOption) error {
	c, err := k.Objects()
	if err != nil {
		return err
	}
	return WithRule(c.List(ctx, into, append(opts, client.InNamespace(namespace))...), "list", namespace)
}

// Find reads an object and reports whether it exists. An API that is not served has no objects.
func (k *Cluster) Find(ctx context.Context, namespace, name string, into client.Object) (bool, error) {
	c, err := k.Objects()
	if err != nil {
		return false, err
	}
	err = c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	if IsNotFound(err) {
		return false, nil
	}
	return err == nil, WithRule(err, "get", namespace)
}

// IsNotFound reports whether the object, or its whole API, does not exist.
func IsNotFound(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// ListExports returns the ServiceExports of a namespace, or of all when it is "".
func (k *Cluster) ListExports(ctx context.Context, namespace string) ([]mcsv1beta1.ServiceExport, error) {
	var exports mcsv1beta1.ServiceExportList
	if err := k.List(ctx, namespace, &exports); err != nil {
		return nil, fmt.Errorf("listing ServiceExports: %w", err)
	}
	return exports.Items, nil
}

// NamesOf returns the sorted names of the ServiceExports that export a Service.
func (k *Cluster) NamesOf(ctx context.Context, namespace, service string) (names []string, err error) {
	exports, err := k.ListExports(ctx, namespace)
	for i := range exports {
		if name, invalid := mcs.ExportedService(&exports[i]); invalid == nil && name == service {
			names = append(names, exports[i].Name)
		}
	}
	slices.Sort(names)
	return names, err
}

// ListImports returns the ServiceImports of a namespace, or of all when it is "".
func (k *Cluster) ListImports(ctx context.Context, namespace string) ([]mcsv1beta1.ServiceImport, error) {
	var imports mcsv1beta1.ServiceImportList
	if err := k.List(ctx, namespace, &imports); err != nil {
		return nil, fmt.Errorf("listing ServiceImports: %w", err)
	}
	return imports.Items, nil
}

// SourceClusters returns the sorted IDs of the clusters in the status of a ServiceImport.
func SourceClusters(imp *mcsv1beta1.ServiceImport) []string {
	var ids []string
	for _, c := range imp.Status.Clusters {
		ids = append(ids, c.Cluster)
	}
	slices.Sort(ids)
	return ids
}

// IsPodReady reports whether the pod is ready and not terminating.
func IsPodReady(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// IsRolledOut reports whether all pods of the Deployment run its current template and no other pod
// is left.
func IsRolledOut(d *appsv1.Deployment) bool {
	replicas := int32(1)
	if d.Spec.Replicas != nil {
		replicas = *d.Spec.Replicas
	}
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas && s.Replicas == replicas
}

// ServiceAccountCan asks the API server's authorizer whether a service account has a permission.
func (k *Cluster) ServiceAccountCan(ctx context.Context, namespace, name string, attributes authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               fmt.Sprintf("system:serviceaccount:%s:%s", namespace, name),
		Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
		ResourceAttributes: &attributes,
	}}
	review, err := k.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}
