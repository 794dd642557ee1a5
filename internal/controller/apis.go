package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
)

// newScheme knows what the controller reads and writes, the MCS API under the version that is served.
func newScheme(mcsVersion schema.GroupVersion) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	served.AddMCS(scheme, mcsVersion)
	return scheme, nil
}

const (
	// apiRetry is how soon a missing API is looked for again: soon after "kubectl apply" of its CRD, for one request a second.
	apiRetry = time.Second
	// apiReminder is how often a missing API is mentioned in the log.
	apiReminder = time.Minute
)

// waitForMCS returns the served version of the MCS API, as soon as there is one. Until then the controller is alive and
// not ready: it answers the probes at probes and tells the log what is missing, instead of crashing over and over.
func waitForMCS(ctx context.Context, d discovery.DiscoveryInterface, probes string, log logr.Logger) (schema.GroupVersion, error) {
	var reminded time.Time
	var server *http.Server
	defer func() {
		if server != nil {
			_ = server.Close()
		}
	}()
	for {
		gv, ok, err := served.MCS(d)
		if ok {
			return gv, nil
		}
		if server == nil {
			server = serveNotReady(probes, log)
		}
		if time.Since(reminded) > apiReminder {
			reminded = time.Now()
			if err != nil {
				log.Error(err, "Waiting for the Kubernetes API server")
			} else {
				log.Info("Waiting for the CRDs of the Multi-Cluster Services API: install ServiceExport and ServiceImport of " +
					mcsv1beta1.GroupName + ", with their subresource status (deploy/crds)")
			}
		}
		select {
		case <-ctx.Done():
			return schema.GroupVersion{}, ctx.Err()
		case <-time.After(apiRetry):
		}
	}
}

// serveNotReady answers the probes before the manager can.
func serveNotReady(address string, log logr.Logger) *http.Server {
	if address == "" || address == "0" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the CRDs of "+mcsv1beta1.GroupName+" are not installed", http.StatusServiceUnavailable)
	})
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Error(err, "Serving the probes", "address", address)
		}
	}()
	return server
}
