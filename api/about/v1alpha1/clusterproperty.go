// Package v1alpha1 exists for the generated CRD: it serves the schema of v1beta1 under its older
// name. Code uses the types of v1beta1 for both.
//
// +kubebuilder:object:generate=true
// +groupName=about.k8s.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
)

// ClusterProperty holds one fact about the cluster; its name says which.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name=value,type=string,JSONPath=`.spec.value`
// +kubebuilder:printcolumn:name=age,type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterProperty struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the property's value.
	// +required
	Spec v1beta1.ClusterPropertySpec `json:"spec"`
}
