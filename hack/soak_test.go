// Package hack has the tests of the scripts in this folder.
package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// program is what the tests build instead of the random fault tests: it fails for the seed BAD, and
// counts its steps, and one clone for each clusterset.
const program = `#!/usr/bin/env bash
[ "$FAULTS_SEED" != "${BAD:-}" ] || exit 1
for ((world = FAULTS_SEED; world < FAULTS_SEED + FAULTS_RUNS; world++)); do
  printf '%d\tsteps\n1\tclones\n' $((FAULTS_STEPS / FAULTS_RUNS)) >"$FAULTS_TRACE/$(basename "$PWD")-$world.counts"
done
`

// TestSoak: an interrupted soak goes on at the seed that its last line names, without the steps
// that are done, and its counts are those of all its runs.
func TestSoak(t *testing.T) {
	script, err := os.ReadFile("soak")
	if err != nil {
		t.Fatal(err)
	}
	repository, bin := t.TempDir(), t.TempDir()
	for _, folder := range []string{"hack", "internal/registry/cloudmap", "internal/registry/etcd"} {
		if err := os.MkdirAll(filepath.Join(repository, folder), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	write := func(path, content string) {
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil { //nolint:gosec // a program of the test
			t.Fatal(err)
		}
	}
	write(filepath.Join(repository, "hack/soak"), string(script))
	write(filepath.Join(bin, "program"), program)
	// go test -c -o FILE PACKAGE
	write(filepath.Join(bin, "go"), "#!/usr/bin/env bash\ncp "+bin+"/program \"$4\"\n")
	soak := func(settings ...string) (lines []string, err error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(repository, "hack/soak"))
		cmd.Env = slices.Concat(os.Environ(), []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "FROM=", "SEED=", "FAULTS_RUNS=", "RUN=", "STEPS=60000"}, settings)
		out, err := cmd.CombinedOutput()
		return strings.Split(strings.TrimSpace(string(out)), "\n"), err
	}
	check := func(lines []string, want ...string) {
		t.Helper()
		for i, text := range want {
			if len(lines) != len(want) || !strings.Contains(lines[i], text) {
				t.Fatalf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
			}
		}
	}

	lines, err := soak("REGISTRIES=cloudmap", "STEPS=40000")
	check(lines, "cloudmap: 20000 of 40000 steps", "seed 101 ok, FROM=201", "cloudmap: 8\tclones", "cloudmap: 40000\tsteps")
	if err != nil {
		t.Error(err)
	}
	lines, err = soak("FROM=201")
	check(lines, "cloudmap: 60000 of 60000 steps", "cloudmap: 12\tclones", "cloudmap: 60000\tsteps",
		"etcd: 20000 of 60000 steps", "seed 101 ok, FROM=201", "etcd: 60000 of 60000", "etcd: 12\tclones", "etcd: 60000\tsteps")
	if err != nil {
		t.Error(err)
	}
	lines, err = soak("REGISTRIES=etcd", "SEED=710000", "BAD=710100", "STEPS=40000")
	check(lines, "seed 710000 ok, FROM=710100", "seed 710100 FAILED: ", "etcd: 4\tclones", "etcd: 20000\tsteps", "1 runs failed")
	if err == nil {
		t.Error("no error after a failed run")
	}
	lines, err = soak("SEED=710000", "FROM=201")
	check(lines, "FROM=201 is no seed of a soak with SEED=710000")
	if err == nil {
		t.Error("no error for a seed of another soak")
	}
}
