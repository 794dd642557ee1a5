package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of ClusterProperty.
const GroupName = "about.k8s.io"

// Names of the well-known properties.
const (
	// ClusterIDProperty is the ClusterProperty that holds the cluster's ID, unique in its
	// clusterset.
	ClusterIDProperty = "cluster.clusterset.k8s.io"
	// ClusterSetIDProperty is the ClusterProperty that holds the ID of the clusterset that the
	// cluster is a member of.
	ClusterSetIDProperty = "clusterset.k8s.io"
)

// ClusterProperty holds one fact about the cluster; its name says which.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=https://github.com/kubernetes/enhancements/pull/3084"
// +kubebuilder:printcolumn:name=value,type=string,JSONPath=`.spec.value`
// +kubebuilder:printcolumn:name=age,type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterProperty struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the property's value.
	// +required
	Spec ClusterPropertySpec `json:"spec"`
}

// ClusterPropertySpec is the value of a ClusterProperty.
type ClusterPropertySpec struct {
	// value is the property's value, up to 128k Unicode code points.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128000
	Value string `json:"value"`
}

// ClusterPropertyList is a list of ClusterProperties.
//
// +kubebuilder:object:root=true
type ClusterPropertyList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterProperty `json:"items"`
}

// AddToScheme registers the types under gv, v1alpha1 or v1beta1 of GroupName: the version that the
// API server serves.
func AddToScheme(scheme *runtime.Scheme, gv schema.GroupVersion) {
	scheme.AddKnownTypes(gv, &ClusterProperty{}, &ClusterPropertyList{})
	metav1.AddToGroupVersion(scheme, gv)
}
