package install

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// deploymentIn returns the controller's Deployment.
func deploymentIn(t *testing.T, objects []*unstructured.Unstructured) appsv1.Deployment {
	t.Helper()
	var d appsv1.Deployment
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	if i < 0 {
		t.Fatal("no Deployment")
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// The options are the only differences from deploy/base, and the objects are in the order in which they can be created.
func TestRenderManifests(t *testing.T) {
	base, err := renderManifests(installation{namespace: session.DefaultNamespace, replicas: 2})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := renderManifests(installation{
		namespace: "elsewhere", image: "example.com:5000/mcs:v9@sha256:0123", replicas: 3, secret: "aws",
		annotations: map[string]string{"eks.amazonaws.com/role-arn": "arn:x"}, args: []string{"--aws-region=eu-west-1", "--import-namespaces=a,b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) != len(base) || objects[0].GetKind() != "Namespace" || objects[0].GetName() != "elsewhere" || !isCRD(objects[1]) ||
		objects[len(objects)-2].GetKind() != "Deployment" || objects[len(objects)-1].GetKind() != "PodDisruptionBudget" {
		t.Errorf("the order is %v", objects)
	}
	for _, o := range objects {
		if text, _ := o.MarshalJSON(); strings.Contains(string(text), session.DefaultNamespace) {
			t.Errorf("%s names namespace %s", objectName(o), session.DefaultNamespace)
		}
		if o.GetKind() == "ServiceAccount" && o.GetAnnotations()["eks.amazonaws.com/role-arn"] != "arn:x" {
			t.Errorf("the ServiceAccount has annotations %v", o.GetAnnotations())
		}
	}
	want := deploymentIn(t, base)
	want.Namespace = "elsewhere"
	want.Spec.Replicas = new(int32(3))
	container := &want.Spec.Template.Spec.Containers[0]
	container.Image = "example.com:5000/mcs:v9@sha256:0123"
	container.Args = append(container.Args, "--aws-region=eu-west-1", "--import-namespaces=a,b")
	container.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "aws"}}}}
	if diff := cmp.Diff(want, deploymentIn(t, objects)); diff != "" {
		t.Error(diff)
	}
}

func TestSplitImage(t *testing.T) {
	for ref, want := range map[string][3]string{
		"mcs":                         {"mcs", "", ""},
		"mcs:v1":                      {"mcs", "v1", ""},
		"example.com:5000/mcs":        {"example.com:5000/mcs", "", ""},
		"example.com:5000/mcs:v1":     {"example.com:5000/mcs", "v1", ""},
		"mcs@sha256:0123":             {"mcs", "", "sha256:0123"},
		"example.com/mcs:v1@sha256:0": {"example.com/mcs", "v1", "sha256:0"},
	} {
		if got := splitImage(ref); got.NewName != want[0] || got.NewTag != want[1] || got.Digest != want[2] {
			t.Errorf("%s: %+v", ref, got)
		}
	}
}
