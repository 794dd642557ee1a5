package budget

import "math"

// shares has the cost of each namespace of an account, and computes the amounts that are reserved
// for them. No operation visits all namespaces.
//
// Each of n namespaces has a share of limit/(reserved·(n+1)). The unused part of a share is
// reserved for its namespace. A namespace that uses u has an unused part if its share is at least
// u+1, which is the case if n is less than limit/reserved/(u+1), the bound of the namespace. When n
// changes by one, this changes only for the namespaces whose bound is the higher n. So namespaces
// are counted by their bound.
type shares struct {
	limit      Amounts
	namespaces map[string]Amounts
	kinds      [kindCount]kindShares
}

// kindShares are the shares of a kind.
type kindShares struct {
	// kept is the tally of the namespaces with an unused part, byBound the tallies of all
	// namespaces by their bound.
	kept    tally
	byBound map[int]tally
}

// tally is a number of namespaces and the sum of their cost.
type tally struct{ count, used int }

func (t tally) plus(o tally) tally  { return tally{t.count + o.count, t.used + o.used} }
func (t tally) minus(o tally) tally { return tally{t.count - o.count, t.used - o.used} }

func newShares(limit Amounts) *shares {
	s := &shares{limit: limit, namespaces: map[string]Amounts{}}
	for k := range s.kinds {
		s.kinds[k].byBound = map[int]tally{}
	}
	return s
}

// each returns the share of a namespace.
func (s *shares) each() Amounts { return share(s.limit, len(s.namespaces)) }

// keptFor returns the amounts that are reserved for namespaces other than the given one. If that
// one is known, the share of the next new namespace counts.
func (s *shares) keptFor(namespace string) Amounts {
	each, kept := s.each(), Amounts{}
	for k := range kept {
		t := s.kinds[k].kept
		kept[k] = each[k]*t.count - t.used
	}
	if used, isKnown := s.namespaces[namespace]; isKnown {
		kept = kept.Minus(each.Minus(used).max(Amounts{})).Plus(each)
	}
	return kept
}

// set sets the cost of a namespace.
func (s *shares) set(namespace string, used Amounts) {
	before, isKnown := s.namespaces[namespace]
	s.namespaces[namespace] = used
	if isKnown {
		s.replace(before, used)
		return
	}
	for k := range s.kinds {
		kind := &s.kinds[k]
		kind.kept = kind.kept.minus(kind.byBound[len(s.namespaces)])
		s.add(Kind(k), used[k], 1)
	}
}

// remove removes a namespace.
func (s *shares) remove(namespace string) {
	used, isKnown := s.namespaces[namespace]
	if !isKnown {
		return
	}
	for k := range s.kinds {
		kind := &s.kinds[k]
		s.add(Kind(k), used[k], -1)
		kind.kept = kind.kept.plus(kind.byBound[len(s.namespaces)])
	}
	delete(s.namespaces, namespace)
}

// replace replaces the cost of a namespace in the tallies.
func (s *shares) replace(before, after Amounts) {
	for k := range s.kinds {
		if before[k] != after[k] {
			s.add(Kind(k), before[k], -1)
			s.add(Kind(k), after[k], 1)
		}
	}
}

// add adds count namespaces with the cost used to the tallies.
func (s *shares) add(k Kind, used, count int) {
	kind, bound, t := &s.kinds[k], s.bound(k, used), tally{count, count * used}
	if len(s.namespaces) < bound {
		kind.kept = kind.kept.plus(t)
	}
	if t = kind.byBound[bound].plus(t); t.count == 0 {
		delete(kind.byBound, bound)
	} else {
		kind.byBound[bound] = t
	}
}

// bound returns the number of namespaces from which on a namespace that uses an amount has no
// unused part. The amount is negative if offers of the same key shrink.
func (s *shares) bound(k Kind, used int) int {
	if used < 0 {
		return math.MaxInt
	}
	return s.limit[k] / reserved / (used + 1)
}
