package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestSampleRoute checks that the backends of the sample's HTTPRoute are the derived Services of
// the imports that the comments name.
func TestSampleRoute(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "samples/gateway-api/route.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	backends := regexp.MustCompile(`name: (imported-\S+) # (\S+)/(\S+)`).FindAllStringSubmatch(string(text), -1)
	if len(backends) != 2 {
		t.Errorf("the route has %d backends, want 2", len(backends))
	}
	for _, b := range backends {
		if want := mcs.DerivedName(mcs.Key{Namespace: b[2], Name: b[3]}); b[1] != want {
			t.Errorf("the route names %s for %s/%s, want %s", b[1], b[2], b[3], want)
		}
	}
}

// TestSamplesAreListed checks that samples/README.md lists every sample.
func TestSamplesAreListed(t *testing.T) {
	samples := filepath.Join(root, "samples")
	text, err := os.ReadFile(filepath.Join(samples, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(samples)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() {
			name = "[" + name + "](" + name + ")"
		} else {
			name = "`" + name + "`"
		}
		if entry.Name() != "README.md" && !strings.Contains(string(text), name) {
			t.Errorf("samples/README.md does not list %s", name)
		}
	}
}
