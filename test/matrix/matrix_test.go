package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

const root = "../.."

func recorded(t *testing.T) []Run {
	t.Helper()
	runs, err := load(filepath.Join(root, resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

// TestPage_IsOfResults: docs/versions.md is what the recorded runs render to.
func TestPage_IsOfResults(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(render(recorded(t)), string(text)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", pageFile, diff)
	}
}

// TestClaims_HaveRuns: each requirement that a file claims is the version of a cluster in a run
// that passed, or docs/install.md says that it was not run.
func TestClaims_HaveRuns(t *testing.T) {
	ran := func(is func(Running) bool) bool {
		return slices.ContainsFunc(recorded(t), func(r Run) bool { return r.OK() && slices.ContainsFunc(r.Clusters, is) })
	}
	install, err := os.ReadFile(filepath.Join(root, "docs/install.md"))
	if err != nil {
		t.Fatal(err)
	}
	for file, pattern := range map[string]string{
		"deploy/charts/cloud-map-mcs-controller/Chart.yaml": `kubeVersion: ">=(1\.\d+)\.0-0"`,
		"internal/cli/doctor/checks.go":                     `minKubernetes = "(1\.\d+)"`,
		"docs/install.md":                                   `\| Kubernetes (1\.\d+) or newer \|`,
		"docs/eks.md":                                       `\| Kubernetes \| (1\.\d+) or newer \|`,
	} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if m == nil {
			t.Errorf("%s names no oldest version of Kubernetes", file)
			continue
		}
		isRun := ran(func(c Running) bool { return isMinor(c.Kubernetes, string(m[1])) })
		if isRun == strings.Contains(string(install), "Not run: Kubernetes "+string(m[1])) {
			t.Errorf("%s claims Kubernetes %s: a run with it passed is %t, and docs/install.md says the opposite", file, m[1], isRun)
		}
	}
	if !ran(func(c Running) bool { return c.CoreDNS == coredns.MinVersion }) {
		t.Errorf("CoreDNS %s is claimed, and no run with it passed", coredns.MinVersion)
	}
	for _, mode := range []string{iptables, nftables} {
		if !ran(func(c Running) bool { return c.ProxyMode == mode }) {
			t.Errorf("no run with kube-proxy in mode %s passed", mode)
		}
	}
	for _, crds := range [][]string{{v1alpha1}, {v1beta1}, {v1alpha1, v1beta1}} {
		if !ran(func(c Running) bool { return slices.Equal(c.CRDs, crds) }) {
			t.Errorf("no run with CRDs %v passed", crds)
		}
	}
}

func TestRows_AreDifferent(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.String()] {
			t.Errorf("row %s is there twice", r)
		}
		seen[r.String()] = true
	}
}

// TestRows_HaveRuns: each row was run and passed, so that the page is not shorter than what make
// matrix is said to run.
func TestRows_HaveRuns(t *testing.T) {
	runs := recorded(t)
	for i, r := range rows {
		if !slices.ContainsFunc(runs, func(run Run) bool { return run.Row == r.String() && run.OK() }) {
			t.Errorf("row %d, %s, has no run that passed: run it, or remove it", i+1, r)
		}
	}
}

func TestMatches(t *testing.T) {
	r := row{{"1.31", "1.12", iptables, all}, {"1.37", "1.15", nftables, "v1alpha1"}}
	both := []string{v1alpha1, v1beta1}
	tests := []struct {
		name   string
		change func([]Running) []Running
		want   string
	}{
		{"the row", func(c []Running) []Running { return c }, ""},
		{"one cluster", func(c []Running) []Running { return c[:1] }, "1 clusters"},
		{"a longer minor version", func(c []Running) []Running { c[0].Kubernetes = "1.310.1"; return c }, "cls1"},
		{"another CoreDNS", func(c []Running) []Running { c[1].CoreDNS = "1.14.7"; return c }, "cls2"},
		{"another mode", func(c []Running) []Running { c[0].ProxyMode = nftables; return c }, "cls1"},
		{"more CRDs", func(c []Running) []Running { c[1].CRDs = both; return c }, "cls2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := r.matches(tt.change([]Running{{"1.31.14", "1.12.2", iptables, both}, {"1.37.1", "1.15.0", nftables, both[:1]}}))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestParseTests(t *testing.T) {
	picked := []scenario{{test: "TestA"}, {test: "TestAB"}, {test: "TestSkipped"}, {test: "TestMissing"}}
	const output = "=== RUN   TestA\n--- FAIL: TestA (1.00s)\n=== RUN   TestAB\n--- PASS: TestAB (0.10s)\n    --- PASS: TestAB/TestMissing (0.10s)\n--- SKIP: TestSkipped (0.00s)\n"
	passed, failed := parseTests(output, picked)
	if diff := cmp.Diff([][]string{{"TestAB"}, {"TestA", "TestSkipped", "TestMissing"}}, [][]string{passed, failed}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRecord(t *testing.T) {
	table := []row{{{Kubernetes: "1"}, {}}, {{Kubernetes: "2"}, {}}, {{Kubernetes: "3"}, {}}}
	run := func(r row, date string) Run { return Run{Row: r.String(), Date: date} }
	old := []Run{run(table[2], "old"), {Row: "of a row that is no more"}, run(table[1], "old")}
	want := []Run{run(table[0], "new"), run(table[1], "old"), run(table[2], "old")}
	got := record(old, run(table[0], "new"), table)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a new row (-want +got):\n%s", diff)
	}
	want[1].Date = "newer"
	if diff := cmp.Diff(want, record(got, run(table[1], "newer"), table)); diff != "" {
		t.Errorf("a row again (-want +got):\n%s", diff)
	}
}

func TestRender_ShowsFailures(t *testing.T) {
	r := Run{
		Date: "2026-11-23", Commit: "abc", Passed: []string{"TestVersions", "TestHeadless"}, Failed: []string{"TestReadinessFlipTravels"},
		Clusters: []Running{{"1.31.14", "1.12.2", iptables, []string{"v1alpha1"}}, {"1.37.1", "1.12.2", nftables, []string{"v1alpha1", "v1beta1"}}},
	}
	want := "| 1.31.14, 1.37.1 | 1.12.2 | iptables, nftables | v1alpha1, all | headless; failed: TestReadinessFlipTravels |\n"
	if got := render([]Run{r}); !strings.Contains(got, want) {
		t.Errorf("the page is\n%s\nwant a row\n%s", got, want)
	}
}

func TestPick(t *testing.T) {
	if got, err := pick("", 3); err != nil || !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("all rows are %v, %v", got, err)
	}
	if got, err := pick("3,1", 3); err != nil || !slices.Equal(got, []int{3, 1}) {
		t.Errorf("two rows are %v, %v", got, err)
	}
	for _, picked := range []string{"0", "4", "x", "1,"} {
		if _, err := pick(picked, 3); err == nil {
			t.Errorf("rows %q are accepted", picked)
		}
	}
}
