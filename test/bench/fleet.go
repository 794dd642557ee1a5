package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

const fleetSection = "fleet"

// fleetSizes are the numbers of clusters.
var fleetSizes = []int{10, 100, 300, 1000}

// fleetOutage is how long the registry is away.
var fleetOutage = fleet.DefaultOutage

// measureFleet measures one controller in fleets of several sizes.
func measureFleet() (units []unit) {
	for _, registry := range strings.Split(registries, ",") {
		for _, size := range fleetSizes {
			f := Fleet{Result: fleet.Result{Registry: registry, Clusters: size}}
			units = append(units, unit{f.unit(), func(ctx context.Context, rows *Rows) error {
				assets, err := assetsFolder(ctx)
				if err != nil {
					return err
				}
				result, err := fleet.Measure(ctx, fleet.Options{Controller: "bin/controller", Assets: assets, Registry: registry, Clusters: size, Outage: fleetOutage, Out: os.Stdout})
				if err != nil {
					return err
				}
				rows.Fleet = []Fleet{{Result: result, Propagation: spread(result.Delays)}}
				return nil
			}})
		}
	}
	return units
}

func compareFleets(a, b Fleet) int {
	return cmp.Or(strings.Compare(a.Registry, b.Registry), cmp.Compare(a.Clusters, b.Clusters))
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
