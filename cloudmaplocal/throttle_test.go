package cloudmaplocal

import (
	"testing"
	"time"

	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
)

func TestThrottle(t *testing.T) {
	w := newTestServer(t, Options{Limits: map[string]Limit{
		"RegisterInstance": {PerSecond: 2, Burst: 3}, "DiscoverInstances": {PerSecond: 10, Burst: 1},
	}})
	svc := w.service(w.namespace("demo"), "svc")
	register := func() error {
		_, err := w.RegisterInstance(t.Context(), &sd.RegisterInstanceInput{ServiceId: &svc, InstanceId: new("a"), Attributes: map[string]string{}})
		return err
	}
	discover := func() error {
		_, err := w.DiscoverInstances(t.Context(), &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("svc")})
		return err
	}
	allowed := func(f func() error) int {
		for n := 0; ; n++ {
			if err := f(); err != nil {
				return n
			}
		}
	}
	if n := allowed(register); n != 3 {
		t.Errorf("a burst of %d registrations, want 3", n)
	}
	err := register()
	wantCode(t, err, "ThrottlingException")
	wantStatus(t, err, 400)
	if n := allowed(discover); n != 1 { // has a bucket of its own
		t.Errorf("a burst of %d discoveries, want 1", n)
	}
	err = discover()
	wantCode(t, err, "RequestLimitExceeded")
	wantStatus(t, err, 429)
	w.clock.Advance(time.Second)
	if n := allowed(register); n != 2 {
		t.Errorf("%d registrations a second later, want 2", n)
	}
	elsewhere := w.client("eu-west-1", "AKID", "s")
	_, err = elsewhere.RegisterInstance(t.Context(), &sd.RegisterInstanceInput{ServiceId: &svc, InstanceId: new("a"), Attributes: map[string]string{}})
	wantCode(t, err, "ServiceNotFound") // not throttled: each Region has its buckets
}

func TestDefaultLimits(t *testing.T) {
	clock := NewClock(began)
	limits := newThrottle(defaultLimits)
	for name, want := range map[string]int{
		"DiscoverInstances": 2000, "DiscoverInstancesRevision": 3000, "RegisterInstance": 100, "ListNamespaces": 5,
	} {
		n := 0
		for limits.admit(name, clock.Now()) == nil {
			n++
		}
		if n != want {
			t.Errorf("a burst of %d %s, want %d", n, name, want)
		}
	}
}
