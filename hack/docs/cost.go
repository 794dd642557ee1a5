package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/awsprobe"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped/servicesfile"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/attack"
)

// costModels are the requests with and without peer notifications at the default settings.
type costModels struct {
	settings            config.Registry
	with, without       cost.Model
	discovers, discover float64 // DiscoverInstances per minute, with and without
}

func newFigures() (*figures, error) {
	settings := config.Default().Registry
	m := costModels{settings: settings}
	m.with, m.without = cost.Models(settings.PollInterval, settings.PollIntervalWithNotifications, settings.HeartbeatInterval, settings.StaleAfter)
	m.discovers, m.discover = m.with.RequestsPerMinute()["DiscoverInstances"], m.without.RequestsPerMinute()["DiscoverInstances"]
	stored, err := storedInstances()
	if err != nil {
		return nil, err
	}
	bills, err := m.priceByClusters()
	if err != nil {
		return nil, err
	}
	return &figures{used: map[string]bool{}, texts: map[string]string{
		"stale-requests":        staleRequests(),
		"assumptions":           awsprobe.AssumptionTable(),
		"attacks":               attack.Table(),
		"behaviors":             behaviors(),
		"requests":              fmt.Sprintf("%g", m.with.TotalPerMinute()),
		"requests-when-silent":  fmt.Sprintf("%g", m.without.TotalPerMinute()),
		"steady-requests":       m.steadyRequests(),
		"view-requests":         fmt.Sprintf("%g `DiscoverInstances` per minute, %s a month,", cost.ViewRequestsPerMinute(), grouped(cost.ViewRequestsPerMinute()*cost.MonthMinutes)),
		"view-changes":          viewChanges(),
		"stored-instances":      stored,
		"prices":                prices(),
		"price-date":            cost.PriceDate,
		"price-by-clusters":     bills,
		"price-options":         m.priceOptions(),
		"probes":                awsprobe.ProbeTable(),
		"probe-cost":            awsprobe.CostSummary(),
		"price-formula":         m.priceFormula(),
		"price-when-silent":     fmt.Sprintf("%s instead of %s", grouped(m.discover*cost.MonthMinutes), grouped(m.discovers*cost.MonthMinutes)),
		"legacy-requests":       legacyCounts(),
		"mapped-requests":       mappedRequests(),
		"mapped-clusters":       mappedClusters(),
		"rates":                 rates(),
		"poll-interval":         interval(settings.PollInterval),
		"relaxed-poll-interval": interval(settings.PollIntervalWithNotifications),
	}}, nil
}

// mappedRequests describes the requests for mapped services.
func mappedRequests() string {
	sum := func(services int) (n float64) {
		for _, perMinute := range mapped.RequestsPerMinute(services, 1) {
			n += perMinute
		}
		return n
	}
	return fmt.Sprintf("%g a minute for 1 service, %g for 3, %g for 50 and for %d: %g `DiscoverInstances` and %g `ListServices`", sum(1), sum(3), sum(50), servicesfile.MaxServices,
		mapped.RequestsPerMinute(50, 1)["DiscoverInstances"], mapped.RequestsPerMinute(50, 1)["ListServices"])
}

// mappedClusters returns the number of clusters with many mapped services whose lists reach the
// rate of an account.
func mappedClusters() string {
	return fmt.Sprintf("%g", api.DefaultRates()["ListServices"].PerSecond*60/mapped.RequestsPerMinute(servicesfile.MaxServices, 1)["ListServices"])
}

// rates returns the table of the default rates, the highest first.
func rates() string {
	all := api.DefaultRates()
	byRate := map[api.Rate][]string{}
	for _, operation := range slices.Sorted(maps.Keys(all)) {
		byRate[all[operation]] = append(byRate[all[operation]], "`"+operation+"`")
	}
	t := newTable("operation", "per second", "burst")
	for _, rate := range slices.SortedFunc(maps.Keys(byRate), func(a, b api.Rate) int { return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), b.Burst-a.Burst) }) {
		for operations := range slices.Chunk(byRate[rate], 4) { // a cell is short
			t.row(strings.Join(operations, ", "), fmt.Sprint(rate.PerSecond), fmt.Sprint(rate.Burst))
		}
	}
	return t.String()
}

// viewChanges returns the table of the requests of the instance view for one endpoint whose
// readiness changes.
func viewChanges() string {
	t := newTable("`--unready-instances`", "DNS records", "requests")
	for _, unready := range []instances.Unready{instances.UnreadyMark, instances.UnreadyDeregister, instances.UnreadyUnhealthy} {
		t.row("`"+string(unready)+"`", "no", viewChange(unready, mcs.InstanceDNSNone))
		if unready != instances.UnreadyDeregister { // with records as mark
			t.row("`"+string(unready)+"`", "yes", viewChange(unready, mcs.InstanceDNSSRV))
		}
	}
	return t.String()
}

// staleRequests describes the requests because of stale clusters, for an example.
func staleRequests() string {
	const services = 50
	requests := instances.StaleRequests(services, services*exampleEndpoints)
	var words []string
	for _, operation := range slices.Sorted(maps.Keys(requests)) {
		words = append(words, fmt.Sprintf("%d `%s`", requests[operation], operation))
	}
	return fmt.Sprintf("a cluster with %d services of %d endpoints with one port that becomes stale costs the cluster with the flag at most %s, and %g `DiscoverInstances` a minute while it is stale. "+
		"When it is back, as after each start with `--unready-instances=unhealthy`, it sends %d `DiscoverInstances` for the health of its instances.",
		services, exampleEndpoints, strings.Join(words, ", "), cost.ViewRequestsPerMinute(), instances.CheckRequests(services))
}

// viewChange returns the requests for one endpoint that becomes unready, of a service with one
// port.
func viewChange(unready instances.Unready, records mcs.InstanceDNS) string {
	e := cloudmaptest.WebExport("cls1", 0, exampleEndpoints)
	e.InstanceDNS = records
	var words []string
	requests := instances.Settings{Unready: unready}.ReadinessRequests(e, types.NamespaceTypeDnsPrivate)
	for _, operation := range slices.Sorted(maps.Keys(requests)) {
		words = append(words, fmt.Sprintf("%d `%s`", requests[operation], operation))
	}
	return strings.Join(words, ", ")
}

func (m costModels) steadyRequests() string {
	with, without := m.with.RequestsPerMinute(), m.without.RequestsPerMinute()
	purposes := map[string]string{
		"DiscoverInstances": fmt.Sprintf("polls of `members` every %s (%s without), a read of the own pages every %s",
			interval(m.with.Poll), interval(m.without.Poll), interval(cost.AuditInterval)),
		"RegisterInstance": fmt.Sprintf("the heartbeat, every %s (%s without)", interval(m.with.Heartbeat), interval(m.without.Heartbeat)),
	}
	t := newTable("operation", "purpose", "per minute, with [peer notifications](operations.md#peer-notifications)", "without")
	for _, operation := range []string{"DiscoverInstances", "RegisterInstance"} {
		t.row("`"+operation+"`", purposes[operation], fmt.Sprint(with[operation]), fmt.Sprint(without[operation]))
	}
	t.row("all", "", fmt.Sprint(m.with.TotalPerMinute()), fmt.Sprint(m.without.TotalPerMinute()))
	return t.String()
}

func (m costModels) priceFormula() string {
	ofMapped := mapped.RequestsPerMinute(servicesfile.MaxServices, 1)["DiscoverInstances"]
	var lines []string
	for _, term := range [][2]string{
		{fmt.Sprintf("D = %s × clusters + 2 × changes a month", grouped(m.discovers*cost.MonthMinutes)), "discovery requests, with peer notifications"},
		{fmt.Sprintf("    + %s × clusters that map services", grouped(ofMapped*cost.MonthMinutes)), "at most, if ListServices has the numbers of their instances"},
		{"R = records, pages and instance view of all clusters", "registered instances"},
	} {
		lines = append(lines, fmt.Sprintf("    %-58s %s", term[0], term[1]))
	}
	return strings.Join(lines, "\n") + `

    per month = D / 1,000,000 × ` + cost.Dollars(cost.PerMillion) + ` + R × ` + cost.Dollars(cost.PerInstance)
}

// legacyRequests returns the requests of the legacy controller per minute and cluster: it reads
// each service when its cache of 5 s has expired, in the next of its rounds of 2 s, and lists
// namespaces and services every 12 s.
func legacyRequests(services int) float64 { return legacyReads(services) + 2*60/12 }

// legacyReads returns the DiscoverInstances among them.
func legacyReads(services int) float64 { return 60 / 6 * float64(services) }

// legacyCounts describes the requests of the legacy controller.
func legacyCounts() string {
	var words []string
	for _, services := range []int{50, 300, 3000} {
		words = append(words, fmt.Sprintf("%s with %s services", grouped(legacyRequests(services)), grouped(float64(services))))
	}
	return strings.Join(words, ", ")
}

// storedInstances returns the table of the instances of one cluster.
func storedInstances() (string, error) {
	t := newTable("services of the cluster", "record and pages", "instance view")
	for _, services := range []int{1, 10, 50, 300, 3000} {
		exports := make([]mcs.Export, services)
		for i := range exports {
			exports[i] = cloudmaptest.WebExport("cls1", i, exampleEndpoints)
		}
		stored, err := cloudmap.StoredInstances("cls1", exports)
		if err != nil {
			return "", err
		}
		t.row(grouped(float64(services)), grouped(float64(stored)), grouped(float64(exampleEndpoints*services)))
	}
	return t.String(), nil
}

// exampleEndpoints is the number of endpoints of an export.
const exampleEndpoints = 10

// table is a table of Markdown.
type table struct{ lines []string }

func newTable(columns ...string) *table {
	t := &table{}
	t.row(columns...)
	t.lines = append(t.lines, "|"+strings.Repeat(" --- |", len(columns)))
	return t
}

func (t *table) row(cells ...string) { t.lines = append(t.lines, "| "+strings.Join(cells, " | ")+" |") }

func (t *table) String() string {
	return strings.ReplaceAll(strings.Join(t.lines, "\n"), "|  |", "| |")
}

// interval returns d as in "12 s".
func interval(d time.Duration) string {
	if d >= time.Minute {
		return fmt.Sprintf("%g minutes", d.Minutes())
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

// grouped returns n as an integer with commas.
func grouped(n float64) string {
	text := fmt.Sprintf("%.0f", n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
