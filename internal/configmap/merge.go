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

// Merge sets keys of a ConfigMap and keeps the others; nil removes one. It creates the ConfigMap if it does not exist and something is set.
func Merge(ctx context.Context, c client.Writer, name types.NamespacedName, values map[string]any) error {
	if err := merge(ctx, c, name, values); err != nil {
		return fmt.Errorf("writing ConfigMap %s: %w", name, err)
	}
	return nil
}

func merge(ctx context.Context, c client.Writer, name types.NamespacedName, values map[string]any) error {
	change, err := json.Marshal(map[string]any{"data": values})
	if err != nil {
		return err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	err = c.Patch(ctx, object, client.RawPatch(types.MergePatchType, change))
	if !apierrors.IsNotFound(err) {
		return err
	}
	object = &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}},
		Data:       map[string]string{},
	}
	for key, value := range values {
		if text, ok := value.(string); ok {
			object.Data[key] = text
		}
	}
	if len(object.Data) == 0 {
		return nil
	}
	return c.Create(ctx, object)
}
