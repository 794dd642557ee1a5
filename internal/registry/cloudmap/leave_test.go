package cloudmap

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
)

// TestLeave_LastClusterWaitsForReaders lets the last cluster of a clusterset leave while another
// clusterset's cluster only reads its registry: the farewell stays until that one has read it, and
// no longer.
func TestLeave_LastClusterWaitsForReaders(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		last, reader := w.begin(cls1, nil), w.begin(cls2, nil, func(cfg *Config) { cfg.ReadOnly = true })
		exp := webExport("cls1", 0, 1)
		publish(t, last.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, reader.Registry, exp))
		time.Sleep(time.Minute)
		began := time.Now()
		if err := last.end(registry.ErrLeave); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("leaving took %v, want less than 12 s", took)
		}
		if view, ok := viewOf(t, reader.Registry, exp.Key, "cls1"); !ok || len(view.In(registry.Exports, registry.Unknown, registry.Unseen)) > 0 {
			t.Errorf("the view of the reader is %+v, want none: it has read the farewell", view)
		}
		reader.kill()
	})
}

// TestLeave_SaysFarewellWithoutRecords has another user delete the record of a cluster, or
// everything, before a process that has not joined leaves: the other cluster knows the exports, and
// they end by the farewell only.
func TestLeave_SaysFarewellWithoutRecords(t *testing.T) {
	for name, fault := range map[string]func(*otherWriter){
		"record deleted":    func(v *otherWriter) { v.drop(format.MembersService, "cls1") },
		"namespace deleted": func(v *otherWriter) { v.deleteAll(true) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
				joined := time.Now()
				leaving, other := w.begin(cls1, nil), w.begin(cls2, nil)
				exp := webExport("cls1", 0, 1)
				publish(t, leaving.Registry, exp)
				w.until(time.Minute, "it is known", sees(t, other.Registry, exp))
				leaving.kill()
				fault(&otherWriter{simulation: w})
				leaving = w.begin(cls1, nil, func(cfg *Config) { cfg.Joined = joined })
				if err := leaving.end(registry.ErrLeave); err != nil {
					t.Fatal(err)
				}
				w.until(30*time.Second, "the other cluster has read the farewell", func() bool {
					view, ok := viewOf(t, other.Registry, exp.Key, "cls1")
					return ok && len(view.In(registry.Exports, registry.Unknown, registry.Unseen)) == 0
				})
				other.kill()
			})
		})
	}
}

// TestLeave_SaysFarewellAfterForgedRecord has another member take the ID of a cluster that has just
// joined, by a record that is deleted later. The other cluster knows the exports by then, and they
// end by the farewell only.
func TestLeave_SaysFarewellAfterForgedRecord(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		other := w.begin(cls2, nil)
		time.Sleep(time.Minute)
		leaving := w.begin(cls1, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, leaving.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, other.Registry, exp))
		v.forge(func(r *format.Member) { r.Heartbeat++ })
		w.until(10*time.Second, "the ID is given up", func() bool { return leaving.state.Claim() == state.Observing })
		v.drop(format.MembersService, "cls1")
		time.Sleep(5 * time.Second)
		if err := leaving.end(registry.ErrLeave); err != nil {
			t.Fatal(err)
		}
		w.until(30*time.Second, "the other cluster has read the farewell", func() bool {
			view, ok := viewOf(t, other.Registry, exp.Key, "cls1")
			return ok && len(view.In(registry.Exports, registry.Unknown, registry.Unseen)) == 0
		})
		other.kill()
	})
}

// TestLeave_RemovesInstancesThatSeemGone answers the first removal of each instance as if its
// service was gone.
func TestLeave_RemovesInstancesThatSeemGone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		viewed := func(cfg *Config) { cfg.InstanceView = true }
		leaving, other := w.begin(cls1, nil, viewed), w.begin(cls2, nil, viewed)
		mine, theirs := webExport("cls1", 0, 3), webExport("cls2", 0, 1)
		theirs.Backends[0].Endpoints[0].Address = netip.MustParseAddr("10.99.0.1")
		publish(t, leaving.Registry, mine)
		publish(t, other.Registry, theirs)
		time.Sleep(time.Minute)
		if n := len(viewInstances(w, mine.Key)); n != 4 {
			t.Fatalf("%d instances, want 4", n)
		}
		var failed sync.Map
		w.setIntercept(func(r request) (code, body string, ok bool) {
			if r.operation != "DeregisterInstance" || r.cluster != "cls1" || !r.names("tcp-") {
				return "", "", false
			}
			_, before := failed.LoadOrStore(string(r.body), true)
			return "ServiceNotFound", "", !before
		})
		if err := leaving.end(registry.ErrLeave); err != nil {
			t.Fatal(err)
		}
		if n := len(viewInstances(w, mine.Key)); n != 1 {
			t.Errorf("%d instances, want the one of the other cluster", n)
		}
		other.kill()
	})
}

// TestLeave_RemovesInstancesWithoutCatalog ends a process that leaves before it has removed its
// instances. Then another user deletes the cluster's catalog, so that only the farewell is left of
// its records. The next process removes the instances.
func TestLeave_RemovesInstancesWithoutCatalog(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		joined := time.Now()
		viewed := func(cfg *Config) { cfg.InstanceView, cfg.Joined = true, joined }
		leaving, other := w.begin(cls1, nil, viewed), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 3)
		publish(t, leaving.Registry, exp)
		time.Sleep(time.Minute)
		w.setIntercept(func(r request) (code, body string, ok bool) {
			return "AccessDeniedException", "", r.operation == "DeregisterInstance" && r.names("tcp-")
		})
		leaving.stop(registry.ErrLeave)
		time.Sleep(30 * time.Second)
		leaving.kill()
		w.setIntercept(nil)
		v := &otherWriter{simulation: w}
		admin, catalog := v.service(format.CatalogName("cls1"))
		if err := admin.DeleteService(t.Context(), catalog); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if n := len(viewInstances(w, exp.Key)); n != 3 {
			t.Fatalf("%d instances after the first process, want 3", n)
		}
		if err := w.begin(cls1, nil, viewed).end(registry.ErrLeave); err != nil {
			t.Fatal(err)
		}
		if n := len(viewInstances(w, exp.Key)); n != 0 {
			t.Errorf("%d instances, want none", n)
		}
		if _, catalog := v.service(format.CatalogName("cls1")); catalog.ID != "" {
			t.Error("the catalog is there again")
		}
		other.kill()
	})
}

// TestLeave_WaitsForAWS lets the last cluster leave while AWS counts resources as in use for some
// time after their users are gone: nothing stays.
func TestLeave_WaitsForAWS(t *testing.T) {
	for _, inUse := range []time.Duration{20 * time.Second, time.Minute, 100 * time.Second} {
		t.Run(inUse.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.Behaviors{
					InUseFor: cloudmaplocal.Duration(inUse), ConsistencyDelay: cloudmaplocal.Duration(500 * time.Millisecond),
				}})
				last := w.begin(cls1, nil, func(cfg *Config) { cfg.InstanceView = true })
				publish(t, last.Registry, webExport("cls1", 0, 3))
				time.Sleep(time.Minute)
				if err := last.end(registry.ErrLeave); err != nil {
					t.Fatal(err)
				}
				admin, _ := w.client("admin")
				if left, err := admin.ListNamespaces(t.Context()); err != nil || len(left) > 0 {
					t.Errorf("namespaces %v, error %v; want none", left, err)
				}
			})
		})
	}
}

// TestLeave_SaysWhatStays lets the last cluster leave while a user has a service in its namespaces,
// or while it may not delete anything: the rest is removed, and the error has the commands.
func TestLeave_SaysWhatStays(t *testing.T) {
	for name, tt := range map[string]struct {
		denied string // the operation
		want   []string
	}{
		"services of a user": {want: []string{"namespace mcs.set1"}}, // demo is the user's too
		"namespaces denied":  {denied: "DeleteNamespace", want: []string{"namespace mcs.set1", "namespace demo"}},
		"services denied":    {denied: "DeleteService", want: []string{"service web-0 of namespace demo", "service members of namespace mcs.set1", "service catalog.cls1 of namespace mcs.set1"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
				last := w.begin(cls1, nil, func(cfg *Config) { cfg.InstanceView = true })
				publish(t, last.Registry, webExport("cls1", 0, 3))
				time.Sleep(time.Minute)
				admin, _ := w.client("admin")
				if tt.denied == "" {
					namespaces, err := admin.ListNamespaces(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					for _, in := range namespaces {
						if _, err := admin.CreateService(t.Context(), in, "of-a-user", mcs.Identity{ClusterID: "x", ClusterSetID: "x"}, ""); err != nil {
							t.Fatal(err)
						}
					}
				}
				w.setIntercept(func(r request) (string, string, bool) {
					return "AccessDeniedException", "", r.operation == tt.denied && r.cluster == "cls1"
				})
				err := last.end(registry.ErrLeave)
				var left *registry.LeftoversError
				if !errors.As(err, &left) {
					t.Fatalf("error %v, want the list of what stays", err)
				}
				var got []string
				for _, l := range left.Left {
					got = append(got, l.Resource)
					if l.IsProtected != (tt.denied != "") || !strings.Contains(l.Command, "aws servicediscovery delete-") {
						t.Errorf("%+v", l)
					}
				}
				slices.Sort(got)
				slices.Sort(tt.want)
				if !slices.Equal(got, tt.want) {
					t.Errorf("stays: %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// viewInstances are the instances of a service of the instance view.
func viewInstances(w *simulation, key mcs.Key) []api.Instance {
	w.t.Helper()
	admin, _ := w.client("admin")
	namespaces, err := admin.ListNamespaces(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	in, ok := namespaces[key.Namespace]
	if !ok {
		return nil
	}
	services, err := admin.ListServices(w.t.Context(), in)
	if err != nil {
		w.t.Fatal(err)
	}
	service, ok := services[key.Name]
	if !ok {
		return nil
	}
	listed, err := admin.ListInstances(w.t.Context(), service)
	if err != nil {
		w.t.Fatal(err)
	}
	return listed
}

// TestLeave_AfterLateWrite lets a cluster leave while AWS Cloud Map still carries out one of its
// writes, which a client cannot take back. The late write comes with the next request of another
// operation.
func TestLeave_AfterLateWrite(t *testing.T) {
	for _, tc := range []struct{ what, id, next string }{
		{"record", "cls1", "RegisterInstance"},
		{"record", "cls1", "DeregisterInstance"},
		{"record", "cls1", "DeleteService"},
		{"page", "page-", "RegisterInstance"},
		{"page", "page-", "DeregisterInstance"},
		{"page", "page-", "DeleteService"},
		{"endpoint", "tcp-", "RegisterInstance"},
		{"endpoint", "tcp-", "DeregisterInstance"},
		{"endpoint", "tcp-", "DeleteService"},
	} {
		next := tc.next
		t.Run(tc.what+" with "+next, func(t *testing.T) {
			t.Parallel()
			c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
			reg, stop := viewing(t, c, cls1)
			publish(t, reg, webExport("cls1", 0, 1))
			within(t, 10*time.Second, "it is exported", isExported(t, reg, webKey(0)))
			within(t, 10*time.Second, "the instance view has it", func() bool { return reg.view.Pending() == 0 && len(c.instances(t, "demo", "web-0")) == 1 })

			var late atomic.Pointer[http.Request]
			var isHeld, isDone atomic.Bool
			hold := func(_ http.ResponseWriter, r *http.Request) (answered bool) {
				operation := r.Header.Get("X-Amz-Target")
				if held := late.Load(); held != nil && strings.HasSuffix(operation, "."+next) && isDone.CompareAndSwap(false, true) {
					c.server.Load().ServeHTTP(httptest.NewRecorder(), held)
				}
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return false // the client has canceled it
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				if !strings.HasSuffix(operation, ".RegisterInstance") || !bytes.Contains(body, []byte(`"InstanceId":"`+tc.id)) || !isHeld.CompareAndSwap(false, true) {
					return false
				}
				held := r.Clone(context.WithoutCancel(r.Context()))
				held.Body = io.NopCloser(bytes.NewReader(body))
				late.Store(held)
				<-r.Context().Done()
				return true
			}
			c.fault.Store(&hold)
			publish(t, reg, webExport("cls1", 0, 2))
			within(t, 10*time.Second, "a write of a "+tc.what, isHeld.Load)
			stop(registry.ErrLeave)
			if !isDone.Load() {
				t.Error("the late write did not come")
			}
			if namespaces, err := c.client.ListNamespaces(t.Context()); err != nil || len(namespaces) > 0 {
				t.Errorf("namespaces %v are left (%v), want none", slices.Sorted(maps.Keys(namespaces)), err)
			}
		})
	}
}
