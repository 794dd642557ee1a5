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
// was measured of the old controller (FACTS.md 7).
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
	b.WriteString(`# What it costs

What a clusterset asks of AWS Cloud Map and keeps there, by its size. Computed from the code's own intervals and encoder by ` + "`make generate`" + `;
a test compares them with what the registry really does (` + "`TestDocsCostModel`" + ` in internal/registry/cloudmap). A month is 730 hours, as in AWS's price lists.

- [Requests](#requests)
- [Registered instances](#registered-instances)
- [In money](#in-money)
- [The old controller](#the-old-controller)
- [Spending less](#spending-less)

## Requests

While nothing changes, a cluster makes these requests, whatever the number of services, endpoints and clusters:

| operation | a minute, with [hints](hints.md) | without | a month, with hints | without |
| --- | --- | --- | --- | --- |
`)
	for _, operation := range []string{"DiscoverInstances", "RegisterInstance"} {
		fmt.Fprintf(&b, "| `%s` | %g | %g | %s | %s |\n", operation, hints[operation], alone[operation], grouped(hints[operation]*month), grouped(alone[operation]*month))
	}
	fmt.Fprintf(&b, "| all | %g | %g | %s | %s |\n", sum(hints), sum(alone), grouped(sum(hints)*month), grouped(sum(alone)*month))
	fmt.Fprintf(&b, `
With the [instance view](instance-view.md) at most %g `+"`DiscoverInstances`"+` a minute comes on top, %s a month; it is not in the tables.
`, viewCalls(), grouped(viewCalls()*month))
	b.WriteString(`
A change of one service, be it one endpoint or a hundred at once, costs two ` + "`RegisterInstance`" + ` at its cluster (the page and the record), and
at most two ` + "`DiscoverInstances`" + ` at each cluster, its own included. With the instance view one ` + "`RegisterInstance` or `DeregisterInstance`" + ` for each
endpoint and port that changed comes on top. Changes within a quarter of a second are written together.

In a month, with hints:

| clusters | ` + "`DiscoverInstances`" + `, nothing changing | and with 1,000 changes a day | all requests, nothing changing | the old controller, 50 services | 300 services | 3,000 services |
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

Each cluster keeps one instance for its record, and its pages: at most 64, one instance each until a page needs more room. The instance view
adds one instance for each exported endpoint and port. For one cluster whose services have 10 endpoints with one port in three zones, with addresses close to each other:

| services of the cluster | endpoints | record and pages | the instance view | the old controller |
| --- | --- | --- | --- | --- |
`)
	for _, services := range []int{1, 10, 50, 300, 1000, 3000} {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", grouped(float64(services)), grouped(float64(10*services)),
			grouped(float64(1+pageInstances(t, services, 10))), grouped(float64(10*services)), grouped(float64(10*services)))
	}
	fmt.Fprintf(&b, `
Records and pages of all clusters are in one Cloud Map namespace, the instance view has one for each Kubernetes namespace. A namespace has
room for 2,000 instances until that quota is raised. See [operations.md](operations.md#quotas).

## In money

AWS bills Cloud Map by registered resources and by discovery requests; what exactly, and at which price in your Region, is on
[its pricing page](https://aws.amazon.com/cloud-map/pricing/). Nobody here could check a bill, so this page has no prices. Put in yours:

    D = %s × clusters + 2 × clusters × changes a month       discovery requests, with hints
    R = record and pages, and the instance view's, of every cluster     registered instances

    a month = D / 1,000,000 × price of a million discovery requests  +  R × price of a registered resource a month

Without hints it is %s instead of %s. The other requests are in the tables above, should your price list have them.

Traffic between clusters is billed as any between VPCs, zones or Regions, and is usually far more than the registry.
[Topology](topology.md) keeps it in its zone. On [etcd](etcd.md) nothing of this page applies.

## The old controller

The AWS Cloud Map MCS Controller for K8s reads every service of every namespace again, about every 6 seconds, in every cluster, whether anything changes or not. That
makes 10 × services + 10 requests a minute and cluster. It was measured on the testbed: 20 for one service, 509 for 50, 3,013 for
300. 3,000 services are extrapolated; an account's quota of 1,000 reads a second is used up by two such clusters.

| requests a minute and cluster | this controller | the old one |
| --- | --- | --- |
`, grouped(hints["DiscoverInstances"]*month), grouped(alone["DiscoverInstances"]*month), grouped(hints["DiscoverInstances"]*month))
	for _, services := range []int{1, 50, 300, 3000} {
		fmt.Fprintf(&b, "| services: %s | %g, without hints %g | %s |\n", grouped(float64(services)), sum(hints), sum(alone), grouped(oldCalls(services)))
	}
	b.WriteString(`
## Spending less

| what | saves | costs |
| --- | --- | --- |
| [hints](hints.md) get through: UDP port 8479 between the pods | four of five ` + "`DiscoverInstances`" + ` | nothing |
| ` + "`--instance-view=false`" + ` | an instance for each endpoint and port | people and AWS services see no endpoints in Cloud Map; clusters with the old controller import nothing |
| longer ` + "`--poll-interval-with-notifications`" + ` | in proportion | a change whose hint was lost is seen later; cannot be longer than a quarter of ` + "`--stale-after`" + ` |
| longer ` + "`--heartbeat-interval`" + `, with ` + "`--stale-after`" + ` three times as long at least | ` + "`RegisterInstance`" + ` | dead clusters are noticed later |
| fewer [further registries](accounts-and-regions.md) | one ` + "`DiscoverInstances`" + ` a second each, which hints do not relax | |
`)
	return b.String()
}

// grouped is a number with commas, rounded to an integer.
func grouped(n float64) string {
	text := fmt.Sprintf("%.0f", n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
