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

// latency measures the steps of a change of an endpoint, by the traces of two controllers.
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

// latencyP50 and latencyP99 are the targets of a whole change in milliseconds: p50 on Cloud Map
// without delay, p99 on etcd.
const latencyP50, latencyP99 = 15, 50

func (r *Results) latencyTables(p *page) {
	p.linef("## The steps of one change\n")
	p.linef("Milliseconds of the steps of a change of one endpoint of 10, by the [traces](../operations.md#traces) of two controllers on API servers without nodes. A change follows %v after the", rest/2)
	p.linef("previous one has arrived, on average. Cloud Map has no consistency delay. No etcd waits for the disk.\n")
	p.linef("Two waits limit the requests to Cloud Map. \"Further changes awaited\": one write serves all changes of 10 ms after a quiet time, and in a series those up to a pause of 50 ms. A")
	p.linef("change is written at once if the last one of its page and the last 8 of all came alone. \"Read awaited\": 100 ms pass between two reads.\n")
	p.linef("Targets on an idle machine: a p50 of %d ms on Cloud Map, a p99 of %d ms on etcd.", latencyP50, latencyP99)
	registry := ""
	for _, l := range r.Latency {
		if l.Registry != registry {
			registry = l.Registry
			p.linef("\n| %s, %d changes | p50, p90, p99 |", registry, l.Samples)
			p.linef("| --- | ---: |")
		}
		p.linef("| %s | %.1f, %.1f, %.1f |", l.Step, l.P50, l.P90, l.P99)
	}
	r.source(p, latencySection)
}

// rest is the longest pause of a service between two changes. It is independent of polls.
const rest = time.Second
