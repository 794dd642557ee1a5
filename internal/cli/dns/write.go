package dns

import (
	"context"
	"fmt"
	"maps"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// grantPermission lets CoreDNS read ServiceImports and reports whether it wrote anything.
func grantPermission(ctx context.Context, k *session.Cluster, serviceAccount string) (bool, error) {
	role, err := applyRole(ctx, k, coredns.Role())
	if err != nil {
		return false, fmt.Errorf("applying ClusterRole %s: %w", coredns.RoleName, err)
	}
	binding, err := applyBinding(ctx, k, coredns.Binding(namespace, serviceAccount))
	if err != nil {
		return false, fmt.Errorf("applying ClusterRoleBinding %s: %w", coredns.RoleName, err)
	}
	return role || binding, nil
}

func applyRole(ctx context.Context, k *session.Cluster, want *rbacv1.ClusterRole) (bool, error) {
	roles := k.Kube.RbacV1().ClusterRoles()
	have, err := roles.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = roles.Create(ctx, want, metav1.CreateOptions{})
		return true, err
	}
	if err != nil || isManaged(have) && equality.Semantic.DeepEqual(have.Rules, want.Rules) {
		return false, err
	}
	if !isManaged(have) {
		return false, errNotManaged
	}
	updated := have.DeepCopy()
	updated.Rules = want.Rules
	_, err = roles.Update(ctx, updated, metav1.UpdateOptions{})
	return true, err
}

func applyBinding(ctx context.Context, k *session.Cluster, want *rbacv1.ClusterRoleBinding) (bool, error) {
	bindings := k.Kube.RbacV1().ClusterRoleBindings()
	have, err := bindings.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = bindings.Create(ctx, want, metav1.CreateOptions{})
		return true, err
	}
	if err != nil || isManaged(have) && equality.Semantic.DeepEqual(have.Subjects, want.Subjects) {
		return false, err
	}
	if !isManaged(have) {
		return false, errNotManaged
	}
	updated := have.DeepCopy()
	updated.Subjects = want.Subjects
	_, err = bindings.Update(ctx, updated, metav1.UpdateOptions{})
	return true, err
}

// revokePermission deletes the objects of grantPermission and reports whether any existed. It keeps objects of the same name
// without the plugin's label.
func revokePermission(ctx context.Context, k *session.Cluster) (bool, error) {
	bindings, roles := k.Kube.RbacV1().ClusterRoleBindings(), k.Kube.RbacV1().ClusterRoles()
	binding, err := bindings.Get(ctx, coredns.RoleName, metav1.GetOptions{})
	if err == nil && isManaged(binding) {
		err = bindings.Delete(ctx, coredns.RoleName, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("deleting ClusterRoleBinding %s: %w", coredns.RoleName, err)
	}
	role, err := roles.Get(ctx, coredns.RoleName, metav1.GetOptions{})
	if err == nil && isManaged(role) {
		err = roles.Delete(ctx, coredns.RoleName, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("deleting ClusterRole %s: %w", coredns.RoleName, err)
	}
	return isManaged(binding) || isManaged(role), nil
}

var errNotManaged = fmt.Errorf("an object of this name exists without the label app.kubernetes.io/managed-by=%s: "+
	"delete or label it, then run this command again", coredns.Labels()["app.kubernetes.io/managed-by"])

// isManaged reports whether the object has the labels of this plugin.
func isManaged(o metav1.Object) bool {
	labels := o.GetLabels()
	for key, value := range coredns.Labels() {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// writeCorefile applies the edit to the current Corefile and reports whether that changed it. After a conflict with another
// writer it applies the edit to the other writer's Corefile.
func writeCorefile(ctx context.Context, k *session.Cluster, edit func(string) (string, error)) (bool, error) {
	changed := false
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		config, err := readCorefile(ctx, k)
		if err != nil {
			return err
		}
		edited, err := edit(config.Data[corefileKey])
		if err != nil {
			return err
		}
		changed = edited != config.Data[corefileKey]
		if !changed {
			return nil
		}
		updated := config.DeepCopy()
		updated.Data = maps.Clone(config.Data)
		updated.Data[corefileKey] = edited
		_, err = k.Kube.CoreV1().ConfigMaps(namespace).Update(ctx, updated, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("writing ConfigMap %s/%s: %w", namespace, name, err)
	}
	return changed, nil
}

// restartDeployment performs a rolling restart of CoreDNS, as `kubectl rollout restart` does.
func restartDeployment(ctx context.Context, k *session.Cluster) error {
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`,
		k.Now().UTC().Format(time.RFC3339))
	_, err := k.Kube.AppsV1().Deployments(namespace).Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("restarting Deployment %s/%s: %w", namespace, name, err)
	}
	return nil
}
