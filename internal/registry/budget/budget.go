// Package budget bounds what the exports of other clusters cost this cluster: one member, and all of them together. It decides which exports are
// admitted. docs/operations.md has the budgets with their arithmetic.
package budget

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Kind is what a budget counts.
type Kind int

// The kinds of budgets.
const (
	// Exports counts exports.
	Exports Kind = iota
	// Endpoints counts the addresses of all exports.
	Endpoints
	// Ports counts the ports of the Services, and those of each group of endpoints.
	Ports
	// PortEndpoints counts, for each group of endpoints, its ports times its endpoints: the entries of kube-proxy on every node.
	PortEndpoints
	// Bytes counts the bytes of the exports before compression.
	Bytes
	kindCount
)

// String returns the kind as in metrics and flags.
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

// reserved is the part of each budget, one in reserved, that is kept in equal shares for those that use less than their share.
const reserved = 2

// share returns the part of a budget that one of n users can always use, and another one that comes later.
func share(limit Amounts, n int) Amounts {
	for k := range limit {
		limit[k] /= reserved * (n + 1)
	}
	return limit
}

// exceeded returns the first kind of which growth needs more than room; ok is false if there is none. What does not grow needs no room.
func exceeded(growth, room Amounts) (kind Kind, ok bool) {
	for k := range growth {
		if growth[k] > 0 && growth[k] > room[k] {
			return Kind(k), true
		}
	}
	return 0, false
}

// Of returns what an export costs whose encoding takes a number of bytes.
func Of(exp mcs.Export, bytes int) Amounts {
	a := Amounts{Exports: 1, Ports: len(exp.Ports), Bytes: bytes}
	for _, b := range exp.Backends {
		a = a.Plus(OfGroup(len(b.Ports), len(b.Endpoints)))
	}
	return a
}

// OfGroup returns what a group of endpoints costs.
func OfGroup(ports, endpoints int) Amounts {
	return Amounts{Endpoints: endpoints, Ports: ports, PortEndpoints: ports * endpoints}
}

// Offer is an export as its cluster shows it.
type Offer struct {
	Key mcs.Key
	// Created is its creation time in seconds since 1970.
	Created int64
	// Held is the cost of what is used of the export now, zero if nothing is. Wanted is the cost of what the cluster shows.
	Held, Wanted Amounts
}

// isHeld reports whether an earlier version of the export is used.
func (o Offer) isHeld() bool { return o.Held[Exports] > 0 }

// growth returns what the export costs more than now.
func (o Offer) growth() Amounts { return o.Wanted.Minus(o.Held) }

// class is the rank of an offer: exports that do not grow come first, then those that are used already, then new ones.
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

// Room is what is left of budgets.
type Room interface {
	// Of returns what the exports of a namespace may still take. Take takes a part of it.
	Of(namespace string) Amounts
	Take(namespace string, growth Amounts)
}

// Admit returns which offers fit into room besides what is held, and takes their part of it. The result depends on the set of offers and on room alone.
//
// Exports that do not grow are always admitted, and make room. Then exports that are held already may grow, then new ones follow, each in the order
// of their creation and their keys. So a new export never displaces one that is held, and one that is not admitted stays as it is. An export that does
// not fit is left out, and smaller ones after it may fit.
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

// Excess is why an export is not admitted.
type Excess struct {
	Kind  Kind
	Total bool
	Limit int
	// Reserved reports whether there is room, but only for others: for other namespaces of the cluster, or if Total is true, for other clusters.
	Reserved bool
}

// String describes the budget, with the flag that sets it.
func (e Excess) String() string {
	whose, scope, others := "one cluster", "member", "its other namespaces"
	if e.Total {
		whose, scope, others = "all clusters", "total", "other clusters"
	}
	text := fmt.Sprintf("the budget of %d %s for %s (--budget-%s-%s)", e.Limit, e.Kind, whose, scope, e.Kind)
	if e.Reserved {
		text += ", of which a part is kept for " + others
	}
	return text
}
