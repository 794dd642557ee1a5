package budget

// unusedShares has the unused shares of the accounts, in the order of their age, as a Fenwick tree:
// element i is the sum of those from i+1 - the lowest bit of i+1 to i. So neither a change nor a
// sum visits all accounts: each export that is admitted needs both.
type unusedShares []Amounts

// add adds an amount to the share of account i.
func (u unusedShares) add(i int, amount Amounts) {
	for ; i < len(u); i |= i + 1 {
		u[i] = u[i].Plus(amount)
	}
}

// sum returns the sum of the shares of the first n accounts.
func (u unusedShares) sum(n int) (sum Amounts) {
	for ; n > 0; n &= n - 1 {
		sum = sum.Plus(u[n-1])
	}
	return sum
}

// unusedShare returns what the account does not use of its share of the budget of all members. The
// caller holds the lock.
func (a *Account) unusedShare() Amounts {
	return memberShare(a.ledger.limits.Total, a.index).Minus(a.used).max(Amounts{})
}

// unusedShares returns the unused shares of all accounts, which are summed again after an account
// was opened or closed. The caller holds the lock.
func (l *Ledger) unusedShares() unusedShares {
	if l.unused == nil {
		l.unused = make(unusedShares, len(l.accounts))
		for i, a := range l.accounts {
			a.index = i
			l.unused.add(i, a.unusedShare())
		}
	}
	return l.unused
}

// use changes what the account uses. The caller holds the lock.
func (a *Account) use(growth Amounts) {
	l := a.ledger
	unused := l.unusedShares()
	before := a.unusedShare()
	a.used, l.used = a.used.Plus(growth), l.used.Plus(growth)
	unused.add(a.index, a.unusedShare().Minus(before))
}
