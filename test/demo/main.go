// Command demo performs the user's walk-through (package tutorial) on two real Kubernetes clusters and prints the commands with their
// output. `make demo` builds what it needs and runs it.
package main

import (
	"context"
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
	up := flag.Bool("up", false, "only bring the clusters up, unless they are, and write bin/env for a shell to source")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	run := demo
	if *up {
		run = func(ctx context.Context, _ string) error { return bringUp(ctx) }
	}
	err := run(ctx, *record)
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

// options returns the clusters to bring up: CLUSTERS of them, 2 by default and 4 at most, with IPv4 and IPv6 if DUAL_STACK is set.
func options(registry string) (clusterset.Options, error) {
	o := clusterset.Options{Clusters: 2, Registry: registry, Out: os.Stdout}
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

func demo(ctx context.Context, record string) (err error) {
	start := time.Now()
	keep := os.Getenv("KEEP") != ""
	if err := clusterset.InstallTools(ctx, clusterset.RegistryName(), os.Stdout); err != nil {
		return err
	}
	o, err := options(clusterset.RegistryName())
	if err != nil {
		return err
	}
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
	page, err := perform(ctx, set, keep)
	if err != nil {
		return err
	}
	if record != "" {
		if err := os.WriteFile(record, []byte(tutorial.Introduction(set.Registry)+page), 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("\nThe walk-through worked, in %.0f s.\n", time.Since(start).Seconds())
	if keep {
		fmt.Printf("The clusters are still up, before step 14. Look around:\n\n%s\n  make clean    # takes everything down\n", set.LookAround())
	} else {
		fmt.Println("`KEEP=1 make demo` stops before the clean-up and leaves the clusters up to look around in.")
	}
	return nil
}

// perform runs the steps of the walk-through, those that clean up unless keep, and returns the page.
func perform(ctx context.Context, set *clusterset.Set, keep bool) (string, error) {
	var page strings.Builder
	for _, step := range tutorial.Steps(set.Registry) {
		if keep && step.Number >= 14 {
			break
		}
		var printed strings.Builder
		if err := step.Run(ctx, set, io.MultiWriter(os.Stdout, &printed)); err != nil {
			return "", err
		}
		page.WriteString(step.Markdown(printed.String()))
	}
	return page.String(), nil
}
