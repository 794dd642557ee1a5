package controller

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// An API server that serves v1beta1 only, and the policy that guards its CRDs.
func TestCRDsOfV1beta1Only(t *testing.T) {
	apiservertest.NeedAssets(t)
	k, err := startKubernetes("v1beta1", keepVersion("v1beta1", append(mcsCRDs(), aboutCRDs()...)...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.env.Stop(); err != nil {
			t.Error(err)
		}
	})
	run := k.run(t, memory.NewHub(), flags("cls1"))
	key := newKey("beta")
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	k.export(t, key, 1, 1)
	k.condition(t, key, "Ready=True Exported", "")
	imp := k.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	if got := k.slicesOf(t, key)[0].OwnerReferences[0]; got.UID != imp.UID || got.APIVersion != "multicluster.x-k8s.io/v1beta1" {
		t.Errorf("the slice's owner is %v", got)
	}
	run.stopAndWait(t)
	testGuard(t, k)
}

// labelRelease and labelRevision are the labels of mcs-api's CRDs.
const (
	labelRelease  = "multicluster.x-k8s.io/release-version"
	labelRevision = "multicluster.x-k8s.io/crd-schema-revision"
)

func testGuard(t *testing.T, k *cluster) {
	t.Helper()
	k.applyFile(t, filepath.Join("..", "..", "deploy", "guard", "policy.yaml"))
	crd := mcsCRDs()[0]
	relabel := func(release, revision string) error {
		if err := k.admin.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); err != nil {
			return err
		}
		crd.Labels = nil
		if release != "" {
			crd.Labels = map[string]string{labelRelease: release, labelRevision: revision}
		}
		return k.admin.Update(t.Context(), crd)
	}
	// The policy takes effect a moment after its creation. Until then the test applies the older
	// and the newer CRD in turn.
	eventually(t, "the policy's effect", func() error {
		if err := relabel("v0.5.2", "1"); err != nil {
			return err
		}
		if err := relabel("v0.5.1", "9"); !apierrors.IsForbidden(err) {
			return fmt.Errorf("an older CRD is accepted, or %w", err)
		}
		return nil
	})
	for _, tt := range []struct {
		release, revision string
		wantRefused       bool
	}{
		{release: "v0.5.2", revision: "0", wantRefused: true},
		{release: "v0.4.12", revision: "3", wantRefused: true},
		{release: "v0.5.2", revision: "1"},
		{release: "v0.5.2", revision: "10"},
		{release: "v0.5.2", revision: "2", wantRefused: true},
		{release: "v0.5.10-rc.1", revision: "0"},
		{release: "v0.5.9", revision: "11", wantRefused: true},
		{release: "v0.10.0", revision: "0"},
		{release: "v1.0.0", revision: "0"},
		{release: "main", revision: "0"},
		{release: "v0.5.2", revision: "0"}, // of an unknown revision of main
		{},                                 // nor what this is
		{release: "v0.5.2", revision: "0"},
	} {
		err := relabel(tt.release, tt.revision)
		if refused := apierrors.IsForbidden(err); refused != tt.wantRefused || err != nil && !refused {
			t.Errorf("CRD of %s revision %s: %v, want it refused: %t", tt.release, tt.revision, err, tt.wantRefused)
		}
		if tt.wantRefused && err != nil && !strings.Contains(err.Error(), "leave it, the newer CRD serves this controller too") {
			t.Errorf("the message has no advice: %v", err)
		}
	}
	for _, crd := range append(mcsCRDs(), aboutCRDs()...) {
		k.delete(t, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: crd.ObjectMeta})
	}
}

// applyFile creates the objects of a YAML file.
func (k *cluster) applyFile(t *testing.T, path string) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for doc := range bytes.SplitSeq(file, []byte("---\n")) {
		var obj unstructured.Unstructured
		if err := yaml.Unmarshal(doc, &obj.Object); err != nil {
			t.Fatal(err)
		}
		k.create(t, &obj)
	}
}
