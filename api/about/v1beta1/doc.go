// Package v1beta1 holds the Go types of about.k8s.io (KEP-2149). Its upstream module is not
// published.
//
// The schemas of v1alpha1 and v1beta1 are the same, so these types serve for both: register them
// with AddToScheme under the version that the API server serves.
//
// +kubebuilder:object:generate=true
// +groupName=about.k8s.io
package v1beta1
