package dns

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// revokePermission deletes the objects of grantPermission and reports whether any existed. It keeps
// objects of the same name without the plugin's label.
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

// writeCorefile applies the edit to the current Corefile and returns the name of the ConfigMap, or
// "" if the edit changed nothing. After a conflict with another writer it applies the edit to the
// other writer's Corefile.
func writeCorefile(ctx context.Context, k *session.Cluster, edit func(string) (string, error)) (string, error) {
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
		return "", fmt.Errorf("writing ConfigMap %s/%s: %w", namespace, name, err)
	}
	if !changed {
		return "", nil
	}
	return namespace + "/" + name, nil
}

// readCustom returns the server block for the zone in ConfigMap coredns-custom, or "".
func readCustom(ctx context.Context, k *session.Cluster) (string, error) {
	config, err := k.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, coredns.CustomName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading ConfigMap %s/%s: %w", namespace, coredns.CustomName, err)
	}
	return config.Data[coredns.CustomKey], nil
}

// writeCustom sets the server block for the zone in ConfigMap coredns-custom, or deletes it if it
// is "". It returns the name of the ConfigMap, or "" if nothing changed. It creates the ConfigMap
// if necessary, and deletes one that it created and that is empty.
func writeCustom(ctx context.Context, k *session.Cluster, block string) (string, error) {
	written := ""
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		written, err = writeCustomOnce(ctx, k.Kube.CoreV1().ConfigMaps(namespace), block)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("writing ConfigMap %s/%s: %w", namespace, coredns.CustomName, err)
	}
	return written, nil
}

func writeCustomOnce(ctx context.Context, configMaps corev1client.ConfigMapInterface, block string) (string, error) {
	const written = namespace + "/" + coredns.CustomName
	config, err := configMaps.Get(ctx, coredns.CustomName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && block != "" {
		config = &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: coredns.CustomName, Labels: coredns.Labels()},
			Data:       map[string]string{coredns.CustomKey: block},
		}
		_, err = configMaps.Create(ctx, config, metav1.CreateOptions{})
		return written, err
	}
	if err != nil || config.Data[coredns.CustomKey] == block {
		return "", client.IgnoreNotFound(err)
	}
	if key := otherForward(config.Data); key != "" && block != "" {
		return "", fmt.Errorf("key %s forwards %s already: delete it first", key, coredns.Zone)
	}
	updated := config.DeepCopy()
	if updated.Data == nil {
		updated.Data = map[string]string{}
	}
	if updated.Data[coredns.CustomKey] = block; block == "" {
		delete(updated.Data, coredns.CustomKey)
	}
	if len(updated.Data) == 0 && isManaged(updated) {
		return written, configMaps.Delete(ctx, coredns.CustomName, metav1.DeleteOptions{})
	}
	_, err = configMaps.Update(ctx, updated, metav1.UpdateOptions{})
	return written, err
}

// otherForward returns the key of another server block that forwards the zone, or "". CoreDNS does
// not start with two of them.
func otherForward(data map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if addresses, err := coredns.Upstreams(data[key]); key != coredns.CustomKey && strings.HasSuffix(key, ".server") && err == nil && addresses != nil {
			return key
		}
	}
	return ""
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
