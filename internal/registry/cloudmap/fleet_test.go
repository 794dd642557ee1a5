package cloudmap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// fleet watches what many clusters do to an account, and cuts its quotas.
type fleet struct {
	mu sync.Mutex
	// cuts are quotas below AWS's, by operation.
	cuts map[string]*rate.Limiter
	// down is set if nothing is answered: of two requests one is refused, one times out.
	down bool
	// calls and throttled count requests by operation; writes are those let through, by cluster.
	calls, throttled map[string]int
	writes           map[string]int
	// asked are the requests of each client.
	asked map[string]int
	// beat is the time at which each cluster's record was last written, gap the longest time
	// between two writes of one.
	beat map[string]time.Time
	gap  map[string]time.Duration
}

func newFleet() *fleet {
	f := &fleet{cuts: map[string]*rate.Limiter{}, beat: map[string]time.Time{}}
	f.reset()
	return f
}

// reset begins a new count.
func (f *fleet) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.throttled, f.writes, f.gap = map[string]int{}, map[string]int{}, map[string]int{}, map[string]time.Duration{}
	f.asked = map[string]int{}
}

// fail makes everything fail, or work again.
func (f *fleet) fail(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

// cut lowers the quotas of operations.
func (f *fleet) cut(perSecond float64, operations ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.cuts)
	for _, operation := range operations {
		f.cuts[operation] = rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))
	}
}

// fate is the result of a request that the server does not execute: an error, or no response.
type fate struct {
	code   string
	status int
	silent bool
}

// answer is the error.
func (f fate) answer() *http.Response {
	answer := httptest.NewRecorder()
	answer.Header().Set("X-Amzn-Errortype", f.code)
	answer.WriteHeader(f.status)
	fmt.Fprintf(answer, `{"__type":%q,"message":"as the test wants it"}`, f.code)
	return answer.Result()
}

// fateOf says what becomes of a client's request; without a code it is carried out.
func (f *fleet) fateOf(client, operation string) fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[operation]++
	f.asked[client]++
	if cut := f.cuts[operation]; cut != nil && !cut.AllowN(time.Now(), 1) {
		return fate{code: "ThrottlingException", status: http.StatusBadRequest}
	}
	if f.down {
		return fate{code: "ServiceUnavailable", status: http.StatusServiceUnavailable, silent: f.asked[client]%2 == 0}
	}
	return fate{}
}

// answered takes in an answer.
func (f *fleet) answered(operation string, request []byte, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !ok {
		f.throttled[operation]++
	}
	var instance struct {
		InstanceId string
		Attributes map[string]string
	}
	if !ok || operation != "RegisterInstance" || json.Unmarshal(request, &instance) != nil {
		return
	}
	cluster, now := instance.Attributes[format.AttrClusterID], time.Now()
	f.writes[cluster]++
	if instance.InstanceId == cluster {
		if last, known := f.beat[cluster]; known {
			f.gap[cluster] = max(f.gap[cluster], now.Sub(last))
		}
		f.beat[cluster] = now
	}
}

// total is how many requests there were, and how many of them were throttled.
func (f *fleet) total() (calls, throttled int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.calls {
		calls += n
	}
	for _, n := range f.throttled {
		throttled += n
	}
	return calls, throttled
}

// maxGap is the longest time that some cluster's record has not been written, up to now.
func (f *fleet) maxGap() (longest time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for cluster, last := range f.beat {
		longest = max(longest, f.gap[cluster], time.Since(last))
	}
	return longest
}

// mostAsked is the most requests of a client.
func (f *fleet) mostAsked() (most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.asked {
		most = max(most, n)
	}
	return most
}

// spread are the fewest and the most writes of a cluster.
func (f *fleet) spread(clusters int) (fewest, most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fewest = 1 << 30
	for _, n := range f.writes {
		fewest, most = min(fewest, n), max(most, n)
	}
	if len(f.writes) < clusters {
		fewest = 0
	}
	return fewest, most
}

// guarded is the account as a client of the fleet sees it.
type guarded struct {
	*account
	fleet *fleet
	name  string
}

func (g guarded) Do(request *http.Request) (*http.Response, error) {
	_, operation, _ := strings.Cut(request.Header.Get("X-Amz-Target"), ".")
	switch what := g.fleet.fateOf(g.name, operation); {
	case what.silent:
		<-request.Context().Done()
		return nil, request.Context().Err()
	case what.code != "":
		time.Sleep(g.latency)
		g.fleet.answered(operation, nil, false)
		return what.answer(), nil
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	response, err := g.account.Do(request)
	if err == nil {
		code := response.Header.Get("X-Amzn-Errortype")
		g.fleet.answered(operation, body, code != "ThrottlingException" && code != "RequestLimitExceeded")
	}
	return response, err
}

// fleetOf are many clusters in one account, which share AWS's quotas and know nothing of one
// another's requests.
type fleetOf struct {
	*fleet
	t       *testing.T
	account *account
	regs    []*Registry
	stops   []func(error)
}

// fleetExports is how many exports each cluster has.
const fleetExports = 2

// start starts, or restarts, the clusters from first on, all at once.
func (f *fleetOf) start(first int) {
	for _, stop := range f.stops[first:] {
		if stop != nil {
			stop(nil)
		}
	}
	for i := first; i < len(f.regs); i++ {
		cfg := f.account.standard(i + 1)
		cfg.PeerNotifications = nil // notifications only save reads, which are not scarce here
		cfg.PollInterval = fleetPoll
		transport := guarded{f.account, f.fleet, cfg.Identity.ClusterID}
		client, err := api.NewClient(f.t.Context(), api.Config{Region: "us-east-1", Endpoint: "https://cloudmap.test", HTTPClient: transport})
		if err != nil {
			f.t.Fatal(err)
		}
		if f.regs[i], err = New(client, cfg); err != nil {
			f.t.Fatal(err)
		}
		for service := range fleetExports {
			publish(f.t, f.regs[i], webExport(cfg.Identity.ClusterID, service, 10))
		}
		f.stops[i] = start(f.t, f.regs[i])
	}
}

// fleetPoll is the fleet's poll interval: many clusters without notifications in one process would
// compute for long.
const fleetPoll = 10 * time.Second

// change changes every export of every cluster.
func (f *fleetOf) change(endpoints int) {
	for i, reg := range f.regs {
		for service := range fleetExports {
			publish(f.t, reg, webExport(reg.cfg.Identity.ClusterID, service, endpoints+i%3))
		}
	}
}

// exported reports whether every export is.
func (f *fleetOf) exported() bool {
	for _, reg := range f.regs {
		for service := range fleetExports {
			if look(f.t, reg, webKey(service)).Local.State != registry.Exported {
				return false
			}
		}
	}
	return true
}

// listed reports whether every cluster knows all catalogs.
func (f *fleetOf) listed() bool {
	return !slices.ContainsFunc(f.regs, func(reg *Registry) bool {
		view, err := reg.Lookup(f.t.Context(), webKey(0))
		return err != nil || view.Incomplete
	})
}

// wantAllKnown fails the test when a cluster takes another for dead, or does not know of an export
// of it that is there all the time.
func (f *fleetOf) wantAllKnown(what string) {
	f.t.Helper()
	for _, reg := range f.regs {
		view, err := reg.Lookup(f.t.Context(), webKey(0))
		if err != nil {
			continue // it has just started
		}
		if len(view.WithLiveness(registry.Stale)) > 0 || len(view.In(registry.Exports, registry.Unknown)) != len(f.regs)-1 {
			f.t.Fatalf("%s: %s knows %d exports, %v are unknown, %v stale", what, reg.cfg.Identity.ClusterID, len(view.Exports()), view.In(registry.Unknown), view.WithLiveness(registry.Stale))
		}
	}
}

// phase waits until met, says what it cost, and looks now and then whether all clusters still know
// one another if they should.
func (f *fleetOf) phase(what string, patience time.Duration, known bool, met func() bool) {
	f.t.Helper()
	f.reset()
	began := time.Now()
	for i := 0; !met(); i++ {
		if time.Since(began) > patience {
			f.t.Errorf("%s: not within %v", what, patience)
			break
		}
		if known && i%10 == 0 {
			f.wantAllKnown(what)
		}
		time.Sleep(time.Second)
	}
	calls, throttled := f.total()
	fewest, most := f.spread(len(f.regs))
	f.t.Logf("%s: took %v; %d requests, %d of them throttled or failed; writes of a cluster from %d to %d; longest without a heartbeat %v",
		what, time.Since(began).Round(time.Second), calls, throttled, fewest, most, f.maxGap().Round(time.Second))
	f.t.Logf("  failed: %v of %v", f.throttled, f.calls)
}

// wantBeats fails the test when a cluster was without a heartbeat, in this phase or up to it, for
// so long that the others take it for dead.
func (f *fleetOf) wantBeats(what string) {
	f.t.Helper()
	if gap := f.maxGap(); gap >= settings.StaleAfter {
		f.t.Errorf("%s: a cluster was without a heartbeat for %v, and the others took it for dead", what, gap)
	}
}

// atMost says how many requests an operation may have made, of each cluster.
func (f *fleetOf) atMost(what, operation string, perCluster int) {
	f.t.Helper()
	if got := f.calls[operation]; got > perCluster*len(f.regs) {
		f.t.Errorf("%s: %d requests %s, want at most %d of each cluster", what, got, operation, perCluster)
	}
}

func after(d time.Duration) func() bool {
	until := time.Now().Add(d)
	return func() bool { return time.Now().After(until) }
}

// TestFleet has 50 clusters in one account. They all start from nothing at once, go on, meet quotas
// cut for four minutes, are all but one restarted at once, and have no Cloud Map for ten minutes.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	const clusters = 50
	// A sixth of the time went into collecting garbage.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond), InstancesPerNamespace: 30_000}, func(t *testing.T, a *account) {
		f := &fleetOf{fleet: newFleet(), t: t, account: a, regs: make([]*Registry, clusters), stops: make([]func(error), clusters)}
		f.start(0)
		// One list of namespaces each, at one in two seconds for all: 100 s, and what is throttled.
		// From the second minute on the instance views take some too.
		f.phase("start from nothing", 8*time.Minute, false, f.exported)
		f.atMost("start", "ListNamespaces", 10)
		f.atMost("start", "RegisterInstance", 25)

		f.phase("steady state", time.Hour, false, after(time.Minute))
		// The instance view may still search, at the lowest priority, for instances of previous
		// processes.
		if _, throttled := f.total(); throttled > f.throttled["ListNamespaces"] {
			t.Errorf("requests were throttled in steady state: %v", f.throttled)
		}
		f.atMost("steady state", "RegisterInstance", 6)

		f.cut(5, "RegisterInstance", "DeregisterInstance")
		f.change(11)
		f.phase("quotas cut to 5 writes a second", time.Hour, true, after(4*time.Minute))
		f.wantBeats("quotas cut")
		if fewest, most := f.spread(clusters); fewest < most/2 {
			t.Errorf("one cluster wrote %d times and another %d times", most, fewest)
		}
		// The heartbeats alone are 20.
		f.atMost("quotas cut", "RegisterInstance", 60)
		f.cut(0)
		f.phase("quotas back", 2*time.Minute, true, f.exported)

		f.start(1) // and one that sees all the others restart
		f.phase("all restarted: exported", 2*time.Minute, true, f.exported)
		f.wantBeats("all restarted")
		f.phase("all restarted: lists of services made up for", 5*time.Minute, true, f.listed)
		f.wantBeats("lists of services made up for")
		f.phase("all restarted: the minutes after", time.Hour, true, after(6*time.Minute))
		f.wantBeats("the minutes after")
		if f.outage(); t.Failed() {
			return
		}
	})
}

// outage takes Cloud Map away for ten minutes: no cluster asks more than while all is well, no
// cluster is taken for dead, nothing is removed, and what was changed meanwhile is exported soon
// after.
func (f *fleetOf) outage() {
	f.t.Helper()
	const lasts = 10 * time.Minute
	removals := func(what string) {
		f.t.Helper()
		for _, operation := range []string{"DeregisterInstance", "DeleteService", "DeleteNamespace", "ListNamespaces"} {
			f.atMost(what, operation, 0)
		}
	}
	f.fail(true)
	f.change(14)
	f.phase("outage", time.Hour, true, after(lasts))
	removals("outage")
	// A read at each poll. Writes are tried again after random pauses of up to 30 s, 15 s as a
	// rule: two pages, the record, and a heartbeat while pages time out.
	most := int(lasts/fleetPoll) + 1 + 4*int(lasts/(defaultTimes().MaxRetry/2))
	if got := f.mostAsked(); got > most {
		f.t.Errorf("a cluster made %d requests in an outage of %v, want at most %d", got, lasts, most)
	}
	f.fail(false)
	f.phase("the minute after", time.Hour, true, after(time.Minute))
	removals("the minute after")
	// Six polls and five heartbeats, and once: two pages and the record that announces them, a look
	// at the own pages. The other clusters' pages are two each at most, all at once in a catalog of
	// few.
	if got := f.mostAsked(); got > 6+1+5+1+4+fleetExports*len(f.regs) {
		f.t.Errorf("a cluster made %d requests in the minute after an outage", got)
	}
	if !f.exported() {
		f.t.Error("a minute after the outage not everything is exported")
	}
	for _, reg := range f.regs {
		for i, other := range f.regs {
			if other != reg && !sees(f.t, reg, webExport(other.cfg.Identity.ClusterID, 1, 14+i%3))() {
				f.t.Fatalf("a minute after the outage %s does not see what %s changed", reg.cfg.Identity.ClusterID, other.cfg.Identity.ClusterID)
			}
		}
	}
	f.phase("steady state after the outage", time.Hour, true, after(3*time.Minute))
	removals("steady state after the outage")
}
