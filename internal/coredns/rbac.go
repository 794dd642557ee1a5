package coredns

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// RoleName names the ClusterRole and the ClusterRoleBinding that let CoreDNS read ServiceImports.
//
// They stand beside CoreDNS's own role system:coredns and not in it: kubeadm, k3s and the EKS add-on write their
// system:coredns anew on every upgrade, and a CoreDNS with the multicluster option that may not list ServiceImports
// answers nothing at all, cluster.local included.
const RoleName = names.CoreDNSRole

// Labels mark what this tool creates, and what it may delete.
func Labels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/managed-by": names.Plugin,
		"app.kubernetes.io/part-of":    names.Product,
	}
}

// Rule is all that CoreDNS needs beyond its own role.
func Rule() rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		APIGroups: []string{mcsv1alpha1.GroupName},
		Resources: []string{"serviceimports"},
		Verbs:     []string{"list", "watch"},
	}
}

// Role is the ClusterRole with that one rule.
func Role() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: RoleName, Labels: Labels()},
		Rules:      []rbacv1.PolicyRule{Rule()},
	}
}

// Binding gives the role to the service account CoreDNS runs as.
func Binding(namespace, serviceAccount string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: RoleName, Labels: Labels()},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: RoleName},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: serviceAccount}},
	}
}
