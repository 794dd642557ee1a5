package cloudmaplocal

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// began is the initial time of the tests' clocks.
var began = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// testServer is a server with an SDK client.
type testServer struct {
	t      testing.TB
	server *Server
	clock  *Clock
	url    string
	*sd.Client
}

// newTestServer starts a server with a manual clock. It does not throttle unless the options have
// limits.
func newTestServer(t testing.TB, opts Options) *testServer {
	t.Helper()
	w := &testServer{t: t, clock: NewClock(began)}
	if opts.Now == nil {
		opts.Now = w.clock.Now
	}
	opts.Unthrottled = opts.Limits == nil
	server, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	w.server = server
	listener := httptest.NewServer(server)
	t.Cleanup(func() {
		listener.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	w.url = listener.URL
	w.Client = w.client("us-east-1", "AKIDEXAMPLE", "secret")
	return w
}

// client returns a client of the AWS SDK. It does not retry, so that tests see every response.
func (w *testServer) client(region, keyID, secret string) *sd.Client {
	return sd.New(sd.Options{
		Region:           region,
		BaseEndpoint:     aws.String(w.url),
		Credentials:      staticCredentials{keyID, secret},
		RetryMaxAttempts: 1,
		HTTPClient:       &http.Client{Transport: plainBody{http.DefaultTransport}},
		APIOptions:       []func(*middlewareStack) error{disableHostPrefix},
	})
}

// plainBody hides that the SDK's request bodies can write themselves. If the answer arrives before
// net/http has released the body, such a body returns io.EOF, and net/http treats that as a failed
// request and closes the connection under the answer (aws-sdk-go-v2 #2737).
type plainBody struct{ next http.RoundTripper }

func (p plainBody) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Body = struct{ io.ReadCloser }{r.Body}
	return p.next.RoundTrip(r)
}

type staticCredentials struct{ id, secret string }

func (c staticCredentials) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: c.id, SecretAccessKey: c.secret}, nil
}

// namespace creates an HTTP namespace and returns its ID.
func (w *testServer) namespace(name string) string {
	w.t.Helper()
	out, err := w.CreateHttpNamespace(w.t.Context(), &sd.CreateHttpNamespaceInput{Name: &name})
	return w.operation(must(w.t, out, err).OperationId).Targets["NAMESPACE"]
}

func (w *testServer) operation(id *string) *types.Operation {
	w.t.Helper()
	out, err := w.GetOperation(w.t.Context(), &sd.GetOperationInput{OperationId: id})
	return must(w.t, out, err).Operation
}

// service creates a service and returns its ID.
func (w *testServer) service(namespace, name string) string {
	w.t.Helper()
	out, err := w.CreateService(w.t.Context(), &sd.CreateServiceInput{NamespaceId: &namespace, Name: &name})
	return *must(w.t, out, err).Service.Id
}

// register registers an instance and returns the operation's ID.
func (w *testServer) register(service, id string, attributes map[string]string) string {
	w.t.Helper()
	out, err := w.RegisterInstance(w.t.Context(), &sd.RegisterInstanceInput{ServiceId: &service, InstanceId: &id, Attributes: attributes})
	return *must(w.t, out, err).OperationId
}

func (w *testServer) deregister(service, id string) string {
	w.t.Helper()
	out, err := w.DeregisterInstance(w.t.Context(), &sd.DeregisterInstanceInput{ServiceId: &service, InstanceId: &id})
	return *must(w.t, out, err).OperationId
}

// discovered returns the instances that DiscoverInstances returns, by ID, and the revision.
func (w *testServer) discovered(namespace, service string) (map[string]types.HttpInstanceSummary, int64) {
	w.t.Helper()
	out, err := w.DiscoverInstances(w.t.Context(), &sd.DiscoverInstancesInput{
		NamespaceName: &namespace, ServiceName: &service, MaxResults: aws.Int32(1000), HealthStatus: types.HealthStatusFilterAll,
	})
	found := map[string]types.HttpInstanceSummary{}
	for _, inst := range must(w.t, out, err).Instances {
		found[*inst.InstanceId] = inst
	}
	return found, *out.InstancesRevision
}

func must[T any](t testing.TB, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// wantCode fails the test unless err is an API error of this code, ours or as the SDK read it.
func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	var answered smithy.APIError
	var ours *apiError
	if errors.As(err, &answered) && answered.ErrorCode() == code || errors.As(err, &ours) && ours.code == code {
		return
	}
	t.Fatalf("error = %v, want %s", err, code)
}

// wantStatus fails the test unless err has this HTTP status.
func wantStatus(t testing.TB, err error, status int) {
	t.Helper()
	var response *smithyhttp.ResponseError
	if !errors.As(err, &response) || response.HTTPStatusCode() != status {
		t.Fatalf("error = %v, want HTTP status %d", err, status)
	}
}

// numbered returns prefix-i.
func numbered(prefix string, i int) string { return prefix + "-" + strconv.Itoa(i) }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// sdkOperations returns the names of the operations of the SDK's client, sorted.
func sdkOperations() []string {
	var names []string
	for method := range reflect.TypeFor[*sd.Client]().Methods() {
		if method.Name != "Options" {
			names = append(names, method.Name)
		}
	}
	return slices.Sorted(slices.Values(names))
}
