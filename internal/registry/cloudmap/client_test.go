package cloudmap

import (
	"fmt"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// TestEndpointFromEnvironment is the endpoint set by AWS's own variable: requests must not go to
// data-127.0.0.1.
func TestEndpointFromEnvironment(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	t.Setenv("AWS_ENDPOINT_URL", c.url)
	t.Setenv("AWS_REGION", "us-east-1")
	client, err := api.NewClient(t.Context(), api.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.DiscoverInstances(t.Context(), "nowhere", "nothing", nil); !api.IsNotFound(err) {
		t.Errorf("error %v, want that there is no such namespace", err)
	}
}

// TestDuplicateRequest writes one instance many times at once, which AWS refuses for all but one.
func TestDuplicateRequest(t *testing.T) {
	slow := startCloud(t, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.Behaviors{OperationDelay: cloudmaplocal.Duration(50 * time.Millisecond)}})
	createForeign(t, slow, "demo", "web")
	s, ok := slow.service(t, "demo", "web")
	if !ok {
		t.Fatal("no service")
	}
	errs := make(chan error)
	for i := range 4 {
		go func() {
			_, err := slow.client.RegisterInstance(t.Context(), s.ID, api.Instance{ID: "one", Attributes: map[string]string{"I": fmt.Sprint(i)}})
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
	if err := slow.client.DeregisterInstance(t.Context(), s.ID, "one"); err != nil {
		t.Error(err)
	}
	within(t, 5*time.Second, "the instance is gone", func() bool { return len(slow.instances(t, "demo", "web")) == 0 })
	if err := slow.client.DeregisterInstance(t.Context(), s.ID, "one"); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}
