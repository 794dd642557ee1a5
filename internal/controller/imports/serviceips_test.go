package imports

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// TestServiceIPs_KeepHalf: derived Services that exist and those that were admitted since the last
// count take half of the IPs.
func TestServiceIPs_KeepHalf(t *testing.T) {
	builder := fake.NewClientBuilder().WithScheme(controllertest.Scheme())
	service := func(name, ip string, labels map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: labels}, Spec: corev1.ServiceSpec{ClusterIPs: []string{ip}}}
	}
	ours := map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	derived := func(name, ip string) *corev1.Service {
		return service(name, ip, map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: name})
	}
	importOf := func(name string) *mcsv1beta1.ServiceImport {
		return &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: ours}}
	}
	held := derived("held", "10.0.0.6")
	held.Annotations = map[string]string{plan.AnnotationHeldSince: "x"}
	builder.WithObjects(held, derived("dual", "fd00::1"), importOf("dual"), derived("headless", "None"), importOf("headless"))
	for i := range 5 {
		name := fmt.Sprint("imported-", i)
		builder.WithObjects(derived(name, fmt.Sprint("10.0.0.", i+1)), importOf(name), service(fmt.Sprint("own-", i), fmt.Sprint("10.0.0.", i+9), nil))
	}
	// Neither a Service with the labels alone nor an import that this cluster exports counts.
	exported := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "exported"}}
	builder.WithObjects(derived("labelled", "10.0.0.7"), derived("exported", "10.0.0.8"), importOf("exported"), exported)
	now := time.Unix(1_790_000_000, 0)
	small := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28"), netip.MustParsePrefix("fd00::/108")}
	s := &serviceIPs{client: builder.Build(), now: func() time.Time { return now }, networks: func() []netip.Prefix { return small }}
	next := 0
	admit := func() error {
		next++
		return s.admit(t.Context(), client.ObjectKey{Namespace: "n", Name: fmt.Sprint("new-", next)})
	}
	for i := range 2 {
		if err := admit(); err != nil {
			t.Errorf("Service %d: %v", i, err)
		}
	}
	if err := admit(); err == nil || !strings.Contains(err.Error(), "imports have 8 Service IPs") {
		t.Errorf("the ninth of 16 IPs: %v", err)
	}
	now = now.Add(countInterval) // the two that were admitted were not created
	if err := admit(); err != nil {
		t.Errorf("after another count: %v", err)
	}
	for range 7 { // another network of the same size
		small = append(small[:2:2], netip.MustParsePrefix("10.9.0.0/28"))
		if err := admit(); err != nil {
			t.Errorf("with another ServiceCIDR: %v", err)
		}
	}
	small = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.9.0.0/28"), netip.MustParsePrefix("fd00::/64")}
	for range 20 {
		if err := admit(); err != nil {
			t.Fatalf("in large networks: %v", err)
		}
	}
	if err := (*serviceIPs)(nil).admit(t.Context(), client.ObjectKey{}); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// TestServiceIPs_CountsServicesThatAreCreated: a Service that is being created while the others are
// counted takes an IP too, and once only.
func TestServiceIPs_CountsServicesThatAreCreated(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	c := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).Build()
	network := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/29")} // imports have four
	s := &serviceIPs{client: c, now: func() time.Time { return now }, networks: func() []netip.Prefix { return network }}
	admit := func(name string) bool {
		return s.admit(t.Context(), client.ObjectKey{Namespace: "n", Name: name}) == nil
	}
	create := func(name, ip string) {
		t.Helper()
		svc := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: []string{ip}}}
		svc.Namespace, svc.Name, svc.Labels = "n", name, map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: name}
		imp := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}}}
		for _, obj := range []client.Object{svc, imp} {
			if err := c.Create(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
		}
	}
	isFirst := admit("a")
	create("a", "10.0.0.1")
	now = now.Add(countInterval - time.Second)
	isSecond := admit("b")
	now = now.Add(time.Second) // a is counted, b is not there yet
	if !isFirst || !isSecond || !admit("c") || !admit("d") {
		t.Error("one of the first four is refused")
	}
	if admit("e") {
		t.Error("the fifth is admitted while another one is being created")
	}
	if !admit("b") {
		t.Error("another attempt to create one that was admitted is refused")
	}
	create("b", "10.0.0.2")
	now = now.Add(countInterval) // c and d were not created
	if !admit("f") || !admit("g") || admit("h") {
		t.Error("after another count, want two more admitted")
	}
}
