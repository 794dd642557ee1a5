package legacy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// cloud is a local Cloud Map with faults.
type cloud struct {
	server *cloudmaplocal.Server
	url    string
	// client is the test's own client.
	client *api.Client
	// isDown makes every request fail.
	isDown atomic.Bool
	// fault, if set, may answer a request instead of the server.
	fault atomic.Pointer[func(w http.ResponseWriter, r *http.Request) (answered bool)]
}

// ServeHTTP implements http.Handler.
func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.isDown.Load() {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	if fault := c.fault.Load(); fault != nil && (*fault)(w, r) {
		return
	}
	c.server.ServeHTTP(w, r)
}

// startCloud runs a local Cloud Map until the test ends.
func startCloud(t *testing.T, options cloudmaplocal.Options) *cloud {
	t.Helper()
	server, err := cloudmaplocal.New(options)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{server: server}
	listener := httptest.NewServer(c)
	t.Cleanup(listener.Close)
	c.url = listener.URL
	c.client = c.newClient(t)
	return c
}

func (c *cloud) newClient(t *testing.T) *api.Client {
	t.Helper()
	rates := map[string]api.Rate{}
	for operation := range api.DefaultRates() {
		rates[operation] = api.Rate{PerSecond: 1e6, Burst: 1e6}
	}
	client, err := api.NewClient(t.Context(), api.Config{
		Region: "us-east-1", Endpoint: c.url, Rates: rates, Credentials: credentials.NewStaticCredentialsProvider("test", "secret", ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// createService creates a namespace and services in it.
func (c *cloud) createService(t *testing.T, namespaceName string, serviceNames ...string) {
	t.Helper()
	sdk := servicediscovery.New(servicediscovery.Options{
		BaseEndpoint: aws.String(c.url), Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("test", "secret", ""),
	})
	out, err := sdk.CreateHttpNamespace(t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: aws.String(namespaceName)})
	if err != nil {
		t.Fatal(err)
	}
	targets, err := c.client.AwaitOperation(t.Context(), aws.ToString(out.OperationId))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range serviceNames {
		in := &servicediscovery.CreateServiceInput{Name: aws.String(name), NamespaceId: aws.String(targets["NAMESPACE"])}
		if _, err := sdk.CreateService(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
}

// service returns a service, which must exist.
func (c *cloud) service(t *testing.T, namespaceName, serviceName string) api.Service {
	t.Helper()
	namespaces, err := c.client.ListNamespaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	services, err := c.client.ListServices(t.Context(), namespaces[namespaceName])
	if err != nil {
		t.Fatal(err)
	}
	s, ok := services[serviceName]
	if !ok {
		t.Fatalf("there is no service %s in %s", serviceName, namespaceName)
	}
	return s
}

// register registers instances in a service.
func (c *cloud) register(t *testing.T, s api.Service, list ...api.Instance) {
	t.Helper()
	for _, i := range list {
		operation, err := c.client.RegisterInstance(t.Context(), s.ID, i)
		if err == nil {
			_, err = c.client.AwaitOperation(t.Context(), operation)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// legacyInstances returns the instances that the legacy controller writes for exp.
func legacyInstances(exp mcs.Export) []api.Instance {
	list := instances.FromExport(exp, "set1", "")
	for _, i := range list {
		i.Attributes[instances.AttrController] = ControllerName + " 0.3.1 (887737e)"
	}
	return list
}

// exportOfSize returns an export with n endpoints.
func exportOfSize(cluster string, n int) mcs.Export {
	exp := webExport(cluster)
	address := netip.MustParseAddr("10.10.0.1")
	for range n {
		exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, mcs.Endpoint{Address: address, Ready: true, Serving: true})
		address = address.Next()
	}
	return exp
}

// within waits for a condition.
func within(t *testing.T, timeout time.Duration, what string, met func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for !met() {
		select {
		case <-ctx.Done():
			t.Fatal(fmt.Errorf("not within %v: %s", timeout, what))
		case <-time.After(5 * time.Millisecond):
		}
	}
}
