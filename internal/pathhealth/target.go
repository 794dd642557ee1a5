package pathhealth

import (
	"math"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Target returns the first TCP port of the first ready endpoint of an export. It reports false if
// there is none: UDP has no answer to wait for.
func Target(e mcs.Export) (netip.AddrPort, bool) {
	for _, b := range e.Backends {
		for _, p := range b.Ports {
			if p.Protocol != corev1.ProtocolTCP || p.Port < 1 || p.Port > math.MaxUint16 {
				continue
			}
			for _, ep := range b.Endpoints {
				if ep.Ready {
					return netip.AddrPortFrom(ep.Address, uint16(p.Port)), true
				}
			}
		}
	}
	return netip.AddrPort{}, false
}
