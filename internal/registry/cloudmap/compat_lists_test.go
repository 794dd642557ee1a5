package cloudmap

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/aws/smithy-go"
	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

func TestCompatListsDone(t *testing.T) {
	throttled := &smithy.GenericAPIError{Code: "ThrottlingException"}
	now := time.Unix(1_790_000_000, 0)
	tests := map[string]struct {
		every     time.Duration
		throttled bool
		err       error
		wait      time.Duration // on average
		next      time.Duration // the time between two lists from now on
	}{
		"the first":                     {0, false, nil, time.Minute, time.Minute},
		"all is well":                   {time.Minute, false, nil, time.Minute, time.Minute},
		"throttled, and successful":     {time.Minute, true, nil, 2 * time.Minute, 2 * time.Minute},
		"throttled, and given up":       {4 * time.Minute, true, throttled, 8 * time.Minute, 8 * time.Minute},
		"the first is throttled":        {0, true, throttled, time.Minute, time.Minute},
		"not more seldom than that":     {45 * time.Minute, true, nil, time.Hour, time.Hour},
		"not throttled any more":        {8 * time.Minute, false, nil, 7 * time.Minute, 7 * time.Minute},
		"not more often than that":      {65 * time.Second, false, nil, time.Minute, time.Minute},
		"a failure is tried again soon": {8 * time.Minute, false, errors.New("broken"), 30 * time.Second, 8 * time.Minute},
		"the first fails":               {0, false, errors.New("broken"), 30 * time.Second, time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			earliest, latest := 1000*time.Hour, time.Duration(0)
			for range 1000 {
				l := compatLists{every: tc.every, throttled: tc.throttled, complete: tc.every > 0}
				l.done(now, time.Minute, tc.err)
				if l.every != tc.next || l.throttled {
					t.Fatalf("lists every %v from now on, throttled %v; want %v and false", l.every, l.throttled, tc.next)
				}
				wait := l.at.Sub(now)
				earliest, latest = min(earliest, wait), max(latest, wait)
			}
			if earliest < tc.wait/2 || earliest > tc.wait*3/4 || latest < tc.wait*5/4 || latest > tc.wait*3/2 {
				t.Errorf("lists again after %v to %v, want %v to %v", earliest, latest, tc.wait/2, tc.wait*3/2)
			}
		})
	}
}

// TestCompatFleet has a hundred clusters with the compatibility import in one account, which lists all namespaces and services out of one
// quota: they find a pace at which a cluster that has to list to join is not kept waiting.
func TestCompatFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	const clusters, namespaces = 100, 10
	virtually(t, cloudmaplocal.Options{}, func(t *testing.T, a *account) {
		f := newFleet()
		client := func(name string) *api.Client {
			c, err := api.NewClient(t.Context(), api.Config{Region: "us-east-1", Endpoint: "http://cloudmap.test", Rates: CompatRates(), HTTPClient: guarded{a, f, name}})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		admin := client("admin")
		for i := range namespaces {
			in, err := admin.CreateNamespace(t.Context(), fmt.Sprint("demo-", i), cls1, api.PartView)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := admin.CreateService(t.Context(), in, "web", cls1, api.PartView); err != nil {
				t.Fatal(err)
			}
		}
		all := make([]*Compat, clusters)
		for i := range all {
			all[i] = NewCompat(client(fmt.Sprint(i)), CompatConfig{Identity: testIdentity(fmt.Sprint("cls", i)), Logger: logr.Discard()})
			start(t, all[i])
		}
		listed := func() bool {
			for _, c := range all {
				if _, err := c.Members(t.Context()); err != nil {
					return false
				}
			}
			return true
		}
		// 1,100 lists, 1,000 of them of services at two a second for all.
		took := await(t, 30*time.Minute, "every cluster has listed once", listed)
		t.Logf("all have listed once after %v: %v, of which throttled %v", took.Round(time.Second), f.calls, f.throttled)
		time.Sleep(15 * time.Minute)
		f.reset()
		time.Sleep(15 * time.Minute)
		for _, operation := range []string{"ListNamespaces", "ListServices"} {
			calls, throttled := f.calls[operation], f.throttled[operation]
			t.Logf("%s: %.2f a second, %d of %d throttled", operation, float64(calls)/(15*time.Minute).Seconds(), throttled, calls)
			if throttled > calls/5 {
				t.Errorf("%s: %d of %d requests of %d clusters are throttled, want one in five at most", operation, throttled, calls, clusters)
			}
		}
		joins := a.registry(t, a.standard(1))
		exp := webExport("cls1", 0, 1)
		publish(t, joins, exp)
		start(t, joins)
		took = await(t, time.Minute, "a cluster has joined", isExported(t, joins, exp.Key))
		t.Logf("a cluster joins within %v", took.Round(time.Second))
	})
}
