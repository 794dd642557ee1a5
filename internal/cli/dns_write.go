package cli

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

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// grant lets CoreDNS read ServiceImports, and tells whether anything had to be written.
func grant(ctx context.Context, k *cluster, serviceAccount string) (bool, error) {
	role, err := grantRole(ctx, k, coredns.Role())
	if err != nil {
		return false, fmt.Errorf("writing ClusterRole %s: %w", coredns.RoleName, err)
	}
	binding, err := grantBinding(ctx, k, coredns.Binding(coreDNSNamespace, serviceAccount))
	if err != nil {
		return false, fmt.Errorf("writing ClusterRoleBinding %s: %w", coredns.RoleName, err)
	}
	return role || binding, nil
}

func grantRole(ctx context.Context, k *cluster, want *rbacv1.ClusterRole) (bool, error) {
	roles := k.kube.RbacV1().ClusterRoles()
	have, err := roles.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = roles.Create(ctx, want, metav1.CreateOptions{})
		return true, err
	}
	if err != nil || ours(have) && equality.Semantic.DeepEqual(have.Rules, want.Rules) {
		return false, err
	}
	if !ours(have) {
		return false, errNotOurs
	}
	updated := have.DeepCopy()
	updated.Rules = want.Rules
	_, err = roles.Update(ctx, updated, metav1.UpdateOptions{})
	return true, err
}

func grantBinding(ctx context.Context, k *cluster, want *rbacv1.ClusterRoleBinding) (bool, error) {
	bindings := k.kube.RbacV1().ClusterRoleBindings()
	have, err := bindings.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = bindings.Create(ctx, want, metav1.CreateOptions{})
		return true, err
	}
	if err != nil || ours(have) && equality.Semantic.DeepEqual(have.Subjects, want.Subjects) {
		return false, err
	}
	if !ours(have) {
		return false, errNotOurs
	}
	updated := have.DeepCopy()
	updated.Subjects = want.Subjects
	_, err = bindings.Update(ctx, updated, metav1.UpdateOptions{})
	return true, err
}

// revoke deletes what grant wrote, and tells whether there was anything. Objects of the same name that somebody else
// made stay.
func revoke(ctx context.Context, k *cluster) (bool, error) {
	bindings, roles := k.kube.RbacV1().ClusterRoleBindings(), k.kube.RbacV1().ClusterRoles()
	binding, err := bindings.Get(ctx, coredns.RoleName, metav1.GetOptions{})
	if err == nil && ours(binding) {
		err = bindings.Delete(ctx, coredns.RoleName, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("deleting ClusterRoleBinding %s: %w", coredns.RoleName, err)
	}
	role, err := roles.Get(ctx, coredns.RoleName, metav1.GetOptions{})
	if err == nil && ours(role) {
		err = roles.Delete(ctx, coredns.RoleName, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("deleting ClusterRole %s: %w", coredns.RoleName, err)
	}
	return ours(binding) || ours(role), nil
}

var errNotOurs = fmt.Errorf("an object of this name exists without the label app.kubernetes.io/managed-by=%s: "+
	"delete it or label it, then run this again", coredns.Labels()["app.kubernetes.io/managed-by"])

func ours(o metav1.Object) bool {
	labels := o.GetLabels()
	for key, value := range coredns.Labels() {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// writeCorefile applies the edit to the Corefile as it is now, and tells whether that changed it. When somebody else
// writes at the same time, the edit is made again on what they wrote.
func writeCorefile(ctx context.Context, k *cluster, edit func(string) (string, error)) (bool, error) {
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
		_, err = k.kube.CoreV1().ConfigMaps(coreDNSNamespace).Update(ctx, updated, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("writing ConfigMap %s/%s: %w", coreDNSNamespace, coreDNSName, err)
	}
	return changed, nil
}

// restart replaces CoreDNS's pods one after the other, as `kubectl rollout restart` does.
func restart(ctx context.Context, k *cluster) error {
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`,
		k.now().UTC().Format(time.RFC3339))
	_, err := k.kube.AppsV1().Deployments(coreDNSNamespace).Patch(ctx, coreDNSName, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("restarting Deployment %s/%s: %w", coreDNSNamespace, coreDNSName, err)
	}
	return nil
}
