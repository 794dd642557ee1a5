package serve

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

const (
	// maxScrapes is the number of concurrent requests of authorized clients to the metrics
	// endpoint. Two replicas of Prometheus need two.
	maxScrapes = 16
	// Each token that is not cached costs the API server a TokenReview. A pod that sends random
	// tokens must not spend the requests that the controller needs (--kube-api-qps). A request
	// waits for at most maxMetricsConnections reviews of each other address.
	reviewsPerSecond = 5
	reviewBurst      = 10
)

// AddMetrics makes mgr serve the metrics: over HTTPS, to clients that may get /metrics by the
// cluster's RBAC, unless the settings disable it. The server of controller-runtime would buffer a
// mebibyte of headers for each connection.
func AddMetrics(mgr manager.Manager, serving config.Serving, log logr.Logger) error {
	if serving.Metrics == "0" {
		return nil
	}
	handler := promhttp.HandlerFor(ctrlmetrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	var tlsConfig *tls.Config
	if serving.MetricsSecure {
		var err error
		if tlsConfig, err = newTLSConfig(mgr, serving.MetricsCertDir); err != nil {
			return err
		}
		if handler, err = authorizeScrapes(mgr.GetConfig(), mgr.GetHTTPClient(), log, handler); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	listener, err := listen(serving.Metrics, maxMetricsConnections)
	if err != nil {
		return fmt.Errorf("listening on --metrics-bind-address=%s: %w", serving.Metrics, err)
	}
	if tlsConfig != nil {
		listener = tls.NewListener(listener, tlsConfig)
	}
	return mgr.Add(newServer("metrics", mux, listener))
}

// newTLSConfig returns the configuration of the metrics server, with the certificate in dir, which
// mgr reads again when it changes, or a self-signed one. HTTP/2 is left out: it has attacks with
// many streams in one connection, such as CVE-2023-44487.
func newTLSConfig(mgr manager.Manager, dir string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if dir == "" {
		certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
		if err != nil {
			return nil, fmt.Errorf("creating a certificate for the metrics: %w", err)
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("creating a certificate for the metrics: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
		return c, nil
	}
	watcher, err := certwatcher.New(filepath.Join(dir, corev1.TLSCertKey), filepath.Join(dir, corev1.TLSPrivateKeyKey))
	if err != nil {
		return nil, fmt.Errorf("reading the certificate in --metrics-cert-dir=%s: %w", dir, err)
	}
	c.GetCertificate = watcher.GetCertificate
	return c, mgr.Add(watcher)
}

// authorizeScrapes returns a handler that authenticates clients and authorizes them to get
// /metrics, both by requests to the API server.
func authorizeScrapes(cfg *rest.Config, httpClient *http.Client, log logr.Logger, handler http.Handler) (http.Handler, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst, cfg.RateLimiter = reviewsPerSecond, reviewBurst, nil
	authorize, err := filters.WithAuthenticationAndAuthorization(cfg, httpClient)
	if err != nil {
		return nil, err
	}
	return authorize(log, limitConcurrency(handler, maxScrapes))
}

// limitConcurrency refuses requests while next handles limit others.
func limitConcurrency(next http.Handler, limit int) http.Handler {
	slots := make(chan struct{}, limit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "Too many concurrent requests", http.StatusServiceUnavailable)
		}
	})
}
