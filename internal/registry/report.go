package registry

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Report is what a registry tells of itself for people to read. Nothing is decided by it.
type Report struct {
	// Keys are those of which any cluster, this one included, has an export as far as that is known; in any order.
	Keys []mcs.Key
	// Reading and Writing are why that does not work at this moment, nil while it does.
	Reading, Writing error
}

// Reporter is a Registry that can tell. It answers from memory.
type Reporter interface {
	Report() Report
}

// ReportOf is r's report, an empty one of a registry that cannot tell.
func ReportOf(r Registry) Report {
	if reporter, ok := r.(Reporter); ok {
		return reporter.Report()
	}
	return Report{}
}

// Report implements Reporter.
func (r *measured) Report() Report { return ReportOf(r.Registry) }

// RequestCount is how many requests to a registry's backend had one result lately.
type RequestCount struct {
	Registry, Operation, Result string
	Count                       int
}

// recent counts requests by kind in a few slots of time, the oldest of which are forgotten.
type recent struct {
	mu    sync.Mutex
	kinds map[RequestCount]*[recentSlots]slot // under a Count of 0
}

// slot counts the requests of one recentSlot since the epoch.
type slot struct {
	number int64
	count  int
}

const (
	recentSlot  = 5 * time.Second
	recentSlots = 13 // a minute in whole slots and the one that is being filled
)

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

// within counts the requests of the last minute, to a slot.
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

// Recent counts the requests of the last minute, sorted. A nil *Metrics has none.
func (m *Metrics) Recent() []RequestCount {
	if m == nil {
		return nil
	}
	return m.recent.within(time.Now())
}
