package mapped

import (
	"cmp"
	"slices"
	"time"
)

// intervals bound how often Cloud Map is read. The number of requests while nothing changes does
// not depend on the number of services:
//
//	reads    60 s / readPace = 40 DiscoverInstances a minute: each service in turn, but none more often than poll
//	counts   60 s / poll     = 12 ListServices a minute: each namespace in turn
//
// If ListServices has no numbers of instances, one DiscoverInstancesRevision for each service
// replaces the counts: AWS allows an account 3,000 a second, and 200 services take 40.
//
// One ListServices returns the number of instances of 100 services, so a service that scales, and a
// task that starts or ends, is read at once. Everything else is found when the service is read in
// turn: health, which changes neither counts nor revisions, and a task that is replaced between two
// lists, which leaves the count as it was.
type intervals struct {
	// reload is the time between two reads of the file.
	reload time.Duration
	// poll is the time between two reads of a service, and between two lists of services.
	poll time.Duration
	// readPace is the time between two reads of services in turn.
	readPace time.Duration
	// namespaces is the time between two lists of namespaces, missing while a mapped namespace is
	// not in it.
	namespaces, missing time.Duration
	// tick is the time between two decisions.
	tick time.Duration
}

func defaultIntervals() intervals {
	return intervals{
		reload: time.Second, poll: 5 * time.Second, readPace: 1500 * time.Millisecond, namespaces: time.Hour, missing: time.Minute,
		tick: 250 * time.Millisecond,
	}
}

// RequestsPerMinute returns the requests of a cluster per minute while nothing changes, by
// operation, with services in some namespaces of at most 100 services each.
func RequestsPerMinute(services, namespaces int) map[string]float64 {
	t := defaultIntervals()
	if services == 0 {
		return map[string]float64{}
	}
	out := map[string]float64{"DiscoverInstances": min(perMinute(t.readPace), float64(services)*perMinute(t.poll))}
	if t.needsCounts(services, namespaces) {
		out["ListServices"] = perMinute(t.poll)
	}
	return out
}

// RevisionsPerMinute returns the DiscoverInstancesRevision of a cluster per minute while nothing
// changes, if ListServices has no numbers of instances.
func RevisionsPerMinute(services int) float64 {
	return float64(services) * perMinute(defaultIntervals().poll)
}

func perMinute(interval time.Duration) float64 { return float64(time.Minute) / float64(interval) }

// ReadInTurn returns the time in which each of a number of services is read once.
func ReadInTurn(services int) time.Duration { return defaultIntervals().readInTurn(services) }

func (t intervals) readInTurn(services int) time.Duration {
	return max(t.poll, time.Duration(services)*t.readPace)
}

// needsCounts reports whether counting finds changes earlier than reading all services in turn.
func (t intervals) needsCounts(services, namespaces int) bool {
	return time.Duration(services)*t.readPace > time.Duration(max(namespaces, 1))*t.poll
}

// dueReads returns the indices of the services to read now: those that were never read or may have
// changed, and at most one in turn, the one whose read is oldest. lastTurn is the time of the last
// read in turn.
func (t intervals) dueReads(now, lastTurn time.Time, services []*service) (due []int, inTurn bool) {
	oldest := -1
	for i, s := range services {
		switch {
		case s.readAt.IsZero(), s.mustRead:
			due = append(due, i)
		case now.Sub(s.readAt) >= t.poll && (oldest < 0 || s.readAt.Before(services[oldest].readAt)):
			oldest = i
		}
	}
	if oldest >= 0 && now.Sub(lastTurn) >= t.readPace {
		return append(due, oldest), true
	}
	return due, false
}

const (
	// recheckLists is the number of lists of services for which a service is read again after its
	// count has changed: DiscoverInstances may show the change later.
	recheckLists = 3
	// maxListsWithoutCounts is the number of lists without a number of instances after which
	// revisions are read instead. AWS documents the number, and the only answer that was seen has
	// none.
	maxListsWithoutCounts = 3
	// maxBackoff bounds the time between two lists of services that are throttled or denied.
	maxBackoff = 64
)

// setCount records the number of instances of the service in a list of services, nil if the list
// has none: then only reading in turn finds changes.
func (s *service) setCount(number *int32) {
	if s.isUncounted = number == nil; s.isUncounted {
		return
	}
	count := *number
	if s.isCounted && count != s.count {
		s.recheck, s.mustRead = recheckLists, true
	} else if s.recheck > 0 {
		s.recheck--
		s.mustRead = s.mustRead || int(count) != s.instances
	}
	s.count, s.isCounted = count, true
}

// pace decides when to count instances.
type pace struct {
	at      time.Time
	backoff int
}

// finish schedules the next list after one that took a number of requests. A list of several
// requests is made so much more rarely. One that failed is made half as often: other clusters share
// the quota of the account, and reading in turn finds all changes too.
func (p *pace) finish(now time.Time, poll time.Duration, requests int, err error) {
	if p.backoff = cmp.Or(p.backoff, 1); err != nil {
		p.backoff = min(2*p.backoff, maxBackoff)
	} else {
		p.backoff = max(p.backoff/2, 1)
	}
	p.at = now.Add(poll * time.Duration(max(requests, 1)*p.backoff))
}

// namespacesOf returns the Cloud Map namespaces of the services, sorted.
func namespacesOf(services []*service) []string {
	var out []string
	for _, s := range services {
		out = append(out, s.mapping.Namespace)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
