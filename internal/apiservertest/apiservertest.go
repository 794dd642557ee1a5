// Package apiservertest starts Kubernetes API servers, each with an etcd of its own, for tests.
package apiservertest

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// NeedAssets skips a test that needs an API server if there is none, or fails it if REQUIRE_ENVTEST
// is set.
func NeedAssets(t *testing.T) {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") != "" {
		if err := testprocess.EndChildren(); err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Getenv("REQUIRE_ENVTEST") != "" {
		t.Fatal(`KUBEBUILDER_ASSETS is not set: run with KUBEBUILDER_ASSETS="$(bin/testbed assets)"`)
	}
	t.Skip(`needs an API server: run with KUBEBUILDER_ASSETS="$(bin/testbed assets)"`)
}

// startTimeout is the time limit of each start of a program. An API server starts within 5 s,
// within a minute on a busy machine.
const startTimeout = 3 * time.Minute

// Start starts the API server of env and its etcd. The caller stops env. If Start returns an error,
// the error contains the last lines that the API server printed, and nothing runs.
//
// envtest would choose ports from which outgoing connections take theirs, and all its attempts use
// the same one. The port between etcd's members stays its choice: it chooses another one for each
// attempt.
func Start(env *envtest.Environment) (*rest.Config, error) {
	etcdPort, err := testprocess.FreePort()
	if err != nil {
		return nil, err
	}
	port, err := testprocess.FreePort()
	if err != nil {
		return nil, err
	}
	env.ControlPlaneStartTimeout = startTimeout
	env.ControlPlane.Etcd = &envtest.Etcd{URL: &url.URL{Scheme: "http", Host: "127.0.0.1:" + etcdPort}}
	server := env.ControlPlane.GetAPIServer()
	server.Address, server.Port = "127.0.0.1", port
	output := &tail{}
	server.Err = output
	cfg, err := env.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting an API server on port %s with etcd on port %s: %w; it printed: %s", port, etcdPort, err, output), env.Stop())
	}
	return cfg, nil
}

// tail keeps the end of the output that is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

// tailBytes is the length of the end: some ten lines of a log.
const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	if n := len(t.end) - tailBytes; n > 0 {
		t.end = bytes.Clone(t.end[n:])
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
