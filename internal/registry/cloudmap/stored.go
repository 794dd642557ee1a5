package cloudmap

import (
	"crypto/ed25519"
	"fmt"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// StoredInstances returns the number of Cloud Map instances that hold the member record, its copy
// and the pages of a cluster.
func StoredInstances(clusterID string, exports []mcs.Export) (int, error) {
	pages := map[int]map[mcs.Key]mcs.Export{}
	for _, exp := range exports {
		page := format.PageOf(exp.Key)
		if pages[page] == nil {
			pages[page] = map[mcs.Key]mcs.Export{}
		}
		pages[page][exp.Key] = exp
	}
	// signatures of all keys are of the same length
	signer, err := trust.NewSigner(make([]byte, ed25519.SeedSize), nil)
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
