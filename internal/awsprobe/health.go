package awsprobe

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// healthDocumented is the time that AWS documents until a custom health shows.
const healthDocumented = 30 * time.Second

// probeHealth is probe 8.
func probeHealth(ctx context.Context, p *prober) error {
	if p.shared.main.ID == "" {
		return errors.New("the namespace of probe 2 is missing")
	}
	s, err := p.createServiceIn(ctx, p.shared.main, "health", api.ServiceConfig{HasHealth: true})
	if err != nil {
		return err
	}
	if err := p.register(ctx, s, "a", map[string]string{"V": "1"}); err != nil {
		return err
	}
	health := ""
	showing := func(value, wanted string) func(map[string]api.Instance) bool {
		return func(found map[string]api.Instance) bool {
			health = found["a"].Health
			return found["a"].Attributes["V"] == value && (wanted == "" || health == wanted)
		}
	}
	if err := p.visible(ctx, s, "the instance shows", showing("1", "")); err != nil {
		return err
	}
	p.row("DiscoverInstances", "custom health of a new instance", api.HealthHealthy, health)
	if err := p.api.SetHealth(ctx, s.ID, "a", api.HealthUnhealthy); err != nil {
		return err
	}
	begin := time.Now()
	if err := p.visible(ctx, s, "the health shows", showing("1", api.HealthUnhealthy)); err != nil {
		return err
	}
	delay := time.Since(begin)
	p.row("UpdateInstanceCustomHealthStatus", "time until a custom health shows", seconds(healthDocumented), seconds(delay))
	p.report.found("healthDelay", roundDelay(delay))
	return p.probeReset(ctx, s, delay)
}

// probeReset registers the unhealthy instance again, in a service where a health takes delay to
// show.
func (p *prober) probeReset(ctx context.Context, s api.Service, delay time.Duration) error {
	if err := p.register(ctx, s, "a", map[string]string{"V": "2"}); err != nil {
		return err
	}
	if err := p.visible(ctx, s, "the second registration shows", func(found map[string]api.Instance) bool {
		return found["a"].Attributes["V"] == "2"
	}); err != nil {
		return err
	}
	// A reset may show as late as a health that was set.
	_, reset, err := poll(ctx, min(2*delay+time.Second, 2*healthDocumented), func() (bool, error) {
		found, _, err := p.api.DiscoverInstances(ctx, p.shared.main.HTTPName, s.Name, nil)
		return len(found) == 1 && found[0].Health == api.HealthHealthy, err
	})
	if err != nil {
		return err
	}
	rule := pick(reset, string(cloudmaplocal.HealthReset), string(cloudmaplocal.HealthKeep))
	p.row("DiscoverInstances", "custom health of an unhealthy instance that is registered again", "unknown", rule)
	p.report.found("healthOnReregister", rule)
	return nil
}
