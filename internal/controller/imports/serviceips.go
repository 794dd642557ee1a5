package imports

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

const (
	// countInterval is the interval at which the IPs of derived Services are counted. Those that
	// were admitted in the last one and are not among them are added: they may be about to be
	// created.
	countInterval = 10 * time.Second
	// importShare is the part of the Service IPs, one in importShare, that derived Services may
	// take.
	importShare = 2
	// maxHostBits bounds the networks that are counted: imports cannot fill one of a million
	// addresses.
	maxHostBits = 20
)

// serviceIPs leaves a part of the Service IPs to the Services of this cluster. Other clusters could
// take them all: those of a network of 256 addresses with 256 exports, so that no Service can be
// created. Imports that this cluster exports itself do not count: other clusters could otherwise
// keep them from getting an IP, and its own users could do the same to each other and to the
// imports of other clusters.
type serviceIPs struct {
	client   client.Client
	networks func() []netip.Prefix
	now      func() time.Time

	mu      sync.Mutex
	counted time.Time
	// used is by family: whether it is IPv4.
	used map[bool]int
	// admitted are the derived Services that were admitted and not counted yet, and when.
	admitted map[client.ObjectKey]time.Time
}

// admit returns an error if the new derived Service name would take more than the share of imports.
// The nil *serviceIPs admits everything.
func (s *serviceIPs) admit(ctx context.Context, name client.ObjectKey) error {
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
	if _, isAgain := s.admitted[name]; isAgain {
		return nil
	}
	for isIPv4, limit := range limits {
		if used := s.used[isIPv4] + len(s.admitted); used >= limit {
			return shareError{used}
		}
	}
	s.admitted[name] = s.now()
	return nil
}

// shareError reports that imports have their share of the Service IPs.
type shareError struct{ used int }

func (e shareError) Error() string {
	return fmt.Sprintf("imports have %d Service IPs, and may have half of them, so that other Services can be created: add a ServiceCIDR, or import less", e.used)
}

// importLimits returns the numbers of IPs that imports may take, by family. A family with a large
// network has none.
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
	list, err := s.listImported(ctx)
	if err != nil {
		return err
	}
	s.used, s.counted = map[bool]int{}, s.now()
	if s.admitted == nil {
		s.admitted = map[client.ObjectKey]time.Time{}
	}
	maps.DeleteFunc(s.admitted, func(_ client.ObjectKey, at time.Time) bool { return s.counted.Sub(at) >= countInterval })
	for _, svc := range list {
		delete(s.admitted, client.ObjectKeyFromObject(svc))
		for _, ip := range svc.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				s.used[a.Is4()]++
			}
		}
	}
	return nil
}

// listImported returns the derived Services of imports that this cluster does not export itself,
// and those that are held. The label alone makes no derived Service: a user of one namespace could
// set it on Services of its own.
func (s *serviceIPs) listImported(ctx context.Context) (found []*corev1.Service, err error) {
	var (
		services corev1.ServiceList
		imports  mcsv1beta1.ServiceImportList
		exports  mcsv1beta1.ServiceExportList
	)
	options := []client.ListOption{client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency}
	for what, list := range map[string]client.ObjectList{"derived Services": &services, "ServiceImports": &imports, "ServiceExports": &exports} {
		labels := client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}
		if list == client.ObjectList(&exports) {
			labels = nil
		}
		if err := s.client.List(ctx, list, append(options, labels)...); err != nil {
			return nil, fmt.Errorf("listing the %s: %w", what, err)
		}
	}
	isForeign := make(map[mcs.Key]bool, len(imports.Items))
	for i := range imports.Items {
		isForeign[kube.KeyOf(client.ObjectKeyFromObject(&imports.Items[i]))] = true
	}
	for i := range exports.Items {
		delete(isForeign, kube.KeyOf(client.ObjectKeyFromObject(&exports.Items[i])))
	}
	for i := range services.Items {
		svc := &services.Items[i]
		if plan.IsHeld(svc) || isForeign[mcs.Key{Namespace: svc.Namespace, Name: svc.Labels[mcsv1beta1.LabelServiceName]}] {
			found = append(found, svc)
		}
	}
	return found, nil
}
