package imports

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

const (
	// countInterval is the interval at which the IPs of derived Services are counted; those that were admitted since are added.
	countInterval = 10 * time.Second
	// importShare is the part of the Service IPs, one in importShare, that derived Services may take.
	importShare = 2
	// maxHostBits bounds the networks that are counted: imports cannot fill one of a million addresses.
	maxHostBits = 20
)

// serviceIPs leaves a part of the Service IPs to the Services of this cluster. Other clusters could take them all: those of a network of 256
// addresses with 256 exports, so that no Service can be created.
type serviceIPs struct {
	client   client.Client
	networks func() []netip.Prefix
	now      func() time.Time

	mu      sync.Mutex
	counted time.Time
	// used is by family: whether it is IPv4.
	used map[bool]int
}

// admit returns an error if a new derived Service would take more than the share of imports. The nil *serviceIPs admits everything.
func (s *serviceIPs) admit(ctx context.Context) error {
	if s == nil {
		return nil
	}
	limits := importLimits(s.networks())
	if len(limits) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.count(ctx); err != nil {
		return err
	}
	for isIPv4, limit := range limits {
		if s.used[isIPv4] >= limit {
			return fmt.Errorf("imports have %d Service IPs, and may have half of them, so that other Services can be created: add a ServiceCIDR, or import less", s.used[isIPv4])
		}
	}
	s.used[true]++ // until they are counted
	s.used[false]++
	return nil
}

// importLimits returns the numbers of IPs that imports may take, by family. A family with a large network has none.
func importLimits(networks []netip.Prefix) map[bool]int {
	limits := map[bool]int{}
	for _, n := range networks {
		// A network that is too large makes its family's sum too large as well.
		limits[n.Addr().Is4()] += 1 << min(n.Addr().BitLen()-n.Bits(), maxHostBits+1)
	}
	for isIPv4, size := range limits {
		if size > 1<<maxHostBits {
			delete(limits, isIPv4)
			continue
		}
		limits[isIPv4] = size / importShare
	}
	return limits
}

// count counts the IPs of derived Services. The caller holds s.mu.
func (s *serviceIPs) count(ctx context.Context) error {
	if s.used != nil && s.now().Sub(s.counted) < countInterval {
		return nil
	}
	var list corev1.ServiceList
	err := s.client.List(ctx, &list, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy})
	if err != nil {
		return fmt.Errorf("listing the derived Services: %w", err)
	}
	s.used, s.counted = map[bool]int{}, s.now()
	for i := range list.Items {
		for _, ip := range list.Items[i].Spec.ClusterIPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				s.used[a.Is4()]++
			}
		}
	}
	return nil
}
