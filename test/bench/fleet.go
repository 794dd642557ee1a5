package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

const fleetSection = "fleet"

// fleetSizes are the numbers of clusters.
var fleetSizes = []int{10, 100, 300, 1000}

// fleetOutage is how long the registry is away.
var fleetOutage = fleet.DefaultOutage

// measureFleet measures one controller in fleets of several sizes.
func measureFleet(ctx context.Context, results *Results) error {
	assets, err := assetsFolder(ctx)
	if err != nil {
		return err
	}
	for _, registry := range strings.Split(registries, ",") {
		for _, size := range fleetSizes {
			result, err := fleet.Measure(ctx, fleet.Options{Controller: "bin/controller", Assets: assets, Registry: registry, Clusters: size, Outage: fleetOutage, Out: os.Stdout})
			if err != nil {
				return fmt.Errorf("%d clusters on %s: %w", size, registry, err)
			}
			f := Fleet{Result: result, Measured: newStamp(), Propagation: spread(result.Delays)}
			for _, miss := range f.missed(0) {
				fmt.Println("missed:", miss)
			}
			results.Fleet = mergeFleets(results.Fleet, []Fleet{f})
			if err := results.save(); err != nil { // the next size may fail
				return err
			}
		}
	}
	return writeJSON(fleetSection, results.Fleet)
}

// mergeFleets returns the new measurements, and those before of other registries and sizes: all
// sizes take a quarter of an hour on each registry.
func mergeFleets(before, list []Fleet) []Fleet {
	for _, f := range before {
		if !slices.ContainsFunc(list, func(o Fleet) bool { return o.Registry == f.Registry && o.Clusters == f.Clusters }) {
			list = append(list, f)
		}
	}
	slices.SortFunc(list, func(a, b Fleet) int {
		return cmp.Or(strings.Compare(a.Registry, b.Registry), cmp.Compare(a.Clusters, b.Clusters))
	})
	return list
}

// checkFleet returns an error if a target is missed by more than a fifth.
func checkFleet(results *Results) error {
	const tolerance = 0.2
	if misses := results.missedTargets(tolerance); len(misses) > 0 {
		return fmt.Errorf("targets missed by more than a fifth: %s", strings.Join(misses, "; "))
	}
	return nil
}

// assetsFolder returns the folder of kube-apiserver and etcd, which the testbed builds.
func assetsFolder(ctx context.Context) (string, error) {
	if folder := os.Getenv("KUBEBUILDER_ASSETS"); folder != "" {
		return folder, nil
	}
	if out, err := exec.CommandContext(ctx, "bin/testbed", "build").CombinedOutput(); err != nil {
		return "", fmt.Errorf("bin/testbed build: %w: %s", err, out)
	}
	out, err := exec.CommandContext(ctx, "bin/testbed", "assets").Output()
	return cmp.Or(strings.TrimSpace(string(out)), "."), err
}
