package cloudmap

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// maxHeap is the maximum growth of the heap of a test: half of the Deployment's limit of 512 MiB,
// because the collector lets a heap grow to twice what is in use. The local Cloud Map of the test
// is part of it.
const maxHeap = 256 << 20

// wideSource is a Service with ports whose EndpointSlices have a number of endpoints each. Without
// sharing, each slice has other port numbers.
func wideSource(ports, slices, perSlice int, sharing bool) mcs.Source {
	meta := metav1.ObjectMeta{Namespace: "demo", Name: "wide", CreationTimestamp: metav1.NewTime(time.Unix(1_790_000_000, 0))}
	src := mcs.Source{Identity: cls1, ServiceExport: &mcsv1beta1.ServiceExport{ObjectMeta: meta}, Service: &corev1.Service{ObjectMeta: meta}}
	for i := range ports {
		src.Service.Spec.Ports = append(src.Service.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
	}
	for i := range slices {
		slice := discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "demo", Name: fmt.Sprint("wide-", i), Labels: map[string]string{discoveryv1.LabelServiceName: "wide"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for j := range ports {
			number := int32(1000 + j)
			if !sharing {
				number = int32(1000 + (j+i)%60_000)
			}
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr.To(fmt.Sprint("p", j)), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(number)})
		}
		for j := range perSlice {
			n := i*perSlice + j
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}).String()}})
		}
		src.Slices = append(src.Slices, slice)
	}
	return src
}

// TestMemoryOfWideService exports a Service of 500 ports and 2,000 endpoints with the instance
// view.
func TestMemoryOfWideService(t *testing.T) {
	src := wideSource(500, 20, 100, true)
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	var a *Registry
	peak := registrytest.HeapPeak(func() {
		exp, _, err := mcs.NewExport(src, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		a, _ = viewing(t, c, cls1)
		publish(t, a, exp)
		within(t, time.Minute, "it is exported", isExported(t, a, exp.Key))
		within(t, time.Minute, "it is reported what the view leaves out", warns(t, a, exp.Key, "999000 endpoints are not shown as Cloud Map instances"))
	})
	t.Logf("the heap grew by %d MiB", peak>>20)
	if peak > maxHeap {
		t.Errorf("the heap grew by %d MiB, want at most %d", peak>>20, maxHeap>>20)
	}
}

// TestMemoryOfManyServices exports 3,000 services of ten endpoints with the instance view.
func TestMemoryOfManyServices(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	const services = 3000
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 100_000})
	peak := registrytest.HeapPeak(func() {
		a, _ := viewing(t, c, cls1)
		for i := range services {
			publish(t, a, webExport("cls1", i, 10))
		}
		within(t, time.Minute, "all are exported", func() bool {
			for i := range services {
				if look(t, a, webKey(i)).Local.State != registry.Exported {
					return false
				}
			}
			return true
		})
		within(t, 5*time.Minute, "all are mirrored", func() bool { return a.view.Pending() == 0 })
	})
	t.Logf("the heap grew by %d MiB, with the local Cloud Map", peak>>20)
	if peak > maxHeap {
		t.Errorf("the heap grew by %d MiB, want at most %d", peak>>20, maxHeap>>20)
	}
}

// TestMemoryOfRefusedExport builds an export of a million ports of endpoints, of which no two have
// the same: it is refused, with the reason.
func TestMemoryOfRefusedExport(t *testing.T) {
	src := wideSource(500, 2000, 1, false)
	var left mcs.LeftOuts
	var err error
	peak := registrytest.HeapPeak(func() {
		var exp mcs.Export
		if exp, left, err = mcs.NewExport(src, nil, time.Now()); err != nil {
			return
		}
		c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
		reg := c.registry(t, fast(cls1))
		err = reg.Publish(t.Context(), exp)
	})
	t.Logf("the heap grew by %d MiB; error %v; left out: %q", peak>>20, err, left)
	if peak > maxHeap {
		t.Errorf("the heap grew by %d MiB, want at most %d", peak>>20, maxHeap>>20)
	}
	if err == nil && !strings.Contains(fmt.Sprint(left), "more than 100 groups of endpoints with different ports") {
		t.Errorf("nothing is refused: left out %q", left)
	}
}
