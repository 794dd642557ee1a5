package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// A chart is what the tests read of Chart.yaml.
type chart struct {
	Home        string            `json:"home"`
	AppVersion  string            `json:"appVersion"`
	Icon        string            `json:"icon"`
	Annotations map[string]string `json:"annotations"`
}

func readChart(t *testing.T) chart {
	t.Helper()
	var c chart
	readYAML(t, filepath.Join(chartDir, "Chart.yaml"), &c)
	return c
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// TestChart_ArtifactHub compares the annotations for Artifact Hub with the image that the chart
// installs and with its CRDs.
func TestChart_ArtifactHub(t *testing.T) {
	c := readChart(t)
	parse := func(key string, into any) {
		t.Helper()
		if err := yaml.UnmarshalStrict([]byte(c.Annotations["artifacthub.io/"+key]), into); err != nil {
			t.Fatalf("annotation %s: %v", key, err)
		}
	}
	var images []struct {
		Name, Image string
		Platforms   []string
	}
	parse("images", &images)
	var values struct{ Image struct{ Repository string } }
	readYAML(t, filepath.Join(chartDir, "values.yaml"), &values)
	if want := values.Image.Repository + ":" + c.AppVersion; len(images) != 1 || images[0].Image != want {
		t.Errorf("the annotation has the images %v, the chart installs %s", images, want)
	}
	type crd struct{ Kind, Version, Name, DisplayName, Description string }
	var listed, shipped []crd
	parse("crds", &listed)
	for i := range listed {
		if listed[i].DisplayName == "" || listed[i].Description == "" {
			t.Errorf("%s has no displayName or description", listed[i].Name)
		}
		listed[i].DisplayName, listed[i].Description = "", ""
	}
	paths, err := filepath.Glob(chartDir + "/files/crds/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		var d apiextensionsv1.CustomResourceDefinition
		readYAML(t, path, &d)
		newest := d.Spec.Versions[len(d.Spec.Versions)-1].Name
		shipped = append(shipped, crd{Kind: d.Spec.Names.Kind, Version: newest, Name: d.Name})
	}
	byName := func(a, b crd) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(listed, byName)
	slices.SortFunc(shipped, byName)
	if d := cmp.Diff(shipped, listed); d != "" {
		t.Errorf("CRDs of the chart and of the annotation (-chart +annotation):\n%s", d)
	}
	_, icon, found := strings.Cut(c.Icon, "/main/")
	if _, err := os.Stat("../" + icon); err != nil || !found {
		t.Errorf("icon %s: not a file of the repository: %v", c.Icon, err)
	}
}

// TestChart_README checks that the README of the chart names values that exist, and links to files
// that exist.
func TestChart_README(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, v := range readValues(t) {
		paths = append(paths, v.Path)
	}
	_, section, _ := strings.Cut(string(text), "## Values\n")
	named := regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(section, -1)
	for _, m := range named {
		if name := m[1]; !slices.ContainsFunc(paths, func(path string) bool { return path == name || strings.HasPrefix(path, name+".") }) {
			t.Errorf("values.yaml has no value %s", name)
		}
	}
	if len(named) == 0 {
		t.Error("the section Values names no value")
	}
	for _, m := range regexp.MustCompile(regexp.QuoteMeta(readChart(t).Home)+`/blob/main/([^#)]*)`).FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat("../" + m[1]); err != nil {
			t.Errorf("the README links to %s: %v", m[1], err)
		}
	}
}
