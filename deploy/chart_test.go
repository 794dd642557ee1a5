package deploy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/golden"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
)

const (
	chartDir = "charts/cloud-map-mcs-controller"
	release  = "cloud-map-mcs-controller"
	system   = "cloud-map-mcs-system"
)

// tool returns the path of a program that make builds. Without it the test is skipped, or fails if
// the variable, such as REQUIRE_HELM, is set.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../bin/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("REQUIRE_"+strings.ToUpper(name)) != "" {
			t.Fatalf("%v: run make bin/%s", err, name)
		}
		t.Skipf("bin/%s is missing: make bin/%s builds it", name, name)
	}
	return path
}

// helm runs Helm.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool(t, "helm"), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+os.DevNull)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.String(), nil
}

// template returns the rendered chart.
func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return helm(t, append([]string{"template", release, chartDir, "--namespace", system}, args...)...)
}

func mustTemplate(t *testing.T, args ...string) string {
	t.Helper()
	out, err := template(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// objects returns the objects of a manifest by "Kind/name".
func objects(t *testing.T, manifest string) map[string]*unstructured.Unstructured {
	t.Helper()
	out := map[string]*unstructured.Unstructured{}
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(obj)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(obj.Object) == 0 {
			continue
		}
		key := obj.GetKind() + "/" + obj.GetName()
		if out[key] != nil {
			t.Errorf("duplicate object %s", key)
		}
		out[key] = obj
	}
}

func kustomize(t *testing.T, dir string) string {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(manifest)
}

// TestChart_DefaultsEqualBase compares the chart with default values with deploy/guard, deploy/crds
// and deploy/base.
func TestChart_DefaultsEqualBase(t *testing.T) {
	want := objects(t, kustomize(t, "base")+"\n---\n"+kustomize(t, "crds")+"\n---\n"+kustomize(t, "guard"))
	delete(want, "Namespace/"+system) // helm install --create-namespace
	got := objects(t, mustTemplate(t, "--skip-tests"))
	for _, all := range []map[string]*unstructured.Unstructured{want, got} {
		for _, obj := range all {
			withoutLabels(obj)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("deploy/base with deploy/crds and deploy/guard, and the chart with default values, differ (-base +chart):\n%s", d)
	}
}

// TestChart_RolesForTeams compares the roles for teams of the chart with those of the kustomize
// folders.
func TestChart_RolesForTeams(t *testing.T) {
	const view, edit = "ClusterRole/" + release + "-view", "ClusterRole/" + release + "-edit"
	overlay := t.TempDir()
	if err := os.CopyFS(overlay, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay+"/kustomization.yaml", []byte("resources: [base]\ncomponents: [components/edit-role]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := objects(t, kustomize(t, overlay))
	for set, names := range map[string][]string{"teamRoles.view=false": nil, "teamRoles.edit=false": {view}, "teamRoles.edit=true": {view, edit}} {
		got := objects(t, mustTemplate(t, "--set", set))
		for _, name := range []string{view, edit} {
			if (got[name] != nil) != slices.Contains(names, name) {
				t.Errorf("--set %s: the chart has %s: %t", set, name, got[name] != nil)
			}
			if got[name] == nil {
				continue
			}
			withoutLabels(got[name])
			role := want[name].DeepCopy()
			withoutLabels(role)
			if d := cmp.Diff(role, got[name]); d != "" {
				t.Errorf("%s (-kustomize +chart):\n%s", name, d)
			}
		}
	}
}

// withoutLabels removes Helm's labels and annotations about the release.
func withoutLabels(obj *unstructured.Unstructured) {
	labels, annotations := obj.GetLabels(), obj.GetAnnotations()
	for _, key := range []string{
		"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart",
	} {
		delete(labels, key)
	}
	for _, key := range []string{"helm.sh/resource-policy", "cloud-map-mcs-controller/shared"} {
		delete(annotations, key)
	}
	// An empty map becomes nil: cmp.Diff distinguishes them.
	obj.SetLabels(nil)
	obj.SetAnnotations(nil)
	if len(labels) > 0 {
		obj.SetLabels(labels)
	}
	if len(annotations) > 0 {
		obj.SetAnnotations(annotations)
	}
}

// valuesFiles returns the values files in ci/, by name.
func valuesFiles(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(chartDir + "/ci/*-values.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no values files: %v", err)
	}
	out := map[string]string{}
	for _, path := range paths {
		out[strings.TrimSuffix(filepath.Base(path), "-values.yaml")] = path
	}
	return out
}

// TestChart_MatchesGoldenFiles compares the rendered chart of each values file with its golden
// file, except CRDs and guard (TestChart_DefaultsEqualBase).
func TestChart_MatchesGoldenFiles(t *testing.T) {
	for name, values := range valuesFiles(t) {
		t.Run(name, func(t *testing.T) {
			got := mustTemplate(t, "--values", values, "--set", "crds.install=false,crds.guard=false", "--api-versions", "about.k8s.io/v1beta1/ClusterProperty")
			golden.Check(t, filepath.Join("testdata/chart", name+".golden.yaml"), got)
			checkStrictly(t, got)
			if _, err := config.Parse(managerArgs(t, got)); err != nil {
				t.Errorf("the controller refuses its flags: %v", err)
			}
		})
	}
}

// checkStrictly reports unknown fields. It skips objects of the Prometheus operator and of this
// project.
func checkStrictly(t *testing.T, manifest string) {
	t.Helper()
	strict := serializer.NewCodecFactory(clientgoscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for key, obj := range objects(t, manifest) {
		text, err := obj.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := strict.Decode(text, nil, nil); err != nil && !runtime.IsNotRegisteredError(err) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// managerArgs returns the controller's flags.
func managerArgs(t *testing.T, manifest string) []string {
	t.Helper()
	deployment := objects(t, manifest)["Deployment/cloud-map-mcs-controller-manager"]
	containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		t.Fatalf("the Deployment has %d containers (%v), want 1", len(containers), err)
	}
	args, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
	if err != nil {
		t.Fatal(err)
	}
	return args
}

// onlyByExtraArgs are the flags without a Helm value: the chart's ports and RBAC depend on them, or
// they are for a controller outside a pod.
var onlyByExtraArgs = []string{
	"health-probe-bind-address", "help-all", "kube-context", "kubeconfig", "leader-elect", "leader-election-namespace", "metrics-bind-address",
	"pprof-bind-address", "status-bind-address", "version",
}

// TestChart_PassesEveryFlag checks that each flag has a value, except onlyByExtraArgs, and that
// each value sets the flag that its comment names.
func TestChart_PassesEveryFlag(t *testing.T) {
	options := config.Default()
	flags := options.Flags()
	// A certificate for the metrics excludes metrics without TLS.
	for _, exclusive := range []string{"", ",metrics.secure=false,metrics.tls.secret="} {
		manifest := mustTemplate(t, "--values", chartDir+"/ci/everything-values.yaml", "--set", "extraArgs=null"+exclusive)
		if err := flags.Parse(managerArgs(t, manifest)); err != nil {
			t.Fatal(err)
		}
	}
	var passed, want []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			passed = append(passed, f.Name)
			if f.Value.String() == f.DefValue {
				t.Errorf("ci/everything-values.yaml sets --%s to its default", f.Name)
			}
		}
		if !slices.Contains(onlyByExtraArgs, f.Name) {
			want = append(want, f.Name)
		}
	})
	if d := cmp.Diff(want, passed); d != "" {
		t.Errorf("flags of the controller that the chart does not pass, or that it only passes by extraArgs (-want +got):\n%s", d)
	}
	var documented []string
	for _, v := range readValues(t) {
		documented = append(documented, v.Flags...)
	}
	slices.Sort(documented)
	slices.Sort(want)
	if d := cmp.Diff(want, documented); d != "" {
		t.Errorf("flags in the comments of values.yaml (-want +got):\n%s", d)
	}
}

// TestChart_SetsGoMemLimit checks that Go's memory limit is 90 % of the container's.
func TestChart_SetsGoMemLimit(t *testing.T) {
	tests := map[string]struct{ set, want string }{
		"the default":                 {"", "460MiB"},
		"gibibytes":                   {"resources.limits.memory=1.5Gi", "1382MiB"},
		"megabytes":                   {"resources.limits.memory=500M", "429MiB"},
		"bytes":                       {"resources.limits.memory=536870912", "460MiB"},
		"no limit":                    {"resources.limits=null", ""},
		"no resources":                {"resources=null", ""},
		"a unit that has no use":      {"resources.limits.memory=1Pi", ""},
		"an own environment variable": {"extraEnv[0].name=GOMEMLIMIT,extraEnv[0].value=1GiB", "1GiB"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			deployment := objects(t, mustTemplate(t, "--set", tt.set))["Deployment/"+release+"-manager"]
			containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
			if err != nil || len(containers) != 1 {
				t.Fatalf("%d containers (%v), want 1", len(containers), err)
			}
			var got []string
			for _, variable := range containers[0].(map[string]any)["env"].([]any) {
				if v := variable.(map[string]any); v["name"] == "GOMEMLIMIT" {
					got = append(got, fmt.Sprint(v["value"]))
				}
			}
			if strings.Join(got, ", ") != tt.want {
				t.Errorf("GOMEMLIMIT is %q, want %q", got, tt.want)
			}
		})
	}
}

// TestChart_DNSOfPods renders the chart with the dnsPolicy and dnsConfig of docs/dns.md, which a
// pod needs on EKS Auto Mode.
func TestChart_DNSOfPods(t *testing.T) {
	page, err := os.ReadFile("../docs/dns.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n### EKS Auto Mode\n")
	_, block, _ := strings.Cut(section, "```yaml\n")
	block, _, _ = strings.Cut(block, "```\n")
	var documented struct {
		Spec map[string]any `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(block), &documented); err != nil {
		t.Fatal(err)
	}
	if len(documented.Spec) != 2 {
		t.Fatalf("docs/dns.md has the fields %v for pods, want dnsPolicy and dnsConfig", documented.Spec)
	}
	text, err := json.Marshal(documented.Spec)
	if err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want map[string]any
	}{{nil, map[string]any{}}, {[]string{"--values", values}, documented.Spec}} {
		deployment := objects(t, mustTemplate(t, tt.args...))["Deployment/"+release+"-manager"]
		spec, _, err := unstructured.NestedMap(deployment.Object, "spec", "template", "spec")
		if err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(spec, func(field string, _ any) bool { return !strings.HasPrefix(field, "dns") })
		if d := cmp.Diff(tt.want, spec); d != "" {
			t.Errorf("helm template %v (-want +got):\n%s", tt.args, d)
		}
	}
}

// TestChart_RejectsInvalidValues checks that rendering fails for invalid values.
func TestChart_RejectsInvalidValues(t *testing.T) {
	tests := map[string]struct {
		set  string
		want string
	}{
		"an unknown value":                    {"notify.port=9000", "additional properties 'notify' not allowed"},
		"an unknown nested value":             {"aws.regoin=eu-west-1", "additional properties 'regoin' not allowed"},
		"a string as replicas":                {"replicas=two", "replicas"},
		"an ID with dots":                     {"clusterId=a.b,clusterSetId=c", "clusterId"},
		"half an identity":                    {"clusterId=cls1", "belong together"},
		"etcd without endpoints":              {"registry=etcd", "needs etcd.endpoints"},
		"an etcd user without password":       {"etcd.username=cls1", "belong together"},
		"ClusterProperties without IDs":       {"clusterProperties.create=true", "needs clusterId"},
		"ClusterProperties without the CRD":   {"clusterProperties.create=true,clusterId=a,clusterSetId=b", "does not know ClusterProperty yet"},
		"a policy without a default":          {"importPolicy.systemNamespaces={default}", "needs importPolicy.default"},
		"another default of the policy":       {"importPolicy.default=maybe", "needs importPolicy.default"},
		"only trusted keys, and none":         {"trustedKeys.only=true", "needs trustedKeys.keys"},
		"a certificate for metrics over HTTP": {"metrics.secure=false,metrics.tls.secret=x", "metrics.tls.secret needs metrics.secure"},
		"a reader without name":               {"metrics.readers[0].kind=ServiceAccount", "name"},
		"a role without its ServiceAccount":   {"serviceAccount.create=false,serviceAccount.irsaRoleArn=arn:aws:iam::111122223333:role/mcs", "annotate yours"},
		"a short public key":                  {"trustedKeys.keys.cls1=abc", "cls1"},
		"an unknown registry":                 {"registry=consul", "registry"},
		"a duration without unit":             {"pollInterval=5", "pollInterval"},
		"an account as a number":              {"aws.namespaceOwner=111122223333", "namespaceOwner"},
		"an unknown DNS policy":               {"dnsPolicy=Cluster", "dnsPolicy"},
		"an unknown field of the DNS":         {"dnsConfig.servers={10.0.0.10}", "servers"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := template(t, "--set", tt.set)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("--set %s: %v, want an error with %q", tt.set, err, tt.want)
			}
		})
	}
}

// TestChart_SaysTheCost compares the notes with the line of kubectl mcs install.
func TestChart_SaysTheCost(t *testing.T) {
	const etcd = "registry=etcd,etcd.endpoints={https://etcd.example.com:2379}"
	for name, tt := range map[string]struct {
		set     string
		options cost.Options
	}{
		"the default":               {"", cost.Options{Poll: time.Second, View: true}},
		"without the instance view": {"instanceView=false", cost.Options{Poll: time.Second}},
		"everything": {
			"cloudMapServices.services[0].name=orders,migration.importFromAwsController=true,importFrom={cloudmap\\,region=a,cloudmap\\,region=b}",
			cost.Options{Poll: time.Second, View: true, Mapped: true, Legacy: true, Further: true},
		},
		"etcd":                      {etcd, cost.Options{View: true}},
		"etcd with mapped services": {etcd + ",cloudMapServices.services[0].name=orders", cost.Options{View: true, Mapped: true}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := helm(t, "install", release, chartDir, "--namespace", system, "--dry-run=client", "--set", tt.set)
			if err != nil {
				t.Fatal(err)
			}
			_, notes, _ := strings.Cut(out, "\nNOTES:\n")
			var got string
			for line := range strings.Lines(notes) {
				if strings.HasPrefix(line, "AWS bills") {
					got = strings.TrimSpace(line)
				}
			}
			want := strings.ReplaceAll(tt.options.Forecast(), "--instance-view=false", "instanceView: false")
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	if records := cost.Dollars(cost.OfInstances(cost.MaxRecords)); records != "$6.60" {
		t.Errorf("the notes name $6.60 for records, which cost %s", records)
	}
}

// TestChart_PassesHelmLint runs `helm lint` with each values file.
func TestChart_PassesHelmLint(t *testing.T) {
	for name, values := range valuesFiles(t) {
		if name == "properties" {
			continue // needs an API server with the CRD, which lint does not have
		}
		if _, err := helm(t, "lint", "--strict", "--values", values, chartDir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
