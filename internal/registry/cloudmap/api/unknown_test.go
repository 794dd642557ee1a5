package api

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// refuser answers every request with an error code and a request ID that grows.
type refuser struct {
	code string
	n    int
}

func (r *refuser) Do(*http.Request) (*http.Response, error) {
	r.n++
	return &http.Response{
		StatusCode: http.StatusBadRequest,
		Header:     http.Header{"X-Amzn-Errortype": {r.code}, "X-Amzn-Requestid": {fmt.Sprint("id-", r.n)}},
		Body:       io.NopCloser(strings.NewReader(`{"message":"no\nsecret"}`)),
	}, nil
}

// TestUnknownCode: the first answer with a code that is in no table is logged, and its request ID
// is in the text of each error with this code. Known codes have no request ID in their text.
func TestUnknownCode(t *testing.T) {
	var lines []string
	server := &refuser{code: "QuantumFlux"}
	client, err := NewClient(t.Context(), Config{
		Region: "eu-central-1", HTTPClient: server, Credentials: access,
		Logger: funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	list := func() error {
		client.limiters["ListNamespaces"] = newRateLimiter(Rate{1, 1}, func(float64) {})
		_, err := client.ListNamespaces(t.Context())
		return err
	}
	for range 3 {
		err := list()
		if text := err.Error(); ResultOf(err) != ResultUnknown || !strings.Contains(text, "QuantumFlux: no (this version does not know the error code; "+docs.URL("aws-behavior.md")) ||
			!strings.Contains(text, "request id-1)") {
			t.Errorf("result %s, error %q; want unknown, the pointer and the first request ID", ResultOf(err), text)
		}
	}
	if len(lines) != 1 || !strings.Contains(lines[0], `"operation"="ListNamespaces" "code"="QuantumFlux" "message"="no" "id"="id-1"`) {
		t.Errorf("logged %q, want one line with the request", lines)
	}
	if _, err := client.InstancesRevision(t.Context(), "a", "b"); !strings.Contains(fmt.Sprint(err), "request id-4)") || len(lines) != 2 {
		t.Errorf("another operation: error %v, logged %q; want its own ID and line", err, lines)
	}
	for server.code = range results {
		if err := list(); strings.Contains(err.Error(), "request id-") || len(lines) != 2 {
			t.Errorf("%s: error %q, logged %q; want no request ID and no line", server.code, err, lines)
		}
	}
	for i := range 2 * maxUnknown {
		server.code = fmt.Sprint("Code", i)
		_ = list()
	}
	if len(lines) != maxUnknown {
		t.Errorf("%d lines, want %d", len(lines), maxUnknown)
	}
}

// TestMustSlowDown: the rate of an operation falls after an unknown error code as after throttling.
func TestMustSlowDown(t *testing.T) {
	for result, want := range map[string]float64{ResultThrottled: 50, ResultUnknown: 50, ResultError: 100, ResultDenied: 100} {
		var rate float64
		l := newRateLimiter(Rate{100, 1}, func(perSecond float64) { rate = perSecond })
		if l.observe(time.Now(), result); rate != want {
			t.Errorf("%s: %v requests a second, want %v", result, rate, want)
		}
	}
}
