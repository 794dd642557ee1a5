package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// Run implements registry.Registry's Run: it runs all loops until ctx ends and they have returned.
// If the cluster leaves (registry.ErrLeave), it then calls leave with a context that expires after
// timeout, or earlier if leaving is taken back (registry.WithLeaveContext). A read-only registry
// has no leave (nil).
func Run(ctx context.Context, loops []func(context.Context), timeout time.Duration, leave func(context.Context) error) error {
	var running sync.WaitGroup
	for _, loop := range loops {
		running.Go(func() { loop(ctx) })
	}
	running.Wait()
	if leave == nil || !errors.Is(context.Cause(ctx), registry.ErrLeave) {
		return nil
	}
	ctx, cancel := context.WithTimeout(registry.LeaveContext(ctx), timeout)
	defer cancel()
	return leave(ctx)
}

// Duration is a required setting of a backend, with the name of its field in Config.
type Duration struct {
	Field string
	Value time.Duration
}

// CheckDurations returns an error that names the fields that are not set. Backends have no
// defaults: package config has them.
func CheckDurations(required ...Duration) error {
	var errs []error
	for _, d := range required {
		if d.Value <= 0 {
			errs = append(errs, fmt.Errorf("%s must be set to a positive duration", d.Field))
		}
	}
	return errors.Join(errs...)
}
