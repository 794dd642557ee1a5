package install

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
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

// The options are the only differences from deploy/base, and the objects are in the order in which
// they can be created.
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
	if len(objects) != len(base) || objects[0].GetKind() != "Namespace" || objects[0].GetName() != "elsewhere" || !isCRD(objects[1]) {
		t.Errorf("the order is %v", objects)
	}
	var last []string
	for _, o := range objects[slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" }):] {
		last = append(last, o.GetKind())
	}
	if d := cmp.Diff([]string{"Deployment", "PodDisruptionBudget", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicyBinding", "NetworkPolicy"}, last); d != "" {
		t.Errorf("the last objects (-want +got):\n%s", d)
	}
	for _, o := range objects {
		if text, _ := o.MarshalJSON(); strings.Contains(string(text), session.DefaultNamespace) {
			t.Errorf("%s names namespace %s", session.ObjectName(o), session.DefaultNamespace)
		}
		if strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") && o.GetNamespace() != "" {
			t.Errorf("%s has a namespace", session.ObjectName(o))
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

// The admission policy lets the controller create ServiceExports only if its flags select Services
// for that.
func TestRenderManifests_AutoExport(t *testing.T) {
	for flag, want := range map[string]string{"--aws-region=eu-west-1": "false", "--auto-export-selector=mcs=auto": "true"} {
		objects, err := renderManifests(installation{namespace: session.DefaultNamespace, replicas: 2, args: []string{flag}})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, o := range objects {
			variables, _, _ := unstructured.NestedSlice(o.Object, "spec", "variables")
			for _, v := range variables {
				if v := v.(map[string]any); v["name"] == "autoExport" {
					if found = true; v["expression"] != want {
						t.Errorf("with %s variable autoExport is %v, want %s", flag, v["expression"], want)
					}
				}
			}
		}
		if !found {
			t.Error("no policy has variable autoExport")
		}
	}
}

// --edit-role adds one object: the ClusterRole of the component, which the chart has too.
func TestRenderManifests_EditRole(t *testing.T) {
	in := installation{namespace: session.DefaultNamespace, replicas: 2}
	var names [2][]string
	for i, edit := range []bool{false, true} {
		in.editRole = edit
		objects, err := renderManifests(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			names[i] = append(names[i], session.ObjectName(o))
		}
	}
	added := slices.DeleteFunc(names[1], func(name string) bool { return slices.Contains(names[0], name) })
	if d := cmp.Diff([]string{"ClusterRole cloud-map-mcs-controller-edit"}, added); d != "" {
		t.Errorf("objects of --edit-role (-want +got):\n%s", d)
	}
}

// The plugin of a release installs the image of the release by digest, unless the user names
// another one.
func TestRenderManifests_UsesImageOfRelease(t *testing.T) {
	config.ImageDigest = "sha256:0123"
	t.Cleanup(func() { config.ImageDigest = "" })
	for image, want := range map[string]string{"": imageName + "@sha256:0123", "example.com/mcs:v9": "example.com/mcs:v9"} {
		objects, err := renderManifests(installation{namespace: session.DefaultNamespace, replicas: 2, image: image})
		if err != nil {
			t.Fatal(err)
		}
		if got := deploymentIn(t, objects).Spec.Template.Spec.Containers[0].Image; got != want {
			t.Errorf("--image=%s: image %s, want %s", image, got, want)
		}
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

// TestNetworkPolicyAllowsEndpoints: the ports of the registries' endpoints in the controller's
// flags are allowed.
func TestNetworkPolicyAllowsEndpoints(t *testing.T) {
	tests := map[string]struct {
		args []string
		want []int32
	}{
		"none":         {[]string{"--aws-region=eu-west-1", "--log-level=debug", "--peer-notification-bind-address=:8479"}, nil},
		"AWS":          {[]string{"--aws-endpoint=https://vpce.example.com"}, nil},
		"AWS on 8443":  {[]string{"--aws-endpoint=https://vpce.example.com:8443/path"}, []int32{8443}},
		"AWS on 443":   {[]string{"--aws-endpoint=https://vpce.example.com:443"}, nil},
		"etcd":         {[]string{"--registry=etcd", "--etcd-endpoints=https://a:2379,https://[fd00::1]:2379,https://c:12379"}, []int32{2379, 12379}},
		"further etcd": {[]string{"--import-from=etcd,endpoints=https://a:2379;https://b:2380,name=x"}, []int32{2379, 2380}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects, err := renderManifests(installation{namespace: session.DefaultNamespace, replicas: 2, args: tt.args})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "NetworkPolicy" })
			var policy networkingv1.NetworkPolicy
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, &policy); err != nil {
				t.Fatal(err)
			}
			var got []int32
			for _, p := range policy.Spec.Egress[1].Ports {
				if p.Port.IntVal != 443 && p.Port.IntVal != 6443 {
					got = append(got, p.Port.IntVal)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("further ports (-want +got):\n%s", d)
			}
		})
	}
}

// A mounted file becomes a ConfigMap with a stable name, so that a change of it does not restart
// the controller.
func TestRenderManifests_MountsFiles(t *testing.T) {
	files := map[mountedFile]string{policyFile: "default: deny\nclusters: {cls2: {}}\n", servicesFile: "services: []\n"}
	objects, err := renderManifests(installation{namespace: "elsewhere", replicas: 2, files: files})
	if err != nil {
		t.Fatal(err)
	}
	pod := deploymentIn(t, objects).Spec.Template.Spec
	container := pod.Containers[0]
	for name, want := range map[string]struct{ arg, key, text string }{
		"import-policy":      {"--import-policy=/etc/cloud-map-mcs/import-policy/policy.yaml", "policy.yaml", files[policyFile]},
		"cloud-map-services": {"--cloud-map-services=/etc/cloud-map-mcs/cloud-map-services/services.yaml", "services.yaml", files[servicesFile]},
	} {
		i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
			return o.GetKind() == "ConfigMap" && o.GetName() == "cloud-map-mcs-controller-"+name && o.GetNamespace() == "elsewhere"
		})
		if i < 0 {
			t.Fatalf("there is no ConfigMap for %s", name)
		}
		if got, _, _ := unstructured.NestedString(objects[i].Object, "data", want.key); got != want.text {
			t.Errorf("%s is %q, want %q", name, got, want.text)
		}
		if !slices.Contains(container.Args, want.arg) ||
			!slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/etc/cloud-map-mcs/"+name && m.Name == name }) ||
			!slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
				return v.Name == name && v.ConfigMap != nil && v.ConfigMap.Name == "cloud-map-mcs-controller-"+name
			}) {
			t.Errorf("%s: arguments %v, mounts %v, volumes %v", name, container.Args, container.VolumeMounts, pod.Volumes)
		}
	}
}

func TestReadFiles(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) *string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return &path
	}
	none, missing := "", filepath.Join(folder, "missing")
	for name, tc := range map[string]struct {
		paths     map[mountedFile]*string
		want      map[mountedFile]string
		wantError string
	}{
		"none":            {paths: map[mountedFile]*string{policyFile: &none, servicesFile: &none}, want: map[mountedFile]string{}},
		"both":            {paths: map[mountedFile]*string{policyFile: file("p", "default: deny"), servicesFile: file("s", "services: []")}, want: map[mountedFile]string{policyFile: "default: deny", servicesFile: "services: []"}},
		"invalid policy":  {paths: map[mountedFile]*string{policyFile: file("q", "default: maybe")}, wantError: "must be allow or deny"},
		"invalid mapping": {paths: map[mountedFile]*string{servicesFile: file("t", "services: [{}]")}, wantError: "--cloud-map-services-file="},
		"missing":         {paths: map[mountedFile]*string{servicesFile: &missing}, wantError: "reading --cloud-map-services-file"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readFiles(tc.paths)
			if tc.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantError) {
					t.Errorf("error %v, want %q", err, tc.wantError)
				}
			} else if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(mountedFile{})); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}
