package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// objectsPerExport are the objects of an export that completion waits for: the ServiceExport with
// its conditions, and in each of the two clusters the ServiceImport with its conditions and the
// EndpointSlice with all endpoints. The derived Services are there before their ServiceImports.
const objectsPerExport = 5

// completion records when each object of each export is complete, from watches in both clusters.
type completion struct {
	mu       sync.Mutex
	complete map[string]time.Time // by cluster, kind and name of the service
	last     time.Time            // when the last object was complete
	changed  chan struct{}        // closed and replaced when an object is complete
}

// watchCompletion watches until ctx ends.
func (c *clusters) watchCompletion(ctx context.Context) (*completion, error) {
	out := &completion{complete: map[string]time.Time{}, changed: make(chan struct{})}
	fromExporter := client.MatchingLabels{mcsv1beta1.LabelSourceCluster: "cls1"}
	for _, w := range []completionWatch{
		{"cls1", c.exporter, &mcsv1beta1.ServiceExportList{}, nil},
		{"cls1", c.exporter, &mcsv1beta1.ServiceImportList{}, nil},
		{"cls1", c.exporter, &discoveryv1.EndpointSliceList{}, fromExporter},
		{"cls2", c.importer, &mcsv1beta1.ServiceImportList{}, nil},
		{"cls2", c.importer, &discoveryv1.EndpointSliceList{}, fromExporter},
	} {
		events, err := out.open(ctx, w)
		if err != nil {
			return nil, err
		}
		go out.follow(ctx, w, events)
	}
	return out, nil
}

// completionWatch is a watch on one kind in one cluster.
type completionWatch struct {
	cluster string
	from    client.WithWatch
	list    client.ObjectList
	labels  client.MatchingLabels
}

// open lists what exists, records it and watches from there.
func (c *completion) open(ctx context.Context, w completionWatch) (watch.Interface, error) {
	options := []client.ListOption{client.InNamespace(namespace), w.labels}
	list := w.list.DeepCopyObject().(client.ObjectList)
	if err := w.from.List(ctx, list, options...); err != nil {
		return nil, err
	}
	if err := meta.EachListItem(list, func(o runtime.Object) error { c.record(w.cluster, o); return nil }); err != nil {
		return nil, err
	}
	from := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}}
	return w.from.Watch(ctx, list, append(options, from)...)
}

// follow records events until ctx ends. The API server ends watches of custom resources shortly
// after their CRD was installed, so a watch that ends is opened again.
func (c *completion) follow(ctx context.Context, w completionWatch, events watch.Interface) {
	for {
		for event := range events.ResultChan() {
			if event.Type != watch.Deleted {
				c.record(w.cluster, event.Object)
			}
		}
		events.Stop()
		var err error
		for events, err = c.open(ctx, w); err != nil; events, err = c.open(ctx, w) {
			if pause(ctx, reopen) != nil {
				return
			}
		}
	}
}

// reopen is the pause between attempts to open a watch.
const reopen = 20 * time.Millisecond

// record records when an object is complete.
func (c *completion) record(cluster string, object runtime.Object) {
	kind, service, ok := completeObject(object)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if key := objectKey(cluster, kind, service); c.complete[key].IsZero() {
		c.last = time.Now()
		c.complete[key] = c.last
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

func objectKey(cluster, kind, service string) string { return cluster + "/" + kind + "/" + service }

// completeObject reports whether an object is complete, and of which service.
func completeObject(object any) (kind, service string, ok bool) {
	switch o := object.(type) {
	case *mcsv1beta1.ServiceExport:
		ready := string(mcsv1beta1.ServiceExportConditionReady)
		return "ServiceExport", o.Name, meta.IsStatusConditionTrue(o.Status.Conditions, ready)
	case *mcsv1beta1.ServiceImport:
		return "ServiceImport", o.Name, len(o.Status.Conditions) > 0
	case *discoveryv1.EndpointSlice:
		service = o.Labels[mcsv1beta1.LabelServiceName]
		return "EndpointSlice", service, service != "" && len(o.Endpoints) == endpointsPerExport
	}
	return "", "", false
}

// await waits until all objects of so many exports are complete, and returns when the last one was.
func (c *completion) await(ctx context.Context, exports int, timeout time.Duration) (time.Time, error) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		c.mu.Lock()
		n, changed, last := len(c.complete), c.changed, c.last
		c.mu.Unlock()
		if n == objectsPerExport*exports {
			return last, nil
		}
		select {
		case <-ctx.Done():
			return last, ctx.Err()
		case <-deadline.C:
			return last, fmt.Errorf("%d of %d objects are complete after %v", n, objectsPerExport*exports, timeout)
		case <-changed:
		}
	}
}

// readyDelays returns the time from when the registry showed each export to the Ready condition of
// its ServiceExport.
func (c *completion) readyDelays(shown map[string]time.Time) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var delays []time.Duration
	for service, at := range shown {
		ready := c.complete[objectKey("cls1", "ServiceExport", service)]
		delays = append(delays, max(0, ready.Sub(at)))
	}
	return delays
}
