package mcs

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestBackendsFromSlice_SkipsUnusableEntries: ports and endpoints after one that cannot be used
// still count.
func TestBackendsFromSlice_SkipsUnusableEntries(t *testing.T) {
	number := int32(8080)
	b, left := backendsFromSlice(&discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{}, {Port: &number}},
		Endpoints:   []discoveryv1.Endpoint{{}, {Addresses: []string{"10.0.0.1"}}},
	}, nil)
	if len(b.Ports) != 1 || b.Ports[0].Port != number || len(b.Endpoints) != 1 || left.Endpoints() != 1 {
		t.Errorf("got %+v and left out %v, want one port, one endpoint and one left out", b, left)
	}
}
