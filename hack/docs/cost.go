package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	corev1 "k8s.io/api/core/v1"

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
	m := costModels{
		settings: settings,
		with:     cost.Model{Poll: settings.PollIntervalWithNotifications, Heartbeat: settings.HeartbeatInterval},
		without:  cost.Model{Poll: settings.PollInterval, Heartbeat: settings.HeartbeatInterval},
	}
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
		"requests-by-clusters":  m.requestsByClusters(),
		"stored-instances":      stored,
		"prices":                prices(),
		"price-date":            cost.PriceDate,
		"price-by-clusters":     bills,
		"price-options":         m.priceOptions(),
		"probes":                awsprobe.ProbeTable(),
		"probe-cost":            awsprobe.CostSummary(),
		"price-formula":         m.priceFormula(),
		"price-when-silent":     fmt.Sprintf("%s instead of %s", grouped(m.discover*cost.MonthMinutes), grouped(m.discovers*cost.MonthMinutes)),
		"legacy-requests":       m.legacyRequests(),
		"mapped-requests":       mappedRequests(),
		"mapped-cost":           mappedCost(),
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

// mappedCost returns the table of the requests for mapped services.
func mappedCost() string {
	t := newTable("mapped services", "`DiscoverInstances` per minute", "`ListServices` per minute", "`DiscoverInstances` per month", "`ListServices` per month")
	for _, services := range []int{1, 3, 10, 50, servicesfile.MaxServices} {
		perMinute := mapped.RequestsPerMinute(services, 1)
		reads, lists := perMinute["DiscoverInstances"], perMinute["ListServices"]
		t.row(fmt.Sprint(services), fmt.Sprint(reads), fmt.Sprint(lists), grouped(reads*cost.MonthMinutes), grouped(lists*cost.MonthMinutes))
	}
	return t.String()
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
		t.row(strings.Join(byRate[rate], ", "), fmt.Sprint(rate.PerSecond), fmt.Sprint(rate.Burst))
	}
	return t.String()
}

// viewChanges returns the table of the requests of the instance view for one endpoint whose
// readiness changes.
func viewChanges() string {
	t := newTable("`--unready-instances`", "DNS records", "requests, one port", "three ports")
	for _, row := range []struct {
		unready instances.Unready
		records mcs.InstanceDNS
	}{
		{instances.UnreadyMark, mcs.InstanceDNSNone}, {instances.UnreadyMark, mcs.InstanceDNSAddress}, {instances.UnreadyMark, mcs.InstanceDNSSRV},
		{instances.UnreadyDeregister, mcs.InstanceDNSNone}, // with records as mark
		{instances.UnreadyUnhealthy, mcs.InstanceDNSNone}, {instances.UnreadyUnhealthy, mcs.InstanceDNSAddress}, {instances.UnreadyUnhealthy, mcs.InstanceDNSSRV},
	} {
		t.row("`"+string(row.unready)+"`", "`"+string(row.records)+"`", viewChange(row.unready, row.records, 1), viewChange(row.unready, row.records, 3))
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
	return fmt.Sprintf("a cluster with %d services of %d endpoints with one port that becomes stale costs at most %s, and %g `DiscoverInstances` a minute while it is stale, in the cluster with the flag. "+
		"When it is back, as after each start with `--unready-instances=unhealthy`, it sends %d `DiscoverInstances` for the health, and the list and the writes that are necessary.",
		services, exampleEndpoints, strings.Join(words, ", "), cost.ViewRequestsPerMinute(), instances.CheckRequests(services))
}

// viewChange returns the requests for one endpoint that becomes unready, of a service with a number
// of ports.
func viewChange(unready instances.Unready, records mcs.InstanceDNS, ports int) string {
	e := cloudmaptest.WebExport("cls1", 0, exampleEndpoints)
	e.InstanceDNS = records
	for len(e.Ports) < ports {
		name, number := fmt.Sprint("port-", len(e.Ports)), int32(9000+len(e.Ports))
		e.Ports = append(e.Ports, mcs.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: number})
		e.Backends[0].Ports = append(e.Backends[0].Ports, mcs.BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: number})
	}
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
		"RegisterInstance": fmt.Sprintf("the heartbeat, every %s", interval(m.with.Heartbeat)),
	}
	t := newTable("operation", "purpose", "per minute, with [peer notifications](operations.md#peer-notifications)", "without", "per month, with", "without")
	for _, operation := range []string{"DiscoverInstances", "RegisterInstance"} {
		t.row("`"+operation+"`", purposes[operation], fmt.Sprint(with[operation]), fmt.Sprint(without[operation]),
			grouped(with[operation]*cost.MonthMinutes), grouped(without[operation]*cost.MonthMinutes))
	}
	t.row("all", "", fmt.Sprint(m.with.TotalPerMinute()), fmt.Sprint(m.without.TotalPerMinute()),
		grouped(m.with.TotalPerMinute()*cost.MonthMinutes), grouped(m.without.TotalPerMinute()*cost.MonthMinutes))
	return t.String()
}

func (m costModels) requestsByClusters() string {
	t := newTable("clusters", "`DiscoverInstances`, nothing changing", "with 1,000 changes a day", "all requests, nothing changing",
		"legacy controller, 50 services", "300 services", "3,000 services")
	const changesPerMonth = 1000 * 730 / 24.
	for _, clusters := range []float64{2, 10, 50} {
		discovers := m.discovers * cost.MonthMinutes * clusters
		t.row(grouped(clusters), grouped(discovers), grouped(discovers+changesPerMonth*2*clusters), grouped(m.with.TotalPerMinute()*cost.MonthMinutes*clusters),
			grouped(legacyRequests(50)*cost.MonthMinutes*clusters), grouped(legacyRequests(300)*cost.MonthMinutes*clusters), grouped(legacyRequests(3000)*cost.MonthMinutes*clusters))
	}
	return t.String()
}

func (m costModels) priceFormula() string {
	ofMapped := mapped.RequestsPerMinute(servicesfile.MaxServices, 1)["DiscoverInstances"]
	var lines []string
	for _, term := range [][2]string{
		{fmt.Sprintf("D = %s × clusters + 2 × clusters × changes a month", grouped(m.discovers*cost.MonthMinutes)), "discovery requests, with peer notifications"},
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

func (m costModels) legacyRequests() string {
	t := newTable("requests per minute and cluster", "this controller", "legacy controller")
	for _, services := range []int{1, 50, 300, 3000} {
		t.row("services: "+grouped(float64(services)),
			fmt.Sprintf("%g, without peer notifications %g", m.with.TotalPerMinute(), m.without.TotalPerMinute()), grouped(legacyRequests(services)))
	}
	return t.String()
}

// storedInstances returns the table of the instances of one cluster.
func storedInstances() (string, error) {
	t := newTable("services of the cluster", "endpoints", "record and pages", "instance view", "legacy controller")
	for _, services := range []int{1, 10, 50, 300, 1000, 3000} {
		exports := make([]mcs.Export, services)
		for i := range exports {
			exports[i] = cloudmaptest.WebExport("cls1", i, exampleEndpoints)
		}
		stored, err := cloudmap.StoredInstances("cls1", exports)
		if err != nil {
			return "", err
		}
		endpoints := grouped(float64(exampleEndpoints * services))
		t.row(grouped(float64(services)), endpoints, grouped(float64(stored)), endpoints, endpoints)
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
