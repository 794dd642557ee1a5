package coredns

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestBeside(t *testing.T) {
	const image = `example.com/coredns:v1.14.5@sha256:0123 # "`
	objects, err := Beside(image)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, o := range objects {
		kinds = append(kinds, o.GetKind())
		if o.GetName() != BesideName || o.GetLabels()["app.kubernetes.io/managed-by"] != "kubectl-mcs" {
			t.Errorf("%s has name %q and labels %v", o.GetKind(), o.GetName(), o.GetLabels())
		}
		switch o.GetKind() {
		case "ClusterRole":
			role := decode[rbacv1.ClusterRole](t, o)
			for _, rule := range role.Rules {
				if !slices.Equal(rule.Verbs, []string{"list", "watch"}) || slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "*") {
					t.Errorf("the ClusterRole allows more than to read what CoreDNS serves: %+v", rule)
				}
			}
		case "Deployment":
			d := decode[appsv1.Deployment](t, o)
			if got := d.Spec.Template.Spec.Containers[0].Image; got != image {
				t.Errorf("image %q, want %q", got, image)
			}
			for key, value := range BesideLabels() {
				if d.Spec.Selector.MatchLabels[key] != value || d.Spec.Template.Labels[key] != value {
					t.Errorf("the Deployment does not select pods by label %s", key)
				}
			}
		case "ConfigMap":
			corefile, _, _ := unstructured.NestedString(o.Object, "data", "Corefile")
			if !parses(corefile) {
				t.Errorf("CoreDNS's parser does not accept the Corefile:\n%s", corefile)
			}
		}
	}
	if want := []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "Service", "Deployment"}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %v, want %v", kinds, want)
	}
}

func decode[T any](t *testing.T, o *unstructured.Unstructured) T {
	t.Helper()
	var into T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &into, true); err != nil {
		t.Fatalf("%s: %v", o.GetKind(), err)
	}
	return into
}

// The testbed runs the default image, so its scenarios test this version.
func TestBesideImage_IsThatOfTestbed(t *testing.T) {
	pins := readFile(t, "../../testbed/programs/coredns/go.mod")
	if version := ImageVersion(BesideImage); !strings.Contains(pins, "github.com/coredns/coredns v"+version+"\n") || !Supports(version) {
		t.Errorf("testbed/programs/coredns/go.mod does not have version %s of %s", version, BesideImage)
	}
}
