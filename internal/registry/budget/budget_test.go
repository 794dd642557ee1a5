package budget

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// plainRoom is a room without shares.
type plainRoom struct{ left Amounts }

func (r *plainRoom) Of(string) Amounts             { return r.left }
func (r *plainRoom) Take(_ string, growth Amounts) { r.left = r.left.Minus(growth) }

func key(name string) mcs.Key { return mcs.Key{Namespace: "demo", Name: name} }

// cost is an export with endpoints, one port and ten bytes for each.
func cost(endpoints int) Amounts {
	return Amounts{Exports: 1, Ports: 2, Bytes: 10 * endpoints}.Plus(OfGroup(0, endpoints))
}

func TestAdmit(t *testing.T) {
	room := Amounts{2, 100, 100, 100, 10_000}
	tests := map[string]struct {
		room   Amounts
		offers []Offer
		want   string
	}{
		"none": {room, nil, ""},
		"new exports, oldest first": {room, []Offer{
			{Key: key("c"), Created: 3, Wanted: cost(1)}, {Key: key("a"), Created: 2, Wanted: cost(1)}, {Key: key("b"), Created: 1, Wanted: cost(1)},
		}, "a b"},
		"new exports of one second, by key": {room, []Offer{
			{Key: key("c"), Wanted: cost(1)}, {Key: key("b"), Wanted: cost(1)}, {Key: key("a"), Wanted: cost(1)},
		}, "a b"},
		"a large one does not keep out a smaller one": {room, []Offer{
			{Key: key("a"), Created: 1, Wanted: cost(101)}, {Key: key("b"), Created: 2, Wanted: cost(100)},
		}, "b"},
		"one that is held may grow before an older new one comes": {room, []Offer{
			{Key: key("a"), Created: 1, Wanted: cost(60)}, {Key: key("b"), Created: 2, Held: cost(10), Wanted: cost(60)},
		}, "b"},
		"one that shrinks makes room": {Amounts{Exports: 1, Ports: 2, Bytes: 500}, []Offer{
			{Key: key("a"), Created: 1, Wanted: cost(50)}, {Key: key("b"), Created: 2, Held: cost(60), Wanted: cost(10)},
		}, "a b"},
		"one that shrinks is admitted without any room": {Amounts{-5, -5, -5, -5, -5}, []Offer{{Key: key("a"), Held: cost(9), Wanted: cost(8)}}, "a"},
		"one that stays is admitted without any room":   {Amounts{}, []Offer{{Key: key("a"), Held: cost(9), Wanted: cost(9)}}, "a"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for i, ok := range Admit(&plainRoom{tt.room}, tt.offers) {
				if ok {
					got = append(got, tt.offers[i].Key.Name)
				}
			}
			slices.Sort(got)
			if strings.Join(got, " ") != tt.want {
				t.Errorf("admitted %v, want %v", got, tt.want)
			}
		})
	}
}

// randomOffers returns offers of different keys, of which some are held.
func randomOffers(rnd *rand.Rand, n int) (offers []Offer) {
	for i := range n {
		o := Offer{Key: key(fmt.Sprint("svc", i)), Created: rnd.Int64N(5), Wanted: randomCost(rnd)}
		switch rnd.IntN(3) {
		case 0:
			o.Held = randomCost(rnd)
		case 1:
			o.Held = o.Wanted
		}
		offers = append(offers, o)
	}
	return offers
}

func randomCost(rnd *rand.Rand) Amounts {
	return Of(mcs.Export{}, rnd.IntN(1000)).Plus(OfGroup(rnd.IntN(5), rnd.IntN(50)))
}

func randomRoom(rnd *rand.Rand) Amounts {
	return Amounts{rnd.IntN(10), rnd.IntN(200), rnd.IntN(40), rnd.IntN(400), rnd.IntN(4000)}
}

// TestAdmitProperties: the result never exceeds the room, does not depend on the order of the
// offers, and another new export changes nothing for those that are held.
func TestAdmitProperties(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		room, offers := randomRoom(rnd), randomOffers(rnd, rnd.IntN(12))
		admitted := Admit(&plainRoom{room}, offers)

		left := room
		for i, o := range offers {
			if admitted[i] {
				left = left.Minus(o.growth())
			}
			if _, grows := exceeded(o.growth(), Amounts{}); o.isHeld() && !grows && !admitted[i] {
				t.Fatalf("seed %d: %v does not grow and is refused", seed, o)
			}
		}
		for k := range left {
			if left[k] < 0 {
				t.Fatalf("seed %d: %s exceed the room by %d", seed, Kind(k), -left[k])
			}
		}

		order := rnd.Perm(len(offers))
		shuffled := make([]Offer, len(offers))
		for to, from := range order {
			shuffled[to] = offers[from]
		}
		for to, ok := range Admit(&plainRoom{room}, shuffled) {
			if ok != admitted[order[to]] {
				t.Fatalf("seed %d: the decision about %v depends on the order", seed, shuffled[to].Key)
			}
		}

		more := append(slices.Clone(offers), Offer{Key: key("another"), Created: rnd.Int64N(5), Wanted: randomCost(rnd)})
		for i, ok := range Admit(&plainRoom{room}, more)[:len(offers)] {
			if offers[i].isHeld() && ok != admitted[i] {
				t.Fatalf("seed %d: another export changed the decision about %v, which is held", seed, offers[i].Key)
			}
		}
	}
}

// TestLedgerProperties: whatever members offer, withdraw and offer again, neither budget is
// exceeded, and what was admitted stays until it is released.
func TestLedgerProperties(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		limits := Limits{Member: Amounts{5, 100, 20, 200, 2000}, Total: Amounts{8, 150, 30, 300, 3000}}
		ledger := NewLedger(limits)
		accounts := []*Account{ledger.Open(Owner{ClusterID: "a"}), ledger.Open(Owner{ClusterID: "b"}), ledger.Open(Owner{ClusterID: "c"})}
		held := make([]map[mcs.Key]bool, len(accounts))
		for i := range held {
			held[i] = map[mcs.Key]bool{}
		}
		for range 50 {
			i := rnd.IntN(len(accounts))
			offers := randomOffers(rnd, rnd.IntN(8))
			preview := accounts[i].Preview(offers)
			admitted, excess := accounts[i].Admit(offers)
			if !slices.Equal(preview, admitted) {
				t.Fatalf("seed %d: Preview returns %v, Admit %v", seed, preview, admitted)
			}
			for j, o := range offers {
				if admitted[j] == (excess[j] != Excess{}) {
					t.Fatalf("seed %d: admitted %v with excess %v", seed, admitted[j], excess[j])
				}
				held[i][o.Key] = held[i][o.Key] || admitted[j]
			}
			for k := range held[i] {
				if rnd.IntN(4) == 0 {
					accounts[i].Release(k)
					delete(held[i], k)
				}
			}
			checkLedger(t, seed, ledger, accounts)
		}
		for _, a := range accounts {
			a.Close()
			if admitted, _ := a.Admit([]Offer{{Key: key("late"), Wanted: cost(1)}}); admitted[0] {
				t.Fatalf("seed %d: a closed account admits an export", seed)
			}
		}
		if u := ledger.Usage(); u.Total != (Amounts{}) || u.Member != (Amounts{}) {
			t.Fatalf("seed %d: the usage is %v after all accounts are closed", seed, u)
		}
	}
}

// checkLedger checks that the sums are correct and no budget is exceeded.
func checkLedger(t *testing.T, seed uint64, ledger *Ledger, accounts []*Account) {
	t.Helper()
	var total Amounts
	for _, a := range accounts {
		var used Amounts
		for _, c := range a.held {
			used = used.Plus(c)
		}
		if kind, over := exceeded(used, ledger.limits.Member); over || used != a.used {
			t.Fatalf("seed %d: the exports of a member cost %v, its account has %v; exceeds its %s: %v", seed, used, a.used, kind, over)
		}
		total = total.Plus(used)
	}
	if kind, over := exceeded(total, ledger.limits.Total); over || total != ledger.Usage().Total {
		t.Fatalf("seed %d: the exports of all cost %v, the ledger has %v; exceed the %s: %v", seed, total, ledger.Usage().Total, kind, over)
	}
}

// TestLedgerStability: an export that is admitted stays admitted when its cluster shows older ones.
func TestLedgerStability(t *testing.T) {
	ledger := NewLedger(Limits{Member: Amounts{2, 100, 100, 100, 1000}, Total: Amounts{3, 100, 100, 100, 1000}})
	one, other := ledger.Open(Owner{ClusterID: "a"}), ledger.Open(Owner{ClusterID: "b"})
	first := []Offer{{Key: key("b"), Created: 5, Wanted: cost(1)}, {Key: key("c"), Created: 6, Wanted: cost(1)}}
	if admitted, _ := one.Admit(first); !admitted[0] || !admitted[1] {
		t.Fatal("the first exports are refused")
	}
	admitted, excess := one.Admit(append([]Offer{{Key: key("a"), Created: 1, Wanted: cost(1)}}, first...))
	if admitted[0] || !admitted[1] || !admitted[2] || excess[0] != (Excess{Kind: Exports, Limit: 2}) {
		t.Errorf("admitted %v with excess %v, want b and c", admitted, excess)
	}
	if got := excess[0].String(); got != "the budget of 2 exports for one cluster (--budget-scale)" {
		t.Errorf("the message is %q", got)
	}
	admitted, excess = other.Admit([]Offer{{Key: key("a"), Wanted: cost(1)}, {Key: key("b"), Wanted: cost(1)}})
	if !admitted[0] || admitted[1] || excess[1] != (Excess{Kind: Exports, Total: true, Limit: 3}) {
		t.Errorf("admitted %v with excess %v of another member", admitted, excess)
	}
	before := one.Released()
	if one.Release(key("b")); one.Released() == before {
		t.Error("Released is the same after a release")
	}
	if admitted := one.Preview([]Offer{{Key: key("a"), Wanted: cost(1)}}); !admitted[0] {
		t.Error("there is no room after a release")
	}
}

// TestLedger_KeepsShares: neither a namespace of a member nor a member takes what is kept for the
// others, which have room afterwards.
func TestLedger_KeepsShares(t *testing.T) {
	ledger := NewLedger(Limits{Member: Amounts{60, 600, 600, 600, 6000}, Total: Amounts{80, 800, 800, 800, 8000}})
	offers := func(namespace string, n int) (out []Offer) {
		for i := range n {
			out = append(out, Offer{Key: mcs.Key{Namespace: namespace, Name: fmt.Sprint("svc-", i)}, Created: 5, Wanted: cost(1)})
		}
		return out
	}
	count := func(a *Account, offers []Offer) (n int, last Excess) {
		admitted, excess := a.Admit(offers)
		for i, ok := range admitted {
			if ok {
				n++
			} else {
				last = excess[i]
			}
		}
		return n, last
	}
	one, other := ledger.Open(Owner{ClusterID: "a"}), ledger.Open(Owner{ClusterID: "b"})
	count(one, offers("small", 3))
	// Of 60, a share is 60/2/3: seven are left of that of namespace small, and ten are kept for a
	// third namespace.
	if n, excess := count(one, offers("large", 60)); n != 60-3-7-10 || excess != (Excess{Kind: Exports, Limit: 60, Reserved: true}) {
		t.Errorf("namespace large has %d exports, others exceed %s", n, excess)
	}
	if n, _ := count(one, offers("small", 20)); n != 10 {
		t.Errorf("namespace small has %d exports, want its share", n)
	}
	if n, _ := count(one, offers("third", 20)); n == 0 {
		t.Error("a third namespace has no room")
	}
	// Of 80, the share of each of the first eight members is 80/32.
	third := ledger.Open(Owner{ClusterID: "c"})
	if n, excess := count(third, offers("large", 60)); n >= 20 || !excess.Total || !excess.Reserved || !strings.Contains(excess.String(), "for all clusters (--budget-scale), a part of which is reserved for other clusters") {
		t.Errorf("another member has %d exports, others exceed %s", n, excess)
	}
	if n, _ := count(other, offers("n", 20)); n != 2 {
		t.Errorf("the member without exports gets %d, want its share", n)
	}
}

// TestMemberShare: the shares of all members together are less than half of the budget, and older
// members have no smaller ones.
func TestMemberShare(t *testing.T) {
	limit := Amounts{10_000, 100_000, 40_000, 400_000, 16 << 20}
	var sum, before Amounts
	for older := range 5000 {
		share := memberShare(limit, older)
		sum = sum.Plus(share)
		for k := range share {
			if older > 0 && share[k] > before[k] {
				t.Fatalf("the share of %s of member %d is %d, that of the one before it %d", Kind(k), older, share[k], before[k])
			}
		}
		before = share
	}
	for k := range sum {
		if sum[k] > limit[k]/reserved {
			t.Errorf("the shares of %s are %d together, want at most half of %d", Kind(k), sum[k], limit[k])
		}
	}
	for older, want := range map[int]int{0: 312, 7: 312, 8: 78, 23: 78, 24: 19} {
		if got := memberShare(limit, older)[Exports]; got != want {
			t.Errorf("the share of member %d is %d exports, want %d", older, got, want)
		}
	}
}

// TestLedger_KeepsShareOfOlderMember: members that were seen later take nothing of the share of an
// older one.
func TestLedger_KeepsShareOfOlderMember(t *testing.T) {
	const share = 1000 / 32
	for _, opens := range []string{"first", "after the others, before they are read"} {
		ledger := NewLedger(Limits{Member: Amounts{250, 2500, 2500, 2500, 25_000}, Total: Amounts{1000, 10_000, 10_000, 10_000, 100_000}})
		seen := time.Unix(1_800_000_000, 0)
		var old *Account
		openOld := func(when string) {
			if opens == when {
				old = ledger.Open(Owner{ClusterID: "old", Since: seen})
			}
		}
		openOld("first")
		var invented []*Account
		for i := range 500 {
			invented = append(invented, ledger.Open(Owner{ClusterID: fmt.Sprint("invented-", i), Since: seen.Add(time.Duration(i+1) * time.Second)}))
		}
		openOld("after the others, before they are read")
		for _, account := range invented {
			account.Admit(spreadOffers(100, 100))
		}
		n := 0
		admitted, _ := old.Admit(spreadOffers(share, share))
		for _, ok := range admitted {
			if ok {
				n++
			}
		}
		if n != share {
			t.Errorf("opened %s: the oldest member has %d exports, want its share of %d", opens, n, share)
		}
	}
}

// TestNilLedger: without a ledger there are no limits.
func TestNilLedger(t *testing.T) {
	account := (*Ledger)(nil).Open(Owner{})
	offers := []Offer{{Key: key("a"), Wanted: cost(1 << 40)}}
	if admitted, _ := account.Admit(offers); !admitted[0] || !account.Preview(offers)[0] {
		t.Error("an export is refused")
	}
	account.Release(key("a"))
	account.SetExcess(1)
	account.Close()
	if account.Released() != 0 || account.Limits() != (Limits{}) || (*Ledger)(nil).Usage() != (Usage{}) {
		t.Error("there are limits")
	}
}
