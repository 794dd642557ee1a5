package config

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"
)

// Tracing configures the export of OpenTelemetry traces.
type Tracing struct {
	// Endpoint is the host and port of an OTLP receiver for gRPC; "" is no tracing.
	Endpoint string
	// Insecure connects without TLS.
	Insecure bool
	// SamplingRatio is the part of the changes that are traced.
	SamplingRatio float64
}

func (t *Tracing) bind(common, advanced *pflag.FlagSet) {
	common.StringVar(&t.Endpoint, "tracing-endpoint", t.Endpoint,
		"Host and port of an OTLP receiver for gRPC, such as otel-collector.monitoring:4317 (default: no tracing).")
	advanced.BoolVar(&t.Insecure, "tracing-insecure", t.Insecure,
		"Connect to --tracing-endpoint without TLS. Everyone on the network path can then read the names of the services.")
	advanced.Float64Var(&t.SamplingRatio, "tracing-sampling-ratio", t.SamplingRatio,
		"Part of the changes that are traced, from 0 to 1. Clusters with the same ratio trace the same changes.")
}

func (t *Tracing) validate() error {
	var problems []error
	if host, port, err := net.SplitHostPort(t.Endpoint); t.Endpoint != "" && (err != nil || host == "" || port == "") {
		problems = append(problems, fmt.Errorf("--tracing-endpoint=%s: must be a host and a port, such as otel-collector.monitoring:4317", t.Endpoint))
	}
	if t.Endpoint == "" && t.Insecure {
		problems = append(problems, errors.New("--tracing-insecure has no effect without --tracing-endpoint"))
	}
	if !(t.SamplingRatio >= 0 && t.SamplingRatio <= 1) { // NaN is neither
		problems = append(problems, fmt.Errorf("--tracing-sampling-ratio=%v: must be from 0 to 1", t.SamplingRatio))
	}
	return errors.Join(problems...)
}
