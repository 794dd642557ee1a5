package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// exportCounts are how many exports are made at once.
var exportCounts = []int{300, 3000}

// calm is how long the controllers are left alone until they are looked at, and how long they are looked at.
const calm = 40 * time.Second

// Exports are made several times, for what the machine does besides counts; most often where they are few and converge within seconds.
const (
	few         = 300
	runsOfFew   = 5
	runsOfOther = 3
)

// writers is how many requests make objects at the same time.
const writers = 16

// convergence exports many services at once on real clusters under AWS's quotas, and looks at what the controllers take.
func convergence(ctx context.Context, results *Results) error {
	results.Convergence = nil
	for _, registry := range strings.Split(registries, ",") {
		for _, exports := range exportCounts {
			result, err := convergeOften(ctx, registry, exports)
			if err != nil {
				return err
			}
			fmt.Printf("%+v\n", result)
			results.Convergence = append(results.Convergence, result)
		}
	}
	return nil
}

// convergeOften converges as often as it takes to say how long it takes.
func convergeOften(ctx context.Context, registry string, exports int) (Convergence, error) {
	runs := runsOfOther
	if exports <= few {
		runs = runsOfFew
	}
	var result Convergence
	var all []*made
	var imported []float64
	for run := range runs {
		var err error
		if result, all, err = converge(ctx, registry, exports, run == runs-1); err != nil {
			return result, err
		}
		fmt.Printf("%d exports, run %d of %d: imported after %.0f ms\n", exports, run+1, runs, result.ImportedMS)
		imported = append(imported, result.ImportedMS)
	}
	slices.Sort(imported)
	result.ImportedMS, result.AllImportedMS = imported[runs/2], imported
	took, err := floor(ctx, registry, all)
	result.FloorMS = milliseconds(took)
	return result, err
}

// converge converges on new clusters; thorough says whether to measure what it takes, too, and to return what was made of the exports.
func converge(ctx context.Context, registry string, exports int, thorough bool) (Convergence, []*made, error) {
	result := Convergence{Registry: registry, Exports: exports, Endpoints: endpointsPerExport}
	c, err := bringUp(ctx, registry)
	defer c.down()
	if err != nil {
		return result, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	im, err := c.follow(ctx)
	if err != nil {
		return result, nil, err
	}
	if err := c.makeServices(ctx, exports); err != nil {
		return result, nil, err
	}
	idle, err := c.usages(ctx)
	if err != nil {
		return result, nil, err
	}
	before, err := runningPrograms()
	if err != nil {
		return result, nil, err
	}
	began := time.Now()
	if err := inParallel(ctx, exports, func(ctx context.Context, i int) error {
		return c.exporter.Create(ctx, serviceExport(serviceName(i)))
	}); err != nil {
		return result, nil, err
	}
	result.CreatedMS = milliseconds(time.Since(began))
	if err := im.until(ctx, "everything is imported", 15*time.Minute, complete(exports)); err != nil {
		return result, nil, err
	}
	result.ImportedMS = milliseconds(time.Since(began))
	if !thorough {
		return result, nil, nil
	}
	after, err := runningPrograms()
	if err != nil {
		return result, nil, err
	}
	result.CPUOfPrograms = after.since(before)
	converged, err := c.usages(ctx)
	if err != nil {
		return result, nil, err
	}
	all, err := c.whenTold(ctx, &result, began, idle, converged)
	return result, all, err
}

// whenTold waits until all is told, measures how long that takes and what the controllers take after it, and returns what was made.
func (c *clusters) whenTold(ctx context.Context, result *Convergence, began time.Time, idle, converged [2]sample) ([]*made, error) {
	if err := c.told(ctx, result.Exports); err != nil {
		return nil, err
	}
	result.ToldMS = milliseconds(time.Since(began))
	if err := c.afterwards(ctx, result, idle, converged); err != nil {
		return nil, err
	}
	return c.whatWasMade(ctx)
}

// makeServices makes the services that are exported then, and waits until caches have them.
func (c *clusters) makeServices(ctx context.Context, n int) error {
	err := inParallel(ctx, n, func(ctx context.Context, i int) error {
		if err := c.exporter.Create(ctx, service(serviceName(i))); err != nil {
			return err
		}
		return c.exporter.Create(ctx, slice(serviceName(i), i, endpointsPerExport))
	})
	if err != nil {
		return err
	}
	return pause(ctx, settle)
}

// told waits until every ServiceExport and ServiceImport has its first status and the exporting cluster has its own imports, all of
// which gives way to what carries traffic.
func (c *clusters) told(ctx context.Context, exports int) error {
	pauses := time.Duration(exports) * 2 * time.Millisecond // the more there is to be read, the seldomer
	err := wait.PollUntilContextTimeout(ctx, pauses, 30*time.Minute, true, func(ctx context.Context) (bool, error) {
		var of mcsv1beta1.ServiceExportList
		var own, theirs mcsv1beta1.ServiceImportList
		in := client.InNamespace(namespace)
		if err := errors.Join(c.exporter.List(ctx, &of, in), c.exporter.List(ctx, &own, in), c.importer.List(ctx, &theirs, in)); err != nil {
			return false, err
		}
		told := 0
		for _, e := range of.Items {
			told += min(1, len(e.Status.Conditions))
		}
		for _, i := range append(own.Items, theirs.Items...) {
			told += min(1, len(i.Status.Conditions))
		}
		return told == 3*exports, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the first status of everything: %w", err)
	}
	return nil
}

// afterwards measures what the controllers take when nothing changes any more. The instance view has time: it may go on.
func (c *clusters) afterwards(ctx context.Context, result *Convergence, idle, converged [2]sample) error {
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

// complete says whether so many services are imported with all their endpoints.
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

// sample is a process's resident bytes and CPU seconds so far.
type sample struct{ rss, cpu float64 }

// usages asks the exporting and the importing controller.
func (c *clusters) usages(ctx context.Context) (out [2]sample, err error) {
	for i, name := range []string{"cls1", "cls2"} {
		pod, err := c.set.Kubectl(ctx, name, "-n", system, "get", "pods", "-l", "app.kubernetes.io/component=manager", "-o", "name")
		if err != nil {
			return out, err
		}
		path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy/metrics", system, strings.TrimPrefix(strings.TrimSpace(pod), "pod/"))
		text, err := c.set.Kubectl(ctx, name, "get", "--raw", path)
		if err != nil {
			return out, err
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
