// Package budget limits the cost of the exports of the other clusters in this one: of one member,
// and of all together. It decides which exports are admitted. docs/operations.md has the
// budgets, package config their arithmetic.
//
// A [Ledger] has the budgets and an [Account] for each cluster and registry. An export is offered
// with the cost of its version in the registry, and held with the cost of the version in use. A
// part of each budget is reserved in equal shares, so that one cluster or namespace cannot use it
// all.
package budget

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Kind is the unit that a budget counts.
type Kind int

// The kinds of budgets.
const (
	// Exports counts exports.
	Exports Kind = iota
	// Endpoints counts the addresses of all exports.
	Endpoints
	// Ports counts the ports of the Services, and those of each group of endpoints.
	Ports
	// PortEndpoints counts, for each group of endpoints, its ports times its endpoints: the entries
	// of kube-proxy on every node.
	PortEndpoints
	// Bytes counts the bytes of the exports before compression.
	Bytes
	kindCount
)

// String returns the kind as in metrics.
func (k Kind) String() string {
	return [...]string{"exports", "endpoints", "ports", "port-endpoints", "bytes"}[k]
}

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Exports, Endpoints, Ports, PortEndpoints, Bytes} }

// Amounts is an amount of each kind.
type Amounts [kindCount]int

// Plus returns the sum of a and b.
func (a Amounts) Plus(b Amounts) Amounts {
	for k := range a {
		a[k] += b[k]
	}
	return a
}

// Minus returns a without b.
func (a Amounts) Minus(b Amounts) Amounts {
	for k := range a {
		a[k] -= b[k]
	}
	return a
}

// over returns a divided by n.
func (a Amounts) over(n int) Amounts {
	for k := range a {
		a[k] /= n
	}
	return a
}

// min returns the lower amount of each kind.
func (a Amounts) min(b Amounts) Amounts {
	for k := range a {
		a[k] = min(a[k], b[k])
	}
	return a
}

// max returns the higher amount of each kind.
func (a Amounts) max(b Amounts) Amounts {
	for k := range a {
		a[k] = max(a[k], b[k])
	}
	return a
}

// reserved divides each budget: one part in reserved of it is reserved in shares for the users that
// use less than their share.
const reserved = 2

// share returns the share of each of n namespaces of a member, and of one more that may appear: the
// part of the member's budget that it can always use.
func share(limit Amounts, n int) Amounts {
	return limit.over(reserved * (n + 1))
}

// firstGroup is the number of members in the first group of memberShare.
const firstGroup = 8

// memberShare returns the share of a member: the part of the budget of all members that it can
// always use. older is the number of members that were seen before it. The share does not depend on
// later ones: a member that may create cluster IDs could make the shares of all others small.
//
// The first eight members have equal shares of a quarter of the budget, the next sixteen of an
// eighth, and so on. All shares together are less than half of the budget, however many members
// there are.
func memberShare(limit Amounts, older int) Amounts {
	parts := 2 * reserved * firstGroup
	for size := firstGroup; older >= size; size *= 2 {
		older -= size
		parts *= 4
	}
	return limit.over(parts)
}

// exceeded returns the first kind in which growth exceeds room; ok is false if there is none. A
// kind without growth needs no room.
func exceeded(growth, room Amounts) (kind Kind, ok bool) {
	for k := range growth {
		if growth[k] > 0 && growth[k] > room[k] {
			return Kind(k), true
		}
	}
	return 0, false
}

// Of returns the cost of an export. bytes is the length of its encoding.
func Of(exp mcs.Export, bytes int) Amounts {
	a := Amounts{Exports: 1, Ports: len(exp.Ports), Bytes: bytes}
	for _, b := range exp.Backends {
		a = a.Plus(OfGroup(len(b.Ports), len(b.Endpoints)))
	}
	return a
}

// OfGroup returns the cost of a group of endpoints.
func OfGroup(ports, endpoints int) Amounts {
	return Amounts{Endpoints: endpoints, Ports: ports, PortEndpoints: ports * endpoints}
}

// Offer is an export as the registry has it, which may be admitted.
type Offer struct {
	Key mcs.Key
	// Created is its creation time in seconds since 1970.
	Created int64
	// Held is the cost of the version in use, zero if none is. Wanted is the cost of the offered
	// version.
	Held, Wanted Amounts
}

// isHeld reports whether a version of the export is in use.
func (o Offer) isHeld() bool { return o.Held[Exports] > 0 }

// growth returns the additional cost of the offered version.
func (o Offer) growth() Amounts { return o.Wanted.Minus(o.Held) }

// class is the rank of an offer: first exports that do not grow, then those that are in use, then
// new ones.
func (o Offer) class() int {
	_, grows := exceeded(o.growth(), Amounts{})
	switch {
	case o.isHeld() && !grows:
		return 0
	case o.isHeld():
		return 1
	}
	return 2
}

// Compare orders offers by the precedence of Admit.
func Compare(a, b Offer) int {
	return cmp.Or(cmp.Compare(a.class(), b.class()), cmp.Compare(a.Created, b.Created),
		strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name))
}

// Room is the unused part of the budgets.
type Room interface {
	// Of returns the amounts that are available to the exports of a namespace.
	Of(namespace string) Amounts
	// Take removes growth from the amounts that are available.
	Take(namespace string, growth Amounts)
}

// Admit reports for each offer whether it fits into room, and takes the growth of those that do.
// The result depends on the set of offers and on room alone.
//
// Exports that do not grow are always admitted; those that shrink release amounts. Exports that are
// held and grow come next, then new ones, both in the order of creation and key. So a new export
// never displaces one that is held. The held version of an export that is not admitted stays in
// use. After an export that does not fit, smaller ones may fit.
func Admit(room Room, offers []Offer) []bool {
	order := make([]int, len(offers))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return Compare(offers[i], offers[j]) })
	admitted := make([]bool, len(offers))
	for _, i := range order {
		growth, namespace := offers[i].growth(), offers[i].Key.Namespace
		if _, grows := exceeded(growth, Amounts{}); grows {
			if _, over := exceeded(growth, room.Of(namespace)); over {
				continue
			}
		}
		admitted[i] = true
		room.Take(namespace, growth)
	}
	return admitted
}

// Limits are the budgets.
type Limits struct {
	// Member is the budget of one cluster, Total that of all other clusters together.
	Member, Total Amounts
}

// Excess is the budget that an export exceeds.
type Excess struct {
	Kind  Kind
	Total bool
	Limit int
	// Reserved reports whether the budget has room, but reserves it: for other namespaces of the
	// cluster, or if Total is true, for other clusters.
	Reserved bool
}

// String describes the budget, with the flag that sets it.
func (e Excess) String() string {
	clusters, others := "one cluster", "its other namespaces"
	if e.Total {
		clusters, others = "all clusters", "other clusters"
	}
	text := fmt.Sprintf("the budget of %d %s for %s (--budget-scale)", e.Limit, e.Kind, clusters)
	if e.Reserved {
		text += ", a part of which is reserved for " + others
	}
	return text
}
