package cloudmap

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// maxFailuresPerMinute is the bound of requests that fail, once they have failed for a while: a few
// tens a minute for the whole controller. The pauses are random: of 40 runs 14 had 41 to 43.
const maxFailuresPerMinute = 50

// TestFailingRequestsAreBounded answers some requests, or all, of a cluster with 20 exports with an
// error for ten minutes, while it runs, starts or leaves.
func TestFailingRequestsAreBounded(t *testing.T) {
	operations := []string{
		"", // all
		"DiscoverInstances", "RegisterInstance", "DeregisterInstance", "ListInstances", "ListNamespaces", "ListServices", "CreateHttpNamespace",
		"CreateService", "GetNamespace", "GetService", "GetOperation", "ListTagsForResource", "DeleteService",
	}
	phases := map[string]func(w *simulation, fault func()){
		"running": func(w *simulation, fault func()) {
			p := beginWithExports(w, 20)
			w.until(2*time.Minute, "all is exported and mirrored", func() bool {
				return isExported(w.t, p.Registry, webKey(19))() && p.view.Pending() == 0
			})
			fault()
			for i := range 20 {
				publish(w.t, p.Registry, webExport("cls1", i, 2))
			}
		},
		"starting": func(w *simulation, fault func()) {
			fault()
			beginWithExports(w, 20)
		},
		"restarting": func(w *simulation, fault func()) {
			p := beginWithExports(w, 20)
			w.until(2*time.Minute, "all is exported and mirrored", func() bool {
				return isExported(w.t, p.Registry, webKey(19))() && p.view.Pending() == 0
			})
			p.kill()
			fault()
			beginWithExports(w, 10)
		},
		"leaving": func(w *simulation, fault func()) {
			p := beginWithExports(w, 20)
			w.until(2*time.Minute, "all is exported and mirrored", func() bool {
				return isExported(w.t, p.Registry, webKey(19))() && p.view.Pending() == 0
			})
			fault()
			p.stop(registry.ErrLeave)
		},
	}
	phases["reading only"] = func(w *simulation, fault func()) {
		p := beginWithExports(w, 20)
		reader := w.begin(cls2, nil, func(cfg *Config) { cfg.ReadOnly = true })
		w.until(2*time.Minute, "all is imported", func() bool {
			view, ok := viewOf(w.t, reader.Registry, webKey(19))
			return ok && len(view.Exports()) == 1
		})
		p.kill()
		fault()
	}
	codes := []string{"AccessDeniedException", "InternalFailure", "ServiceNotFound", "InvalidInput"}
	for i, operation := range operations {
		for j, phase := range slices.Sorted(maps.Keys(phases)) {
			tried, failing := codes, []string(nil)
			if operation != "" { // one code each: all would take minutes
				tried, failing = codes[(i+j)%len(codes):][:1], []string{operation}
			}
			for _, code := range tried {
				rule := cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: failing, Code: code}
				t.Run(fmt.Sprint(phase, "/", cmp.Or(operation, "everything"), "/", code), func(t *testing.T) {
					inBubble(t, func(t *testing.T) {
						w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
						phases[phase](w, func() { w.plan(1, rule) })
						time.Sleep(2 * time.Minute)
						_, before := w.server.Faults()
						counts := w.count()
						const minutes = 8
						time.Sleep(minutes * time.Minute)
						_, after := w.server.Faults()
						if failed := (after[0] - before[0]) / minutes; failed > maxFailuresPerMinute {
							now := w.count()
							maps.DeleteFunc(now, func(operation string, n int) bool { return n == counts[operation] })
							for operation := range now {
								now[operation] = (now[operation] - counts[operation]) / minutes
							}
							t.Errorf("%d failing requests a minute, want at most %d; all requests: %v", failed, maxFailuresPerMinute, now)
						}
					})
				})
			}
		}
	}
}

// TestReadOnly_ListsRarely: a registry that is only imported from has no permission to verify IDs,
// so it lists namespaces and services, of which AWS allows an account two in four seconds. One
// answer that the service does not exist is no reason for that, and many are one less and less
// often.
func TestReadOnly_ListsRarely(t *testing.T) {
	for name, tt := range map[string]struct {
		code           string
		failures, most int64
	}{
		"one answer without the service":   {"ServiceNotFound", 1, 0},
		"one answer without the namespace": {"NamespaceNotFound", 1, 0},
		"two answers":                      {"ServiceNotFound", 2, 1},
		"the service is never found":       {"ServiceNotFound", 1e6, 6},
		"the namespace is never found":     {"NamespaceNotFound", 1e6, 6},
		"access is denied":                 {"AccessDeniedException", 1e6, 6},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
				var failures, lists atomic.Int64
				w.setIntercept(func(req request) (code, body string, ok bool) {
					if req.cluster == cls2.ClusterID && req.operation == "ListNamespaces" {
						lists.Add(1)
					}
					if req.cluster == cls2.ClusterID && req.operation == "DiscoverInstances" && req.names("members") && failures.Add(-1) >= 0 {
						return tt.code, "", true
					}
					return "", "", false
				})
				exporter := w.begin(cls1, nil)
				publish(w.t, exporter.Registry, webExport("cls1", 1, 1))
				reader := w.begin(cls2, nil, func(cfg *Config) { cfg.ReadOnly = true })
				sees := func(endpoints int) func() bool {
					return func() bool {
						view, ok := viewOf(w.t, reader.Registry, webKey(1))
						return ok && len(view.Exports()) == 1 && view.Exports()[0].Equal(registry.Published(webExport("cls1", 1, endpoints)))
					}
				}
				w.until(2*time.Minute, "the export is imported", sees(1))
				lists.Store(0)
				for range 2 { // the second time, it lists as soon as the first time
					failures.Store(tt.failures)
					time.Sleep(10 * time.Minute)
					failures.Store(0)
					time.Sleep(time.Minute)
				}
				if n := lists.Load(); n > 2*tt.most {
					t.Errorf("%d lists of namespaces, want at most %d", n, 2*tt.most)
				}
				publish(w.t, exporter.Registry, webExport("cls1", 1, 2))
				w.until(time.Minute, "a change is imported", sees(2))
			})
		})
	}
}

// beginWithExports starts cls1 with the instance view and exports.
func beginWithExports(w *simulation, exports int) *process {
	w.t.Helper()
	p := w.begin(cls1, nil, func(cfg *Config) { cfg.InstanceView = true })
	for i := range exports {
		publish(w.t, p.Registry, webExport("cls1", i, 1))
	}
	return p
}
