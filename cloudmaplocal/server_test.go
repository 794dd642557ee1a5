package cloudmaplocal

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
)

// post sends a request as it is and gives the status and the body.
func (w *testServer) post(operation, body string, header map[string]string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url, strings.NewReader(body))
	must(w.t, r, err).Header.Set("X-Amz-Target", targetPrefix+operation)
	for name, value := range header {
		r.Header.Set(name, value)
	}
	return w.do(r)
}

func (w *testServer) do(r *http.Request) (int, string) {
	w.t.Helper()
	response, err := http.DefaultClient.Do(r)
	raw, err := io.ReadAll(must(w.t, response, err).Body)
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode, string(must(w.t, raw, err))
}

func (w *testServer) get(path string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, nil)
	return w.do(must(w.t, r, err))
}

func TestProtocolErrors(t *testing.T) {
	w := newTestServer(t, Options{})
	tests := []struct {
		name, operation, body string
		wantStatus            int
		wantCode              string
	}{
		{"unknown operation", "Dance", "{}", 400, "UnknownOperationException"},
		{"no JSON", "ListNamespaces", "hello", 400, "SerializationException"},
		{"another type", "ListNamespaces", `{"MaxResults":"many"}`, 400, "SerializationException"},
		{"a list", "ListNamespaces", `[]`, 400, "SerializationException"},
		{"too large", "ListNamespaces", `"` + strings.Repeat("x", maxBody) + `"`, 413, "RequestEntityTooLargeException"},
		{"nothing at all", "CreateHttpNamespace", "", 400, "InvalidInput"},
		{"null", "RegisterInstance", "null", 400, "InvalidInput"},
		{"unknown member", "ListNamespaces", `{"Nothing":1}`, 200, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, body := w.post(tt.operation, tt.body, nil)
			var answer map[string]any
			if err := json.Unmarshal([]byte(body), &answer); err != nil {
				t.Fatal(err)
			}
			code, _ := answer["__type"].(string)
			if status != tt.wantStatus || code != tt.wantCode {
				t.Errorf("%d %s, want %d %s", status, body, tt.wantStatus, tt.wantCode)
			}
			if message, _ := answer["message"].(string); code != "" && message == "" {
				t.Error("an error without message")
			}
		})
	}
}

func TestHealthzAndMetrics(t *testing.T) {
	w := newTestServer(t, Options{})
	svc := w.service(w.namespace("demo"), "svc")
	w.register(svc, "a", map[string]string{})
	w.register(svc, "b", map[string]string{})
	w.post("Dance", "{}", nil)
	_, err := w.GetService(t.Context(), &sd.GetServiceInput{Id: new("srv-x")})
	wantCode(t, err, "ServiceNotFound")
	if status, body := w.get("/healthz"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: %d %q", status, body)
	}
	_, body := w.get("/metrics")
	for _, want := range []string{
		`cloudmap_local_requests_total{operation="RegisterInstance",result="ok"} 2`,
		`cloudmap_local_requests_total{operation="GetService",result="ServiceNotFound"} 1`,
		`cloudmap_local_requests_total{operation="unknown",result="UnknownOperationException"} 1`,
		"cloudmap_local_namespaces 1", "cloudmap_local_services 1", "cloudmap_local_instances 2", "cloudmap_local_operations_in_flight 0",
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("/metrics lacks %s:\n%s", want, body)
		}
	}
	if n := w.server.Requests()["RegisterInstance"]; n != 2 {
		t.Errorf("Requests counts %d registrations, want 2", n)
	}
	if status, _ := w.get("/"); status != http.StatusMethodNotAllowed && status != http.StatusNotFound {
		t.Errorf("GET /: %d", status)
	}
}

// TestAsItsOwnProxy: tools that always add the host prefix data- use the server as their HTTP
// proxy, with absolute request URLs.
func TestAsItsOwnProxy(t *testing.T) {
	w := newTestServer(t, Options{})
	svc := w.service(w.namespace("demo"), "svc")
	w.register(svc, "a", map[string]string{})
	proxy, err := url.Parse(w.url)
	must(t, proxy, err)
	c := sd.New(sd.Options{
		Region: "us-east-1", Credentials: staticCredentials{"A", "s"}, BaseEndpoint: aws.String(w.url), RetryMaxAttempts: 1,
		HTTPClient: &http.Client{Transport: plainBody{&http.Transport{Proxy: http.ProxyURL(proxy)}}},
	})
	out, err := c.DiscoverInstances(t.Context(), &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("svc")})
	assertEqual(t, 1, len(must(t, out, err).Instances))
}

func TestAbsoluteForm(t *testing.T) {
	w := newTestServer(t, Options{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	must(t, conn, err)
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "POST http://data-anything/ HTTP/1.1\r\nHost: data-anything\r\nX-Amz-Target: %sListNamespaces\r\nContent-Length: 2\r\n\r\n{}", targetPrefix)
	response, readErr := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, response, readErr)
	defer func() { _ = response.Body.Close() }()
	if err != nil || response.StatusCode != http.StatusOK || response.Header.Get("X-Amzn-Requestid") == "" {
		t.Errorf("answer = %v, %v", response, err)
	}
}
