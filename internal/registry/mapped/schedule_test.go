package mapped

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped/servicesfile"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// TestRequestsAreFlat simulates ten minutes without changes: the requests do not depend on the
// number of services, and every service is read in time.
func TestRequestsAreFlat(t *testing.T) {
	timing := defaultIntervals()
	for _, tt := range []struct{ services, namespaces int }{{1, 1}, {2, 2}, {3, 1}, {4, 1}, {10, 3}, {50, 1}, {50, 20}, {servicesfile.MaxServices, 50}} {
		t.Run(fmt.Sprintf("%d in %d", tt.services, tt.namespaces), func(t *testing.T) {
			var services []*service
			for i := range tt.services {
				services = append(services, &service{
					mapping: servicesfile.Mapping{Namespace: fmt.Sprint("ns", i%tt.namespaces), Key: mcs.Key{Name: fmt.Sprint(i)}},
					readAt:  start.Add(-time.Minute), // by the reads of the start
				})
			}
			reads, lists, longest := 0, 0, time.Duration(0)
			lastTurn, p := time.Time{}, pace{}
			const minutes = 10
			for now := start; now.Before(start.Add(minutes * time.Minute)); now = now.Add(timing.tick) {
				if timing.needsCounts(tt.services, tt.namespaces) && !now.Before(p.at) {
					lists++
					p.finish(now, timing.poll, 1, nil)
				}
				due, inTurn := timing.dueReads(now, lastTurn, services)
				if inTurn {
					lastTurn = now
				}
				for _, i := range due {
					if reads >= tt.services {
						longest = max(longest, now.Sub(services[i].readAt))
					}
					services[i].readAt = now
					reads++
				}
			}
			want := RequestsPerMinute(tt.services, tt.namespaces)
			perMinute := float64(reads+lists) / minutes
			if most := want["DiscoverInstances"] + want["ListServices"]; perMinute > most+1 || most > 52 {
				t.Errorf("%.1f requests a minute, want at most %.1f, and 52 for any number of services", perMinute, most)
			}
			if in := ReadInTurn(tt.services); longest > in+timing.readPace {
				t.Errorf("a service was not read for %v, want at most %v", longest, in)
			}
		})
	}
}

func TestDueReads(t *testing.T) {
	timing := defaultIntervals()
	at := func(ago time.Duration) *service { return &service{readAt: start.Add(-ago)} }
	must := at(time.Second)
	must.mustRead = true
	for _, tt := range []struct {
		name     string
		services []*service
		lastTurn time.Time
		want     string
		inTurn   bool
	}{
		{"nothing", nil, time.Time{}, "[]", false},
		{"all that were never read", []*service{{}, at(time.Second), {}}, start, "[0 2]", false},
		{"those that changed", []*service{at(time.Second), must}, start, "[1]", false},
		{"the oldest in turn", []*service{at(6 * time.Second), at(7 * time.Second)}, time.Time{}, "[1]", true},
		{"no turn yet", []*service{at(6 * time.Second)}, start.Add(-time.Second), "[]", false},
		{"not within the poll interval", []*service{at(4 * time.Second)}, time.Time{}, "[]", false},
		{"both", []*service{must, at(7 * time.Second)}, time.Time{}, "[0 1]", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			due, inTurn := timing.dueReads(start, tt.lastTurn, tt.services)
			if got := fmt.Sprint(due); got != tt.want || inTurn != tt.inTurn {
				t.Errorf("got %s in turn %v, want %s %v", got, inTurn, tt.want, tt.inTurn)
			}
		})
	}
}

// TestSetCount: a change of the count makes the service read now, and again while the read does not
// show it, but not forever.
func TestSetCount(t *testing.T) {
	s := &service{instances: 3}
	const none = -1 // the list has no number
	read := func(count int32, found int) bool {
		s.mustRead = false
		if count == none {
			s.setCount(nil)
		} else {
			s.setCount(&count)
		}
		if s.isUncounted != (count == none) {
			t.Errorf("uncounted: %t after the count %d", s.isUncounted, count)
		}
		if s.mustRead {
			s.instances = found
		}
		return s.mustRead
	}
	for i, step := range []struct {
		count int32
		found int
		want  bool
	}{
		{3, 0, false}, // the first count is no change
		{3, 0, false},
		{4, 3, true}, // DiscoverInstances is late
		{4, 4, true},
		{4, 0, false},
		{4, 0, false},
		{none, 0, false}, // unknown is not 0
		{4, 0, false},
		{none, 0, false},
		{5, 4, true}, // it has changed meanwhile
		{4, 4, true},
		{none, 0, false},
		{4, 0, false},
		{4, 0, false},
		{4, 0, false},
		{2, 4, true}, // it never shows this count
		{2, 4, true},
		{2, 4, true},
		{2, 4, true},
		{2, 0, false},
	} {
		if got := read(step.count, step.found); got != step.want {
			t.Errorf("step %d: must read %v, want %v", i, got, step.want)
		}
	}
}

func TestPace(t *testing.T) {
	var p pace
	broken := errors.New("throttled")
	for i, step := range []struct {
		requests int
		err      error
		want     time.Duration
	}{
		{1, nil, 5 * time.Second},
		{3, nil, 15 * time.Second},
		{1, broken, 10 * time.Second},
		{1, broken, 20 * time.Second},
		{1, nil, 10 * time.Second},
		{1, nil, 5 * time.Second},
		{1, nil, 5 * time.Second},
	} {
		p.finish(start, 5*time.Second, step.requests, step.err)
		if got := p.at.Sub(start); got != step.want {
			t.Errorf("step %d: next in %v, want %v", i, got, step.want)
		}
	}
	for range 20 {
		p.finish(start, 5*time.Second, 1, broken)
	}
	if got := p.at.Sub(start); got != maxBackoff*5*time.Second {
		t.Errorf("next in %v at most, want %v", got, maxBackoff*5*time.Second)
	}
}

// TestClock: time counts only while Cloud Map answers.
func TestClock(t *testing.T) {
	c := clock{after: 2 * time.Minute}
	now := start
	step := func(d time.Duration, answered, failed bool) {
		now = now.Add(d)
		c.observe(now, answered, failed)
	}
	step(0, true, false)
	step(10*time.Second, false, false) // no request
	step(10*time.Second, true, true)
	if c.counted != 20*time.Second {
		t.Errorf("counted %v, want 20s", c.counted)
	}
	step(50*time.Second, false, true) // an outage
	step(10*time.Second, true, false)
	if c.counted != 30*time.Second {
		t.Errorf("counted %v, want 30s: an outage does not count", c.counted)
	}
	step(time.Hour, true, false) // suspended
	if c.counted != 30*time.Second {
		t.Errorf("counted %v, want 30s: a suspended process counts nothing", c.counted)
	}
}
