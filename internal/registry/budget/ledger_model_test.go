package budget

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// modelAccount is an Account that computes everything from the exports that are held. Its room is a
// copy, and visits all namespaces for each offer.
type modelAccount struct {
	limits   Limits
	since    int64
	all      *[]*modelAccount // that are open
	held     map[mcs.Key]Amounts
	isClosed bool
}

func (a *modelAccount) used() (used Amounts) {
	for _, cost := range a.held {
		used = used.Plus(cost)
	}
	return used
}

func (a *modelAccount) totalUsed() (used Amounts) {
	for _, other := range *a.all {
		used = used.Plus(other.used())
	}
	return used
}

func (a *modelAccount) totalRoom() Amounts {
	free := a.limits.Total.Minus(a.totalUsed())
	forOthers, forOlder := memberShare(a.limits.Total, len(*a.all)), Amounts{}
	for _, other := range *a.all {
		switch unused := other.unusedShare(); {
		case other.since < a.since:
			forOlder = forOlder.Plus(unused)
			fallthrough
		case other != a:
			forOthers = forOthers.Plus(unused)
		}
	}
	return free.Minus(forOthers).max(a.unusedShare().min(free.Minus(forOlder)))
}

// unusedShare returns what the account does not use of its share.
func (a *modelAccount) unusedShare() Amounts {
	older := 0
	for _, other := range *a.all {
		if other.since < a.since {
			older++
		}
	}
	return memberShare(a.limits.Total, older).Minus(a.used()).max(Amounts{})
}

// modelRoom is a Room that visits all namespaces.
type modelRoom struct {
	limit, used, total Amounts
	namespaces         map[string]Amounts
}

func (a *modelAccount) room() *modelRoom {
	if a.isClosed {
		return &modelRoom{}
	}
	r := &modelRoom{limit: a.limits.Member, used: a.used(), total: a.totalRoom(), namespaces: map[string]Amounts{}}
	for key, cost := range a.held {
		r.namespaces[key.Namespace] = r.namespaces[key.Namespace].Plus(cost)
	}
	return r
}

func (r *modelRoom) Of(namespace string) Amounts {
	each, free := share(r.limit, len(r.namespaces)), r.limit.Minus(r.used)
	own, isKnown := r.namespaces[namespace]
	kept := Amounts{}
	if isKnown {
		kept = each
	}
	for other, used := range r.namespaces {
		if other != namespace {
			kept = kept.Plus(each.Minus(used).max(Amounts{}))
		}
	}
	return free.Minus(kept).max(each.Minus(own).min(free)).min(r.total)
}

func (r *modelRoom) Take(namespace string, growth Amounts) {
	if r.namespaces == nil {
		return
	}
	r.used, r.total = r.used.Plus(growth), r.total.Minus(growth)
	r.namespaces[namespace] = r.namespaces[namespace].Plus(growth)
}

func (a *modelAccount) withHeld(offers []Offer) []Offer {
	offers = slices.Clone(offers)
	for i := range offers {
		offers[i].Held = a.held[offers[i].Key]
	}
	return offers
}

func (a *modelAccount) Preview(offers []Offer) []bool { return Admit(a.room(), a.withHeld(offers)) }

func (a *modelAccount) Admit(offers []Offer) ([]bool, []Excess) {
	offers = a.withHeld(offers)
	admitted, excess := Admit(a.room(), offers), make([]Excess, len(offers))
	for i, o := range offers {
		if admitted[i] && !a.isClosed {
			a.held[o.Key] = o.Wanted
		}
	}
	maps.DeleteFunc(a.held, func(_ mcs.Key, cost Amounts) bool { return cost == Amounts{} })
	for i, o := range offers {
		if !admitted[i] {
			excess[i] = a.excessOf(o)
		}
	}
	return admitted, excess
}

func (a *modelAccount) excessOf(o Offer) Excess {
	member, total, growth := a.limits.Member, a.limits.Total, o.growth()
	if kind, over := exceeded(growth, member.Minus(a.used())); over {
		return Excess{Kind: kind, Limit: member[kind]}
	}
	if kind, over := exceeded(growth, total.Minus(a.totalUsed())); over {
		return Excess{Kind: kind, Total: true, Limit: total[kind]}
	}
	if kind, over := exceeded(growth, a.totalRoom()); over {
		return Excess{Kind: kind, Total: true, Limit: total[kind], Reserved: true}
	}
	kind, _ := exceeded(growth, a.room().Of(o.Key.Namespace))
	return Excess{Kind: kind, Limit: member[kind], Reserved: true}
}

func (a *modelAccount) Explain(offers []Offer) []Excess {
	excess := make([]Excess, len(offers))
	for i, o := range a.withHeld(offers) {
		if _, over := exceeded(o.growth(), a.room().Of(o.Key.Namespace)); over {
			excess[i] = a.excessOf(o)
		}
	}
	return excess
}

// modelOffers returns offers in some namespaces, a few of which have no cost. With isRaw keys
// repeat, as on the pages of a hostile cluster.
func modelOffers(rnd *rand.Rand, namespaces int, isRaw bool) (offers []Offer) {
	seen := map[mcs.Key]bool{}
	for range rnd.IntN(12) {
		o := Offer{Key: mcs.Key{Namespace: fmt.Sprint("ns-", rnd.IntN(namespaces)), Name: fmt.Sprint("svc-", rnd.IntN(3))}, Created: rnd.Int64N(5), Wanted: randomCost(rnd)}
		if rnd.IntN(8) == 0 {
			o.Wanted = Amounts{}
		}
		if isRaw || !seen[o.Key] {
			offers = append(offers, o)
		}
		seen[o.Key] = true
	}
	return offers
}

// TestLedger_DecidesAsModel compares all decisions, and the budgets that offers exceed, with those
// of a model that visits all namespaces.
func TestLedger_DecidesAsModel(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		scale := 1 + rnd.IntN(6)
		limits := Limits{Member: Amounts{5, 100, 20, 200, 2000}, Total: Amounts{8, 150, 30, 300, 3000}}
		for k := range limits.Member {
			limits.Member[k], limits.Total[k] = limits.Member[k]*scale+rnd.IntN(7), limits.Total[k]*scale+10
		}
		ledger, namespaces := NewLedger(limits), 1+rnd.IntN(4*scale)
		var accounts []*Account
		var models, open []*modelAccount
		for _, since := range rnd.Perm(3) {
			accounts = append(accounts, ledger.Open(Owner{Since: time.Unix(int64(since), 0)}))
			models = append(models, &modelAccount{limits: limits, since: int64(since), all: &open, held: map[mcs.Key]Amounts{}})
		}
		open = slices.Clone(models)
		for step := range 60 {
			i := rnd.IntN(len(accounts))
			account, model := accounts[i], models[i]
			compareRaw(t, seed, account, model, modelOffers(rnd, namespaces, true))
			offers := modelOffers(rnd, namespaces, false)
			admitted, excess := account.Admit(offers)
			wantAdmitted, wantExcess := model.Admit(offers)
			if !slices.Equal(admitted, wantAdmitted) || !slices.Equal(excess, wantExcess) {
				t.Fatalf("seed %d: admitted %v with excess %v, want %v with %v", seed, admitted, excess, wantAdmitted, wantExcess)
			}
			for _, key := range slices.SortedFunc(maps.Keys(model.held), compareKeys) {
				if rnd.IntN(6) == 0 {
					account.Release(key)
					delete(model.held, key)
				}
			}
			if step > 50 && rnd.IntN(8) == 0 {
				account.Close()
				model.isClosed, model.held = true, nil
				open = slices.DeleteFunc(open, func(a *modelAccount) bool { return a == model })
			}
			checkLedger(t, seed, ledger, accounts)
		}
	}
}

func compareKeys(a, b mcs.Key) int { return Compare(Offer{Key: a}, Offer{Key: b}) }

// compareRaw compares the results of Preview and Explain, for offers whose keys may repeat.
func compareRaw(t *testing.T, seed uint64, account *Account, model *modelAccount, offers []Offer) {
	t.Helper()
	if got, want := account.Preview(offers), model.Preview(offers); !slices.Equal(got, want) {
		t.Fatalf("seed %d: Preview returns %v, want %v", seed, got, want)
	}
	if got, want := account.Explain(offers), model.Explain(offers); !slices.Equal(got, want) {
		t.Fatalf("seed %d: Explain returns %v, want %v", seed, got, want)
	}
}

// TestLedger_BoundsNamespaces: a cluster that shows exports in ever new namespaces has no more of
// them in the ledger than its budget of exports, and none without exports.
func TestLedger_BoundsNamespaces(t *testing.T) {
	limits := roomFor(50)
	account := NewLedger(limits).Open(Owner{})
	for i := range 40 {
		offers := spreadOffers(1000, 1000)
		for j := range offers {
			offers[j].Key.Namespace = fmt.Sprintf("%s-%d", offers[j].Key.Namespace, i)
		}
		offers = append(offers, Offer{Key: mcs.Key{Namespace: fmt.Sprint("empty-", i), Name: "svc"}})
		account.Preview(offers)
		account.Admit(offers)
		if n, limit := len(account.shares.namespaces), limits.Member[Exports]; n == 0 || n > limit {
			t.Fatalf("the ledger has %d namespaces, want at most %d", n, limit)
		}
	}
	for key := range maps.Clone(account.held) {
		account.Release(key)
	}
	if n := len(account.shares.namespaces); n != 0 {
		t.Errorf("the ledger has %d namespaces without exports", n)
	}
}

// TestLedger_CopiesNoNamespaces: the memory that a decision about one export allocates does not
// depend on the number of namespaces.
func TestLedger_CopiesNoNamespaces(t *testing.T) {
	account := NewLedger(roomFor(5000)).Open(Owner{})
	account.Admit(spreadOffers(2000, 2000))
	fits := []Offer{{Key: mcs.Key{Namespace: "ns-1", Name: "another"}, Wanted: cost(1)}}
	large := []Offer{{Key: mcs.Key{Namespace: "ns-1", Name: "large"}, Wanted: cost(5000)}}
	const runs = 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		account.Preview(fits)
		account.Admit(fits)
		account.Release(fits[0].Key)
		account.Admit(large)
		account.Explain(large)
	}
	runtime.ReadMemStats(&after)
	if bytes := (after.TotalAlloc - before.TotalAlloc) / runs; bytes > 16<<10 {
		t.Errorf("decisions about two exports in an account of 2000 namespaces allocate %d bytes", bytes)
	}
}
