package cloudmap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func TestResults(t *testing.T) {
	tests := map[string]struct {
		err      error
		want     string
		wantText string
	}{
		"throttled, control plane": {&smithy.GenericAPIError{Code: "ThrottlingException", Message: "Rate exceeded"}, resultThrottled, "tried again"},
		"throttled, data plane":    {&types.RequestLimitExceeded{}, resultThrottled, "tried again"},
		"denied":                   {&smithy.GenericAPIError{Code: "AccessDeniedException", Message: "no"}, resultDenied, "servicediscovery:RegisterInstance"},
		"expired":                  {&smithy.GenericAPIError{Code: "ExpiredTokenException"}, resultDenied, "credentials"},
		"not found":                {&types.ServiceNotFound{}, resultNotFound, "ServiceNotFound"},
		"in use":                   {&types.ResourceInUse{}, resultConflict, "ResourceInUse"},
		"quota":                    {&types.ResourceLimitExceeded{}, resultInvalid, "Service Quotas"},
		"canceled":                 {fmt.Errorf("sending: %w", context.Canceled), resultCanceled, "canceled"},
		"network":                  {&net.OpError{Op: "dial", Addr: &net.TCPAddr{Port: 1}, Err: errors.New("refused")}, resultError, "dial :1: refused"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := newRequestError("RegisterInstance", &smithy.OperationError{ServiceID: "ServiceDiscovery", OperationName: "RegisterInstance", Err: tc.err})
			if err.result != tc.want || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("result %s, text %q; want %s and a text with %q", err.result, err, tc.want, tc.wantText)
			}
		})
	}
}

func TestNewClientRefuses(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	if _, err := NewClient(t.Context(), ClientConfig{}); err == nil || !strings.Contains(err.Error(), "--aws-region") {
		t.Errorf("without a Region: error %v, want one that names the flag", err)
	}
	if _, err := NewClient(t.Context(), ClientConfig{Region: "us-east-1", Rates: map[string]Rate{"RegisterInstance": {}}}); err == nil {
		t.Error("a rate of 0 was accepted")
	}
	_, err := NewClient(t.Context(), ClientConfig{Region: "us-east-1", Rates: map[string]Rate{"RegisterInstances": {1, 1}}})
	if err == nil || !strings.Contains(err.Error(), "DiscoverInstances,") {
		t.Errorf("the rate of an unknown operation: error %v, want one with those that there are", err)
	}
}

// TestEndpointFromEnvironment is the endpoint set by AWS's own variable: requests must not go to data-127.0.0.1.
func TestEndpointFromEnvironment(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	t.Setenv("AWS_ENDPOINT_URL", c.url)
	t.Setenv("AWS_REGION", "us-east-1")
	client, err := NewClient(t.Context(), ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.discover(t.Context(), "nowhere", "nothing", nil); !isNotFound(err) {
		t.Errorf("error %v, want that there is no such namespace", err)
	}
}

// TestDuplicateRequest writes one instance many times at once, which AWS refuses for all but one.
func TestDuplicateRequest(t *testing.T) {
	slow := startCloud(t, cloudmaplocal.Options{Unthrottled: true, OperationDelay: 50 * time.Millisecond})
	createForeign(t, slow, "demo", "web")
	s, ok := slow.service(t, "demo", "web")
	if !ok {
		t.Fatal("no service")
	}
	errs := make(chan error)
	for i := range 4 {
		go func() {
			_, err := slow.client.register(t.Context(), s.id, plan.Instance{ID: "one", Attributes: map[string]string{"I": fmt.Sprint(i)}})
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if slow.requests("GetOperation") == 0 {
		t.Error("no request was a duplicate: the test proves nothing")
	}
	if err := slow.client.deregister(t.Context(), s.id, "one"); err != nil {
		t.Error(err)
	}
	within(t, 5*time.Second, "the instance is gone", func() bool { return len(slow.instances(t, "demo", "web")) == 0 })
	if err := slow.client.deregister(t.Context(), s.id, "one"); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}

func TestPaceAdapts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limit float64
		p := newPace(Rate{PerSecond: 64, Burst: 128}, func(perSecond float64) { limit = perSecond })
		if limit != 64 {
			t.Fatalf("a new pace is %v a second, want 64", limit)
		}
		p.done(time.Now(), resultThrottled)
		p.done(time.Now(), resultThrottled) // was under way already
		if limit != 32 {
			t.Errorf("throttled once: %v a second, want 32", limit)
		}
		for range 100 {
			time.Sleep(time.Second)
			p.done(time.Now(), resultThrottled)
		}
		if limit != slowest {
			t.Errorf("throttled for ever: %v a second, want one in 20 s", limit)
		}
		for range 46 {
			time.Sleep(time.Second)
			p.done(time.Now(), resultOK)
		}
		if limit < 55 || limit >= 64 {
			t.Errorf("let through for 46 s: %v a second, want nearly 64", limit)
		}
		for range 10 {
			time.Sleep(time.Second)
			p.done(time.Now(), resultOK)
		}
		p.done(time.Now(), resultError)
		if limit != 64 || p.limiter.Burst() != 128 {
			t.Errorf("let through for a minute: %v a second with a burst of %d, want 64 and 128", limit, p.limiter.Burst())
		}
	})
}

// TestPatience has many patient callers before one that is not: it does not wait for them.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(Rate{PerSecond: 10, Burst: 20}, func(float64) {})
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			go func() {
				for p.wait(ctx, classInstances) == nil {
				}
			}()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		began := time.Now()
		for range 15 {
			if err := p.wait(t.Context(), classPages); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("15 requests waited %v behind patient ones", took)
		}
		cancel()
		synctest.Wait()
	})
}

// TestPriority has one caller of each class wait: the record goes first, then pages, then the instance view.
func TestPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(Rate{PerSecond: 1, Burst: 1}, func(float64) {})
		if err := p.wait(t.Context(), classPages); err != nil {
			t.Fatal(err)
		}
		if err := p.wait(t.Context(), classMembers); err != nil { // has not gone out for long
			t.Fatal(err)
		}
		order := make(chan class, classes)
		for c := classInstances; c >= classMembers; c-- {
			go func() {
				if p.wait(t.Context(), c) == nil {
					order <- c
				}
			}()
			synctest.Wait()
		}
		for want := classMembers; want < classes; want++ {
			if got := <-order; got != want {
				t.Errorf("class %d went before class %d", got, want)
			}
		}
	})
}

// TestRecordsAlwaysGoOut throttles everything: pages go out once in 20 s, the record once in 10 s.
func TestRecordsAlwaysGoOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(Rate{PerSecond: 50, Burst: 100}, func(float64) {})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var sent [classes]int
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				for p.wait(ctx, classPages) == nil {
					sent[classPages]++
					p.done(time.Now(), resultThrottled)
					time.Sleep(time.Millisecond)
				}
			})
		}
		callers.Go(func() {
			for p.wait(ctx, classMembers) == nil {
				sent[classMembers]++
				p.done(time.Now(), resultThrottled)
				time.Sleep(time.Millisecond)
			}
		})
		callers.Wait()
		if got := sent[classMembers]; got < 55 || got > 100 {
			t.Errorf("the record went out %d times in ten minutes, want 60 and its share of the rest", got)
		}
		if got := sent[classPages]; got > 250 {
			t.Errorf("pages went out %d times in ten minutes of being throttled", got)
		}
	})
}

// TestAbandonedWait has those who stand in line give up: the others get their tokens.
func TestAbandonedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(Rate{PerSecond: 1, Burst: 1}, func(float64) {})
		ctx, cancel := context.WithCancel(t.Context())
		for range 10 {
			go func() { _ = p.wait(ctx, classPages) }()
		}
		synctest.Wait()
		last := make(chan error)
		go func() { last <- p.wait(t.Context(), classPages) }()
		synctest.Wait()
		began := time.Now()
		cancel()
		if err := <-last; err != nil || time.Since(began) > time.Second {
			t.Errorf("error %v after %v, want a token within a second", err, time.Since(began))
		}
	})
}
