package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// importRecord records all changes of the ServiceImports of a namespace: how few there were, for
// how long, and which got other IPs.
type importRecord struct {
	cluster cluster
	ns      string
	cancel  context.CancelFunc
	done    chan error

	mu sync.Mutex
	// before are the clusterset IPs at the start, and now those that exist, by name.
	before, now map[string][]string
	fewest      int
	// fewer is the time for which imports were missing, since is the time at which the first one
	// went that has not returned.
	fewer time.Duration
	since time.Time
	// changed are the imports that had other IPs at any time.
	changed map[string]string
}

// recordImports records the ServiceImports of a namespace until it is stopped.
func recordImports(t *testing.T, c cluster, ns string) *importRecord {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &importRecord{cluster: c, ns: ns, cancel: cancel, done: make(chan error, 1), changed: map[string]string{}}
	t.Cleanup(cancel)
	list, err := r.list(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r.before = importIPs(list)
	r.fewest = len(r.before)
	r.replace(list)
	go func() {
		err := r.follow(ctx, list.ResourceVersion)
		if ctx.Err() != nil {
			err = nil // stopped
		}
		r.done <- err
	}()
	return r
}

func (r *importRecord) list(ctx context.Context) (*mcsv1beta1.ServiceImportList, error) {
	list := &mcsv1beta1.ServiceImportList{}
	if err := r.cluster.List(ctx, list, client.InNamespace(r.ns)); err != nil {
		return nil, fmt.Errorf("%s: listing the imports: %w", r.cluster.name, err)
	}
	return list, nil
}

// follow watches until ctx ends. It lists again when the watch ends or the ServiceImports'
// definition is gone for a moment.
func (r *importRecord) follow(ctx context.Context, version string) error {
	for ctx.Err() == nil {
		w, err := r.cluster.Watch(ctx, &mcsv1beta1.ServiceImportList{}, client.InNamespace(r.ns), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
		if err == nil {
			r.consume(ctx, w)
			w.Stop()
		}
		list, err := r.list(ctx)
		if err != nil {
			return err
		}
		r.replace(list)
		version = list.ResourceVersion
	}
	return nil
}

func (r *importRecord) consume(ctx context.Context, w watch.Interface) {
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-w.ResultChan():
			imp, isImport := event.Object.(*mcsv1beta1.ServiceImport)
			if !ok || !isImport {
				return
			}
			r.mu.Lock()
			if event.Type == watch.Deleted {
				delete(r.now, imp.Name)
			} else {
				r.now[imp.Name] = imp.Spec.IPs
			}
			r.note()
			r.mu.Unlock()
		}
	}
}

// replace takes a whole list.
func (r *importRecord) replace(list *mcsv1beta1.ServiceImportList) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = importIPs(list)
	r.note()
}

// note records the differences between the current imports and those at the start. r.mu is locked.
func (r *importRecord) note() {
	have := 0
	for name, before := range r.before {
		now, ok := r.now[name]
		if ok {
			have++
		}
		if len(now) > 0 && !slices.Equal(now, before) {
			r.changed[name] = fmt.Sprintf("%s: %s became %s", name, strings.Join(before, ","), strings.Join(now, ","))
		}
	}
	r.fewest = min(r.fewest, have)
	switch missing := have < len(r.before); {
	case missing && r.since.IsZero():
		r.since = time.Now()
	case !missing && !r.since.IsZero():
		r.fewer += time.Since(r.since)
		r.since = time.Time{}
	}
}

// stop ends the record.
func (r *importRecord) stop() error {
	r.cancel()
	err := <-r.done
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	if !r.since.IsZero() {
		r.fewer += time.Since(r.since)
	}
	return err
}

// importIPs returns the clusterset IPs by name.
func importIPs(list *mcsv1beta1.ServiceImportList) map[string][]string {
	out := map[string][]string{}
	for _, imp := range list.Items {
		out[imp.Name] = imp.Spec.IPs
	}
	return out
}
