package registry

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Report is the state of a registry for users to read. Nothing is imported or exported because of
// it.
type Report struct {
	// Keys are the keys that any cluster exports, this one included, in any order.
	Keys []mcs.Key
	// Reading and Writing are the reasons why reading and writing do not work, nil while they do.
	Reading, Writing error
	// Audited is the time at which all records of this cluster were read last, to find those that
	// others have deleted or changed. It is zero in a registry that shows such changes at once.
	Audited time.Time
	// Stored counts the instances of this cluster in AWS Cloud Map, nil in another registry.
	Stored *Stored
}

// Stored counts the instances of a cluster that AWS Cloud Map stores and bills.
type Stored struct {
	// Records are those of its member record and its pages, View those of the instance view.
	Records, View int
}

// Reporter is a Registry with a Report. It answers from memory.
type Reporter interface {
	Report() Report
}

// ReportOf returns r's report, an empty one if r is no Reporter.
func ReportOf(r Registry) Report {
	if reporter, ok := r.(Reporter); ok {
		return reporter.Report()
	}
	return Report{}
}

// Truster is a Registry that keeps the keys of the other clusters.
type Truster interface {
	// Trust makes a public key, as Member.Key has it, that of another cluster, in place of the one
	// that was accepted until now. Imports of the cluster change with its next record that is
	// signed with the key, and with no other one.
	Trust(clusterID, key string) error
}

// KeyKeeper is a Registry that has room for the keys of so many clusters.
type KeyKeeper interface {
	// KeepKeys names the clusters that something is imported from. No new cluster takes the place
	// of their keys.
	KeepKeys(imported []string)
}

// KeepKeys calls KeepKeys of r, if r is a KeyKeeper.
func KeepKeys(r Registry, imported []string) {
	if keeper, ok := r.(KeyKeeper); ok {
		keeper.KeepKeys(imported)
	}
}

// Trust calls Trust of r, and returns an error if r is no Truster.
func Trust(r Registry, clusterID, key string) error {
	if truster, ok := r.(Truster); ok {
		return truster.Trust(clusterID, key)
	}
	return errors.New("the registry keeps no keys of the other clusters")
}

// Trust implements Truster.
func (r *measured) Trust(clusterID, key string) error { return Trust(r.Registry, clusterID, key) }

// KeepKeys implements KeyKeeper.
func (r *measured) KeepKeys(imported []string) { KeepKeys(r.Registry, imported) }

// Report implements Reporter.
func (r *measured) Report() Report { return ReportOf(r.Registry) }

// RequestCount is the number of recent requests to a registry's backend with one result.
type RequestCount struct {
	Registry, Operation, Result string
	Count                       int
}

// recent counts requests by kind in time slots, and keeps the latest slots.
type recent struct {
	mu    sync.Mutex
	kinds map[RequestCount]*[recentSlots]slot // under a Count of 0
}

// slot counts the requests in one interval of recentSlot since the epoch.
type slot struct {
	number int64
	count  int
}

const (
	recentSlot  = 5 * time.Second
	recentSlots = 13 // a minute in complete slots and the current one
)

// add counts one request.
func (r *recent) add(kind RequestCount, now time.Time) {
	number := now.UnixNano() / int64(recentSlot)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds == nil {
		r.kinds = map[RequestCount]*[recentSlots]slot{}
	}
	slots := r.kinds[kind]
	if slots == nil {
		slots = &[recentSlots]slot{}
		r.kinds[kind] = slots
	}
	s := &slots[number%recentSlots]
	if s.number != number {
		*s = slot{number: number}
	}
	s.count++
}

// within returns the requests of the last minute, to the precision of a slot.
func (r *recent) within(now time.Time) []RequestCount {
	number := now.UnixNano() / int64(recentSlot)
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []RequestCount
	for kind, slots := range r.kinds {
		for _, s := range slots {
			if s.number > number-recentSlots+1 && s.number <= number {
				kind.Count += s.count
			}
		}
		if kind.Count > 0 {
			out = append(out, kind)
		}
	}
	slices.SortFunc(out, func(a, b RequestCount) int {
		return cmp.Or(strings.Compare(a.Registry, b.Registry), strings.Compare(a.Operation, b.Operation), strings.Compare(a.Result, b.Result))
	})
	return out
}

// RecentRequests returns the requests of the last minute, sorted. A nil *Metrics has none.
func (m *Metrics) RecentRequests() []RequestCount {
	if m == nil {
		return nil
	}
	return m.recent.within(time.Now())
}
