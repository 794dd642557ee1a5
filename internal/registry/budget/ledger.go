package budget

import (
	"maps"
	"sync"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Ledger books what the exports of the other clusters cost, in all registries of a process. It may be used concurrently. A nil *Ledger has no limits.
type Ledger struct {
	limits Limits

	mu       sync.Mutex
	used     Amounts
	accounts map[*Account]struct{}
	// released counts the bookings that made room.
	released uint64
}

// NewLedger returns a ledger with nothing booked.
func NewLedger(limits Limits) *Ledger {
	return &Ledger{limits: limits, accounts: map[*Account]struct{}{}}
}

// Limits returns the limits, the zero value if there are none.
func (l *Ledger) Limits() Limits {
	if l == nil {
		return Limits{}
	}
	return l.limits
}

// Account books what the exports of one cluster in one registry cost. A nil *Account has no limits.
type Account struct {
	ledger *Ledger
	// The rest is guarded by ledger.mu. held is the cost of each export that is used, shares that of the exports of each namespace, nil if it is closed.
	used   Amounts
	held   map[mcs.Key]Amounts
	shares *shares
	excess int
}

// Open returns a new account.
func (l *Ledger) Open() *Account {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &Account{ledger: l, held: map[mcs.Key]Amounts{}, shares: newShares(l.limits.Member)}
	l.accounts[a] = struct{}{}
	return a
}

// Close releases everything that is booked. Later offers are not admitted.
func (a *Account) Close() {
	if a == nil {
		return
	}
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = l.used.Minus(a.used)
	if a.shares != nil {
		l.released++ // also what was kept for it
	}
	a.used, a.held, a.shares, a.excess = Amounts{}, nil, nil, 0
	delete(l.accounts, a)
}

// accountRoom is what is left of the budgets for one account. It is used under the lock. What is taken of it counts in the shares of the account until undo.
type accountRoom struct {
	// shares are those of the account, nil if it is closed.
	shares *shares
	// used is what the account uses, total what it may still take of the budget of all members.
	used, total Amounts
	// before is what the namespaces that took something used before.
	before map[string]namespaceUse
}

// namespaceUse is what a namespace uses, if it is known.
type namespaceUse struct {
	used    Amounts
	isKnown bool
}

// room returns how much may be booked. The caller holds the lock.
func (a *Account) room() *accountRoom {
	return &accountRoom{shares: a.shares, used: a.used, total: a.totalRoom(), before: map[string]namespaceUse{}}
}

// totalRoom returns what the account may still take of the budget of all members, without what is kept for the others. The caller holds the lock.
func (a *Account) totalRoom() Amounts {
	l := a.ledger
	each, free := share(l.limits.Total, len(l.accounts)), l.limits.Total.Minus(l.used)
	kept := each // for a member that comes later
	for other := range l.accounts {
		if other != a {
			kept = kept.Plus(each.Minus(other.used).max(Amounts{}))
		}
	}
	return free.Minus(kept).max(each.Minus(a.used).min(free))
}

// Of implements Room: without what is kept for the other namespaces.
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
		r.before[namespace] = namespaceUse{used, isKnown}
	}
	r.used, r.total = r.used.Plus(growth), r.total.Minus(growth)
	r.shares.set(namespace, used.Plus(growth))
}

// undo returns everything that was taken. The room is not used afterwards.
func (r *accountRoom) undo() {
	for namespace, before := range r.before {
		if before.isKnown {
			r.shares.set(namespace, before.used)
		} else {
			r.shares.remove(namespace)
		}
	}
}

// tryAdmit returns which offers can be admitted. It books nothing. The caller holds the lock.
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

// Preview returns which offers Admit would admit now. It books nothing.
func (a *Account) Preview(offers []Offer) []bool {
	if a == nil {
		return all(len(offers))
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	return a.tryAdmit(a.withHeld(offers))
}

// Admit books the offers that fit, and returns them and why the others do not fit. Offers of different keys only.
func (a *Account) Admit(offers []Offer) (admitted []bool, excess []Excess) {
	excess = make([]Excess, len(offers))
	if a == nil {
		return all(len(offers)), excess
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
		a.book(o.Key, o.Wanted)
	}
	room := a.room()
	for i, o := range offers {
		if !admitted[i] {
			excess[i] = a.why(o, room)
		}
	}
	return admitted, excess
}

// book sets the cost of an export. The caller holds the lock.
func (a *Account) book(key mcs.Key, cost Amounts) {
	growth := cost.Minus(a.held[key])
	if a.shares == nil || growth == (Amounts{}) {
		return
	}
	a.used, a.ledger.used = a.used.Plus(growth), a.ledger.used.Plus(growth)
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

// why returns the budget that an offer exceeds, if room is left. The caller holds the lock.
func (a *Account) why(o Offer, room *accountRoom) Excess {
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

// Retain releases the exports of keys for which keep returns false.
func (a *Account) Retain(keys []mcs.Key, keep func(mcs.Key) bool) {
	if a == nil {
		return
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	for _, key := range keys {
		if !keep(key) {
			a.book(key, Amounts{})
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

// Released returns a number that changes when there may be more room than before.
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

func all(n int) []bool {
	out := make([]bool, n)
	for i := range out {
		out[i] = true
	}
	return out
}

// Usage is how much of the budgets is used.
type Usage struct {
	Limits Limits
	// Member is the highest use of each kind by one cluster, Total that of all clusters.
	Member, Total Amounts
	// Excess is the number of exports that are not admitted.
	Excess int
}

// Usage returns how much of the budgets is used.
func (l *Ledger) Usage() Usage {
	if l == nil {
		return Usage{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := Usage{Limits: l.limits, Total: l.used}
	for a := range maps.Keys(l.accounts) {
		for k := range a.used {
			u.Member[k] = max(u.Member[k], a.used[k])
		}
		u.Excess += a.excess
	}
	return u
}

// Explain returns why offers are not admitted. The reason of one that would be admitted now is the zero value.
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
			excess[i] = a.why(o, room)
		}
	}
	return excess
}
