package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/chartvalues"
)

// A manifest is what the tests read of the objects of samples/gitops.
type manifest struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
	Spec struct {
		Path   string        `json:"path"`
		Patch  []types.Patch `json:"patches"`
		Source struct {
			Path      string `json:"path"`
			Kustomize struct {
				Patches []types.Patch `json:"patches"`
			} `json:"kustomize"`
			Helm struct {
				ValuesObject map[string]any `json:"valuesObject"`
			} `json:"helm"`
		} `json:"source"`
		Values           map[string]any `json:"values"`
		HealthCheckExprs []healthCheck  `json:"healthCheckExprs"`
	} `json:"spec"`
}

// A healthCheck is an entry of healthCheckExprs of Flux.
type healthCheck struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Failed     string `json:"failed"`
	Current    string `json:"current"`
}

// gitOpsManifests returns the objects of samples/gitops.
func gitOpsManifests(t *testing.T) (manifests []manifest) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "samples/gitops/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var m manifest
			if err := yaml.Unmarshal([]byte(document), &m); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			manifests = append(manifests, m)
		}
	}
	return manifests
}

// TestGitOpsInstallation applies the patches to the folders that the manifests name, and checks the
// values against those of the chart.
func TestGitOpsInstallation(t *testing.T) {
	values, err := chartvalues.Read(filepath.Join(root, "deploy/charts/cloud-map-mcs-controller"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Deployment cloud-map-mcs-controller-manager", "Namespace cloud-map-mcs-system", "Secret cloud-map-mcs-controller-signing-key",
		"ServiceAccount cloud-map-mcs-controller-manager",
	}
	patched, charts := 0, 0
	for _, m := range gitOpsManifests(t) {
		patches := slices.Concat(m.Spec.Patch, m.Spec.Source.Kustomize.Patches)
		if dir := m.Spec.Source.Path + m.Spec.Path; strings.Contains(dir, "deploy/") {
			if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
				t.Error(err)
			}
			if len(patches) > 0 {
				patched++
				if d := cmp.Diff(want, changedBy(t, dir, patches)); d != "" {
					t.Errorf("objects of %s that the patches change (-want +got):\n%s", dir, d)
				}
			}
		}
		for path := range leaves("", m.Spec.Values, m.Spec.Source.Helm.ValuesObject) {
			charts++
			if !slices.ContainsFunc(values, func(v chartvalues.Value) bool { return v.Path == path }) {
				t.Errorf("%s %s: the chart has no value %s", m.Kind, m.Metadata.Name, path)
			}
		}
	}
	if patched != 2 || charts < 6 {
		t.Errorf("the samples patch %d installations and set %d values, want one of Argo CD and one of Flux each", patched, charts)
	}
}

// leaves returns the paths of values, such as aws.region.
func leaves(prefix string, maps ...map[string]any) map[string]bool {
	paths := map[string]bool{}
	for _, values := range maps {
		for key, value := range values {
			inner, isMap := value.(map[string]any)
			if !isMap {
				paths[prefix+key] = true
			}
			for path := range leaves(prefix+key+".", inner) {
				paths[path] = true
			}
		}
	}
	return paths
}

// A healthCase is an object with its health in Argo CD and in Flux.
type healthCase struct {
	kind       string
	conditions []metav1.Condition
	argo, flux string
}

// condition returns a condition of an object with generation 2.
func condition[T, R ~string](kind T, status metav1.ConditionStatus, reason R) metav1.Condition {
	return metav1.Condition{Type: string(kind), Status: status, Reason: string(reason), Message: "a message", ObservedGeneration: 2}
}

func old(c metav1.Condition) metav1.Condition {
	c.ObservedGeneration = 1
	return c
}

func healthCases() map[string]healthCase {
	const export, imported = "ServiceExport", "ServiceImport"
	type conditions = []metav1.Condition
	valid := condition(mcsv1beta1.ServiceExportConditionValid, metav1.ConditionTrue, mcsv1beta1.ServiceExportReasonValid)
	ready := condition(mcsv1beta1.ServiceExportConditionReady, metav1.ConditionTrue, mcsv1beta1.ServiceExportReasonExported)
	pending := condition(mcsv1beta1.ServiceExportConditionReady, metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonPending)
	failed := condition(mcsv1beta1.ServiceExportConditionReady, metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonFailed)
	agree := condition(mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonNoConflicts)
	conflict := condition(mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionTrue, mcsv1beta1.ServiceExportReasonPortConflict)
	invalid := func(reason mcsv1beta1.ServiceExportConditionReason) metav1.Condition {
		return condition(mcsv1beta1.ServiceExportConditionValid, metav1.ConditionFalse, reason)
	}
	usable := condition(mcsv1beta1.ServiceImportConditionReady, metav1.ConditionTrue, mcsv1beta1.ServiceImportReasonReady)
	return map[string]healthCase{
		"new export":            {export, nil, "Progressing", "error"},
		"exported":              {export, conditions{valid, ready, agree}, "Healthy", "Current"},
		"pending":               {export, conditions{valid, pending}, "Progressing", "InProgress"},
		"cannot be written":     {export, conditions{valid, failed}, "Degraded", "Failed"},
		"no Service":            {export, conditions{invalid(mcsv1beta1.ServiceExportReasonNoService), failed}, "Degraded", "InProgress"},
		"ExternalName":          {export, conditions{invalid(mcsv1beta1.ServiceExportReasonInvalidServiceType), failed}, "Degraded", "Failed"},
		"without its selectors": {export, conditions{invalid(mcs.ReasonInvalidClusterSelector), ready, agree}, "Degraded", "Failed"},
		"conflict":              {export, conditions{valid, ready, conflict}, "Healthy", "Current"},
		"not imported": {export, conditions{valid, ready, agree, condition(mcs.ConditionImported, metav1.ConditionFalse, mcs.ImportedReasonNotImported)},
			"Healthy", "Current"},
		"corrected meanwhile": {export, conditions{old(valid), old(failed)}, "Progressing", "InProgress"},
		"changed meanwhile":   {export, conditions{old(valid), old(ready)}, "Progressing", "InProgress"},

		"new import": {imported, nil, "Progressing", "error"},
		"usable":     {imported, conditions{usable}, "Healthy", "Current"},
		"without IP": {imported, conditions{condition(mcsv1beta1.ServiceImportConditionReady, metav1.ConditionFalse, mcsv1beta1.ServiceImportReasonPending)},
			"Progressing", "InProgress"},
		"other IP family": {imported,
			conditions{condition(mcsv1beta1.ServiceImportConditionReady, metav1.ConditionFalse, mcsv1beta1.ServiceImportReasonIPFamilyNotSupported)},
			"Degraded", "Failed"},
		"a stale cluster": {imported, conditions{usable, condition(mcs.ConditionStale, metav1.ConditionTrue, mcs.StaleReasonWithdrawn)}, "Healthy", "Current"},
	}
}

// object returns the object as the API server returns it.
func (c healthCase) object(t *testing.T) map[string]any {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "web", Namespace: "shop", Generation: 2}
	var typed any = &mcsv1beta1.ServiceExport{ObjectMeta: meta, Status: mcsv1beta1.ServiceExportStatus{Conditions: c.conditions}}
	if c.kind == "ServiceImport" {
		typed = &mcsv1beta1.ServiceImport{ObjectMeta: meta, Status: mcsv1beta1.ServiceImportStatus{Conditions: c.conditions}}
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		t.Fatal(err)
	}
	if c.conditions == nil {
		delete(object, "status")
	}
	return object
}

// TestGitOpsHealth_Flux evaluates the expressions of the samples as Flux does: without types, and
// failed before current.
func TestGitOpsHealth_Flux(t *testing.T) {
	checks := map[string]healthCheck{}
	for _, m := range gitOpsManifests(t) {
		for _, c := range m.Spec.HealthCheckExprs {
			if c.APIVersion != mcsv1beta1.GroupVersion.String() {
				t.Errorf("%s: apiVersion %s", c.Kind, c.APIVersion)
			}
			checks[c.Kind] = c
		}
	}
	env, err := cel.NewEnv(cel.HomogeneousAggregateLiterals(), cel.DefaultUTCTimeZone(true), cel.CrossTypeNumericComparisons(true), cel.OptionalTypes())
	if err != nil {
		t.Fatal(err)
	}
	holds := func(t *testing.T, expression string, object map[string]any) (bool, error) {
		t.Helper()
		parsed, issues := env.Parse(expression)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := env.Program(parsed)
		if err != nil {
			t.Fatal(err)
		}
		value, _, err := program.Eval(object)
		if err != nil {
			return false, err
		}
		return value.Value().(bool), nil
	}
	for name, tc := range healthCases() {
		t.Run(name, func(t *testing.T) {
			object, got := tc.object(t), "InProgress"
			isFailed, failedErr := holds(t, checks[tc.kind].Failed, object)
			isCurrent, currentErr := holds(t, checks[tc.kind].Current, object)
			switch {
			case failedErr != nil || currentErr != nil:
				got = "error"
			case isFailed:
				got = "Failed"
			case isCurrent:
				got = "Current"
			}
			if got != tc.flux {
				t.Errorf("Flux reports %s (%v, %v), want %s", got, failedErr, currentErr, tc.flux)
			}
		})
	}
}

// argoChecks returns the health checks of the samples for Argo CD, in Lua, by kind.
func argoChecks(t *testing.T) map[string]string {
	t.Helper()
	scripts := map[string]string{}
	for _, m := range gitOpsManifests(t) {
		for key, script := range m.Data {
			scripts[strings.TrimPrefix(key, "resource.customizations.health.multicluster.x-k8s.io_")] = script
		}
	}
	if len(scripts) != 2 || scripts["ServiceExport"] == "" || scripts["ServiceImport"] == "" {
		t.Fatalf("the samples have checks %v, want ServiceExport and ServiceImport", scripts)
	}
	return scripts
}

// TestGitOpsHealth_ArgoCDNames checks that the health checks for Argo CD compare only with
// conditions and reasons that the controller sets.
func TestGitOpsHealth_ArgoCDNames(t *testing.T) {
	for kind, script := range argoChecks(t) {
		known := []string{"Healthy", "Progressing", "Degraded", ": ", "waiting for the controller"}
		for _, tc := range healthCases() {
			for _, c := range tc.conditions {
				if tc.kind == kind {
					known = append(known, c.Type, string(c.Status), c.Reason)
				}
			}
		}
		for _, text := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(script, -1) {
			if !slices.Contains(known, text[1]) {
				t.Errorf("the check of %s compares with %q, which no object has", kind, text[1])
			}
		}
	}
}

// TestGitOpsHealth_ArgoCD runs the health checks in the Lua interpreter that LUA names. That of
// make unit is the one of Argo CD.
func TestGitOpsHealth_ArgoCD(t *testing.T) {
	lua, scripts := os.Getenv("LUA"), argoChecks(t)
	if lua == "" {
		t.Skip("needs a Lua interpreter: make bin/glua, LUA=$PWD/bin/glua")
	}
	for name, tc := range healthCases() {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "health.lua")
			program := "obj = " + luaLiteral(tc.object(t)) + "\nlocal function health()\n" + scripts[tc.kind] + "end\nprint(health().status)\n"
			if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), lua, file).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != tc.argo {
				t.Errorf("Argo CD reports %s (%v), want %s", got, err, tc.argo)
			}
		})
	}
}

// luaLiteral returns a value of JSON in the syntax of Lua.
func luaLiteral(value any) string {
	var b strings.Builder
	switch v := value.(type) {
	case map[string]any:
		b.WriteString("{")
		for key, inner := range v {
			fmt.Fprintf(&b, "[%q]=%s,", key, luaLiteral(inner))
		}
		b.WriteString("}")
	case []any:
		b.WriteString("{")
		for _, inner := range v {
			b.WriteString(luaLiteral(inner) + ",")
		}
		b.WriteString("}")
	case string:
		fmt.Fprintf(&b, "%q", v)
	case nil:
		b.WriteString("nil")
	default:
		fmt.Fprint(&b, v)
	}
	return b.String()
}
