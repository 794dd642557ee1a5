package mcs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// A shape changes a slice of Service web with two endpoints.
type shape struct {
	name  string
	apply func(*discoveryv1.EndpointSlice)
	// left is the number of endpoints that are left out of the export of a ClusterIP Service, and
	// leftHeadless of a headless one.
	left, leftHeadless int
	// reason is a part of the reason, and reasonHeadless that of a part of a headless export
	// without which its endpoints are exported.
	reason, reasonHeadless string
}

// controlled makes s a slice that Kubernetes created for Service web.
func controlled(s *discoveryv1.EndpointSlice) {
	s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	s.OwnerReferences = []metav1.OwnerReference{{Kind: "Service", Name: "web", UID: "uid-web", Controller: ptr.To(true)}}
}

// mirrored makes s a slice that Kubernetes mirrored from Endpoints web.
func mirrored(s *discoveryv1.EndpointSlice) {
	s.Labels[discoveryv1.LabelManagedBy] = "endpointslicemirroring-controller.k8s.io"
	s.OwnerReferences = []metav1.OwnerReference{{Kind: "Endpoints", Name: "web", UID: "uid-endpoints", Controller: ptr.To(true)}}
}

// labelled adds the labels of an imported slice, as a copy of a manifest or the labels of the
// Service have them.
func labelled(s *discoveryv1.EndpointSlice) {
	s.Labels[mcsv1beta1.LabelServiceName], s.Labels[mcsv1beta1.LabelSourceCluster] = "other", "cls2"
}

func shapes() []shape {
	both := func(edits ...func(*discoveryv1.EndpointSlice)) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) {
			for _, edit := range edits {
				edit(s)
			}
		}
	}
	managedBy := func(manager string) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = manager }
	}
	return []shape{
		{name: "of a user", apply: func(*discoveryv1.EndpointSlice) {}},
		{name: "of the EndpointSlice controller", apply: controlled},
		{name: "of the EndpointSlice controller, labels copied from the Service", apply: both(controlled, labelled)},
		{name: "of the mirroring controller, labels copied from the Endpoints", apply: both(mirrored, labelled)},
		{name: "of a user, labels copied from a manifest", apply: labelled},
		{name: "of a user with our label, copied from a manifest", apply: both(labelled, managedBy("cloud-map-mcs-controller"))},
		{name: "of another controller", apply: both(labelled, managedBy("my-controller.example.com"))},
		{name: "imported by this controller", apply: func(s *discoveryv1.EndpointSlice) { s.Name = "imported-abcdefghij-cls2-ipv4-0" }, left: 2, leftHeadless: 2, reason: reasonOwnImport},
		{name: "of a ServiceImport", apply: func(s *discoveryv1.EndpointSlice) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "multicluster.x-k8s.io/v1alpha1", Kind: "ServiceImport", Name: "web"}}
		}, left: 2, leftHeadless: 2, reason: reasonImportOwner},
		{name: "imported by Cilium", apply: managedBy("endpointslice-mesh-controller.cilium.io"), left: 2, leftHeadless: 2, reason: "endpointslice-mesh-controller.cilium.io imported"},
		{name: "of another Service", apply: func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "other" }, left: 2, leftHeadless: 2, reason: `Service "other"`},
		{name: "FQDN", apply: func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }, left: 2, leftHeadless: 2, reason: "FQDN"},
		{name: "without ports", apply: func(s *discoveryv1.EndpointSlice) { s.Ports = nil }, left: 2, reason: reasonNoPort},
		{name: "other port name", apply: func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = ptr.To("web") }, left: 2, reason: reasonNoPort},
		{name: "other protocol", apply: func(s *discoveryv1.EndpointSlice) { s.Ports[0].Protocol = ptr.To(corev1.ProtocolUDP) }, left: 2, reason: reasonNoPort},
		{name: "port without number", apply: func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = nil }, left: 2, reason: reasonNoPort},
		{name: "port with an invalid number", apply: func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = ptr.To[int32](0) }, left: 2, reason: "none of their ports is usable", reasonHeadless: "the number is not between"},
		{name: "endpoint without addresses", apply: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = nil }, left: 1, leftHeadless: 1, reason: reasonNoAddress},
		{name: "endpoint with nonsense", apply: func(s *discoveryv1.EndpointSlice) { s.Endpoints[1].Addresses = []string{"010.0.0.1"} }, left: 1, leftHeadless: 1, reason: reasonNotIP},
		{name: "link-local address", apply: func(s *discoveryv1.EndpointSlice) { s.Endpoints[1].Addresses = []string{"169.254.1.1"} }, left: 1, leftHeadless: 1, reason: "link-local"},
		{name: "address of the cluster's Services", apply: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"172.20.0.9"} }, left: 1, leftHeadless: 1, reason: "Service network"},
	}
}

// shapedSource returns the Service web with a slice of each shape; the endpoints have different
// addresses.
func shapedSource(headless bool, list ...shape) Source {
	src := webSource()
	src.Service.UID, src.Service.Spec.Selector = "uid-web", map[string]string{"app": "web"}
	if headless {
		src.Service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	src.CheckAddress = func(a netip.Addr) error {
		if netip.MustParsePrefix("172.20.0.0/16").Contains(a) {
			return errors.New("is in this cluster's Service network 172.20.0.0/16")
		}
		return nil
	}
	for i, s := range list {
		slice := webSlice(fmt.Sprintf("s%d", i), pod(fmt.Sprintf("10.10.%d.1", i), true), pod(fmt.Sprintf("10.10.%d.2", i), false))
		s.apply(&slice)
		src.Slices = append(src.Slices, slice)
	}
	return src
}

// TestNewExportLeavesNothingOutInSilence: for each shape alone, and for random sets of them, each
// endpoint is exported or left out with a reason.
func TestNewExportLeavesNothingOutInSilence(t *testing.T) {
	all := shapes()
	for _, isHeadless := range []bool{false, true} {
		for _, s := range all {
			want, reason := s.left, s.reason
			if want == 0 {
				reason = ""
			}
			if isHeadless {
				want, reason = s.leftHeadless, s.reasonHeadless
				if want > 0 {
					reason = s.reason
				}
			}
			e, left, err := NewExport(shapedSource(isHeadless, s), nil, start)
			if err != nil || e.EndpointCount() != 2-want || left.Endpoints() != want {
				t.Errorf("%s (headless %t): %d endpoints exported and %d left out, want %d: %v %v", s.name, isHeadless, e.EndpointCount(), left.Endpoints(), want, left, err)
			}
			if summary := left.Summary(); !strings.Contains(summary, reason) || (reason == "") != (summary == "") {
				t.Errorf("%s (headless %t): summary %q, want the reason %q", s.name, isHeadless, summary, reason)
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var list []shape
		for range random.IntN(40) {
			list = append(list, all[random.IntN(len(all))])
		}
		isHeadless := random.IntN(2) == 0
		e, left, err := NewExport(shapedSource(isHeadless, list...), nil, start)
		// A copied own name is that of one object only.
		if in := 2 * len(list); err != nil || e.EndpointCount()+left.Endpoints() != in {
			t.Fatalf("%d of %d endpoints are exported and %d left out: %v, %v", e.EndpointCount(), in, left.Endpoints(), left, err)
		}
		if summary := left.Summary(); len(summary) > maxSummary {
			t.Errorf("the summary has %d bytes", len(summary))
		}
	}
}

// TestNewExportCountsBeyondItsBounds: what exceeds the limits of an export is left out with its
// number.
func TestNewExportCountsBeyondItsBounds(t *testing.T) {
	src := webSource()
	for i := range 105 {
		slice := webSlice(fmt.Sprintf("s%d", i))
		for j := range 120 {
			slice.Endpoints = append(slice.Endpoints, pod(fmt.Sprintf("10.%d.%d.1", i, j), true))
		}
		slice.Ports[0].Port = ptr.To(int32(1 + i))
		src.Slices = append(src.Slices, slice)
	}
	e, left, err := NewExport(src, nil, start)
	if err != nil || e.EndpointCount() != maxEndpoints || left.Endpoints() != 105*120-maxEndpoints {
		t.Errorf("%d endpoints exported, %d left out: %v, %v", e.EndpointCount(), left.Endpoints(), left, err)
	}
}

// TestControllerSlicesOnly: with --export-slices=controller the slices of users are left out, also
// with copied labels.
func TestControllerSlicesOnly(t *testing.T) {
	src := shapedSource(false, shape{apply: controlled}, shape{apply: labelled}, shape{apply: mirrored})
	src.ControllerSlicesOnly = true
	e, left, err := NewExport(src, nil, start)
	if err != nil || e.EndpointCount() != 2 || left.Endpoints() != 4 || !strings.Contains(left.Summary(), "endpoints of EndpointSlice s1, s2: "+reasonNotOurs) {
		t.Errorf("%d endpoints exported, left out %v, %v", e.EndpointCount(), left, err)
	}
}

// TestSummaryIsStable: pods that come and go do not change the summary, whatever the order of the
// slices.
func TestSummaryIsStable(t *testing.T) {
	src := shapedSource(false, shapes()...)
	_, left, err := NewExport(src, nil, start)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(src.Slices)
	for i := range src.Slices {
		if s := &src.Slices[i]; s.AddressType == discoveryv1.AddressTypeFQDN || s.Ports == nil {
			s.Endpoints = append(s.Endpoints, pod("10.99.0.1", true), pod("10.99.0.2", true))
		}
	}
	_, again, err := NewExport(src, nil, start)
	if err != nil || again.Summary() != left.Summary() || again.Endpoints() != left.Endpoints()+4 {
		t.Errorf("%v\nfrom %s\nto   %s", err, left.Summary(), again.Summary())
	}
}

// TestSummaryOfMetadata: the summary names labels and annotations with their reasons, and is
// bounded.
func TestSummaryOfMetadata(t *testing.T) {
	src := webSource()
	src.ServiceExport.Spec.ExportedAnnotations = map[string]string{"note": strings.Repeat("x", 5_000), "kubernetes.io/a": "1", "kubernetes.io/b": "2"}
	src.ServiceExport.Spec.ExportedLabels = map[string]string{"bad value": "x"}
	_, left, err := NewExport(src, nil, start)
	want := `annotation "kubernetes.io/a", "kubernetes.io/b": its prefix is reserved; annotation "note": there are more than 4096 bytes of annotations; ` +
		`label "bad value": its key or value is not valid`
	if got := left.Summary(); err != nil || got != want {
		t.Errorf("%v: %s\nwant %s", err, got, want)
	}
	for i := range 200 {
		src.ServiceExport.Spec.ExportedLabels[fmt.Sprintf("%d %s", i, strings.Repeat("y", 60))] = "x"
	}
	if _, left, err = NewExport(src, nil, start); err != nil || len(left.Summary()) > maxSummary || !strings.Contains(left.Summary(), "more") {
		t.Errorf("%v: %s", err, left.Summary())
	}
}
