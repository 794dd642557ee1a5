package kube

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Find reads obj and reports whether it exists.
func Find(ctx context.Context, c client.Reader, name types.NamespacedName, obj client.Object, opts ...client.GetOption) (bool, error) {
	err := c.Get(ctx, name, obj, opts...)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %T %s: %w", obj, strings.TrimPrefix(name.String(), "/"), err)
	}
	return true, nil
}

// Delete deletes obj if it still is the object that was read, and not a new one of the same name.
// An object that does not exist is no error.
func Delete(ctx context.Context, c client.Writer, obj client.Object) error {
	uid := obj.GetUID()
	err := c.Delete(ctx, obj, client.Preconditions{UID: &uid})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %T %s/%s: %w", obj, obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}

// NamespaceMetadata returns an object to read a namespace's metadata into, the only part of it that
// is cached.
func NamespaceMetadata() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}

// namespaceMetadataList returns an empty list for the metadata of all namespaces.
func namespaceMetadataList() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	return list
}

// ReadNamespace reads a namespace's metadata. A namespace that does not exist has no labels.
func ReadNamespace(ctx context.Context, c client.Reader, name string) (ns *metav1.PartialObjectMetadata, found bool, err error) {
	ns = NamespaceMetadata()
	found, err = Find(ctx, c, types.NamespacedName{Name: name}, ns, client.UnsafeDisableDeepCopy)
	ns.Name = name // for messages about one that does not exist
	return ns, found, err
}

// IsNamespaceActive reports whether a namespace exists and is not being deleted.
func IsNamespaceActive(ctx context.Context, c client.Reader, name string) (bool, error) {
	ns, found, err := ReadNamespace(ctx, c, name)
	return found && ns.DeletionTimestamp == nil, err
}
