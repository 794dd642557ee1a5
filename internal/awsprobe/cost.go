package awsprobe

import (
	"fmt"
	"strings"
)

// Prices of AWS Cloud Map in US dollars, by AWS's price list of 2025-08-01
// (labofsahil/aws-pricing-dataset, AWSCloudMap.csv). It does not say how a part of a month counts;
// an hour is assumed.
const (
	pricePerRequest       = 1.0 / 1_000_000
	pricePerInstanceMonth = 0.10
	hoursPerMonth         = 730
)

// cost says what the probes will make, and what that costs.
func cost(chosen []probe) string {
	requests, instances, zones := 0, 0, 0
	for _, p := range chosen {
		requests, instances, zones = requests+p.requests, instances+p.instances, zones+p.zones
	}
	dollars := float64(requests)*pricePerRequest + float64(instances)*pricePerInstanceMonth/hoursPerMonth
	lines := []string{fmt.Sprintf(
		"It makes up to %d requests ($%.4f at $1.00 per million) and registers up to %d instances (%d x $0.10 / %d hours = $%.4f, if each counts for an hour): $%.2f.",
		requests, float64(requests)*pricePerRequest, instances, instances, hoursPerMonth, float64(instances)*pricePerInstanceMonth/hoursPerMonth, dollars)}
	if zones > 0 {
		lines = append(lines, fmt.Sprintf("Route 53 takes nothing for the %d hosted zone, which is deleted within 12 hours.", zones))
	}
	return strings.Join(lines, "\n")
}
