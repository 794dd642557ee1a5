package cloudmap

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// fleet watches what many clusters do to an account, and cuts its quotas.
type fleet struct {
	mu sync.Mutex
	// cuts are quotas below AWS's, by operation.
	cuts map[string]*rate.Limiter
	// calls and throttled count requests by operation; writes are those let through, by cluster.
	calls, throttled map[string]int
	writes           map[string]int
	// beat is when each cluster's record was last written, gap the longest time between two writes of one.
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

// through says whether a request is let through to the server.
func (f *fleet) through(operation string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[operation]++
	cut := f.cuts[operation]
	return cut == nil || cut.AllowN(time.Now(), 1)
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
	cluster, now := instance.Attributes[attrClusterID], time.Now()
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

// guarded is the account as the fleet sees it.
type guarded struct {
	*account
	fleet *fleet
}

func (g guarded) Do(request *http.Request) (*http.Response, error) {
	_, operation, _ := strings.Cut(request.Header.Get("X-Amz-Target"), ".")
	if !g.fleet.through(operation) {
		time.Sleep(g.latency)
		g.fleet.answered(operation, nil, false)
		answer := httptest.NewRecorder()
		answer.Header().Set("X-Amzn-Errortype", "ThrottlingException")
		answer.WriteHeader(http.StatusBadRequest)
		return answer.Result(), nil
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

// TestFleet has a hundred clusters in one account, which share AWS's quotas and know nothing of one another's requests. They all
// start from nothing at once, go on, meet quotas cut for four minutes, and are all restarted at once.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	const clusters, exports = 100, 2
	virtually(t, cloudmaplocal.Options{ConsistencyDelay: 500 * time.Millisecond, InstancesPerNamespace: 30_000}, func(t *testing.T, a *account) {
		f := newFleet()
		regs := make([]*Registry, clusters)
		stops := make([]func(error), clusters)
		startAll := func() {
			for i := range clusters {
				cfg := a.standard(i + 1)
				cfg.Hints = nil // hints only save reads, which are not short
				cfg.PollInterval = 10 * time.Second
				client, err := NewClient(t.Context(), ClientConfig{Region: "us-east-1", Endpoint: "http://cloudmap.test", transport: guarded{a, f}})
				if err != nil {
					t.Fatal(err)
				}
				if regs[i], err = New(client, cfg); err != nil {
					t.Fatal(err)
				}
				for service := range exports {
					publish(t, regs[i], webExport(cfg.Identity.ClusterID, service, 10))
				}
				stops[i] = start(t, regs[i])
			}
		}
		exported := func() bool {
			for _, reg := range regs {
				for service := range exports {
					if view, err := reg.Look(t.Context(), webKey(service)); err != nil || view.Own.State != registry.Exported {
						return false
					}
				}
			}
			return true
		}
		phase := func(what string, patience time.Duration, met func() bool) {
			t.Helper()
			f.reset()
			began := time.Now()
			for !met() {
				if time.Since(began) > patience {
					t.Errorf("%s: not within %v", what, patience)
					break
				}
				time.Sleep(500 * time.Millisecond)
			}
			calls, throttled := f.total()
			fewest, most := f.spread(clusters)
			t.Logf("%s: took %v; %d requests, %d of them throttled; writes of a cluster from %d to %d; longest without a heartbeat %v",
				what, time.Since(began).Round(time.Second), calls, throttled, fewest, most, f.maxGap().Round(time.Second))
			t.Logf("  throttled: %v of %v", f.throttled, f.calls)
		}
		after := func(d time.Duration) func() bool {
			until := time.Now().Add(d)
			return func() bool { return time.Now().After(until) }
		}
		// at most says how many requests an operation may have made, of each cluster.
		atMost := func(what, operation string, perCluster int) {
			t.Helper()
			if got := f.calls[operation]; got > perCluster*clusters {
				t.Errorf("%s: %d requests %s, want at most %d of each cluster", what, got, operation, perCluster)
			}
		}
		startAll()
		// One list of namespaces each, at one in two seconds for all: 200 s.
		phase("start from nothing", 8*time.Minute, exported)
		atMost("start", "ListNamespaces", 20)
		atMost("start", "RegisterInstance", 25)

		phase("steady state", time.Hour, after(time.Minute))
		// The instance view may still be looking, at the lowest priority, for what earlier lives left.
		if _, throttled := f.total(); throttled > f.throttled["ListNamespaces"] {
			t.Errorf("requests were throttled in steady state: %v", f.throttled)
		}
		atMost("steady state", "RegisterInstance", 6)

		f.cut(10, "RegisterInstance", "DeregisterInstance")
		for i, reg := range regs {
			for service := range exports {
				publish(t, reg, webExport(reg.cfg.Identity.ClusterID, service, 11+i%3))
			}
		}
		phase("quotas cut to 10 writes a second", time.Hour, after(4*time.Minute))
		if gap := f.maxGap(); gap >= defaultStale {
			t.Errorf("a cluster was without a heartbeat for %v, and the others took it for dead", gap)
		}
		if fewest, most := f.spread(clusters); fewest < most/2 {
			t.Errorf("one cluster wrote %d times and another %d times", most, fewest)
		}
		// The heartbeats alone are 20.
		atMost("quotas cut", "RegisterInstance", 60)
		f.cut(0)
		phase("quotas back", 2*time.Minute, exported)

		for _, stop := range stops {
			stop(nil)
		}
		startAll()
		// Two lists of namespaces each, one of them for the instance view: 400 s.
		phase("all restarted", time.Hour, after(8*time.Minute))
		atMost("restart", "ListNamespaces", 25)
		if fewest, _ := f.spread(clusters); fewest == 0 {
			t.Error("a cluster was not back after eight minutes")
		}
	})
}
