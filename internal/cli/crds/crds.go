// Package crds compares the installed CRDs of the MCS API with those that this plugin installs.
package crds

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/deploy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// A Release is the release and schema revision in the labels of a CRD of the MCS API, such as
// v0.5.2 revision 0. It is zero for a CRD without the labels.
type Release struct{ release, revision string }

// String returns the release as users read it.
func (r Release) String() string {
	if r.release == "" {
		return "unknown release"
	}
	return r.release + " revision " + r.revision
}

// ReleaseOf returns the release in the labels of a CRD.
func ReleaseOf(labels map[string]string) Release {
	return Release{labels["multicluster.x-k8s.io/release-version"], labels["multicluster.x-k8s.io/crd-schema-revision"]}
}

// Installed are the releases of the installed CRDs of the MCS API, by name of the CRD.
type Installed map[string]Release

// ReadInstalled reads the CRDs of the MCS API that the cluster has.
func ReadInstalled(ctx context.Context, k *session.Cluster) (Installed, error) {
	found := Installed{}
	for _, plural := range []string{"serviceexports", "serviceimports"} {
		name := plural + "." + mcsv1beta1.GroupName
		crd := &metav1.PartialObjectMetadata{}
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		exists, err := k.Find(ctx, "", name, crd)
		if err != nil {
			return nil, fmt.Errorf("reading the CRDs: %w", err)
		}
		if exists {
			found[name] = ReleaseOf(crd.Labels)
		}
	}
	return found, nil
}

// Bundled returns the release of the CRDs that install applies.
func Bundled() Release {
	var crd metav1.PartialObjectMetadata
	text, err := deploy.Files.ReadFile("crds/multicluster.x-k8s.io_serviceexports.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &crd)
	}
	if err != nil {
		panic(err) // the file is embedded in the program
	}
	return ReleaseOf(crd.Labels)
}

// Compare returns -1 if a is older than b, 1 if it is newer, else 0. A release that cannot be
// parsed equals every other.
func Compare(a, b Release) int {
	va, errA := version.ParseSemantic(a.release)
	vb, errB := version.ParseSemantic(b.release)
	if errA != nil || errB != nil {
		return 0
	}
	switch {
	case va.LessThan(vb):
		return -1
	case vb.LessThan(va):
		return 1
	}
	ra, _ := strconv.Atoi(a.revision)
	rb, _ := strconv.Atoi(b.revision)
	return cmp.Compare(ra, rb)
}

// OlderThan returns the CRDs of an older release than r, sorted, each with its release.
func (i Installed) OlderThan(r Release) []string {
	var older []string
	for _, name := range slices.Sorted(maps.Keys(i)) {
		if Compare(i[name], r) < 0 {
			older = append(older, strings.TrimSuffix(name, "."+mcsv1beta1.GroupName)+" "+i[name].String())
		}
	}
	return older
}
