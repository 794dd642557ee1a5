package serve

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

const (
	// maxScrapes is the number of concurrent requests to the metrics endpoint. Two replicas of Prometheus need two.
	maxScrapes = 16
	// Each token that is not cached costs the API server a TokenReview. A pod that sends random tokens must not spend the requests
	// that the controller needs (--kube-api-qps).
	reviewsPerSecond = 5
	reviewBurst      = 10
)

// MetricsOptions returns the options of the metrics server: HTTPS for clients that may get /metrics by the cluster's RBAC, unless
// the settings disable it.
func MetricsOptions(serving config.Serving) (metricsserver.Options, error) {
	options := metricsserver.Options{BindAddress: serving.Metrics}
	if !serving.MetricsSecure || serving.Metrics == "0" {
		return options, nil
	}
	if dir := serving.MetricsCertDir; dir != "" {
		// The server falls back to a self-signed certificate if the files do not exist.
		if _, err := tls.LoadX509KeyPair(filepath.Join(dir, corev1.TLSCertKey), filepath.Join(dir, corev1.TLSPrivateKeyKey)); err != nil {
			return options, fmt.Errorf("reading the certificate in --metrics-cert-dir=%s: %w", dir, err)
		}
	}
	options.SecureServing, options.CertDir = true, serving.MetricsCertDir
	options.TLSOpts = []func(*tls.Config){disableHTTP2}
	options.FilterProvider = newScrapeFilter
	return options, nil
}

// disableHTTP2 avoids attacks with many streams in one connection, such as CVE-2023-44487. Prometheus needs one stream.
func disableHTTP2(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }

// newScrapeFilter returns a filter that asks the API server who sent a request and whether they may get /metrics.
func newScrapeFilter(cfg *rest.Config, httpClient *http.Client) (metricsserver.Filter, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst, cfg.RateLimiter = reviewsPerSecond, reviewBurst, nil
	authorize, err := filters.WithAuthenticationAndAuthorization(cfg, httpClient)
	if err != nil {
		return nil, err
	}
	return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
		handler, err := authorize(log, handler)
		if err != nil {
			return nil, err
		}
		return limitConcurrency(handler, maxScrapes), nil
	}, nil
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
