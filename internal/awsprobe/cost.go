package awsprobe

import (
	"fmt"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
)

// hoursPerMonth is a month of AWS's price lists. They do not say how a part of a month counts; an
// hour is assumed.
const hoursPerMonth = cost.MonthMinutes / 60

// costOf says what the probes will make, and what that costs.
func costOf(chosen []probe) string {
	requests, instances, zones := 0, 0, 0
	for _, p := range chosen {
		requests, instances, zones = requests+p.requests, instances+p.instances, zones+p.zones
	}
	forRequests, forInstances := float64(requests)*cost.PerMillion/1e6, float64(instances)*cost.PerInstance/hoursPerMonth
	lines := []string{fmt.Sprintf(
		"It makes up to %d requests ($%.4f at $%.2f per million) and registers up to %d instances (%d x $%.2f / %d hours = $%.4f, if each counts for an hour): $%.2f.",
		requests, forRequests, cost.PerMillion, instances, instances, cost.PerInstance, hoursPerMonth, forInstances, forRequests+forInstances)}
	if zones > 0 {
		lines = append(lines, fmt.Sprintf("Route 53 takes nothing for the %d hosted zone, which is deleted within 12 hours.", zones))
	}
	return strings.Join(lines, "\n")
}
