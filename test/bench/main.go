// Command bench measures what docs/benchmarks says: Cloud Map calls in steady state, the time from
// an endpoint change to the imported EndpointSlice and its steps, the time to converge from
// nothing, memory and CPU, one controller among up to 1,000 clusters, and the hot code's speed. It
// needs root on Linux and what `make build image` makes; `make bench` runs it.
package main

import (
	"cmp"
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

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/bench/rules"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

var sections = []section{
	{"micro", whole("micro", micro), table[Micro]{of: func(r *Rows) *[]Micro { return &r.Micro }, targets: microTargets}},
	{"steady", whole("steady", steady), table[Steady]{of: func(r *Rows) *[]Steady { return &r.Steady }, targets: steadyTargets}},
	{"propagation", propagation, table[Propagation]{of: func(r *Rows) *[]Propagation { return &r.Propagation }, targets: propagationTargets}},
	{"convergence", convergence, table[Convergence]{of: func(r *Rows) *[]Convergence { return &r.Convergence }, targets: convergenceTargets}},
	{fleetSection, measureFleet, table[Fleet]{of: func(r *Rows) *[]Fleet { return &r.Fleet }, targets: fleetTargets, compare: compareFleets}},
	{latencySection, latency, table[Latency]{of: func(r *Rows) *[]Latency { return &r.Latency }, targets: latencyTargets}},
}

// whole returns the only unit of a section.
func whole(name string, measure func(context.Context, *Rows) error) func() []unit {
	return func() []unit { return []unit{{name, measure}} }
}

// runs is the number of runs of each unit.
var runs = rules.Runs

// Folders of the results.
const (
	published = "docs/benchmarks"
	drafts    = "dist/benchmarks"
)

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
	out := flags.String("out", "", "folder of results.json, and of the page and the pictures generated from it (default "+published+", and "+drafts+" of a draft)")
	draft := flags.Bool("draft", false, "measure a working tree with changes; the results cannot be published")
	flags.StringVar(&registries, "registries", registries, "registries that propagation, convergence, fleet and latency measure")
	flags.IntVar(&changesPerKind, "changes", changesPerKind, "number of changes of each kind that propagation measures, and of all changes of latency")
	flags.Func("exports", "number of exports that convergence creates at once (repeatable; default 300 and 3000)", numbers(&exportCounts))
	flags.IntVar(&runs, "runs", runs, "number of runs")
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
	folder := published
	if *draft {
		folder = drafts
	}
	results, err := load(cmp.Or(*out, folder))
	if err != nil {
		return err
	}
	if err := results.measure(ctx, chosen, *draft); err != nil {
		return err
	}
	// without a section: only the page and the pictures
	if err := results.save(); err != nil {
		return err
	}
	if slices.Contains(chosen, fleetSection) {
		fmt.Print(results.fleetText())
	}
	return results.check(chosen)
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
