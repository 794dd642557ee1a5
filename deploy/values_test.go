package deploy_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/chartvalues"
)

func readValues(t *testing.T) []chartvalues.Value {
	t.Helper()
	values, err := chartvalues.Read(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// TestValuesSchema checks that the schema has exactly the values of values.yaml, and rejects
// others. A value may be an object of Kubernetes, whose fields the schema names and values.yaml
// does not.
func TestValuesSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties           map[string]json.RawMessage `json:"properties"`
		AdditionalProperties any                        `json:"additionalProperties"`
	}
	want := []string{"global"} // Helm adds it to every chart
	for _, v := range readValues(t) {
		want = append(want, v.Path)
	}
	var known []string
	var walk func(prefix string, text []byte)
	walk = func(prefix string, text []byte) {
		var s schema
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		if s.Properties != nil && s.AdditionalProperties != false {
			t.Errorf("the schema accepts unknown values in %q", prefix)
		}
		path := strings.TrimSuffix(prefix, ".")
		if s.Properties == nil || slices.Contains(want, path) {
			known = append(known, path)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			walk(prefix+name+".", s.Properties[name])
		}
	}
	walk("", text)
	slices.Sort(want)
	slices.Sort(known)
	if d := cmp.Diff(want, known); d != "" {
		t.Errorf("values.yaml and values.schema.json (-values +schema):\n%s", d)
	}
}
