// Command bench measures what docs/benchmarks says: Cloud Map calls in steady state, the time from
// an endpoint change to the imported EndpointSlice and its steps, the time to converge from
// nothing, memory and CPU, one controller among up to 1,000 clusters, and the hot code's speed. It
// needs root on Linux and what `make build image` makes; `make bench` runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// section is a part of the results that can be measured by itself.
type section struct {
	name    string
	measure func(context.Context, *Results) error
}

var sections = []section{
	{"micro", micro},
	{"steady", steady},
	{"propagation", propagation},
	{"convergence", convergence},
	{fleetSection, measureFleet},
	{latencySection, latency},
}

// registries that the sections on real clusters measure.
var registries = clusterset.CloudMap + "," + clusterset.Etcd

func main() {
	ctrllog.SetLogger(logr.Discard()) // of the clients that measure
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	only := flags.String("sections", strings.Join(names, ","), "sections to measure; the others keep their previous results")
	out := flags.String("out", "docs/benchmarks", "folder of results.json, and of the page and the pictures generated from it")
	flags.StringVar(&registries, "registries", registries, "registries that propagation, convergence, fleet and latency measure")
	flags.IntVar(&changesPerKind, "changes", changesPerKind, "number of changes of each kind that propagation measures, and of all changes of latency")
	flags.Func("exports", "number of exports that convergence creates at once (repeatable; default 300 and 3000)", numbers(&exportCounts))
	flags.IntVar(&convergenceRuns, "runs", 0, fmt.Sprintf("number of runs of convergence (default %d, and %d with more than %d exports)", runsOfFew, runsOfOther, few))
	flags.Func("clusters", "number of clusters that fleet measures (repeatable; default 10, 100, 300 and 1000)", numbers(&fleetSizes))
	flags.DurationVar(&fleetOutage, "outage", fleetOutage, "time that the registry of a fleet is away")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen := strings.Split(*only, ",")
	for _, name := range chosen {
		if name != "" && !slices.Contains(names, name) {
			return fmt.Errorf("section %q: must be one of %s", name, strings.Join(names, ", "))
		}
	}
	results, err := load(*out)
	if err != nil {
		return err
	}
	if err := results.measure(ctx, chosen); err != nil {
		return err
	}
	// without a section: only the page and the pictures
	if err := results.save(); err != nil || !slices.Contains(chosen, fleetSection) {
		return err
	}
	fmt.Print(results.fleetText())
	return checkFleet(results)
}

// numbers returns the function of a repeatable flag, whose values replace the default.
func numbers(list *[]int) func(string) error {
	var chosen []int
	return func(text string) error {
		number, err := strconv.Atoi(text)
		chosen = append(chosen, number)
		*list = chosen
		return err
	}
}

// measure measures sections, and saves the results after each.
func (r *Results) measure(ctx context.Context, chosen []string) error {
	for _, s := range sections {
		if !slices.Contains(chosen, s.name) {
			continue
		}
		fmt.Printf("== %s\n", s.name)
		if err := s.measure(ctx, r); err != nil {
			return fmt.Errorf("measuring %s: %w", s.name, err)
		}
		r.Measured[s.name] = newStamp()
		if err := r.save(); err != nil {
			return err
		}
	}
	return nil
}
