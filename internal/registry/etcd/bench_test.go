package etcd

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// The benchmarks run against a real etcd of one member with TLS, users and fsync, with the
// controller's own intervals:
//
//	KUBEBUILDER_ASSETS="$(bin/testbed assets)" go test -run '^$' -bench . -benchtime 200x ./internal/registry/etcd

func benchStore(b *testing.B) *testStore {
	b.Helper()
	c, err := etcdtest.Start(b.Context(), etcdtest.Options{Program: program(b), Dir: b.TempDir(), Args: []string{"--bcrypt-cost=4"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Stop)
	s := newTestStore(b, c)
	s.direct = true
	return s
}

// tenEndpoints returns a typical export; n is its version.
func tenEndpoints(clusterID string, i, n int) mcs.Export {
	exp := webExport(clusterID, i, 0)
	group := mcs.Backends{Ports: []mcs.BackendPort{{Name: "http", Protocol: "TCP", Port: 8080}}}
	for j := range 10 {
		group.Endpoints = append(group.Endpoints, mcs.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(1 + j)}), Ready: j != n%10, Serving: true, Zone: fmt.Sprintf("zone-%d", j%3),
		})
	}
	exp.Backends = []mcs.Backends{group}
	return exp
}

// BenchmarkChangeToImporter is the time from a Publish to the importer's notification that shows
// it, with 1,000 exports there.
func BenchmarkChangeToImporter(b *testing.B) {
	s := benchStore(b)
	exporter, importer := s.production(b, cls1), s.production(b, cls2)
	start(b, exporter)
	notified := make(chan mcs.Key, 1<<16)
	startWith(b, importer, func(key mcs.Key) { notified <- key })
	for i := range 1000 {
		must(b, exporter.Publish(b.Context(), tenEndpoints("cls1", i, -1)))
	}
	await(b, importer, 1000)
	var took []time.Duration
	for n := 0; b.Loop(); n++ {
		want := tenEndpoints("cls1", n%1000, n/1000+1)
		began := time.Now()
		must(b, exporter.Publish(b.Context(), want))
		for !shows(b, importer, want) {
			<-notified
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	for name, share := range map[string]float64{"p50-ms": 0.5, "p99-ms": 0.99, "max-ms": 1} {
		b.ReportMetric(took[max(0, int(share*float64(len(took)))-1)].Seconds()*1000, name)
	}
}

func shows(b *testing.B, reg *Registry, want mcs.Export) bool {
	view, err := reg.Lookup(b.Context(), want.Key)
	return err == nil && len(view.Exports()) == 1 && view.Exports()[0].Equal(registry.Published(want))
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// await waits until reg has a number of exports of other clusters.
func await(b *testing.B, reg *Registry, count int) {
	b.Helper()
	within(b, fmt.Sprintf("%d exports are seen", count), func() bool {
		reg.mirror.mu.Lock()
		defer reg.mirror.mu.Unlock()
		seen := 0
		for id := range reg.mirror.state.clusters {
			seen += len(reg.mirror.state.belief.Versions(id)) // none of the own one
		}
		return seen >= count
	})
}

// production starts a registry with the default intervals.
func (s *testStore) production(b *testing.B, identity mcs.Identity) *Registry {
	b.Helper()
	cfg := Config{Identity: identity, PollInterval: time.Second, HeartbeatInterval: 12 * time.Second, StaleAfter: 2 * time.Minute}
	return s.registryWith(b, cfg, defaultTimings(cfg))
}

// BenchmarkConverge3000 is the time from nothing until 3,000 exports of 10 endpoints are with an
// importer, and confirmed.
func BenchmarkConverge3000(b *testing.B) {
	const count = 3000
	s := benchStore(b)
	for n := 0; b.Loop(); n++ {
		s.prefix = fmt.Sprintf("/bench%d", n)
		exporter, importer := s.production(b, cls1), s.production(b, cls2)
		stops := []func(error){start(b, exporter), start(b, importer)}
		began := time.Now()
		for i := range count {
			must(b, exporter.Publish(b.Context(), tenEndpoints("cls1", i, -1)))
		}
		await(b, importer, count)
		b.ReportMetric(time.Since(began).Seconds(), "imported-s")
		awaitState(b, exporter, count-1, registry.Exported)
		for _, stop := range stops {
			stop(nil)
		}
	}
}

// BenchmarkImporter100k measures an importer of 50 clusters with 10,000 exports and 100,000
// endpoints in all: the duration of the first read, memory, and CPU while the 50 clusters only
// renew their leases.
func BenchmarkImporter100k(b *testing.B) {
	const clusters, exports = 50, 200
	s := benchStore(b)
	l := s.layout("set1")
	var group sync.WaitGroup
	for c := range clusters {
		group.Go(func() {
			identity := benchMember(c)
			set := &exportSet{Count: exports}
			for i := range exports {
				w, err := newDesiredExport(tenEndpoints(identity.ClusterID, i, c))
				must(b, err)
				value := signExport(registrytest.Signer(b, identity), authorOf(b, identity), webKey(i), 1, w.data)
				set.Digest = set.Digest.With(unitOf(webKey(i)), 1)
				s.putKey(b, l.export(identity.ClusterID, webKey(i)), string(value))
			}
			s.putKey(b, l.member(identity.ClusterID), string(memberValue(b, identity, time.Now(), set)))
		})
	}
	group.Wait()
	for b.Loop() {
		before := heap()
		importer := s.production(b, cls2)
		began := time.Now()
		stop := start(b, importer)
		await(b, importer, clusters*exports)
		b.ReportMetric(time.Since(began).Seconds(), "first-read-s")
		b.ReportMetric(float64(heap()-before)/(1<<20), "heap-MiB")
		b.ReportMetric(s.cost(b, l, clusters)*100, "cpu-%")
		runtime.KeepAlive(importer)
		stop(nil)
	}
}

// benchMember returns the identity of one of many clusters.
func benchMember(n int) mcs.Identity {
	id := fmt.Sprintf("member-%d", n)
	return mcs.Identity{ClusterID: id, ClusterSetID: "set1", UID: id}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// cost returns the share of a core that this process uses while all clusters write a heartbeat
// every 12 seconds, our own writing of those included.
func (s *testStore) cost(b *testing.B, l layout, clusters int) float64 {
	b.Helper()
	const seconds = 12
	began, used := time.Now(), cpu(b)
	for n := range clusters {
		identity := benchMember(n)
		id := identity.ClusterID
		data := memberValue(b, identity, time.Now(), nil)
		lease, err := s.Root().Grant(b.Context(), 60)
		must(b, err)
		s.putKey(b, l.member(id), string(data))
		if _, err := s.Root().Put(b.Context(), l.alive(id), id, clientv3.WithLease(lease.ID)); err != nil {
			b.Fatal(err)
		}
		time.Sleep(time.Until(began.Add(time.Duration(n+1) * seconds * time.Second / time.Duration(clusters))))
	}
	return (cpu(b) - used).Seconds() / time.Since(began).Seconds()
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
