package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

const latencySection = "latency"

// latency measures the steps of a change of an endpoint, by the traces of two controllers. On an
// idle machine, all steps should take 15 ms on Cloud Map without delay (p50), and 50 ms on etcd
// (p99).
func latency(ctx context.Context, results *Results) error {
	assets, err := assetsFolder(ctx)
	if err != nil {
		return err
	}
	results.Latency = nil
	for _, registry := range strings.Split(registries, ",") {
		fmt.Printf("%s: %d changes\n", registry, changesPerKind)
		steps, err := fleet.MeasureLatency(ctx, fleet.LatencyOptions{
			Controller: "bin/controller", Assets: assets, Registry: registry, Changes: changesPerKind, Rest: rest, Out: os.Stdout,
		})
		if err != nil {
			return fmt.Errorf("%s: %w", registry, err)
		}
		for _, s := range steps {
			l := Latency{Registry: registry, Step: s.Name, Spread: spread(s.Durations)}
			fmt.Printf("%-50s p50 %5.1f  p90 %5.1f  p99 %5.1f ms\n", l.Step, l.P50, l.P90, l.P99)
			results.Latency = append(results.Latency, l)
		}
	}
	return writeJSON("latency", results.Latency)
}

// writeJSON writes the results of a section into dist/.
func writeJSON(section string, value any) error {
	raw, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll("dist", 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("dist", section+".json"), append(raw, '\n'), 0o644)
}

// rest is the longest pause of a service between two changes. It is independent of polls.
const rest = time.Second
