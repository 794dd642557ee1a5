package main

import (
	"fmt"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped"
)

// prices returns the table of AWS's prices.
func prices() string {
	t := newTable("AWS bills", "price", "row of the price list")
	t.row("a registered instance for a month, here one of records, pages and instance view", cost.Dollars(cost.PerInstance), "`…-Cloud-Map-Resources`")
	t.row("a million discovery requests: `DiscoverInstances`", cost.Dollars(cost.PerMillion), "`$1.00 per million API calls`")
	t.row("the same: `DiscoverInstancesRevision`", cost.Dollars(cost.PerMillion), "`…-Cloud-Map-DIR-API-Calls`, $0.000001 each")
	return t.String()
}

// A bill is the parts of the bill of a clusterset for a month.
type bill struct {
	// without is the bill without the instance view, whose part is view; legacy is that of the
	// legacy controller for the same services.
	without, view, legacy float64
}

// billOf returns the bill for clusters of which each exports a number of services.
func (m costModels) billOf(clusters, services int) (bill, error) {
	exports := make([]mcs.Export, services)
	for i := range exports {
		exports[i] = cloudmaptest.WebExport("cls1", i, exampleEndpoints)
	}
	records, err := cloudmap.StoredInstances("cls1", exports)
	if err != nil {
		return bill{}, err
	}
	n := float64(clusters)
	instances := n * cost.OfInstances(services*exampleEndpoints)
	return bill{
		without: n * (cost.OfRequests(m.discovers) + cost.OfInstances(records)),
		view:    instances + n*cost.OfRequests(cost.ViewRequestsPerMinute()),
		legacy:  instances + n*cost.OfRequests(legacyReads(services)),
	}, nil
}

// priceByClusters returns the table of the bills of clustersets.
func (m costModels) priceByClusters() (string, error) {
	t := newTable("clusters", "services that each exports", "without the instance view", "with it", "legacy controller")
	for _, clusters := range []int{2, 10, 50} {
		for _, services := range []int{50, 300} {
			b, err := m.billOf(clusters, services)
			if err != nil {
				return "", err
			}
			t.row(fmt.Sprint(clusters), fmt.Sprint(services), cost.Dollars(b.without), cost.Dollars(b.without+b.view), cost.Dollars(b.legacy))
		}
	}
	return t.String(), nil
}

// priceOptions returns the table of what options add to the bill of a cluster.
func (m costModels) priceOptions() string {
	const changes = 1000 / 24. / 60 // of readiness per minute: 1,000 a day
	t := newTable("option", "adds to the month of a cluster")
	t.row("`--instance-view` (default)", fmt.Sprintf("%s for each exported endpoint and port, and %s for reads", cost.Dollars(cost.PerInstance), cost.Dollars(cost.OfRequests(cost.ViewRequestsPerMinute()))))
	t.row("`--unready-instances=unhealthy` (custom health)", fmt.Sprintf("%s for the reads of 1,000 changes of readiness a day; "+
		"the price of a custom health check is not known", cost.Dollars(cost.OfRequests(changes))))
	many := mapped.RequestsPerMinute(50, 1)["DiscoverInstances"]
	t.row("`--cloud-map-services` (services of ECS and EC2)", fmt.Sprintf("%s for one service, at most %s for all; "+
		"without instance counts in `ListServices`, %s more for each after 3", cost.Dollars(cost.OfRequests(mapped.RequestsPerMinute(1, 1)["DiscoverInstances"])),
		cost.Dollars(cost.OfRequests(many)), cost.Dollars(cost.OfRequests(cost.MappedRevisions))))
	t.row("`--import-from-aws-controller`", fmt.Sprintf("%s for each service that legacy clusters export, and %s for each other service of the account",
		cost.Dollars(legacyImport(1, 0)), cost.Dollars(legacyImport(0, 1))))
	t.row("no peer notifications, or they do not arrive", cost.Dollars(cost.OfRequests(m.discover-m.discovers)))
	t.row("`--import-from`", cost.Dollars(cost.OfRequests(cost.PerMinute(m.settings.PollInterval)))+" for each registry in AWS Cloud Map")
	return t.String()
}

// legacyImport returns the price of the discovery requests for services with instances of the
// legacy controller, and for others.
func legacyImport(used, others int) (price float64) {
	for operation, n := range legacy.RequestsPerMinute(used, others) {
		if cost.IsDiscovery(operation) {
			price += cost.OfRequests(n)
		}
	}
	return price
}
