package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
)

// AddProbes makes mgr answer the probes: healthy while it runs, and ready once its caches are
// filled, whether or not it leads. The registry does not matter: a restart resolves no problem with
// it.
func AddProbes(mgr manager.Manager, serving config.Serving) error {
	synced := &cacheSynced{cache: mgr.GetCache()}
	if err := mgr.Add(synced); err != nil {
		return fmt.Errorf("setting up readiness: %w", err)
	}
	if serving.Probes == "" || serving.Probes == "0" {
		return nil
	}
	mux := http.NewServeMux()
	for path, checks := range map[string]map[string]healthz.Checker{"/healthz": {"ping": healthz.Ping}, "/readyz": {"caches": synced.check}} {
		handler := http.StripPrefix(path, &healthz.Handler{Checks: checks})
		mux.Handle(path, handler)
		mux.Handle(path+"/", handler)
	}
	listener, err := listen(serving.Probes, maxProbeConnections)
	if err != nil {
		return fmt.Errorf("listening on --health-probe-bind-address=%s: %w", serving.Probes, err)
	}
	return mgr.Add(newServer("health probe", mux, listener))
}

// cacheSynced waits for the caches of all objects that the controllers watch.
type cacheSynced struct {
	cache  cache.Cache
	synced atomic.Bool
}

// Start implements manager.Runnable.
func (s *cacheSynced) Start(ctx context.Context) error {
	for _, obj := range []client.Object{
		&mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceImport{}, &corev1.Service{}, &discoveryv1.EndpointSlice{}, kube.NamespaceMetadata(),
	} {
		if _, err := s.cache.GetInformer(ctx, obj); err != nil && ctx.Err() == nil {
			return fmt.Errorf("filling the cache of %T: %w", obj, err)
		}
	}
	s.synced.Store(ctx.Err() == nil)
	<-ctx.Done()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: standby replicas are ready too.
func (s *cacheSynced) NeedLeaderElection() bool { return false }

func (s *cacheSynced) check(*http.Request) error {
	if !s.synced.Load() {
		return errors.New("the caches of the Kubernetes objects are not filled yet")
	}
	return nil
}

// NotReady answers the probes at address as healthy and not ready, before there is a manager. It
// returns nil if the probes are off.
func NotReady(address, reason string, log logr.Logger) *http.Server {
	if address == "" || address == "0" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, reason, http.StatusServiceUnavailable)
	})
	server := newHTTPServer(mux)
	go func() {
		listener, err := listen(address, maxProbeConnections)
		if err == nil {
			err = server.Serve(listener)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			log.Error(err, "Failed to serve the probes", "address", address)
		}
	}()
	return server
}
