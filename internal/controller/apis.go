package controller

import (
	"context"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/serve"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
)

const (
	// apiRetry is the interval at which a missing API is looked for: soon after "kubectl apply" of
	// its CRD, at the cost of one request a second.
	apiRetry = time.Second
	// apiReminder is the interval at which a missing API is logged.
	apiReminder = time.Minute
)

// waitForMCS returns the served version of the MCS API as soon as there is one. Until then the
// controller is healthy but not ready: it answers the probes at probes and logs what is missing,
// instead of restarting over and over.
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
			server = serve.NotReady(probes, "the CRDs of "+mcsv1beta1.GroupName+" are not installed", log)
		}
		if time.Since(reminded) > apiReminder {
			reminded = time.Now()
			if err != nil {
				log.Error(err, "Failed to read the APIs of the Kubernetes API server, retrying")
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
