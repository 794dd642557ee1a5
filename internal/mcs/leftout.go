package mcs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// LeftOut is a part of a service that is not exported, or not imported, with the reason. Every
// filter of slices, endpoints, ports, labels and annotations returns what it leaves out as a
// LeftOut: see sift.
type LeftOut struct {
	Kind LeftOutKind `json:"kind"`
	// Names identify what is left out: addresses, keys or ports, at most leftOutNames of them.
	Names []string `json:"names,omitempty"`
	// Slice is the EndpointSlice that has it, "" if none has.
	Slice  string `json:"slice,omitempty"`
	Reason string `json:"reason"`
	// Count is the number of parts.
	Count int `json:"count"`
	// Intended reports whether it is left out as it should be: endpoints of other clusters, or
	// slices that the administrator excludes.
	Intended bool `json:"intended,omitempty"`
}

// LeftOutKind is the kind of part that is left out.
type LeftOutKind string

// The kinds of parts. A LeftOutNote is a sentence about the whole export: its Reason is the text.
const (
	LeftOutEndpoint     LeftOutKind = "endpoint"
	LeftOutEndpointPort LeftOutKind = "endpoint port"
	LeftOutPort         LeftOutKind = "port"
	LeftOutLabel        LeftOutKind = "label"
	LeftOutAnnotation   LeftOutKind = "annotation"
	LeftOutField        LeftOutKind = "field"
	LeftOutNote         LeftOutKind = "note"
)

// The reasons of several filters.
const (
	reasonReserved = "its prefix is reserved"
	reasonUnknown  = "it is unknown"
)

// The reasons why endpoints of a slice are not exported. Those about one address are in
// CheckPodAddress.
const (
	reasonFQDN        = "its endpoints are host names (addressType FQDN), which an import cannot have"
	reasonNoAddress   = "the endpoint has no address"
	reasonNotIP       = "it is not an IP address"
	reasonNoPort      = "none of its ports has the name and protocol of a port of the Service, so the Service itself does not use them"
	reasonAllPorts    = "it has no number, and no port of the Service has that meaning"
	reasonOtherPort   = "no port of the Service has its name and protocol"
	reasonNotOurs     = "it was not created by the EndpointSlice controller of Kubernetes for a Service with a selector (--export-slices=controller)"
	reasonOwnImport   = "this controller imported it from another cluster"
	reasonImportOwner = "it belongs to a ServiceImport: its endpoints are imported from another cluster"
	reasonOtherImport = "%s imported its endpoints from another cluster"
)

const (
	// leftOutNames bounds the names of one LeftOut: examples for a user.
	leftOutNames = 3
	// reasonMore is the reason of parts that are counted without their names.
	reasonMore = "there are more than 20 problems"
)

// leftOut returns a LeftOut of one part.
func leftOut(kind LeftOutKind, name, reason string) *LeftOut {
	return &LeftOut{Kind: kind, Names: []string{name}, Reason: reason, Count: 1}
}

// String describes l in a line, such as `label "a" left out: its prefix is reserved`.
func (l LeftOut) String() string {
	switch {
	case l.Kind == LeftOutNote:
		return l.Reason
	case l.Kind == LeftOutField:
		return fmt.Sprintf("%s left out: %s", strings.Join(l.Names, ", "), l.Reason)
	case l.Count == 1 && len(l.Names) == 1:
		return fmt.Sprintf("%s %s%s left out: %s", l.Kind, l.Names[0], l.ofSlice(), l.Reason)
	case len(l.Names) == 0:
		return fmt.Sprintf("%d %ss%s left out: %s", l.Count, l.Kind, l.ofSlice(), l.Reason)
	}
	return fmt.Sprintf("%d %ss%s left out, such as %s: %s", l.Count, l.Kind, l.ofSlice(), strings.Join(l.Names, ", "), l.Reason)
}

func (l LeftOut) ofSlice() string {
	if l.Slice == "" {
		return ""
	}
	return " of EndpointSlice " + l.Slice
}

// LeftOuts collects what is left out of one export.
type LeftOuts []LeftOut

// add adds l. Parts of one slice with the same reason become one LeftOut. After maxProblems of them
// only the numbers of each kind are added, so that an export cannot fill the memory with its
// problems.
func (o *LeftOuts) add(l LeftOut) {
	if l.Count == 0 {
		return // a slice without endpoints
	}
	same := func(p LeftOut) bool {
		return p.Kind == l.Kind && p.Slice == l.Slice && p.Reason == l.Reason && (l.Slice != "" || len(l.Names) == 0)
	}
	i := slices.IndexFunc(*o, same)
	if i < 0 && len(*o) >= maxProblems {
		l = LeftOut{Kind: l.Kind, Reason: reasonMore, Count: l.Count}
		i = slices.IndexFunc(*o, same)
	}
	if i < 0 {
		*o = append(*o, l)
		return
	}
	p := &(*o)[i]
	p.Count += l.Count
	p.Names = append(p.Names, l.Names[:min(len(l.Names), max(0, leftOutNames-len(p.Names)))]...)
}

// addField adds a field whose value is left out.
func (o *LeftOuts) addField(name, format string, args ...any) {
	o.add(*leftOut(LeftOutField, name, fmt.Sprintf(format, args...)))
}

// Note returns a sentence about the whole export.
func Note(text string) LeftOut { return LeftOut{Kind: LeftOutNote, Reason: text, Count: 1} }

func (o *LeftOuts) addNote(text string) { o.add(Note(text)) }

// sift returns the items that rule keeps, which may correct them. rule returns nil to keep an item
// and what is left out otherwise: there is no way to leave an item out without a reason.
func sift[T any](left *LeftOuts, items []T, rule func(*T) *LeftOut) []T {
	if len(items) == 0 {
		return nil
	}
	kept := make([]T, 0, len(items))
	for _, item := range items {
		kept = append(kept, item)
		last := len(kept) - 1
		if l := rule(&kept[last]); l != nil {
			left.add(*l)
			kept = kept[:last]
		}
	}
	return kept
}

// lines returns a line for each LeftOut, and the number of those without.
func (o LeftOuts) lines() []string {
	var lines []string
	more := 0
	for _, l := range o {
		if l.Reason == reasonMore {
			more += l.Count
			continue
		}
		lines = append(lines, l.String())
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more problems", more))
	}
	return lines
}

// Endpoints returns the number of endpoints that are left out.
func (o LeftOuts) Endpoints() int {
	n := 0
	for _, l := range o {
		if l.Kind == LeftOutEndpoint {
			n += l.Count
		}
	}
	return n
}

// Unintended returns what the user should correct.
func (o LeftOuts) Unintended() LeftOuts {
	return slices.DeleteFunc(slices.Clone(o), func(l LeftOut) bool { return l.Intended })
}

// Other returns what is no endpoint.
func (o LeftOuts) Other() LeftOuts {
	return slices.DeleteFunc(slices.Clone(o), func(l LeftOut) bool { return l.Kind == LeftOutEndpoint })
}

// DescribeEndpoints returns how many endpoints are left out for each reason, such as "2 of
// EndpointSlice a: …; 1 of EndpointSlice b: …".
func (o LeftOuts) DescribeEndpoints() string {
	var lines []string
	for _, l := range o.sorted() {
		if l.Kind == LeftOutEndpoint {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%d%s", l.Count, l.ofSlice()))+": "+l.Reason)
		}
	}
	return strings.Join(lines, "; ")
}

// sorted returns a copy in an order that does not depend on that of the slices.
func (o LeftOuts) sorted() LeftOuts {
	return slices.SortedStableFunc(slices.Values(o), func(a, b LeftOut) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Slice, b.Slice), slices.Compare(a.Names, b.Names))
	})
}

// The bounds of a summary. maxSummary leaves room for the rest of an event's note, which has at
// most 1,024 bytes.
const (
	maxSummary       = 900
	maxSummaryReason = 300
)

// Summary describes what is left out in a bounded text for a condition. It has neither numbers nor
// addresses of endpoints, so that it stays the same while pods come and go: it changes only with
// the slices, keys and reasons. It is "" if nothing is left out.
func (o LeftOuts) Summary() string {
	type group struct {
		kind   LeftOutKind
		reason string
	}
	var groups []group
	names := map[group][]string{}
	for _, l := range o.sorted() {
		g := group{l.Kind, l.Reason}
		if _, known := names[g]; !known {
			groups = append(groups, g)
		}
		names[g] = append(names[g], l.stableNames()...)
	}
	var parts []string
	for _, g := range groups {
		slices.Sort(names[g])
		parts = append(parts, summarize(g.kind, slices.Compact(names[g]), g.reason))
	}
	return clipText(strings.Join(parts, "; "), maxSummary)
}

// stableNames returns the names of l that do not change with the pods.
func (l LeftOut) stableNames() []string {
	if l.Slice != "" {
		return []string{l.Slice}
	}
	if l.Kind == LeftOutEndpoint {
		return nil
	}
	return l.Names
}

// summarize returns a part of a summary.
func summarize(kind LeftOutKind, names []string, reason string) string {
	reason = clipText(reason, maxSummaryReason)
	switch {
	case kind == LeftOutNote:
		return reason
	case kind == LeftOutField:
		return enumerate(names) + ": " + reason
	case len(names) == 0:
		return fmt.Sprintf("%ss: %s", kind, reason)
	case kind == LeftOutEndpoint, kind == LeftOutEndpointPort:
		return fmt.Sprintf("%ss of EndpointSlice %s: %s", kind, enumerate(names), reason)
	}
	return fmt.Sprintf("%s %s: %s", kind, enumerate(names), reason)
}

// clipText truncates s to limit bytes.
func clipText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-len("...")], "") + "..."
}
