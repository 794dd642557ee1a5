package etcd

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func TestCheckVersion(t *testing.T) {
	tests := map[string]bool{
		"3.7.1": true, "3.7.2": true, "3.7.10": true, "3.8.0": true, "3.8.0-alpha.0": true, "3.10.0": true, "4.0.0": true,
		"3.6.14": true, "3.6.15": true, "v3.6.14": true, "3.6.14-k3s1": true, "3.7.1+distribution": true,
		"3.7.0": false, "3.7.1-rc.0": false, "3.7.1-beta.1": false, "3.6.13": false, "3.6.14-alpha.1": false, "3.6.0": false,
		"3.5.33": false, "3.5.99": false, "3.4.45": false, "2.3.8": false,
		"": false, "3": false, "3.7": false, "3.7.x": false, "3.7.1.2": false, "unknown": false, "99999.0.0": false,
	}
	for version, safe := range tests {
		t.Run(version, func(t *testing.T) {
			err := checkVersion(version)
			if (err == nil) != safe || err != nil && !errors.Is(err, ErrUnsafeServer) {
				t.Errorf("error %v, want safe %t", err, safe)
			}
		})
	}
}

// reportedVersion replaces the version that etcd reports, unless it is nil.
type reportedVersion struct{ atomic.Pointer[string] }

func (v *reportedVersion) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, opts...)
	if answer, ok := reply.(*pb.StatusResponse); ok && err == nil && v.Load() != nil {
		answer.Version = *v.Load()
	}
	return err
}

// versionedClient returns a client with the user of a cluster, to which etcd reports the returned
// version.
func (s *testStore) versionedClient(t *testing.T, identity mcs.Identity, metrics *registry.Metrics) (*Client, *reportedVersion) {
	t.Helper()
	version := &reportedVersion{}
	client := s.client(t, identity)
	client.cfg.options = append(client.cfg.options, grpc.WithChainUnaryInterceptor(version.intercept))
	client.cfg.Metrics = metrics
	return client, version
}

var versionIdentity = mcs.Identity{ClusterID: "cls1", ClusterSetID: "versions", UID: "uid1"}

// TestClientRefusesUnsafeServers runs against the etcd of the tests, with the version that it
// reports and with an older one.
func TestClientRefusesUnsafeServers(t *testing.T) {
	s := newTestStore(t, shared(t))
	client, version := s.versionedClient(t, versionIdentity, nil)
	old := "3.6.10"
	version.Store(&old)
	err := client.CheckServers(t.Context())
	if !errors.Is(err, ErrUnsafeServer) || !strings.Contains(err.Error(), "version 3.6.10") || !strings.Contains(err.Error(), client.cfg.Endpoints[0]) {
		t.Fatalf("error %v, want the version and the endpoint", err)
	}
	store := &store{client: client, layout: newLayout(s.prefix, versionIdentity.ClusterSetID), id: versionIdentity.ClusterID}
	if _, _, err := store.list(t.Context()); !errors.Is(err, ErrUnsafeServer) {
		t.Errorf("listing: error %v, want %v", err, ErrUnsafeServer)
	}
	version.Store(nil)
	if err := client.CheckServers(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := store.list(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCheckServersIgnoresUnreachableMembers: a controller starts while etcd is down.
func TestCheckServersIgnoresUnreachableMembers(t *testing.T) {
	client, err := NewClient(ClientConfig{Endpoints: []string{"http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.CheckServers(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRegistryReportsReplacedServers: a member is replaced by one of an older version while the
// controller runs, and upgraded again.
func TestRegistryReportsReplacedServers(t *testing.T) {
	s := newTestStore(t, shared(t))
	registerer := prometheus.NewRegistry()
	metrics, err := registry.NewMetrics(registerer)
	if err != nil {
		t.Fatal(err)
	}
	client, version := s.versionedClient(t, versionIdentity, metrics)
	timings := fastTimings()
	timings.status = 20 * time.Millisecond
	reg := s.registryOf(t, client, fast(versionIdentity), timings)
	start(t, reg)
	within(t, "reading and writing work", func() bool {
		report := registry.ReportOf(reg)
		_, err := reg.Members(t.Context())
		return err == nil && report.Reading == nil && report.Writing == nil
	})
	within(t, "the used storage is in the metrics", func() bool {
		used := storageUsed(t, registerer)
		return used > 0 && used < 1
	})
	old := "3.5.33"
	version.Store(&old)
	within(t, "reading reports the version", func() bool { return errors.Is(registry.ReportOf(reg).Reading, ErrUnsafeServer) })
	version.Store(nil)
	within(t, "reading works again", func() bool { return registry.ReportOf(reg).Reading == nil })
}

// storageUsed returns the used share of etcd's storage quota in the metrics, -1 if they have none.
func storageUsed(t *testing.T, gatherer prometheus.Gatherer) float64 {
	t.Helper()
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "cloud_map_mcs_registry_limit_used_ratio" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "limit" && label.GetValue() == "storage" {
					return metric.GetGauge().GetValue()
				}
			}
		}
	}
	return -1
}
