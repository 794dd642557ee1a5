package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// exportCounts are the numbers of exports that are created at once.
var exportCounts = []int{300, 3000}

// calm is the pause before the controllers are measured, and the duration of that measurement.
const calm = 40 * time.Second

// few is the highest number of exports of which the ready delay is measured.
const few = 300

// writers is the number of concurrent requests that create objects.
const writers = 16

// convergence exports many services at once on real clusters under AWS's quotas, and measures the
// controllers.
func convergence() (units []unit) {
	for _, registry := range strings.Split(registries, ",") {
		for _, exports := range exportCounts {
			units = append(units, unit{Convergence{Registry: registry, Exports: exports}.unit(), func(ctx context.Context, rows *Rows) error {
				result, objects, err := converge(ctx, registry, exports)
				if err != nil {
					return err
				}
				took, err := writeObjects(ctx, registry, objects)
				result.ObjectsMS = milliseconds(took)
				fmt.Printf("%+v\n", result)
				rows.Convergence = []Convergence{result}
				return err
			}})
		}
	}
	return units
}

// converge exports on new clusters and waits until everything is there. It measures the ready
// delay, CPU and memory, and returns the objects of the exports.
func converge(ctx context.Context, registry string, exports int) (Convergence, []*exportObjects, error) {
	result := Convergence{Registry: registry, Exports: exports, Endpoints: endpointsPerExport}
	c, err := bringUp(ctx, registry)
	defer c.down()
	if err != nil {
		return result, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run, err := c.startRun(ctx, exports, registry == clusterset.CloudMap && exports <= few)
	if err != nil {
		return result, nil, err
	}
	if err := run.export(ctx, &result); err != nil {
		return result, nil, err
	}
	if err := c.measureIdle(ctx, &result, run.idle, run.converged); err != nil {
		return result, nil, err
	}
	objects, err := c.readObjects(ctx)
	return result, objects, err
}

// convergenceRun is one run on prepared clusters, with watches on everything that it measures.
type convergenceRun struct {
	clusters        *clusters
	imports         *imports
	completion      *completion
	observer        *observer // nil unless the ready delay is measured
	idle, converged [2]sample
	programs        programs
}

// startRun creates the services to export and starts the watches.
func (c *clusters) startRun(ctx context.Context, exports int, observe bool) (run *convergenceRun, err error) {
	run = &convergenceRun{clusters: c}
	if run.imports, err = c.follow(ctx); err != nil {
		return nil, err
	}
	if run.completion, err = c.watchCompletion(ctx); err != nil {
		return nil, err
	}
	if observe {
		if run.observer, err = observeRegistry(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.makeServices(ctx, exports); err != nil {
		return nil, err
	}
	if run.idle, err = c.usages(ctx); err != nil {
		return nil, err
	}
	run.programs, err = runningPrograms()
	return run, err
}

// export creates the ServiceExports and measures until the other cluster has all imports, and until
// everything is there.
func (run *convergenceRun) export(ctx context.Context, result *Convergence) error {
	began := time.Now()
	if err := inParallel(ctx, result.Exports, func(ctx context.Context, i int) error {
		return run.clusters.exporter.Create(ctx, serviceExport(serviceName(i)))
	}); err != nil {
		return err
	}
	result.CreatedMS = milliseconds(time.Since(began))
	if err := run.imports.until(ctx, "everything is imported", 15*time.Minute, complete(result.Exports)); err != nil {
		return err
	}
	result.ImportedMS = milliseconds(time.Since(began))
	after, err := runningPrograms()
	if err != nil {
		return err
	}
	result.CPUOfPrograms = after.since(run.programs)
	if run.converged, err = run.clusters.usages(ctx); err != nil {
		return err
	}
	last, err := run.completion.await(ctx, result.Exports, 30*time.Minute)
	if err != nil {
		return fmt.Errorf("waiting for every import and condition: %w", err)
	}
	result.CompleteMS = milliseconds(last.Sub(began))
	if run.observer == nil {
		return nil
	}
	shown, err := run.observer.times(result.Exports)
	if err != nil {
		return err
	}
	delays := spread(run.completion.readyDelays(shown))
	result.ReadyDelay = &delays
	return nil
}

// makeServices creates the services to export, and waits until caches have them.
func (c *clusters) makeServices(ctx context.Context, n int) error {
	err := inParallel(ctx, n, func(ctx context.Context, i int) error {
		if err := c.exporter.Create(ctx, service(serviceName(i))); err != nil {
			return err
		}
		return c.exporter.Create(ctx, slice(serviceName(i), i))
	})
	if err != nil {
		return err
	}
	return pause(ctx, settle)
}

// measureIdle measures the controllers when nothing changes any more. The instance view may still
// be written.
func (c *clusters) measureIdle(ctx context.Context, result *Convergence, idle, converged [2]sample) error {
	if err := pause(ctx, calm); err != nil {
		return err
	}
	from, err := c.usages(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, calm); err != nil {
		return err
	}
	to, err := c.usages(ctx)
	if err != nil {
		return err
	}
	for i, usage := range []*Usage{&result.Exporter, &result.Importer} {
		usage.RSSMiB = hundredths(to[i].rss / (1 << 20))
		usage.CPUPerMinute = hundredths((to[i].cpu - from[i].cpu) / calm.Minutes())
		usage.CPUConverging = hundredths(converged[i].cpu - idle[i].cpu)
	}
	return nil
}

func hundredths(x float64) float64 { return float64(int(x*100+0.5)) / 100 }

// complete reports whether so many services are imported with all their endpoints.
func complete(exports int) func(map[string]*discoveryv1.EndpointSlice) bool {
	return func(all map[string]*discoveryv1.EndpointSlice) bool {
		if len(all) < exports {
			return false
		}
		whole := 0
		for _, s := range all {
			if s.Labels[mcsv1beta1.LabelServiceName] != "" && len(s.Endpoints) == endpointsPerExport {
				whole++
			}
		}
		return whole == exports
	}
}

func inParallel(ctx context.Context, n int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// sample has the resident bytes and the CPU seconds so far of a process.
type sample struct{ rss, cpu float64 }

// usages reads the metrics of the exporting and the importing leader.
func (c *clusters) usages(ctx context.Context) (out [2]sample, err error) {
	for i, name := range []string{"cls1", "cls2"} {
		holder, err := c.set.Kubectl(ctx, name, "-n", system, "get", "lease", names.Lease, "-o", "jsonpath={.spec.holderIdentity}")
		if err != nil {
			return out, err
		}
		// client-go appends a UUID to the pod's name
		pod, _, _ := strings.Cut(strings.TrimSpace(holder), "_")
		text, err := c.scrape(ctx, name, pod)
		if err != nil {
			return out, fmt.Errorf("reading the metrics of %s in %s: %w", pod, name, err)
		}
		if out[i], err = parseUsage(text); err != nil {
			return out, err
		}
	}
	return out, nil
}

func parseUsage(text string) (sample, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return sample{}, err
	}
	rss, cpu := families["process_resident_memory_bytes"], families["process_cpu_seconds_total"]
	if rss == nil || cpu == nil {
		return sample{}, fmt.Errorf("the controller's metrics have no process_resident_memory_bytes or process_cpu_seconds_total")
	}
	return sample{rss: rss.Metric[0].GetGauge().GetValue(), cpu: cpu.Metric[0].GetCounter().GetValue()}, nil
}
