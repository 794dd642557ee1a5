package etcd

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestMirror_ReviewsAtIntervals: an answer with the heartbeat of one cluster costs nothing for the others, and at intervals all of them are reviewed.
func TestMirror_ReviewsAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStateTest(t)
		m := newMirror(s.state, "cls1", time.Second, logr.Discard())
		first := s.member(0, nil)
		first.revision = 1
		if u := m.replace([]pair{first}, 1, false); !u.reviewed || len(u.members) != 1 {
			t.Errorf("after a list: reviewed %v, members %v", u.reviewed, u.members)
		}
		if !s.liveness.IsUnknown("cls2") {
			t.Error("a cluster is known to be alive before its first heartbeat")
		}
		revision := int64(1)
		beat := func() update {
			revision++
			p := s.member(int(revision), nil)
			p.revision = revision
			u, _ := m.apply([]pair{p}, revision)
			return u
		}
		if u := beat(); u.reviewed || u.revision != 2 {
			t.Errorf("after a heartbeat: reviewed %v, revision %d", u.reviewed, u.revision)
		}
		if u, _ := m.apply(nil, 2); !u.reviewed || s.liveness.IsUnknown("cls2") {
			t.Errorf("after an answer without changes: reviewed %v, unknown %v", u.reviewed, s.liveness.IsUnknown("cls2"))
		}
		beat()
		time.Sleep(time.Second)
		if u := beat(); !u.reviewed {
			t.Error("a review is due, although no answer is without changes")
		}
	})
}

// BenchmarkHeartbeat measures an answer of the watch with the heartbeat of one of many clusters, with the reviews that are due at that rate: each cluster writes
// one in 12 s.
func BenchmarkHeartbeat(b *testing.B) {
	for _, size := range []int{10, 100, 300, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", size), func(b *testing.B) {
			s := newStateTest(b)
			m := newMirror(s.state, "cls1", time.Hour, logr.Discard())
			log := registry.NewMemberLog(logr.Discard(), "cls1")
			var list []pair
			for n := range size {
				list = append(list, pair{key: s.layout.member(benchMember(n).ClusterID), value: memberValue(b, benchMember(n), s.now, setOf(nil)), revision: 1})
			}
			m.replace(list, 1, false)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				member, revision := benchMember(n%size), int64(n+2)
				p := pair{key: s.layout.member(member.ClusterID), value: memberValue(b, member, s.now.Add(time.Duration(n+1)*time.Second), setOf(nil)), revision: revision}
				b.StartTimer()
				u, _ := m.apply([]pair{p}, revision)
				if n%max(1, size/12) == 0 {
					u, _ = m.apply(nil, revision)
					log.Update(u.members)
				}
			}
		})
	}
}
