package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// metricsReader is the ServiceAccount that reads the metrics.
const metricsReader = "bench-metrics-reader"

// createMetricsReader creates the ServiceAccount in a cluster.
func createMetricsReader(ctx context.Context, set *clusterset.Set, cluster string) error {
	for _, args := range [][]string{
		{"-n", system, "create", "serviceaccount", metricsReader},
		{"create", "clusterrolebinding", metricsReader, "--clusterrole=" + names.Product + "-metrics-reader", "--serviceaccount=" + system + ":" + metricsReader},
	} {
		if _, err := set.Kubectl(ctx, cluster, args...); err != nil {
			return err
		}
	}
	return nil
}

// scrape reads the metrics of a pod through a port-forward: the API server's proxy forwards no
// token.
func (c *clusters) scrape(ctx context.Context, cluster, pod string) (string, error) {
	token, err := c.set.Kubectl(ctx, cluster, "-n", system, "create", "token", metricsReader)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	forward := exec.CommandContext(ctx, "bash", "-c", fmt.Sprintf("exec kubectl --context %s -n %s port-forward pod/%s :8080", cluster, system, pod))
	forward.Env, forward.Dir, forward.Stderr = c.set.Env(), c.set.Root, os.Stderr
	output, err := forward.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := forward.Start(); err != nil {
		return "", err
	}
	defer func() {
		cancel()
		_ = forward.Wait()
	}()
	var address string // "Forwarding from 127.0.0.1:40001 -> 8080"
	if _, err := fmt.Fscanf(output, "Forwarding from %s", &address); err != nil {
		return "", fmt.Errorf("starting a port-forward: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // self-signed
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return string(text), err
}
