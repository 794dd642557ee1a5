package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

const latencySection = "latency"

// latency measures the steps of a change of an endpoint, by the traces of two controllers.
func latency() (units []unit) {
	for _, registry := range strings.Split(registries, ",") {
		units = append(units, unit{Latency{Registry: registry}.unit(), func(ctx context.Context, rows *Rows) error {
			assets, err := assetsFolder(ctx)
			if err != nil {
				return err
			}
			fmt.Printf("%s: %d changes\n", registry, changesPerKind)
			steps, err := fleet.MeasureLatency(ctx, fleet.LatencyOptions{
				Controller: "bin/controller", Assets: assets, Registry: registry, Changes: changesPerKind, Rest: rest, Out: os.Stdout,
			})
			floor := slices.IndexFunc(steps, func(s fleet.Step) bool { return s.Name == fleet.FloorStep })
			for _, s := range steps {
				l := Latency{Registry: registry, Step: s.Name, Spread: spread(s.Durations)}
				if s.Name == fleet.TotalStep {
					l.FloorMS = spread(steps[floor].Durations).P50
				}
				fmt.Printf("%-50s p50 %5.1f  p90 %5.1f  p99 %5.1f ms\n", l.Step, l.P50, l.P90, l.P99)
				rows.Latency = append(rows.Latency, l)
			}
			return err
		}})
	}
	return units
}

// rest is the longest pause of a service between two changes. It is independent of polls.
const rest = time.Second
