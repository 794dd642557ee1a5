package cloudmap

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/generated"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// month is the month of AWS's price lists, in minutes: 730 hours.
const month = 730 * 60

// steadyCalls are a cluster's requests a minute while nothing changes, by operation: a poll, a heartbeat and the audit of the own
// pages.
func steadyCalls(poll time.Duration) map[string]float64 {
	return map[string]float64{
		"DiscoverInstances": perMinute(poll) + perMinute(defaultTimes().audit),
		"RegisterInstance":  perMinute(defaultHeartbeat),
	}
}

func perMinute(interval time.Duration) float64 { return float64(time.Minute) / float64(interval) }

// viewCalls is what the instance view adds at most: its look at one service.
func viewCalls() float64 { return perMinute(defaultTimes().viewAudit) }

func sum(calls map[string]float64) (total float64) {
	for _, n := range calls {
		total += n
	}
	return total
}

// oldCalls are the old controller's requests a minute and cluster: it reads each service when its cache of 5 s has expired, at
// the next of its rounds of 2 s, and lists namespaces and services every 12 s.
func oldCalls(services int) float64 { return 60/6*float64(services) + 2*60/12 }

// TestDocsCostModel checks what docs/cost.md is computed with against what the registry does, what the benchmark has measured, and what
// was measured of the old controller on the testbed.
func TestDocsCostModel(t *testing.T) {
	for services, measured := range map[int]float64{1: 20, 50: 509, 300: 3013} {
		if got := oldCalls(services); math.Abs(got-measured) > measured/100 {
			t.Errorf("old controller, %d services: the model says %.0f requests a minute, measured were %.0f", services, got, measured)
		}
	}
	for name, poll := range map[string]time.Duration{"hints": defaultRelaxed, "no hints": defaultPoll} {
		t.Run(name, func(t *testing.T) {
			virtually(t, cloudmaplocal.Options{ConsistencyDelay: 500 * time.Millisecond}, func(t *testing.T, a *account) {
				const clusters, minutes = 3, 10
				regs := a.start(t, clusters, func(cfg *Config) {
					if poll == defaultPoll {
						cfg.PeerNotifications = nil
					}
				})
				for i, reg := range regs {
					publish(t, reg, webExport(reg.cfg.Identity.ClusterID, i, 3))
				}
				time.Sleep(5 * time.Minute)
				before := map[string]int{}
				for operation := range a.server.Requests() {
					before[operation] = a.requests(operation)
				}
				time.Sleep(minutes * time.Minute)
				model := steadyCalls(poll)
				for operation := range a.server.Requests() {
					measured := float64(a.requests(operation)-before[operation]) / clusters / minutes
					if math.Abs(measured-model[operation]) > 0.2+model[operation]/50 {
						t.Errorf("%s: %.2f a minute and cluster, the model says %.2f", operation, measured, model[operation])
					}
				}
			})
		})
	}
	for _, s := range benchmarked(t) {
		poll := defaultPoll
		if s.Hints {
			poll = defaultRelaxed
		}
		// The benchmark's window of two minutes has whole requests. On a busy machine a poll takes longer, so that there are
		// fewer of them; more there must not be.
		if want := sum(steadyCalls(poll)); s.PerMinute > want+2 || s.PerMinute < want*4/5 {
			t.Errorf("%d exports, %d clusters, hints %v: the benchmark measured %.1f requests a minute, the model says %.1f", s.Exports, s.Clusters, s.Hints, s.PerMinute, want)
		}
	}
}

type benchmark struct {
	Exports, Clusters int
	Hints             bool
	PerMinute         float64
}

// benchmarked are the benchmark's calls in steady state; none before it was run.
func benchmarked(t *testing.T) []benchmark {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "benchmarks", "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var results struct{ Steady []benchmark }
	if err := json.Unmarshal(data, &results); err != nil {
		t.Fatal(err)
	}
	return results.Steady
}

// pageInstances is how many instances a cluster's pages take.
func pageInstances(t *testing.T, services, endpoints int) int {
	t.Helper()
	pages := map[int]map[mcs.Key]mcs.Export{}
	for i := range services {
		exp := webExport("cls1", i, endpoints)
		page := pageOf(exp.Key)
		if pages[page] == nil {
			pages[page] = map[mcs.Key]mcs.Export{}
		}
		pages[page][exp.Key] = exp
	}
	n := 0
	for page, exports := range pages {
		w, err := encodePage("cls1", page, 1_790_000_000_000, exports)
		if err != nil {
			t.Fatal(err)
		}
		n += len(w.instances)
	}
	return n
}

// TestDocsCost holds docs/cost.md to the code. "make generate" writes it.
func TestDocsCost(t *testing.T) {
	generated.Check(t, filepath.Join("..", "..", "..", "docs", "cost.md"), costPage(t))
}

func costPage(t *testing.T) string {
	t.Helper()
	hints, alone := steadyCalls(defaultRelaxed), steadyCalls(defaultPoll)
	var b strings.Builder
	b.WriteString(`# Requests and cost

For operators: the requests that a clusterset sends to AWS Cloud Map, what it stores there, and what happens when AWS throttles. ` + "`make generate`" + ` computes
the figures from the code's intervals and encoder; ` + "`TestDocsCostModel`" + ` compares them with the registry. A month is 730 hours, as in AWS's price lists.

- [Requests](#requests)
- [Registered instances](#registered-instances)
- [Price](#price)
- [The legacy controller](#the-legacy-controller)
- [Spending less](#spending-less)
- [Rates](#rates)
- [When AWS throttles](#when-aws-throttles)
- [A hundred clusters in one account](#a-hundred-clusters-in-one-account)

## Requests

While nothing changes, a cluster sends these requests, whatever the number of services, endpoints and clusters:

| operation | purpose | per minute, with [peer notifications](operations.md#peer-notifications) | without | per month, with | without |
| --- | --- | --- | --- | --- | --- |
`)
	purposes := map[string]string{
		"DiscoverInstances": fmt.Sprintf("polls of `members` every %s (%s without), a read of the own pages every %s", interval(defaultRelaxed), interval(defaultPoll), interval(defaultTimes().audit)),
		"RegisterInstance":  fmt.Sprintf("the heartbeat, every %s", interval(defaultHeartbeat)),
	}
	for _, operation := range []string{"DiscoverInstances", "RegisterInstance"} {
		fmt.Fprintf(&b, "| `%s` | %s | %g | %g | %s | %s |\n", operation, purposes[operation],
			hints[operation], alone[operation], grouped(hints[operation]*month), grouped(alone[operation]*month))
	}
	fmt.Fprintf(&b, "| all | | %g | %g | %s | %s |\n", sum(hints), sum(alone), grouped(sum(hints)*month), grouped(sum(alone)*month))
	fmt.Fprintf(&b, `
The [instance view](instance-view.md) adds at most %g `+"`DiscoverInstances`"+` per minute, %s a month, which is not in the tables.
`, viewCalls(), grouped(viewCalls()*month))
	b.WriteString(`
A change of one service, of one endpoint or of a hundred at once, costs two ` + "`RegisterInstance`" + ` in its cluster (the page and the record), and
at most two ` + "`DiscoverInstances`" + ` in each cluster. The instance view adds one ` + "`RegisterInstance` or `DeregisterInstance`" + ` for each changed
endpoint and port. Changes within a quarter of a second are written together.

Per month, with peer notifications:

| clusters | ` + "`DiscoverInstances`" + `, nothing changing | with 1,000 changes a day | all requests, nothing changing | legacy controller, 50 services | 300 services | 3,000 services |
| --- | --- | --- | --- | --- | --- | --- |
`)
	for _, clusters := range []int{2, 10, 50} {
		n := float64(clusters)
		discover := hints["DiscoverInstances"] * month * n
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s | %s |\n", clusters, grouped(discover), grouped(discover+1000*730/24*2*n), grouped(sum(hints)*month*n),
			grouped(oldCalls(50)*month*n), grouped(oldCalls(300)*month*n), grouped(oldCalls(3000)*month*n))
	}
	b.WriteString(`
## Registered instances

Each cluster stores one instance for its member record, and its pages: at most 64, of one instance each until a page needs more. The instance view
adds one instance for each exported endpoint and port. For one cluster whose services have 10 endpoints with one port in three zones, with neighbouring addresses:

| services of the cluster | endpoints | record and pages | instance view | legacy controller |
| --- | --- | --- | --- | --- |
`)
	for _, services := range []int{1, 10, 50, 300, 1000, 3000} {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", grouped(float64(services)), grouped(float64(10*services)),
			grouped(float64(1+pageInstances(t, services, 10))), grouped(float64(10*services)), grouped(float64(10*services)))
	}
	fmt.Fprintf(&b, `
Records and pages of all clusters are in one Cloud Map namespace; the instance view has one for each Kubernetes namespace. A namespace holds
2,000 instances until you raise that [quota](operations.md#quotas).

## Price

AWS bills Cloud Map by registered resources and by discovery requests; [its pricing page](https://aws.amazon.com/cloud-map/pricing/) has the prices
of your Region. This page has none, because no bill could be checked. Insert yours:

    D = %s × clusters + 2 × clusters × changes a month       discovery requests, with peer notifications
    R = records, pages and instance view of all clusters     registered instances

    per month = D / 1,000,000 × price of a million discovery requests  +  R × price of a registered resource per month

Without peer notifications, use %s instead of %s. The tables above have the other requests, should your price list contain them.

Traffic between clusters is billed like any traffic between VPCs, zones or Regions, and usually costs far more than the registry.
[Topology](topology.md) keeps it in its zone. With [etcd](etcd.md) nothing on this page applies.

## The legacy controller

The AWS Cloud Map MCS Controller for K8s reads every service of every namespace about every 6 seconds, in every cluster, whether anything changes or not:
10 × services + 10 requests per minute and cluster. Measured on the testbed: 20 for one service, 509 for 50, 3,013 for 300. The figure for 3,000 services is
extrapolated; two such clusters exhaust an account's quota of 1,000 reads per second.

| requests per minute and cluster | this controller | legacy controller |
| --- | --- | --- |
`, grouped(hints["DiscoverInstances"]*month), grouped(alone["DiscoverInstances"]*month), grouped(hints["DiscoverInstances"]*month))
	for _, services := range []int{1, 50, 300, 3000} {
		fmt.Fprintf(&b, "| services: %s | %g, without peer notifications %g | %s |\n", grouped(float64(services)), sum(hints), sum(alone), grouped(oldCalls(services)))
	}
	b.WriteString(`
## Spending less

| change | saves | costs |
| --- | --- | --- |
| open UDP port 8479 between the pods, for [peer notifications](operations.md#peer-notifications) | four of five ` + "`DiscoverInstances`" + ` | nothing |
| ` + "`--instance-view=false`" + ` | an instance for each endpoint and port | people and AWS services see no endpoints in Cloud Map; clusters with the legacy controller import nothing |
| longer ` + "`--poll-interval-with-notifications`" + ` | in proportion | a change whose notification was lost is seen later; at most a quarter of ` + "`--stale-after`" + ` |
| longer ` + "`--heartbeat-interval`" + `, with ` + "`--stale-after`" + ` at least three times as long | ` + "`RegisterInstance`" + ` | dead clusters are detected later |
| fewer [further registries](accounts-and-regions.md) | one ` + "`DiscoverInstances`" + ` per second each; peer notifications do not cover them | |

## Rates

Each operation has a client-side rate limiter with a sustained rate and a burst. ` + "`--aws-rate=RegisterInstance=20/40`" + ` sets one; repeat the flag for others.
AWS publishes only the quota of ` + "`DiscoverInstances`" + ` (1,000 per second, account and Region). The other rates are those of the legacy controller, and
limits that users of other tools met.

| operation | per second | burst |
| --- | --- | --- |
| ` + "`DiscoverInstances`, `GetOperation`" + ` | 100 | 200 |
| ` + "`RegisterInstance`, `DeregisterInstance`, `ListInstances`, `GetNamespace`, `GetService`, `ListTagsForResource`" + ` | 50 | 100 |
| ` + "`CreateService`, `DeleteService`" + ` | 5 | 50 |
| ` + "`ListServices`" + ` | 2 | 10 |
| ` + "`ListNamespaces`, `CreateHttpNamespace`, `DeleteNamespace`" + ` | 0.5 | 5 |

Within an operation the member record has the highest priority, then pages, then the instance view, which leaves three quarters of the burst to the others:
75 writes at once, more than the 64 pages of a catalog, are not delayed by waiting instances. The record is first because it is the heartbeat: one write in
12 seconds delays no page, but behind a thousand pages it would be late.

## When AWS throttles

` + "`ThrottlingException` and `RequestLimitExceeded`" + ` halve the operation's rate, at most twice per second and down to one request in 20 seconds.
Success raises it again, by a twentieth of the full rate per second, and by less where the rate is low. The member record is written every ten seconds at least,
whatever the rate. Backoff after failures is random with a growing limit. The first read after a start is at a random time within the poll interval.
` + "`DuplicateRequest`" + ` waits for the operation that it names.

` + "`cloud_map_mcs_registry_request_limit`" + ` shows the current rate, ` + "`cloud_map_mcs_registry_requests_total{result=\"throttled\"}`" + ` the throttled requests.

## A hundred clusters in one account

` + "`TestFleet`" + ` simulates a hundred clusters in virtual time, with the quotas above for all of them together
(` + "`go test -v -run TestFleet ./internal/registry/cloudmap`" + `):

| event | result |
| --- | --- |
| all start for the first time, at once | everything is exported after 5 minutes: each needs a list of namespaces, of which AWS allows one in two seconds. 5 throttled requests per cluster |
| steady state | only the instance views' lists of namespaces are throttled, in the first five minutes |
| writes limited to 10 per second for four minutes, every export changed | no cluster is without a heartbeat for more than about 70 s (two minutes are allowed), a cluster has 18 to 23 writes, and everything is exported before the quota is back. 1.9 requests for each one that succeeds |
| all but one restart at once | everything is exported after 21 s, no cluster is without a heartbeat for more than about 35 s, and none becomes stale. Each uses its [stored resource IDs](proposals/001-cloud-map-record-format.md#starting) and needs no list of namespaces. After three minutes each has its list of services, two per second for all; until then none removes an import |
| no Cloud Map for ten minutes: half of the requests are refused, half time out | a cluster sends one read per poll and seven writes per minute, and keeps what it knows. In the minute after, all changes are exported and imported, nothing is withdrawn, no cluster becomes stale, and a cluster sends 115 requests, 100 of them for the pages of others |
| all import from the [legacy controller](migration.md), which uses 10 namespaces (` + "`TestCompatFleet`" + `) | each has listed all services once after 20 minutes; until then its imports stay as they are. After half an hour they send 1.7 ` + "`ListServices`" + ` per second, one in fifteen of which is throttled, and a cluster that joins has its lists within a second |
`)
	return b.String()
}

// interval returns d as in "12 s".
func interval(d time.Duration) string {
	if d >= time.Minute {
		return fmt.Sprintf("%g minutes", d.Minutes())
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

// grouped is a number with commas, rounded to an integer.
func grouped(n float64) string {
	text := fmt.Sprintf("%.0f", n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
