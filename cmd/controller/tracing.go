package main

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// newTracer returns the tracer of the options, nil if tracing is off.
func newTracer(ctx context.Context, options config.Tracing, log logr.Logger) (*tracing.Tracer, error) {
	if options.Endpoint == "" {
		return nil, nil
	}
	return tracing.New(ctx, tracing.Config{Endpoint: options.Endpoint, Insecure: options.Insecure, Ratio: options.SamplingRatio, Version: config.Version, Logger: log.WithName("tracing")})
}

// closeTimeout bounds the export of the last spans when the controller stops.
const closeTimeout = time.Second

func closeTracer(tracer *tracing.Tracer, log logr.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := tracer.Close(ctx); err != nil {
		log.Info("Failed to export the last traces", "error", err.Error())
	}
}
