// Package configmap writes single keys of ConfigMaps that have several writers.
package configmap

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// Merge sets keys of a ConfigMap and keeps the others; nil removes one. It creates the ConfigMap if
// it does not exist and something is set.
func Merge(ctx context.Context, c client.Writer, name types.NamespacedName, values map[string]any) error {
	_, err := merge(ctx, c, name, "", values)
	if apierrors.IsNotFound(err) {
		_, err = create(ctx, c, name, values)
	}
	return describe(name, err)
}

// MergeAt is Merge for a ConfigMap with a resource version, "" if it does not exist, and returns
// the next one. The error is a Conflict, and nothing is written, if the ConfigMap has another one.
func MergeAt(ctx context.Context, c client.Writer, name types.NamespacedName, version string, values map[string]any) (next string, err error) {
	if version == "" {
		next, err = create(ctx, c, name, values)
	} else {
		next, err = merge(ctx, c, name, version, values)
	}
	if apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		err = apierrors.NewConflict(corev1.Resource("configmaps"), name.Name, err)
	}
	return next, describe(name, err)
}

func describe(name types.NamespacedName, err error) error {
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s: %w", name, err)
	}
	return nil
}

// merge changes a ConfigMap that exists. With a version it must have that one.
func merge(ctx context.Context, c client.Writer, name types.NamespacedName, version string, values map[string]any) (next string, err error) {
	change := map[string]any{"data": values}
	if version != "" {
		change["metadata"] = map[string]string{"resourceVersion": version}
	}
	body, err := json.Marshal(change)
	if err != nil {
		return "", err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	err = c.Patch(ctx, object, client.RawPatch(types.MergePatchType, body))
	return object.ResourceVersion, err
}

// create creates a ConfigMap, unless nothing is set.
func create(ctx context.Context, c client.Writer, name types.NamespacedName, values map[string]any) (next string, err error) {
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}},
		Data:       map[string]string{},
	}
	for key, value := range values {
		if text, ok := value.(string); ok {
			object.Data[key] = text
		}
	}
	if len(object.Data) == 0 {
		return "", nil
	}
	err = c.Create(ctx, object)
	return object.ResourceVersion, err
}
