package etcd

import (
	"crypto/ed25519"
	"fmt"
	"sync"
	"testing"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// TestMirror_VerifiesExportsWithoutLock checks that lookups do not wait while a list of many
// exports is verified.
func TestMirror_VerifiesExportsWithoutLock(t *testing.T) {
	const exports = 100
	s := newStateTest(t)
	m := newMirror(s.state, "cls1", 0, logr.Discard())
	generations := map[int]int64{}
	list := make([]pair, 0, exports+1)
	for i := range exports {
		generations[i] = 5
		list = append(list, s.export(i, 1, 5))
	}
	list = append(list, s.member(0, generations))
	for i := range list {
		list[i].revision = 1
	}
	var mu sync.Mutex
	verified, locked := 0, 0
	trust.SetVerifier(func(key ed25519.PublicKey, message, signature []byte) bool {
		mu.Lock()
		verified++
		if m.mu.TryLock() {
			m.mu.Unlock()
		} else {
			locked++
		}
		mu.Unlock()
		return ed25519.Verify(key, message, signature)
	})
	defer trust.SetVerifier(ed25519.Verify)
	relist(m, 1, list...)
	if verified < exports || locked > 1 {
		t.Errorf("%d of %d verifications with the lock, want only that of the member record", locked, verified)
	}
	s.want("after the list", 1, 1, 1)
	verified = 0
	relist(m, 2, list...)
	if verified > 4 {
		t.Errorf("%d verifications of a head and a list without changes, want those of the member record", verified)
	}
}

// TestMirror_VerifiedExportsAreThoseOfTheAuthor checks that exports which were verified before the
// list was applied count only under the key that the cluster turns out to have.
func TestMirror_VerifiedExportsAreThoseOfTheAuthor(t *testing.T) {
	s := newStateTest(t)
	m := newMirror(s.state, "cls1", 0, logr.Discard())
	s.list(s.member(0, map[int]int64{0: 5}), s.export(0, 1, 5))
	rebuilt := cls2
	rebuilt.UID = "uid-of-the-new-one"
	var list []pair
	for i := range 2 * minParallel {
		list = append(list, pair{key: s.layout.export("cls2", webKey(i)), value: exportValue(t, rebuilt, i, 7, 9)})
	}
	list = append(list, pair{key: s.layout.member("cls2"), value: memberValue(t, rebuilt, s.at(1), nil)})
	for i := range list {
		list[i].revision = 9
	}
	relist(m, 9, list...)
	s.want("with a key that is refused", 1, 0, 0)
}

func BenchmarkMirrorReplace(b *testing.B) {
	const clusters, exports = 50, 200
	s := newStateTest(b)
	var list []pair
	for c := range clusters {
		identity := benchMember(c)
		set := &exportSet{Count: exports}
		for i := range exports {
			e, err := newDesiredExport(tenEndpoints(identity.ClusterID, i, c))
			must(b, err)
			value := signExport(registrytest.Signer(b, identity), authorOf(b, identity), webKey(i), 1, e.data)
			set.Digest = set.Digest.With(unitOf(webKey(i)), 1)
			list = append(list, pair{key: s.layout.export(identity.ClusterID, webKey(i)), value: value, revision: 1})
		}
		list = append(list, pair{key: s.layout.member(identity.ClusterID), value: memberValue(b, identity, s.now, set), revision: 1})
	}
	for b.Loop() {
		b.StopTimer()
		s.keyrings = registrytest.NewKeyrings(0)
		s.restart()
		m := newMirror(s.state, "cls1", 0, logr.Discard())
		fresh := make([]pair, len(list))
		copy(fresh, list)
		for i := range fresh {
			fresh[i].verified = nil
		}
		b.StartTimer()
		relist(m, 1, fresh...)
		b.StopTimer()
		if len(s.members()) != clusters || len(s.belief.Versions("member-0")) != exports {
			b.Fatal(fmt.Sprint("members ", len(s.members())))
		}
		b.StartTimer()
	}
}

// TestMirror_PicksWithinBudgetOfUnknownCluster checks that of the exports of a cluster that is not
// known yet only those are decoded that its budget admits.
func TestMirror_PicksWithinBudgetOfUnknownCluster(t *testing.T) {
	s := newStateTest(t)
	s.limit(budget.Exports, 2)
	m := newMirror(s.state, "cls1", 0, logr.Discard())
	list := []pair{s.member(0, nil)}
	for i := range 5 {
		list = append(list, s.export(i, 1, 5))
	}
	jobs := m.exportsToVerify(list, false)
	for i := range jobs {
		jobs[i].pair.verified = s.verify(*jobs[i].pair, jobs[i].author, jobs[i].key)
	}
	if picked := m.pick(jobs); len(jobs) != 5 || len(picked) != 2 {
		t.Errorf("%d of %d exports are decoded, want 2 of 5", len(picked), len(jobs))
	}
}
