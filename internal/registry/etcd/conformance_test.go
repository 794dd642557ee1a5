package etcd

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestConformance runs against a real etcd with TLS. Each cluster has a user that may write below its own prefix only, and tokens
// expire every three seconds.
func TestConformance(t *testing.T) {
	c := shared(t)
	registrytest.Run(t, func(t *testing.T) registrytest.Backend { return newTestStore(t, c).backend() })
}

func (s *testStore) backend() registrytest.Backend {
	const staleAfter = 2 * time.Second
	return registrytest.Backend{
		New: func(t *testing.T, identity mcs.Identity) registry.Registry {
			cfg := fast(identity)
			cfg.StaleAfter = staleAfter
			return s.registry(t, cfg)
		},
		StaleAfter: staleAfter,
		DropHeartbeats: func(*testing.T) func() {
			s.dropHeartbeats.Store(true)
			return func() { s.dropHeartbeats.Store(false) }
		},
		DeleteMember: func(t *testing.T, clusterSetID, clusterID string) {
			s.remove(t, s.layout(clusterSetID).member(clusterID))
			s.remove(t, s.layout(clusterSetID).alive(clusterID))
		},
		Fail: func(*testing.T) func() {
			s.proxy.Cut()
			return s.proxy.Restore
		},
		Corrupt: func(t *testing.T, clusterSetID, clusterID string, key mcs.Key) func(mcs.Key) bool {
			s.putKey(t, s.layout(clusterSetID).export(clusterID, key), "garbage")
			return func(k mcs.Key) bool { return k == key }
		},
		DeleteExport: func(t *testing.T, clusterSetID, clusterID string, key mcs.Key) {
			s.remove(t, s.layout(clusterSetID).export(clusterID, key))
		},
		Empty: func(t *testing.T, clusterSetID, clusterID string) bool {
			answer, err := s.Root().Get(t.Context(), s.layout(clusterSetID).cluster(clusterID), clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				t.Fatal(err)
			}
			return answer.Count == 0
		},
		Writes: func() int { return int(s.writes.Load()) },
	}
}
