// Command mutate puts bugs into packages, one at a time, and prints those that the unit tests of
// the package do not notice. A mutant that does not compile is not counted; a mutant whose tests
// time out is noticed. See `make mutate` in CONTRIBUTING.md.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// core are the packages with the decisions and the wiring.
const core = "./internal/mcs ./internal/plan ./internal/registry/record ./cmd/controller ./internal/registry/union " +
	"./internal/registry/cloudmap/format ./internal/registry/engine ./internal/controller/membership ./internal/controller/exports " +
	"./internal/controller/imports ./internal/registry/cloudmap ./internal/registry/cloudmap/state ./internal/registry/etcd"

// settings are the flags.
type settings struct {
	packages []string
	jobs     int
	sample   int
	seed     uint64
	only     *regexp.Regexp
	tests    string
	// testsIn is the folder of the package whose tests are run, "" for the mutated package itself.
	testsIn string
	// grace is added to three times the duration of the tests.
	grace time.Duration
}

func main() {
	if err := runWithFlags(); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func runWithFlags() error {
	packages := flag.String("packages", "", "packages to mutate, separated by spaces (default: the core)")
	jobs := flag.Int("jobs", 2, "number of mutants to test at the same time")
	sample := flag.Int("max", 0, "number of mutants of a package to try, chosen at random (0: all)")
	seed := flag.Uint64("seed", 1, "seed of the random choice")
	only := flag.String("only", "", "try only the mutants whose \"file:line operator\" matches this expression")
	tests := flag.String("run", "", "run only the tests that match this expression")
	testsIn := flag.String("tests-in", "", "run the tests of the package in this folder, which uses the mutated one, instead of its own")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *packages == "" {
		*packages = core
	}
	expression, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("reading -only: %w", err)
	}
	return run(ctx, settings{strings.Fields(*packages), max(1, *jobs), *sample, *seed, expression, *tests, *testsIn, 10 * time.Second}, os.Stdout)
}

// run tries the mutants of all packages and prints a summary of each package, and a table of the
// mutants that were not noticed.
func run(ctx context.Context, s settings, out io.Writer) error {
	packages, err := listPackages(ctx, s.packages)
	if err != nil {
		return err
	}
	var survivors []mutant
	for _, p := range packages {
		if ctx.Err() != nil {
			break // print what is known
		}
		results, err := p.tryMutants(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", p.ImportPath, err)
		}
		fmt.Fprintf(out, "%s: %d mutants tried, %d noticed, %d not noticed (%d do not compile)\n", p.ImportPath, len(results.noticed)+len(results.survived),
			len(results.noticed), len(results.survived), len(results.invalid))
		survivors = append(survivors, results.survived...)
	}
	return printTable(out, survivors)
}

// goPackage has the fields of `go list -json` that are used.
type goPackage struct {
	Dir, ImportPath string
	GoFiles         []string
}

func listPackages(ctx context.Context, patterns []string) ([]goPackage, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=Dir,ImportPath,GoFiles"}, patterns...)...)
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages: %w", err)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(raw))); decoder.More(); {
		var p goPackage
		if err := decoder.Decode(&p); err != nil {
			return nil, fmt.Errorf("listing the packages: %w", err)
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// outcome is the result of the tests of a package with a mutant.
type outcome string

const (
	noticed    outcome = "noticed"
	timedOut   outcome = "noticed by a timeout"
	notNoticed outcome = "NOT NOTICED"
	invalid    outcome = "does not compile"
)

type results struct{ noticed, survived, invalid []mutant }

// tryMutants tests the package without a mutant, and then with each of its mutants.
func (p goPackage) tryMutants(ctx context.Context, s settings) (results, error) {
	mutants, err := p.mutants(s)
	if err != nil || len(mutants) == 0 {
		return results{}, err
	}
	duration, err := p.testClean(ctx, s)
	if err != nil {
		return results{}, err
	}
	timeout := 3*duration + s.grace

	var (
		all  results
		errs []error
		lock sync.Mutex
		wg   sync.WaitGroup
		slot = make(chan struct{}, s.jobs)
	)
	for _, m := range mutants {
		slot <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slot }()
			result, err := p.testMutant(ctx, s, m, timeout)
			lock.Lock()
			defer lock.Unlock()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				errs = append(errs, err)
				return
			}
			all.add(m, result)
			fmt.Fprintf(os.Stderr, "[%d/%d] %s: %s\n", len(all.noticed)+len(all.survived)+len(all.invalid), len(mutants), m, result)
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

func (r *results) add(m mutant, result outcome) {
	switch result {
	case notNoticed:
		r.survived = append(r.survived, m)
	case invalid:
		r.invalid = append(r.invalid, m)
	default:
		r.noticed = append(r.noticed, m)
	}
}

// mutants returns the mutants of the package's files that the settings choose.
func (p goPackage) mutants(s settings) ([]mutant, error) {
	var all []mutant
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		found, err := findMutants(path, source)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	all = slices.DeleteFunc(all, func(m mutant) bool { return !s.only.MatchString(m.String()) })
	if s.sample > 0 && s.sample < len(all) {
		random := rand.New(rand.NewPCG(s.seed, 0))
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:s.sample]
	}
	return all, nil
}

// testClean checks that the tests succeed without a mutant, and returns how long they take.
func (p goPackage) testClean(ctx context.Context, s settings) (time.Duration, error) {
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(scratch)
	binary, output, err := s.build(ctx, p.Dir, scratch)
	if err != nil {
		return 0, fmt.Errorf("building the tests: %w\n%s", err, output)
	}
	start := time.Now()
	if output, err := s.runTests(ctx, p.Dir, binary); err != nil {
		return 0, fmt.Errorf("the tests fail without a mutant: %w\n%s", err, output)
	}
	return time.Since(start), nil
}

// testMutant builds the package's tests with a mutant and runs them.
func (p goPackage) testMutant(ctx context.Context, s settings, m mutant, timeout time.Duration) (outcome, error) {
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	overlay, err := m.writeOverlay(scratch)
	if err != nil {
		return "", err
	}
	binary, _, err := s.build(ctx, p.Dir, scratch, "-overlay="+overlay)
	if err != nil {
		return invalid, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch _, err := s.runTests(ctx, p.Dir, binary); {
	case ctx.Err() != nil:
		return timedOut, nil
	case err != nil:
		return noticed, nil
	}
	return notNoticed, nil
}

// build builds the tests of the package in dir, or in s.testsIn, into scratch.
func (s settings) build(ctx context.Context, dir, scratch string, flags ...string) (binary string, output []byte, err error) {
	binary = filepath.Join(scratch, "package.test")
	args := slices.Concat([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary}, flags, []string{"."})
	output, err = command(ctx, cmp.Or(s.testsIn, dir), "go", args...)
	return binary, output, err
}

// runTests runs the tests in their package's folder, as make unit does.
func (s settings) runTests(ctx context.Context, dir, binary string) (output []byte, err error) {
	return command(ctx, cmp.Or(s.testsIn, dir), binary, "-test.failfast", "-test.short", "-test.parallel=16", "-test.run="+s.tests, "-test.timeout=0")
}

// writeOverlay writes the mutated file and the file for the -overlay flag of the go command, and
// returns the name of the latter.
func (m mutant) writeOverlay(scratch string) (string, error) {
	mutated, overlay := filepath.Join(scratch, "mutated.go"), filepath.Join(scratch, "overlay.json")
	if err := os.WriteFile(mutated, m.apply(), 0o600); err != nil {
		return "", err
	}
	raw, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: mutated}})
	if err != nil {
		return "", err
	}
	return overlay, os.WriteFile(overlay, raw, 0o600)
}

// command runs a program in its own process group. Processes that it leaves, such as servers of a
// failed test, are killed.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	// property tests write no files for failures of mutants
	cmd.Env = append(os.Environ(), "RAPID_NOFAILFILE=true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	killGroup := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = killGroup, 10*time.Second
	output, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = killGroup() // fails if none is left
	}
	return output, err
}

// String returns where the mutant is, relative to the working directory, and its operator.
func (m mutant) String() string {
	name := m.file
	if dir, err := os.Getwd(); err == nil {
		name = strings.TrimPrefix(name, dir+string(filepath.Separator))
	}
	return fmt.Sprintf("%s:%d %s", name, m.line, m.operator)
}

// printTable prints mutants in the order of their lines, with the line of the source.
func printTable(out io.Writer, mutants []mutant) error {
	if len(mutants) == 0 {
		return nil
	}
	slices.SortFunc(mutants, func(a, b mutant) int {
		if a.file != b.file {
			return strings.Compare(a.file, b.file)
		}
		return a.start - b.start
	})
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NOT NOTICED\tOPERATOR\tLINE")
	for _, m := range mutants {
		where, operator, _ := strings.Cut(m.String(), " ")
		fmt.Fprintf(w, "%s\t%s\t%s\n", where, operator, m.sourceLine())
	}
	return w.Flush()
}

// sourceLine returns the line of the source where the mutant is.
func (m mutant) sourceLine() string {
	lines := strings.Split(string(m.source), "\n")
	return strings.TrimSpace(lines[m.line-1])
}
