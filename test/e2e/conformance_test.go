package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// TestConformance runs the conformance suite of SIG Multicluster: the compiled tests of a checkout
// of kubernetes-sigs/mcs-api. The suite writes its report, report.html and report.yaml, into a
// folder below dist/conformance. Beside it suite.txt has the version of the suite, the date and the
// result, and output.txt the output.
func TestConformance(t *testing.T) {
	checkout := os.Getenv("SUITE")
	if checkout == "" {
		t.Skip("it needs the suite: make conformance")
	}
	families := "ipv4"
	if slices.Contains(testbedArgs(), "--dual-stack") {
		families = "dual-stack"
	}
	dir := filepath.Join(suite.Root, "dist/conformance", suite.Registry+"-"+families)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	output, err := os.Create(filepath.Join(dir, "output.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	cls1, cls2 := installed(t)
	command(t, cls1, "testbed load-image dist/socat.tar")
	version, err := suite.Stdout(t.Context(), "", "git", "-C", checkout, "describe", "--tags", "--always")
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), filepath.Join(checkout, "conformance/conformance.test"), "-ginkgo.v", "-ginkgo.no-color",
		"-contexts="+cls1.name+","+cls2.name, "-organization=cloud-map-mcs", "-project=cloud-map-mcs-controller", "-version="+os.Getenv("VERSION"),
		"-url=https://github.com/cloud-map-mcs/cloud-map-mcs-controller")
	cmd.Dir, cmd.Env = dir, suite.Env()
	cmd.Stdout = io.MultiWriter(os.Stdout, output)
	cmd.Stderr = cmd.Stdout
	failure := cmd.Run()

	text, err := os.ReadFile(filepath.Join(dir, "report.yaml"))
	if err != nil {
		t.Fatalf("the suite has written no report: %v", errors.Join(failure, err))
	}
	var report struct{ Passed, Total int }
	if err := yaml.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	result := fmt.Sprintf("kubernetes-sigs/mcs-api %s on %s: %d of %d passed on %s, %s\n",
		strings.TrimSpace(version), time.Now().UTC().Format(time.DateOnly), report.Passed, report.Total, suite.Registry, families)
	if err := os.WriteFile(filepath.Join(dir, "suite.txt"), []byte(result), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Log(result)
	if failure == nil && (report.Total == 0 || report.Passed != report.Total) {
		failure = errors.New("the suite skipped a spec, or had none")
	}
	if failure != nil {
		t.Errorf("%v: see report.html and output.txt in %s", failure, dir)
	}
}
