package etcd

import (
	"fmt"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// BenchmarkLookup measures the lookup of a service that ten clusters export.
func BenchmarkLookup(b *testing.B) {
	const each = 10 // exports of a cluster, and clusters that export a service
	for _, size := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", size), func(b *testing.B) {
			s := newStateTest(b)
			imported := make([][]string, size)
			for n := range size {
				identity := mcs.Identity{ClusterID: fmt.Sprintf("other%d", n), ClusterSetID: "set1", UID: fmt.Sprintf("uid-of-other%d", n)}
				generations := map[int]int64{}
				pairs := make([]pair, 1, 1+each)
				for j := range each {
					i := (n + j) % size
					imported[i] = append(imported[i], identity.ClusterID)
					generations[i] = 1
					pairs = append(pairs, pair{key: s.layout.export(identity.ClusterID, webKey(i)), value: exportValue(b, identity, i, 1, 1), revision: 1})
				}
				pairs[0] = pair{key: s.layout.member(identity.ClusterID), value: memberValue(b, identity, s.at(0), setOf(generations)), revision: 1}
				s.apply(s.at(0), pairs, engine.Keys{})
			}
			s.observeHeartbeats(time.Now(), engine.Keys{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if view := s.view(webKey(i%size), imported[i%size]); len(view.Exports()) != each {
					b.Fatalf("%d exports, want %d", len(view.Exports()), each)
				}
			}
		})
	}
}
