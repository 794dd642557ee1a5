package cloudmap

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
)

// TestCostModel compares the model, which docs/cost.md is computed with, with the requests of the
// registry and the results of the benchmark.
func TestCostModel(t *testing.T) {
	with, without := cost.Models(settings.PollInterval, settings.PollIntervalWithNotifications, settings.HeartbeatInterval, settings.StaleAfter)
	for name, model := range map[string]cost.Model{"with peer notifications": with, "without": without} {
		t.Run(name, func(t *testing.T) {
			virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}, func(t *testing.T, a *account) {
				const clusters, minutes = 3, 10
				regs := a.start(t, clusters, func(cfg *Config) {
					if model == without {
						cfg.PeerNotifications = nil
					}
				})
				for i, reg := range regs {
					publish(t, reg, webExport(reg.cfg.Identity.ClusterID, i, 3))
				}
				time.Sleep(5 * time.Minute)
				before := map[string]int{}
				for operation := range a.server.Requests() {
					before[operation] = a.requests(operation)
				}
				time.Sleep(minutes * time.Minute)
				modeled := model.RequestsPerMinute()
				for operation := range a.server.Requests() {
					measured := float64(a.requests(operation)-before[operation]) / clusters / minutes
					if math.Abs(measured-modeled[operation]) > 0.2+modeled[operation]/50 {
						t.Errorf("%s: %.2f per minute and cluster, the model has %.2f", operation, measured, modeled[operation])
					}
				}
			})
		})
	}
	for _, s := range benchmarked(t) {
		model := without
		if s.Notifications {
			model = with
		}
		// The benchmark's window of two minutes has whole requests. On a busy machine a poll takes
		// longer, so that there may be fewer of them, but not more.
		if want := model.TotalPerMinute(); s.PerMinute > want+2 || s.PerMinute < want*4/5 {
			t.Errorf("%d exports, %d clusters, notifications %v: the benchmark measured %.1f requests per minute, the model has %.1f", s.Exports, s.Clusters, s.Notifications, s.PerMinute, want)
		}
	}
}

// TestStoredInstances compares the limit that kubectl mcs install names with 3,000 services.
func TestStoredInstances(t *testing.T) {
	exports := make([]mcs.Export, 3000)
	for i := range exports {
		exports[i] = webExport("cls1", i, 10)
	}
	if n, err := StoredInstances("cls1", exports); n != cost.MaxRecords || err != nil {
		t.Errorf("%d instances (%v), want %d", n, err, cost.MaxRecords)
	}
}

type benchmark struct {
	Exports, Clusters int
	Notifications     bool
	PerMinute         float64
}

// benchmarked returns the benchmark's results in steady state, none before its first run.
func benchmarked(t *testing.T) []benchmark {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "benchmarks", "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var results struct{ Steady []benchmark }
	if err := json.Unmarshal(data, &results); err != nil {
		t.Fatal(err)
	}
	return results.Steady
}
