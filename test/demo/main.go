// Command demo performs the user's walk-through (package tutorial) on two real Kubernetes clusters
// and prints the commands with their output. `make demo` builds what it needs and runs it; `make
// demo-aws` runs the walk-through about services of AWS and outside of Kubernetes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

func main() {
	record := flag.String("record", "", "also write the walk-through as a Markdown page to this file")
	aws := flag.Bool("aws", false, "perform the walk-through with services of AWS")
	up := flag.Bool("up", false, "only bring the clusters up, unless they are, and write bin/env for a shell to source")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	switch {
	case *up:
		err = bringUp(ctx)
	case *aws:
		err = demo(ctx, ecs(), *record)
	default:
		err = demo(ctx, walkThrough(), *record)
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\nthe demo failed: %v\n", err)
		os.Exit(1)
	}
}

// bringUp brings the clusters of docs/quick-start.md up.
func bringUp(ctx context.Context) error {
	o, err := options(clusterset.CloudMap)
	if err != nil {
		return err
	}
	set := clusterset.Running(ctx, o.Clusters, os.Stdout)
	if set != nil {
		err = set.Repair(ctx)
	} else {
		set, err = clusterset.Up(ctx, o)
	}
	if err != nil {
		return err
	}
	if err := set.WriteEnv("bin/env"); err != nil {
		return err
	}
	fmt.Printf("The clusters cls1 to cls%d and cloudmap-local are up. Type: . bin/env\n", o.Clusters)
	return nil
}

// options returns the clusters to bring up: CLUSTERS of them, 2 by default and 4 at most, with IPv4
// and IPv6 if DUAL_STACK is set.
func options(registry string) (clusterset.Options, error) {
	o := clusterset.Options{Clusters: 2, Registry: registry, Sealed: registry == clusterset.CloudMap, Out: os.Stdout}
	if registry != clusterset.CloudMap && registry != clusterset.Etcd {
		return o, fmt.Errorf("REGISTRY=%s: want %s or %s", registry, clusterset.CloudMap, clusterset.Etcd)
	}
	if text := os.Getenv("CLUSTERS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 2 || n > 4 {
			return o, fmt.Errorf("CLUSTERS=%s: want 2, 3 or 4", text)
		}
		o.Clusters = n
	}
	if os.Getenv("DUAL_STACK") != "" {
		o.TestbedArgs = []string{"--dual-stack"}
	}
	return o, nil
}

// show is a walk-through to perform.
type show struct {
	target   string // of make
	registry string
	policies []string // of the clusters, beside those that they always have
	tools    func(context.Context, io.Writer) error
	steps    func(clusters int) []tutorial.Step
	cleanUp  int // the number of the first step that cleans up
	// introduction is the beginning of the recorded page.
	introduction string
}

func walkThrough() show {
	registry := clusterset.RegistryName()
	return show{
		target: "demo", registry: registry, cleanUp: 14, introduction: tutorial.Introduction(registry),
		steps: func(clusters int) []tutorial.Step { return tutorial.Steps(registry, clusters) },
		tools: func(ctx context.Context, out io.Writer) error { return clusterset.InstallTools(ctx, registry, out) },
	}
}

func ecs() show {
	return show{
		target: "demo-aws", registry: clusterset.CloudMap, policies: tutorial.ECSPolicies, cleanUp: tutorial.ECSCleanUp,
		introduction: tutorial.ECSIntroduction,
		steps:        func(int) []tutorial.Step { return tutorial.ECS() },
		tools: func(ctx context.Context, out io.Writer) error {
			return errors.Join(clusterset.InstallTools(ctx, clusterset.CloudMap, out), clusterset.InstallDig(ctx, out))
		},
	}
}

func demo(ctx context.Context, s show, record string) (err error) {
	start := time.Now()
	keep := os.Getenv("KEEP") != ""
	o, err := options(s.registry)
	if err != nil {
		return err
	}
	if err := s.tools(ctx, os.Stdout); err != nil {
		return err
	}
	o.Policies = s.policies
	set, err := clusterset.Up(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			set.Diagnose(context.WithoutCancel(ctx), os.Stderr)
		}
		if !keep {
			set.Down(context.WithoutCancel(ctx))
		}
	}()
	fmt.Printf("\n%d clusters are up after %.0f s. The walk-through begins.\n", o.Clusters, time.Since(start).Seconds())
	recorded, err := s.perform(ctx, set, s.steps(o.Clusters), keep)
	if err != nil {
		return err
	}
	if record != "" {
		if err := os.WriteFile(record, []byte(s.introduction+recorded), 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("\nThe walk-through worked, in %.0f s.\n", time.Since(start).Seconds())
	if keep {
		fmt.Printf("The clusters are still up, before step %d. Look around:\n\n%s\n  make clean    # takes everything down\n", s.cleanUp, set.LookAround())
	} else {
		fmt.Printf("`KEEP=1 make %s` stops before the clean-up and leaves the clusters up to look around in.\n", s.target)
	}
	return nil
}

// perform runs the steps of the walk-through, those that clean up unless keep, and returns them as
// Markdown.
func (s show) perform(ctx context.Context, set *clusterset.Set, steps []tutorial.Step, keep bool) (string, error) {
	var recorded strings.Builder
	for _, step := range steps {
		if keep && step.Number >= s.cleanUp {
			break
		}
		var printed strings.Builder
		if err := step.Run(ctx, set, io.MultiWriter(os.Stdout, &printed)); err != nil {
			return "", err
		}
		recorded.WriteString(step.Markdown(printed.String()))
	}
	return recorded.String(), nil
}
