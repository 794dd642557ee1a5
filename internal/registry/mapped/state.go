package mapped

import (
	"fmt"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped/servicesfile"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// service is what is known of a mapped service.
type service struct {
	mapping servicesfile.Mapping
	// export is the last one that could be used, nil if there was none: then it is not known what
	// the service has.
	export *mcs.Export
	// lines are about parts that were left out. excess is the offer of an export that is over
	// budget, nil if it is not.
	lines  []string
	excess *budget.Offer
	// err is the error of the last read, nil if it succeeded; failedAt is the time of the clock
	// since when reads have failed.
	err      error
	failedAt time.Duration
	// readAt is the time of the last read, also of one that failed. okAt is that of the last one
	// that succeeded.
	readAt, okAt time.Time
	// mustRead: the service may have changed.
	mustRead bool
	// instances is the number of instances of the last read, count that of the last list of
	// services, if isCounted. While recheck is above 0, every list with another number than the
	// last read makes the service read again.
	instances int
	count     int32
	isCounted bool
	recheck   int
	// revision is that of the instances at the last read.
	revision int64
	// isUncounted: the last list of services has no number.
	isUncounted bool
}

// replacedBy returns the service with another mapping. It is read at once. Until then its export
// stays, unless it comes from another service: then it is unknown.
func (s *service) replacedBy(m servicesfile.Mapping) *service {
	next := &service{mapping: m}
	if s != nil && s.mapping.IsSameSource(m) {
		next.export, next.lines, next.instances, next.okAt = s.export, s.lines, s.instances, s.okAt
	}
	return next
}

// setRead records the result of a read. It reports whether the export has changed.
func (s *service) setRead(now time.Time, clock *clock, account *budget.Account, cluster, clusterSetID string, list []api.HealthInstance, err error) (changed bool) {
	s.readAt, s.mustRead = now, false
	var exp mcs.Export
	var lines []string
	size := 0
	if err == nil {
		exp, lines, err = exportOf(s.mapping, cluster, clusterSetID, list)
	}
	if err == nil {
		size, err = record.Size(exp)
	}
	if err != nil {
		if s.err == nil {
			s.failedAt = clock.counted
		}
		s.err = err
		return false
	}
	s.err, s.lines, s.instances, s.okAt = nil, lines, len(list), now
	offer := budget.Offer{Key: exp.Key, Created: exp.Created.Unix(), Wanted: budget.Of(exp, size)}
	if admitted, _ := account.Admit([]budget.Offer{offer}); !admitted[0] {
		s.excess = &offer
		return false
	}
	s.excess = nil
	changed = s.export == nil || !s.export.Equal(exp)
	if changed {
		exp.Changed = now.UTC().Truncate(time.Millisecond)
		s.export = &exp
	}
	return changed
}

// describe returns what is known of the service, for people.
func (s *service) describe(cluster string, account *budget.Account) *registry.MappedService {
	return &registry.MappedService{
		Cluster: cluster, Namespace: s.mapping.Namespace, Service: s.mapping.Service, Instances: s.instances, ReadAt: s.okAt, Problems: s.problems(account),
	}
}

// view returns the state of the pseudo-cluster in the view of the service's key.
func (s *service) view(isStale bool) registry.ClusterView {
	if s.export == nil {
		return registry.ClusterView{State: registry.Unknown}
	}
	c := registry.ClusterView{State: registry.Exports, Export: s.export, Properties: mcs.Properties{}}
	if zones := s.mapping.Zones.String(); zones != "" {
		c.Properties[mcs.PropertyZones] = zones
	}
	if isStale {
		c.Liveness = registry.Stale
	}
	return c
}

// isStale reports whether all reads have failed for a time in which Cloud Map answered.
func (s *service) isStale(clock *clock) bool {
	return s.err != nil && clock.after > 0 && clock.counted-s.failedAt >= clock.after
}

// problems returns the lines about the service.
func (s *service) problems(account *budget.Account) (lines []string) {
	if s.err != nil {
		lines = append(lines, fmt.Sprintf("%s: not read, its last endpoints stay: %v", s.mapping, s.err))
	}
	for _, line := range s.lines {
		lines = append(lines, fmt.Sprintf("%s: %s", s.mapping.Key, line))
	}
	if s.excess != nil {
		if excess := account.Explain([]budget.Offer{*s.excess})[0]; excess != (budget.Excess{}) {
			lines = append(lines, registry.BudgetProblem(1, s.mapping.Key, excess))
		}
	}
	return lines
}

// clock counts the time in which Cloud Map answers, as registry.Liveness does: a service is not
// stale because of an outage, nor because this process was suspended.
type clock struct {
	// after is the time until a service is stale; 0 is never.
	after            time.Duration
	last             time.Time
	counted, pending time.Duration
}

// observe records whether requests since the last call were answered, or failed without an answer.
// An error is an answer, except throttling and an error code that is not known.
func (c *clock) observe(now time.Time, answered, failed bool) {
	if !c.last.IsZero() {
		c.pending += now.Sub(c.last)
	}
	c.last = now
	switch {
	case answered:
		if c.pending <= c.after/2 {
			c.counted += c.pending
		}
		c.pending = 0
	case failed:
		c.pending = 0
	}
}

// isAnswer reports whether AWS answered a request that returned err.
func isAnswer(err error) bool {
	switch api.ResultOf(err) {
	case api.ResultThrottled, api.ResultError, api.ResultUnknown, api.ResultCanceled:
		return false
	}
	return true
}
