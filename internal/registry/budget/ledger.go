package budget

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Ledger records the cost of the admitted exports of all other clusters, in all registries of a
// process. It is safe for concurrent use. A nil *Ledger has no limits.
type Ledger struct {
	limits Limits

	mu   sync.Mutex
	used Amounts
	// accounts are those that are open, the oldest first.
	accounts []*Account
	// unused are the sums of their unused shares; nil after a change of accounts.
	unused unusedShares
	// released counts the changes after which more exports may fit.
	released uint64
}

// NewLedger returns a ledger of no exports.
func NewLedger(limits Limits) *Ledger {
	return &Ledger{limits: limits}
}

// Limits returns the limits, the zero value if there are none.
func (l *Ledger) Limits() Limits {
	if l == nil {
		return Limits{}
	}
	return l.limits
}

// Account records the cost of the admitted exports of one cluster in one registry. A nil *Account
// has no limits.
type Account struct {
	ledger *Ledger
	owner  Owner
	// ledger.mu guards the fields below. used is the cost of all exports.
	used Amounts
	// index is the place among the ledger's accounts while Ledger.unused is set.
	index int
	// held is the cost of each export.
	held map[mcs.Key]Amounts
	// shares has the cost of each namespace. It is nil after Close.
	shares *shares
	// excess is the number of exports that are not admitted.
	excess int
}

// Owner is the cluster of an account.
type Owner struct {
	ClusterID string
	// Since is when this cluster first saw it, across restarts; the zero value is before all
	// others.
	Since time.Time
}

// compareAge orders accounts by their age.
func compareAge(a, b *Account) int {
	return cmp.Or(a.owner.Since.Compare(b.owner.Since), cmp.Compare(a.owner.ClusterID, b.owner.ClusterID))
}

// Open returns a new account.
func (l *Ledger) Open(owner Owner) *Account {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &Account{ledger: l, owner: owner, held: map[mcs.Key]Amounts{}, shares: newShares(l.limits.Member)}
	i, _ := slices.BinarySearchFunc(l.accounts, a, compareAge)
	l.accounts, l.unused = slices.Insert(l.accounts, i, a), nil
	return a
}

// Close releases all exports. Later offers are not admitted.
func (a *Account) Close() {
	if a == nil {
		return
	}
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = l.used.Minus(a.used)
	if a.shares != nil {
		l.released++ // even without exports: its share was reserved
	}
	a.used, a.held, a.shares, a.excess = Amounts{}, nil, nil, 0
	l.accounts, l.unused = slices.DeleteFunc(l.accounts, func(other *Account) bool { return other == a }), nil
}

// accountRoom is the Room of one account. The caller of its methods holds the lock. Take changes
// the shares of the account until undo.
type accountRoom struct {
	// shares are those of the account, nil if it is closed.
	shares *shares
	// used is the cost of the account's exports, total the amount that is available to it in the
	// budget of all members.
	used, total Amounts
	// before is the cost of each namespace before its first Take.
	before map[string]namespaceCost
}

// namespaceCost is the cost of the exports of a namespace. isKnown reports whether the shares had
// the namespace.
type namespaceCost struct {
	used    Amounts
	isKnown bool
}

// room returns the Room of the account. The caller holds the lock.
func (a *Account) room() *accountRoom {
	return &accountRoom{shares: a.shares, used: a.used, total: a.totalRoom(), before: map[string]namespaceCost{}}
}

// totalRoom returns the amounts that the budget of all members has for the account: the unused
// part, without the unused shares of the others, but at least its own share, as far as the unused
// shares of older members allow. So a member always has its share, whatever younger ones use. The
// caller holds the lock.
func (a *Account) totalRoom() Amounts {
	l := a.ledger
	unused, free := l.unusedShares(), l.limits.Total.Minus(l.used)
	own, older := Amounts{}, len(unused) // of a closed account
	if a.shares != nil {
		own, older = a.unusedShare(), a.index
	}
	// the share of the next member
	kept := unused.sum(len(unused)).Minus(own).Plus(memberShare(l.limits.Total, len(l.accounts)))
	return free.Minus(kept).max(own.min(free.Minus(unused.sum(older))))
}

// Of implements Room. The unused shares of the other namespaces are not available.
func (r *accountRoom) Of(namespace string) Amounts {
	if r.shares == nil {
		return Amounts{}
	}
	each, free := r.shares.each(), r.shares.limit.Minus(r.used)
	return free.Minus(r.shares.keptFor(namespace)).max(each.Minus(r.shares.namespaces[namespace]).min(free)).min(r.total)
}

// Take implements Room.
func (r *accountRoom) Take(namespace string, growth Amounts) {
	if r.shares == nil {
		return
	}
	used, isKnown := r.shares.namespaces[namespace]
	if _, isTaken := r.before[namespace]; !isTaken {
		r.before[namespace] = namespaceCost{used, isKnown}
	}
	r.used, r.total = r.used.Plus(growth), r.total.Minus(growth)
	r.shares.set(namespace, used.Plus(growth))
}

// undo reverts all calls of Take. The room must not be used afterwards.
func (r *accountRoom) undo() {
	for namespace, before := range r.before {
		if before.isKnown {
			r.shares.set(namespace, before.used)
		} else {
			r.shares.remove(namespace)
		}
	}
}

// tryAdmit reports which offers fit, without admitting them. The caller holds the lock.
func (a *Account) tryAdmit(offers []Offer) []bool {
	room := a.room()
	defer room.undo()
	return Admit(room, offers)
}

// WithHeld returns the offers with Held set.
func (a *Account) WithHeld(offers []Offer) []Offer {
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	return a.withHeld(offers)
}

// withHeld sets Held of each offer. The caller holds the lock.
func (a *Account) withHeld(offers []Offer) []Offer {
	out := make([]Offer, len(offers))
	for i, o := range offers {
		o.Held = a.held[o.Key]
		out[i] = o
	}
	return out
}

// Preview reports which offers Admit would admit, without admitting them.
func (a *Account) Preview(offers []Offer) []bool {
	if a == nil {
		return allTrue(len(offers))
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	return a.tryAdmit(a.withHeld(offers))
}

// Admit records the cost of the offers that fit. It reports which ones these are, and the budgets
// that the others exceed. The keys must differ.
func (a *Account) Admit(offers []Offer) (admitted []bool, excess []Excess) {
	excess = make([]Excess, len(offers))
	if a == nil {
		return allTrue(len(offers)), excess
	}
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	offers = a.withHeld(offers)
	admitted = a.tryAdmit(offers)
	for i, o := range offers {
		if !admitted[i] {
			continue
		}
		a.setCost(o.Key, o.Wanted)
	}
	room := a.room()
	for i, o := range offers {
		if !admitted[i] {
			excess[i] = a.excessOf(o, room)
		}
	}
	return admitted, excess
}

// setCost sets the cost of an export, zero if it is not used. The caller holds the lock.
func (a *Account) setCost(key mcs.Key, cost Amounts) {
	growth := cost.Minus(a.held[key])
	if a.shares == nil || growth == (Amounts{}) {
		return
	}
	a.use(growth)
	if cost == (Amounts{}) {
		delete(a.held, key)
	} else {
		a.held[key] = cost
	}
	if used := a.shares.namespaces[key.Namespace].Plus(growth); used == (Amounts{}) {
		a.shares.remove(key.Namespace)
	} else {
		a.shares.set(key.Namespace, used)
	}
	for _, n := range growth {
		if n < 0 {
			a.ledger.released++
			return
		}
	}
}

// excessOf returns the budget that an offer exceeds. The caller holds the lock.
func (a *Account) excessOf(o Offer, room *accountRoom) Excess {
	limits, growth := a.ledger.limits, o.growth()
	if kind, over := exceeded(growth, limits.Member.Minus(a.used)); over {
		return Excess{Kind: kind, Limit: limits.Member[kind]}
	}
	if kind, over := exceeded(growth, limits.Total.Minus(a.ledger.used)); over {
		return Excess{Kind: kind, Total: true, Limit: limits.Total[kind]}
	}
	if kind, over := exceeded(growth, room.total); over {
		return Excess{Kind: kind, Total: true, Limit: limits.Total[kind], Reserved: true}
	}
	kind, _ := exceeded(growth, room.Of(o.Key.Namespace))
	return Excess{Kind: kind, Limit: limits.Member[kind], Reserved: true}
}

// Retain releases those exports of keys for which keep returns false.
func (a *Account) Retain(keys []mcs.Key, keep func(mcs.Key) bool) {
	if a == nil {
		return
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	for _, key := range keys {
		if !keep(key) {
			a.setCost(key, Amounts{})
		}
	}
}

// KeepOnly releases the exports for which keep returns false.
func (a *Account) KeepOnly(keep func(mcs.Key) bool) {
	if a == nil {
		return
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	for key := range a.held {
		if !keep(key) {
			a.setCost(key, Amounts{})
		}
	}
}

// Release releases an export.
func (a *Account) Release(key mcs.Key) {
	a.Retain([]mcs.Key{key}, func(mcs.Key) bool { return false })
}

// SetExcess sets the number of exports that are not admitted, for metrics.
func (a *Account) SetExcess(count int) {
	if a == nil {
		return
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	a.excess = count
}

// Released returns a number that changes whenever more exports may fit than before.
func (a *Account) Released() uint64 {
	if a == nil {
		return 0
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	return a.ledger.released
}

// Limits returns the limits, the zero value if there are none.
func (a *Account) Limits() Limits {
	if a == nil {
		return Limits{}
	}
	return a.ledger.Limits()
}

// allTrue returns n times true.
func allTrue(n int) []bool {
	out := make([]bool, n)
	for i := range out {
		out[i] = true
	}
	return out
}

// Usage is the used part of the budgets.
type Usage struct {
	Limits Limits
	// Member is the amount of each kind of the cluster that uses most of it, Total the amount of
	// all clusters.
	Member, Total Amounts
	// Excess is the number of exports that are not admitted.
	Excess int
}

// Usage returns the used part of the budgets.
func (l *Ledger) Usage() Usage {
	if l == nil {
		return Usage{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := Usage{Limits: l.limits, Total: l.used}
	for _, a := range l.accounts {
		for k := range a.used {
			u.Member[k] = max(u.Member[k], a.used[k])
		}
		u.Excess += a.excess
	}
	return u
}

// Explain returns the budget that each offer exceeds, the zero value if it would be admitted now.
func (a *Account) Explain(offers []Offer) []Excess {
	excess := make([]Excess, len(offers))
	if a == nil {
		return excess
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	room := a.room()
	for i, o := range a.withHeld(offers) {
		if _, over := exceeded(o.growth(), room.Of(o.Key.Namespace)); over {
			excess[i] = a.excessOf(o, room)
		}
	}
	return excess
}
