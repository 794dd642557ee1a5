// Package cost computes the requests of a cluster to AWS Cloud Map while nothing changes, and AWS's
// bill for them and for the registered instances. docs/cost.md, kubectl mcs and the notes of the
// chart show it. It imports nothing of the registry, so that the plugin needs no AWS SDK.
package cost

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// AWS's prices in US dollars, as its price list of PriceDate has them in eu-south-2,
// ap-southeast-5, us-gov-west-1 and a fourth Region (a copy of the list: AWSCloudMap.csv in the
// dataset labofsahil/aws-pricing-dataset at Hugging Face). Other Regions were not seen.
const (
	PriceDate = "2025-08-01"
	// PerInstance is the price of a registered instance for a month: rows Cloud-Map-Resources.
	PerInstance = 0.10
	// PerMillion is the price of a million discovery requests: "$1.00 per million API calls", and
	// rows Cloud-Map-DIR-API-Calls, which are DiscoverInstancesRevision, with $0.000001 each.
	PerMillion = 1.00
)

// MonthMinutes is the month of AWS's price lists in minutes: 730 hours.
const MonthMinutes = 730 * 60

// Intervals without a setting.
const (
	// AuditInterval is the time between two reads of a cluster's own pages.
	AuditInterval = 2 * time.Minute
	// ViewInterval is the time between two reads of the instance view, of one service each.
	ViewInterval = time.Minute
	// FurtherPoll is the time between two polls of a further registry, which peer notifications do
	// not cover.
	FurtherPoll = time.Second
)

const (
	// MaxRecords is the number of instances of a cluster's member record, its copy, and 64 pages of
	// one instance each. TestStoredInstances compares it with 3,000 services of 10 endpoints.
	MaxRecords = 2 + 64
	// LegacyReads are the discovery requests per minute and service for which clusters with the
	// legacy controller have instances. TestModels compares them with package legacy.
	LegacyReads = 14
	// MappedReads are the discovery requests per minute for services of ECS and EC2, whatever their
	// number. TestModels compares them with package mapped.
	MappedReads = 40
	// MappedRevisions are those for each of more than 3 of them where ListServices has no numbers
	// of instances. TestModels compares them with package mapped.
	MappedRevisions = 12
)

// A Model computes the requests of a cluster while nothing changes, without the instance view.
type Model struct {
	// Poll is the time between two polls, Heartbeat between two heartbeats.
	Poll, Heartbeat time.Duration
}

// Models returns the models of a cluster that gets peer notifications from all others, which
// relaxes polls and heartbeats, and of one that gets none.
func Models(poll, relaxedPoll, heartbeat, staleAfter time.Duration) (with, without Model) {
	return Model{Poll: relaxedPoll, Heartbeat: QuietHeartbeat(heartbeat, staleAfter)}, Model{Poll: poll, Heartbeat: heartbeat}
}

// QuietHeartbeat returns the time between two heartbeats of a cluster while nothing changes and
// peer notifications from all others arrive: twice the interval, but at least five in the time
// without one after which the cluster is stale.
func QuietHeartbeat(interval, staleAfter time.Duration) time.Duration {
	return max(interval, min(2*interval, staleAfter/5))
}

// RequestsPerMinute returns the requests of a cluster per minute, by operation.
func (m Model) RequestsPerMinute() map[string]float64 {
	return map[string]float64{
		"DiscoverInstances": PerMinute(m.Poll) + PerMinute(AuditInterval),
		"RegisterInstance":  PerMinute(m.Heartbeat),
	}
}

// TotalPerMinute returns the sum of RequestsPerMinute.
func (m Model) TotalPerMinute() (total float64) {
	for _, n := range m.RequestsPerMinute() {
		total += n
	}
	return total
}

// ViewRequestsPerMinute returns the DiscoverInstances per minute that the instance view adds at
// most: it reads one service in turn.
func ViewRequestsPerMinute() float64 { return PerMinute(ViewInterval) }

// PerMinute returns how often an interval fits into a minute.
func PerMinute(interval time.Duration) float64 { return float64(time.Minute) / float64(interval) }

// IsDiscovery reports whether an operation is a discovery request, which AWS bills.
func IsDiscovery(operation string) bool {
	return operation == "DiscoverInstances" || operation == "DiscoverInstancesRevision"
}

// OfRequests returns the price of a month of discovery requests.
func OfRequests(perMinute float64) float64 { return perMinute * MonthMinutes / 1e6 * PerMillion }

// OfInstances returns the price of registered instances for a month.
func OfInstances(n int) float64 { return float64(n) * PerInstance }

// Dollars returns an amount with cents below 10 dollars, and without cents from there on.
func Dollars(amount float64) string {
	if cents := math.Round(amount * 100); cents < 1000 {
		return fmt.Sprintf("$%.2f", cents/100)
	}
	text := fmt.Sprintf("%.0f", amount)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return "$" + text
}

// Options are the options of a cluster that determine its bill.
type Options struct {
	// Poll is the time between two polls without peer notifications, 0 if the registry is another
	// one than AWS Cloud Map.
	Poll time.Duration
	// View is --instance-view.
	View bool
	// Mapped, Legacy and Further report whether services of ECS and EC2 are mapped, exports of the
	// legacy controller are imported, and there are further registries in AWS Cloud Map.
	Mapped, Legacy, Further bool
}

// source ends each line about costs.
var source = "prices of " + PriceDate + ": " + docs.URL("cost.md")

// Forecast describes the bill of a cluster before its services are known, in one line. It is "" if
// AWS bills nothing.
func (o Options) Forecast() string {
	var parts []string
	if o.Poll > 0 {
		requests := OfRequests(PerMinute(o.Poll) + PerMinute(AuditInterval))
		parts = append(parts, fmt.Sprintf("at most about %s for requests and records", Dollars(requests+OfInstances(MaxRecords))))
	}
	if o.Mapped {
		parts = append(parts, fmt.Sprintf("at most %s for mapped services (%s more for each of more than 3 where ListServices has no numbers of instances)",
			Dollars(OfRequests(MappedReads)), Dollars(OfRequests(MappedRevisions))))
	}
	if o.Legacy {
		parts = append(parts, Dollars(OfRequests(LegacyReads))+" for each service that legacy clusters export")
	}
	if o.Further {
		parts = append(parts, Dollars(OfRequests(PerMinute(FurtherPoll)))+" for each further registry")
	}
	if o.Poll > 0 && o.View {
		parts = append(parts, Dollars(OfInstances(50*10))+" for each 50 exported services with 10 endpoints, which --instance-view=false saves")
	}
	if len(parts) == 0 {
		return ""
	}
	return "AWS bills each cluster per month " + list(parts) + " (" + source + ")"
}

// list joins parts as in "a, b, and c".
func list(parts []string) string {
	last := len(parts) - 1
	if last == 0 {
		return parts[0]
	}
	return strings.Join(parts[:last], ", ") + ", and " + parts[last]
}

// Use is the use that one cluster makes of AWS Cloud Map.
type Use struct {
	// Records and View are the numbers of its registered instances: of its member record and pages,
	// and of the instance view.
	Records, View int
	// Discovery is the number of its discovery requests per minute.
	Discovery float64
}

// Month returns the bill of a month.
func (u Use) Month() float64 { return OfRequests(u.Discovery) + OfInstances(u.Records+u.View) }

// String describes the bill of a month, in one line.
func (u Use) String() string {
	return fmt.Sprintf("about %s a month for this cluster: %s for the instance view (%d instances), %s for records (%d), %s for requests as in the last minute (%s)",
		Dollars(u.Month()), Dollars(OfInstances(u.View)), u.View, Dollars(OfInstances(u.Records)), u.Records, Dollars(OfRequests(u.Discovery)), source)
}
