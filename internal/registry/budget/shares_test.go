package budget

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestShares compares the reserved amounts with the sums over all namespaces, and checks that
// removed namespaces leave nothing behind.
func TestShares(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		limit := Amounts{rnd.IntN(10), rnd.IntN(200), rnd.IntN(1000), 1, 0}
		s := newShares(limit)
		name := func() string { return fmt.Sprint("ns-", rnd.IntN(1+int(seed%40))) }
		for range 100 {
			if rnd.IntN(3) == 0 {
				s.remove(name())
			} else {
				var used Amounts
				for k := range used {
					used[k] = rnd.IntN(limit[k]+4) - 2
				}
				s.set(name(), used)
			}
			checkShares(t, seed, s, name())
		}
		for namespace := range s.namespaces {
			s.remove(namespace)
		}
		for k, kind := range s.kinds {
			if len(kind.byBound) != 0 || kind.kept != (tally{}) {
				t.Fatalf("seed %d: %v of %s is left without namespaces", seed, kind, Kind(k))
			}
		}
	}
}

// checkShares compares the amounts that are reserved for namespaces other than one with the sum
// over them.
func checkShares(t *testing.T, seed uint64, s *shares, namespace string) {
	t.Helper()
	each, want := share(s.limit, len(s.namespaces)), Amounts{}
	if _, isKnown := s.namespaces[namespace]; isKnown {
		want = each
	}
	for other, used := range s.namespaces {
		if other != namespace {
			want = want.Plus(each.Minus(used).max(Amounts{}))
		}
	}
	if got := s.keptFor(namespace); got != want {
		t.Fatalf("seed %d: %v is reserved for the namespaces other than %s, want %v, of %v", seed, got, namespace, want, s.namespaces)
	}
}
