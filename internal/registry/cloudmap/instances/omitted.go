package instances

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// omitted are the endpoints of a service that are not mirrored, by reason.
type omitted struct {
	// overLimit is the number of instances beyond the limit of a service.
	overLimit int
	// collisions are instances whose IDs others use.
	collisions []Collision
	// refused are instances that AWS Cloud Map refuses, with its reason by ID.
	refused map[string]string
	// difference is what the service lacks of the settings, "" if nothing.
	difference string
	// failure is the reason why nothing could be written, and failed the number of endpoints.
	failure string
	failed  int
}

// maxNamed is the number of instances that a warning names.
const maxNamed = 3

// warnings returns one line for each reason, for users.
func (o omitted) warnings() []string {
	var lines []string
	if o.difference != "" {
		lines = append(lines, o.difference)
	}
	if o.failure != "" {
		lines = append(lines, fmt.Sprintf("the endpoints are not shown as Cloud Map instances: %s", o.failure))
	}
	if o.overLimit > 0 {
		lines = append(lines, fmt.Sprintf("%d endpoints are not shown as Cloud Map instances: a service has at most %d (the other clusters import all of them)", o.overLimit, maxInstances))
	}
	if n := len(o.collisions); n > 0 {
		var names []string
		for _, c := range o.collisions[:min(n, maxNamed)] {
			owner := "no cluster of the clusterset"
			if c.ClusterID != "" {
				owner = "cluster " + c.ClusterID
			}
			names = append(names, fmt.Sprintf("%s of %s", c.ID, owner))
		}
		lines = append(lines, fmt.Sprintf("%d endpoints are not shown as Cloud Map instances because others use their IDs (%s): do the pod networks overlap?", n, joinFirst(names, n)))
	}
	if n := len(o.refused); n > 0 {
		var names []string
		for _, id := range slices.Sorted(maps.Keys(o.refused))[:min(n, maxNamed)] {
			names = append(names, fmt.Sprintf("%s (%s)", id, o.refused[id]))
		}
		lines = append(lines, fmt.Sprintf("%d endpoints are not shown because AWS Cloud Map refuses their instances: %s", n, joinFirst(names, n)))
	}
	return lines
}

// joinFirst joins names, which are the first ones of total.
func joinFirst(names []string, total int) string {
	text := strings.Join(names, ", ")
	if total > len(names) {
		text += ", …"
	}
	return text
}

// omittedByFailure returns the endpoints of an export that could not be written. Failures that a
// retry resolves, such as throttling, are not reported to users.
func omittedByFailure(exp *mcs.Export, err error, result outcome) omitted {
	isLasting := api.IsInvalid(err) || api.IsDenied(err) || api.IsFailedOperation(err) && !api.IsThrottled(err)
	switch {
	case len(result.operations.undone) > 0:
		return result.omitted // the operations have the instances
	case exp == nil, !isLasting:
		return omitted{}
	}
	return omitted{failure: err.Error(), failed: exp.EndpointCount()}
}

// updateWarnings logs new warnings of a service and reports whether they have changed. Without an
// export there is no object to report at. The caller holds v.mu.
func (v *View) updateWarnings(key mcs.Key, s *service, isExported bool) bool {
	var lines []string
	if isExported {
		lines = slices.Concat(s.omitted.warnings(), s.operations.warnings())
	}
	if slices.Equal(lines, s.reported) {
		return false
	}
	// logFailure logs failures
	if len(lines) > 0 && s.omitted.failure == "" && len(s.operations.undone) == 0 {
		v.log.Info("Omitted endpoints from the Cloud Map instances", "service", key.String(), "warnings", strings.Join(lines, "; "))
	}
	s.reported = lines
	return true
}

// Warnings returns the lines about endpoints of a service that are not mirrored.
func (v *View) Warnings(key mcs.Key) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.services[key]; s != nil {
		return slices.Clone(s.reported)
	}
	return nil
}

// Instances returns the number of instances of the view. A nil view has none.
func (v *View) Instances() (total int) {
	if v == nil {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.services {
		total += s.shown()
	}
	return total
}

// shown returns the number of the service's instances that AWS has carried out.
func (s *service) shown() int { return s.instances - len(s.operations.reported(false)) }

// updateMetrics sets the metrics of mirrored, omitted and pending instances. The caller holds v.mu.
func (v *View) updateMetrics() {
	counts, total := map[string]int{"collision": 0, "limit": 0, "refused": 0, "failed": 0}, 0
	for _, s := range v.services {
		total += s.shown()
		counts["collision"] += len(s.omitted.collisions)
		counts["limit"] += s.omitted.overLimit
		counts["refused"] += len(s.omitted.refused)
		counts["failed"] += s.omitted.failed + len(s.operations.reported(false))
	}
	v.cfg.Metrics.SetObjects(v.client.Name(), "instances", total)
	v.cfg.Metrics.SetPending(v.client.Name(), "services", v.pending())
	for reason, count := range counts {
		v.cfg.Metrics.SetOmittedInstances(v.client.Name(), reason, count)
	}
}
