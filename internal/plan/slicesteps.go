package plan

import (
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Verb is the verb of a write to the API server.
type Verb string

// Verbs.
const (
	VerbCreate Verb = "create"
	VerbUpdate Verb = "update"
	VerbDelete Verb = "delete"
)

// SliceWrite is the write of one imported EndpointSlice.
type SliceWrite struct {
	Verb Verb
	// Slice is the slice as it shall be; VerbDelete deletes it.
	Slice *discoveryv1.EndpointSlice
	// From is the slice as it is, nil for VerbCreate. It must not be changed.
	From *discoveryv1.EndpointSlice
}

// SliceSteps are the writes of SliceChanges in the order of safety. Each write can be refused, and
// none of the others depends on it but for the withdrawals.
type SliceSteps struct {
	// Removals take endpoints out of use that their clusters do not export any more, and that no
	// other cluster takes over, and change conditions, those that make an endpoint ready first.
	// Nothing may delay them.
	Removals []SliceWrite
	// Additions bring endpoints and change ports and metadata. Those that take a ready endpoint out
	// of use come last, and then the removals that would otherwise leave a port without a ready
	// endpoint until the additions are written: kube-proxy may read the slices between two writes
	// and refuses connections until it reads them again, up to one second later (minSyncPeriod).
	Additions []SliceWrite
	// Withdrawals take endpoints out of use that their clusters still export, or that another
	// cluster has now: others are used instead, or another slice has them. So they come after the
	// additions. If one of these was refused, the caller decides again with the endpoints that the
	// slices have.
	Withdrawals []SliceWrite
}

// Exported is a set of the addresses that each cluster exports, by cluster.
type Exported map[string]map[string]bool

// ExportedAddresses returns the addresses of exports.
func ExportedAddresses(exports []mcs.Export) Exported {
	out := Exported{}
	for _, e := range exports {
		addresses := make(map[string]bool, e.EndpointCount())
		for _, b := range e.Backends {
			for _, ep := range b.Endpoints {
				addresses[ep.Address.String()] = true
			}
		}
		out[e.Cluster] = addresses
	}
	return out
}

// AddSlices adds the addresses in the existing slices of a cluster.
func (e Exported) AddSlices(cluster string, existing []*discoveryv1.EndpointSlice) {
	if e[cluster] == nil {
		e[cluster] = map[string]bool{}
	}
	for _, s := range existing {
		if SourceCluster(s) == cluster {
			maps.Copy(e[cluster], addressesOf(s))
		}
	}
}

// Steps returns the writes of c, which Slices computed from existing. exported has the addresses
// of all exports, with those that are not used now.
func (c SliceChanges) Steps(existing []*discoveryv1.EndpointSlice, exported Exported) SliceSteps {
	from := make(map[string]*discoveryv1.EndpointSlice, len(existing))
	for _, s := range existing {
		from[s.Name] = s
	}
	var steps SliceSteps
	for _, s := range c.Create {
		steps.Additions = append(steps.Additions, SliceWrite{Verb: VerbCreate, Slice: s})
	}
	added := addedAddresses(c, from)
	for _, s := range c.Update {
		steps.add(SliceWrite{Verb: VerbUpdate, Slice: s, From: from[s.Name]}, exported, added)
	}
	for _, s := range c.Delete {
		steps.add(SliceWrite{Verb: VerbDelete, Slice: s, From: s}, exported, added)
	}
	steps.Removals, steps.Additions = atEnd(steps.Removals, SliceWrite.takesReady), atEnd(steps.Additions, SliceWrite.takesReady)
	if steps.removalsInterrupt(existing) {
		steps.Additions, steps.Removals = append(steps.Additions, steps.Removals...), nil
	}
	return steps
}

// atEnd returns writes with those that match at the end.
func atEnd(writes []SliceWrite, match func(SliceWrite) bool) []SliceWrite {
	var first, last []SliceWrite
	for _, w := range writes {
		if match(w) {
			last = append(last, w)
		} else {
			first = append(first, w)
		}
	}
	return append(first, last...)
}

// removalsInterrupt reports whether a port has ready endpoints before and after the steps, but none
// between the removals and the additions.
func (s SliceSteps) removalsInterrupt(existing []*discoveryv1.EndpointSlice) bool {
	if len(s.Removals) == 0 || len(s.Additions) == 0 {
		return false
	}
	before, after := readyPorts(existing), readyPorts(written(existing, s.Removals, s.Additions, s.Withdrawals))
	between := readyPorts(written(existing, s.Removals))
	for port := range before {
		if after[port] && !between[port] {
			return true
		}
	}
	return false
}

// written returns the slices after writes.
func written(existing []*discoveryv1.EndpointSlice, writes ...[]SliceWrite) []*discoveryv1.EndpointSlice {
	out := make(map[string]*discoveryv1.EndpointSlice, len(existing))
	for _, s := range existing {
		out[s.Name] = s
	}
	for _, w := range slices.Concat(writes...) {
		if w.Verb == VerbDelete {
			delete(out, w.Slice.Name)
		} else {
			out[w.Slice.Name] = w.Slice
		}
	}
	return slices.Collect(maps.Values(out))
}

// familyPort is a port of the slices of one IP family.
type familyPort struct {
	family discoveryv1.AddressType
	name   string
}

// readyPorts returns the ports with a ready endpoint.
func readyPorts(list []*discoveryv1.EndpointSlice) map[familyPort]bool {
	out := map[familyPort]bool{}
	for _, s := range list {
		if !slices.ContainsFunc(s.Endpoints, isReady) {
			continue
		}
		for _, p := range s.Ports {
			out[familyPort{s.AddressType, ptr.Deref(p.Name, "")}] = true
		}
	}
	return out
}

// isReady reports whether kube-proxy sends connections to ep.
func isReady(ep discoveryv1.Endpoint) bool { return ptr.Deref(ep.Conditions.Ready, true) }

// addedAddresses returns the addresses that c adds to a slice.
func addedAddresses(c SliceChanges, from map[string]*discoveryv1.EndpointSlice) map[string]bool {
	added := map[string]bool{}
	for _, s := range slices.Concat(c.Create, c.Update) {
		var had map[string]bool
		if before := from[s.Name]; before != nil {
			had = addressesOf(before)
		}
		for _, ep := range s.Endpoints {
			if a := addressOf(ep); !had[a] {
				added[a] = true
			}
		}
	}
	return added
}

// add adds w to the list that it belongs to. added are the addresses that other writes add.
func (s *SliceSteps) add(w SliceWrite, exported Exported, added map[string]bool) {
	switch {
	case w.isAddition():
		s.Additions = append(s.Additions, w)
	case w.removesAny(exported[SourceCluster(w.From)]), w.removesAny(added):
		s.Withdrawals = append(s.Withdrawals, w)
	default:
		s.Removals = append(s.Removals, w)
	}
}

// isAddition reports whether w adds an endpoint, or changes more than the endpoints of a slice that
// keeps some.
func (w SliceWrite) isAddition() bool {
	if w.Verb != VerbUpdate || len(w.Slice.Endpoints) == 0 {
		return w.Verb == VerbCreate
	}
	had := addressesOf(w.From)
	return !equalExceptEndpoints(w.Slice, w.From) ||
		slices.ContainsFunc(w.Slice.Endpoints, func(ep discoveryv1.Endpoint) bool { return !had[addressOf(ep)] })
}

// removesAny reports whether w removes an endpoint with one of addresses.
func (w SliceWrite) removesAny(addresses map[string]bool) bool {
	var stays map[string]bool
	if w.Verb == VerbUpdate {
		stays = addressesOf(w.Slice)
	}
	return slices.ContainsFunc(w.From.Endpoints, func(ep discoveryv1.Endpoint) bool {
		return addresses[addressOf(ep)] && !stays[addressOf(ep)]
	})
}

// takesReady reports whether w takes a ready endpoint out of use.
func (w SliceWrite) takesReady() bool {
	if w.From == nil {
		return false
	}
	var stays map[string]bool
	if w.Verb == VerbUpdate {
		stays = readyAddresses(w.Slice)
	}
	for a := range readyAddresses(w.From) {
		if !stays[a] {
			return true
		}
	}
	return false
}

// WithoutEnded returns the update of s, an imported slice, that only removes the endpoints that its
// cluster does not export any more. ok reports whether there are any.
func WithoutEnded(s *discoveryv1.EndpointSlice, exported Exported) (w SliceWrite, ok bool) {
	addresses := exported[SourceCluster(s)]
	w = SliceWrite{Verb: VerbUpdate, Slice: s.DeepCopy(), From: s}
	w.Slice.Endpoints = slices.DeleteFunc(w.Slice.Endpoints, func(ep discoveryv1.Endpoint) bool { return !addresses[addressOf(ep)] })
	return w, len(w.Slice.Endpoints) < len(s.Endpoints)
}

// addressOf returns the address of ep, "" if it has none.
func addressOf(ep discoveryv1.Endpoint) string {
	if len(ep.Addresses) == 0 {
		return ""
	}
	return ep.Addresses[0]
}

func addressesOf(s *discoveryv1.EndpointSlice) map[string]bool {
	out := make(map[string]bool, len(s.Endpoints))
	for _, ep := range s.Endpoints {
		out[addressOf(ep)] = true
	}
	return out
}

// readyAddresses returns the addresses of the ready endpoints of s.
func readyAddresses(s *discoveryv1.EndpointSlice) map[string]bool {
	out := map[string]bool{}
	for _, ep := range s.Endpoints {
		if isReady(ep) {
			out[addressOf(ep)] = true
		}
	}
	return out
}
