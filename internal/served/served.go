// Package served finds out under which versions an API server has the Multi-Cluster Services and About APIs, and registers
// their Go types under them.
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
	// apiVersions are the versions of the MCS and About APIs, the preferred first. Their schemas are the same in both, so the
	// Go types of v1beta1 serve for whichever the API server has.
	apiVersions = []string{"v1beta1", "v1alpha1"}

	// An older ServiceImport without the subresource status would never get one.
	mcsResources = []string{
		mcsv1beta1.ServiceExportPluralName, mcsv1beta1.ServiceExportPluralName + "/status",
		mcsv1beta1.ServiceImportPluralName, mcsv1beta1.ServiceImportPluralName + "/status",
	}
	aboutResources = []string{"clusterproperties"}
)

// version is the first of apiVersions in which the API server serves all resources of group; ok is false, and gv the preferred
// one, when there is none. An error means that nobody knows.
func version(d discovery.DiscoveryInterface, group string, resources []string) (gv schema.GroupVersion, ok bool, err error) {
	for _, v := range apiVersions {
		gv := schema.GroupVersion{Group: group, Version: v}
		list, err := d.ServerResourcesForGroupVersion(gv.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return gv, false, fmt.Errorf("asking the API server for %s: %w", gv, err)
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

// MCS is the served version of the MCS API; ok is false, and gv the preferred one, when there is none. An error means that
// nobody knows.
func MCS(d discovery.DiscoveryInterface) (gv schema.GroupVersion, ok bool, err error) {
	return version(d, mcsv1beta1.GroupName, mcsResources)
}

// About is the served version of ClusterProperty's API, in the same way.
func About(d discovery.DiscoveryInterface) (gv schema.GroupVersion, ok bool, err error) {
	return version(d, aboutv1beta1.GroupName, aboutResources)
}

// AddMCS registers the types of the MCS API under gv, the version that is served.
func AddMCS(scheme *runtime.Scheme, gv schema.GroupVersion) {
	scheme.AddKnownTypes(gv,
		&mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceExportList{},
		&mcsv1beta1.ServiceImport{}, &mcsv1beta1.ServiceImportList{})
	metav1.AddToGroupVersion(scheme, gv)
}
