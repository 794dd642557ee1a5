package coredns

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// RoleName names the ClusterRole and the ClusterRoleBinding that let CoreDNS read ServiceImports.
//
// They are separate from CoreDNS's own role system:coredns, because kubeadm, k3s and the EKS add-on
// overwrite that role on every upgrade, and a CoreDNS with the multicluster option but without
// permission to list ServiceImports answers no queries at all, including those for cluster.local.
const RoleName = names.CoreDNSRole

// Labels returns the labels of the objects that this tool creates and may delete.
func Labels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/managed-by": names.Plugin,
		"app.kubernetes.io/part-of":    names.Product,
	}
}

// Rule returns the permission that CoreDNS needs in addition to its own role.
func Rule() rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		APIGroups: []string{mcsv1alpha1.GroupName},
		Resources: []string{"serviceimports"},
		Verbs:     []string{"list", "watch"},
	}
}

// Role returns the ClusterRole with that rule.
func Role() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: RoleName, Labels: Labels()},
		Rules:      []rbacv1.PolicyRule{Rule()},
	}
}

// Binding returns the ClusterRoleBinding of the role to the service account of CoreDNS.
func Binding(namespace, serviceAccount string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: RoleName, Labels: Labels()},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: RoleName},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: serviceAccount}},
	}
}
