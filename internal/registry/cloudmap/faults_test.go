package cloudmap

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestRandomFaults has two clusters that publish, withdraw and restart at random while requests fail, are throttled, get
// no answer though they were carried out, or are answered without being carried out. A third one watches that no export
// goes away which nobody withdrew. Then the faults end, and everything must be as it was asked for.
//
// FAULTS_SEED replays a run, FAULTS_STEPS makes it longer.
func TestRandomFaults(t *testing.T) {
	seed, steps := setting(t, "FAULTS_SEED", uint64(time.Now().UnixNano())), setting(t, "FAULTS_STEPS", 400)
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true, ConsistencyDelay: time.Duration(rnd.IntN(3)) * 20 * time.Millisecond})
	watcher, _ := running(t, c, mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: "uid-3"})
	exporters := []*exporter{newExporter(t, c, cls1), newExporter(t, c, cls2)}
	c.fault.Store(faults(seed))
	everSeen := map[string]bool{}
	for range steps {
		exporters[rnd.IntN(2)].step(rnd)
		for _, e := range exporters {
			for i := range stable {
				id := fmt.Sprint(e.identity.ClusterID, " ", i)
				seen := hasExport(t, watcher, e.identity.ClusterID, webKey(i))
				if everSeen[id] && !seen {
					t.Fatalf("the export %s went away, though nobody withdrew it", id)
				}
				everSeen[id] = seen
			}
		}
		time.Sleep(5 * time.Millisecond) // the scale of what is going on, not a wait for anything
	}
	c.fault.Store(nil)
	for _, e := range exporters {
		e.settle(watcher)
	}
	for _, e := range exporters {
		within(t, patience, "nothing is in the store that does not belong there", func() bool { return e.tidy(c) })
	}
}

func setting(t *testing.T, name string, standard uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func hasExport(t *testing.T, reg *Registry, clusterID string, key mcs.Key) bool {
	t.Helper()
	for _, exp := range look(t, reg, key).Exports {
		if exp.Cluster == clusterID {
			return true
		}
	}
	return false
}

// faults hurt one request in five.
func faults(seed uint64) *func(http.ResponseWriter, *http.Request) bool {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 2))
	fault := func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		dice := rnd.IntN(100)
		mu.Unlock()
		switch {
		case dice < 8:
			http.Error(w, "unavailable", http.StatusServiceUnavailable)
		case dice < 14:
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"__type":"ThrottlingException","message":"Rate exceeded"}`)
		case dice < 18:
			// Carried out, and nobody is told.
			r.Header.Set("X-Fault", "over")
			lost := httptest.NewRecorder()
			r.Context().Value(http.ServerContextKey).(*http.Server).Handler.ServeHTTP(lost, r)
			http.Error(w, "gateway timeout", http.StatusGatewayTimeout)
		case dice < 20 && r.Header.Get("X-Amz-Target") == "Route53AutoNaming_v20170314.RegisterInstance":
			// Accepted, and never carried out.
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, `{"OperationId":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-aaaaaaaa"}`)
		default:
			return false
		}
		return true
	}
	hurt := func(w http.ResponseWriter, r *http.Request) bool {
		return r.Header.Get("X-Fault") == "" && fault(w, r)
	}
	return &hurt
}

const (
	// stable keys are changed and never withdrawn; the others, up to all, are.
	stable = 8
	all    = 24
)

// exporter is a controller that forgets and comes back.
type exporter struct {
	t        *testing.T
	cloud    *cloud
	identity mcs.Identity
	reg      *Registry
	stop     func(error)
	// want is what the user wants, told what of it this life of the controller has passed on.
	want map[int]mcs.Export
	told map[int]bool
}

func newExporter(t *testing.T, c *cloud, identity mcs.Identity) *exporter {
	t.Helper()
	e := &exporter{t: t, cloud: c, identity: identity, want: map[int]mcs.Export{}}
	for i := range stable {
		e.want[i] = webExport(identity.ClusterID, i, 1)
	}
	e.start()
	return e
}

func (e *exporter) start() {
	e.reg, e.stop = running(e.t, e.cloud, e.identity)
	e.told = map[int]bool{}
}

// step does one thing that happens to a controller.
func (e *exporter) step(rnd *rand.Rand) {
	e.t.Helper()
	i := rnd.IntN(all)
	switch dice := rnd.IntN(100); {
	case dice < 2:
		e.stop(nil)
		e.start()
	case dice < 30 && i >= stable:
		delete(e.want, i)
	default:
		e.want[i] = webExport(e.identity.ClusterID, i, 1+rnd.IntN(30))
	}
	e.tell(i)
}

// tell passes on what the user wants of one key.
func (e *exporter) tell(i int) {
	e.t.Helper()
	e.told[i] = true
	if exp, ok := e.want[i]; ok {
		publish(e.t, e.reg, exp)
	} else if err := e.reg.Withdraw(e.t.Context(), webKey(i)); err != nil {
		e.t.Fatal(err)
	}
}

// settle passes on everything, and waits until it is so.
func (e *exporter) settle(watcher *Registry) {
	e.t.Helper()
	for i := range all {
		e.tell(i)
	}
	for i := range all {
		exp, wanted := e.want[i]
		within(e.t, 2*patience, fmt.Sprintf("%s's export %d is as wanted", e.identity.ClusterID, i), func() bool {
			state := look(e.t, e.reg, webKey(i)).Own.State
			if !wanted {
				return state == registry.Absent && !hasExport(e.t, watcher, e.identity.ClusterID, webKey(i))
			}
			return state == registry.Exported && sees(e.t, watcher, exp)()
		})
	}
}

// tidy says whether the catalog has the parts of the announced pages and nothing else.
func (e *exporter) tidy(c *cloud) bool {
	e.reg.mu.Lock()
	wanted := map[string]bool{}
	for i := range e.reg.outbox.pages {
		for part := range e.reg.outbox.pages[i].parts {
			wanted[partID(i, part)] = true
		}
	}
	e.reg.mu.Unlock()
	found := c.instances(e.t, "mcs.set1", catalogName(e.identity.ClusterID))
	for id := range found {
		if !wanted[id] {
			return false
		}
	}
	return len(found) == len(wanted)
}
