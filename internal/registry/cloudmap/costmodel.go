package cloudmap

import (
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// A CostModel computes the requests of a cluster while nothing changes. The pages of the documentation show it.
type CostModel struct {
	// Poll is the time between two polls, Heartbeat between two heartbeats.
	Poll, Heartbeat time.Duration
}

// AuditInterval returns the time between two reads of a cluster's own pages.
func AuditInterval() time.Duration { return defaultTimes().Audit }

// RequestsPerMinute returns the requests of a cluster per minute, by operation, without the instance view.
func (m CostModel) RequestsPerMinute() map[string]float64 {
	return map[string]float64{
		"DiscoverInstances": perMinute(m.Poll) + perMinute(AuditInterval()),
		"RegisterInstance":  perMinute(m.Heartbeat),
	}
}

// TotalPerMinute returns the sum of RequestsPerMinute.
func (m CostModel) TotalPerMinute() (total float64) {
	for _, n := range m.RequestsPerMinute() {
		total += n
	}
	return total
}

// ViewRequestsPerMinute returns the DiscoverInstances per minute that the instance view adds at most: it reads one service in turn.
func ViewRequestsPerMinute() float64 { return perMinute(defaultTimes().instanceResync) }

func perMinute(interval time.Duration) float64 { return float64(time.Minute) / float64(interval) }

// StoredInstances returns the number of Cloud Map instances that hold the member record, its copy and the pages of a cluster.
func StoredInstances(clusterID string, exports []mcs.Export) (int, error) {
	pages := map[int]map[mcs.Key]mcs.Export{}
	for _, exp := range exports {
		page := format.PageOf(exp.Key)
		if pages[page] == nil {
			pages[page] = map[mcs.Key]mcs.Export{}
		}
		pages[page][exp.Key] = exp
	}
	signer, err := trust.NewSigner(make([]byte, ed25519.SeedSize), nil) // signatures of all keys are of the same length
	if err != nil {
		return 0, fmt.Errorf("counting instances: %w", err)
	}
	n := 2
	for page, exports := range pages {
		encoded, err := state.EncodePage(mcs.Identity{ClusterID: clusterID}, signer, page, 1_790_000_000_000, exports)
		if err != nil {
			return 0, err
		}
		n += len(encoded.Instances)
	}
	return n, nil
}
