// Package served discovers the versions of the Multi-Cluster Services and About APIs that an API
// server serves, and registers their Go types under them.
package served

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
)

var (
	// apiVersions are the versions of the MCS and About APIs, the preferred one first. Their
	// schemas are identical, so the Go types of v1beta1 are used for both.
	apiVersions = []string{"v1beta1", "v1alpha1"}

	// The subresource status is required: without it the status of a ServiceImport is never
	// written.
	mcsResources = []string{
		mcsv1beta1.ServiceExportPluralName, mcsv1beta1.ServiceExportPluralName + "/status",
		mcsv1beta1.ServiceImportPluralName, mcsv1beta1.ServiceImportPluralName + "/status",
	}
	aboutResources = []string{"clusterproperties"}
)

// version returns the first of apiVersions in which the API server serves all resources of group.
// If there is none, ok is false and gv is the preferred version. After an error the served versions
// are unknown.
func version(d discovery.DiscoveryInterface, group string, resources []string) (gv schema.GroupVersion, ok bool, err error) {
	for _, v := range apiVersions {
		gv := schema.GroupVersion{Group: group, Version: v}
		list, err := d.ServerResourcesForGroupVersion(gv.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return gv, false, fmt.Errorf("discovering %s: %w", gv, err)
		}
		served := func(resource string) bool {
			return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource })
		}
		if !slices.ContainsFunc(resources, func(r string) bool { return !served(r) }) {
			return gv, true, nil
		}
	}
	return schema.GroupVersion{Group: group, Version: apiVersions[0]}, false, nil
}

// MCS returns the served version of the MCS API. If there is none, ok is false and gv is the
// preferred version. After an error the served versions are unknown.
func MCS(d discovery.DiscoveryInterface) (gv schema.GroupVersion, ok bool, err error) {
	return version(d, mcsv1beta1.GroupName, mcsResources)
}

// About returns the served version of the About API, like MCS.
func About(d discovery.DiscoveryInterface) (gv schema.GroupVersion, ok bool, err error) {
	return version(d, aboutv1beta1.GroupName, aboutResources)
}

// AddMCS registers the types of the MCS API under gv, the served version.
func AddMCS(scheme *runtime.Scheme, gv schema.GroupVersion) {
	scheme.AddKnownTypes(gv,
		&mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceExportList{},
		&mcsv1beta1.ServiceImport{}, &mcsv1beta1.ServiceImportList{})
	metav1.AddToGroupVersion(scheme, gv)
}
