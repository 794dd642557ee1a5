// Command matrix runs scenarios on clustersets of several versions of Kubernetes, CoreDNS,
// kube-proxy's modes and the CRDs, and writes docs/versions.md. It needs root and the results of
// `make build image`:
//
//	make matrix            # all rows
//	make matrix ROWS=1,4   # some
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	resultsFile = "docs/versions.json"
	pageFile    = "docs/versions.md"
	workDir     = "dist/matrix"

	// runTimeout limits the scenarios of one row, and builds that are not cached.
	runTimeout = time.Hour
)

func main() {
	picked := flag.String("rows", "", "numbers of the rows to run, separated by commas (default: all)")
	list := flag.Bool("list", false, "print the rows and their numbers")
	onlyPage := flag.Bool("page", false, "only write the page from the recorded runs")
	flag.Parse()
	if *list {
		for i, r := range rows {
			fmt.Printf("%d\t%s\n", i+1, r)
		}
		return
	}
	if *onlyPage {
		if err := writePage(); err != nil {
			fmt.Fprintln(os.Stderr, "matrix:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *picked, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1) //nolint:gocritic // stop only restores the signals
	}
}

// writePage writes the page from the recorded runs.
func writePage() error {
	runs, err := load(resultsFile)
	if err != nil {
		return err
	}
	return save(resultsFile, pageFile, runs)
}

// run runs the picked rows. Each run is saved at once, failed ones too.
func run(ctx context.Context, picked string, out io.Writer) error {
	numbers, err := pick(picked, len(rows))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(workDir, 0o755); err != nil {
		return fmt.Errorf("creating %s: %w", workDir, err)
	}
	binary, err := filepath.Abs(filepath.Join(workDir, "e2e.test"))
	if err != nil {
		return err
	}
	if err := command(ctx, out, nil, "go", "test", "-c", "-o", binary, "./test/e2e").Run(); err != nil {
		return fmt.Errorf("compiling the scenarios: %w", err)
	}
	var errs []error
	for i, n := range numbers {
		r := rows[n-1]
		fmt.Fprintf(out, "== row %d (%d of %d): %s\n", n, i+1, len(numbers), r)
		if err := runRow(ctx, out, binary, n); err != nil {
			fmt.Fprintf(out, "row %d: %v\n", n, err)
			errs = append(errs, fmt.Errorf("row %d: %w", n, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// pick parses the numbers of rows.
func pick(picked string, count int) ([]int, error) {
	var out []int
	if picked == "" {
		for n := range count {
			out = append(out, n+1)
		}
		return out, nil
	}
	for field := range strings.SplitSeq(picked, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > count {
			return nil, fmt.Errorf("row %q: expected a number from 1 to %d", field, count)
		}
		out = append(out, n)
	}
	return out, nil
}

// runRow runs the scenarios of a row and saves the result. A run whose clusters did not report
// their versions is not saved.
func runRow(ctx context.Context, out io.Writer, binary string, n int) error {
	r := rows[n-1]
	versions, err := filepath.Abs(filepath.Join(workDir, fmt.Sprintf("versions-%d.json", n)))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(versions); err != nil {
		return err
	}
	// The last commit of what runs, which a later commit of the results does not change.
	commit, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%h", "--", "api", "cmd", "internal", "deploy").Output()
	if err != nil {
		return fmt.Errorf("reading the commit: %w", err)
	}
	picked := r.scenarios()
	var output bytes.Buffer
	cmd := command(ctx, io.MultiWriter(out, &output), r.env(versions), binary,
		"-test.v", "-test.timeout="+runTimeout.String(), "-test.run="+testPattern(picked))
	cmd.Dir = "test/e2e"
	failure := cmd.Run()
	clusters, err := readVersions(versions)
	if err == nil {
		err = r.matches(clusters)
	}
	if err != nil {
		return errors.Join(failure, err)
	}
	done := Run{Row: r.String(), Date: time.Now().UTC().Format(time.DateOnly), Commit: strings.TrimSpace(string(commit)), Clusters: clusters}
	done.Passed, done.Failed = parseTests(output.String(), picked)
	runs, err := load(resultsFile)
	if err != nil {
		return err
	}
	return errors.Join(failure, save(resultsFile, pageFile, record(runs, done, rows)))
}

func readVersions(path string) ([]Running, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the versions that ran: %w", err)
	}
	var out []Running
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("reading the versions that ran: %w", err)
	}
	return out, nil
}

func command(ctx context.Context, out io.Writer, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	return cmd
}
