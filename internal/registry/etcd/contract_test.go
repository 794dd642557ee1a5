package etcd

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestContract runs against a real etcd with TLS. Each cluster has a user that may write below
// its own prefix only, and tokens expire every three seconds.
func TestContract(t *testing.T) {
	c := shared(t)
	registrytest.Run(t, func(t *testing.T) registrytest.Backend { return newTestStore(t, c).backend() })
}

func (s *testStore) backend() registrytest.Backend {
	const staleAfter = 2 * time.Second
	s.keyrings = registrytest.NewKeyrings(staleAfter)
	config := func(identity mcs.Identity) Config {
		cfg := fast(identity)
		cfg.StaleAfter = staleAfter
		return cfg
	}
	return registrytest.Backend{
		New: func(t *testing.T, identity mcs.Identity, options registrytest.Options) registry.Registry {
			cfg := config(identity)
			cfg.HeartbeatInterval = options.Heartbeat(cfg.HeartbeatInterval)
			return s.registry(t, cfg)
		},
		NewWithRotatedKey: func(t *testing.T, identity mcs.Identity) registry.Registry {
			cfg := config(identity)
			cfg.Signer = registrytest.RotatedSigner(t, identity)
			return s.registry(t, cfg)
		},
		NewReader: func(t *testing.T, identity mcs.Identity) registry.Registry {
			cfg := config(identity)
			cfg.ReadOnly = true
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
			l := s.layout(clusterSetID)
			keys := s.keys(t, l.cluster(clusterID))
			if m, _, err := openMember([]byte(keys[l.member(clusterID)]), clusterSetID, clusterID); err == nil {
				if r, err := decodeMember(m, clusterSetID, clusterID); err == nil && r.Farewell {
					delete(keys, l.member(clusterID))
				}
			}
			return len(keys) == 0
		},
		Writes: func() int { return int(s.writes.Load()) },
		Wipe: func(t *testing.T) {
			s.remove(t, s.prefix+"/", clientv3.WithPrefix())
		},
		Forge: func(t *testing.T, clusterSetID, clusterID string) {
			forger := mcs.Identity{ClusterID: clusterID, ClusterSetID: clusterSetID, UID: "uid-of-the-forger"}
			l := s.layout(clusterSetID)
			s.putKey(t, l.member(clusterID), string(memberValue(t, forger, time.Now(), setOf(nil))))
			s.remove(t, l.cluster(clusterID)+exportsSuffix, clientv3.WithPrefix())
		},
		Record: func(t *testing.T, clusterSetID, clusterID string) func() {
			prefix := s.layout(clusterSetID).cluster(clusterID)
			recorded := s.keys(t, prefix)
			return func() {
				s.remove(t, prefix, clientv3.WithPrefix())
				for key, value := range recorded {
					s.putKey(t, key, value)
				}
			}
		},
	}
}
