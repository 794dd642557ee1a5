package imports

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// TestServiceIPs_KeepHalf: derived Services that exist and those that were admitted since the last count take half of the IPs.
func TestServiceIPs_KeepHalf(t *testing.T) {
	builder := fake.NewClientBuilder().WithScheme(controllertest.Scheme())
	service := func(name, ip string, labels map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: labels}, Spec: corev1.ServiceSpec{ClusterIPs: []string{ip}}}
	}
	ours := map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	for i := range 6 {
		builder.WithObjects(service(fmt.Sprint("imported-", i), fmt.Sprint("10.0.0.", i+1), ours), service(fmt.Sprint("own-", i), fmt.Sprint("10.0.0.", i+9), nil))
	}
	builder.WithObjects(service("dual", "fd00::1", ours), service("headless", "None", ours))
	now := time.Unix(1_790_000_000, 0)
	small := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28"), netip.MustParsePrefix("fd00::/108")}
	s := &serviceIPs{client: builder.Build(), now: func() time.Time { return now }, networks: func() []netip.Prefix { return small }}
	for i := range 2 {
		if err := s.admit(t.Context()); err != nil {
			t.Errorf("Service %d: %v", i, err)
		}
	}
	if err := s.admit(t.Context()); err == nil || !strings.Contains(err.Error(), "imports have 8 Service IPs") {
		t.Errorf("the ninth of 16 IPs: %v", err)
	}
	now = now.Add(countInterval) // the two that were admitted were not created
	if err := s.admit(t.Context()); err != nil {
		t.Errorf("after another count: %v", err)
	}
	for range 7 { // another network of the same size
		small = append(small[:2:2], netip.MustParsePrefix("10.9.0.0/28"))
		if err := s.admit(t.Context()); err != nil {
			t.Errorf("with another ServiceCIDR: %v", err)
		}
	}
	small = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.9.0.0/28"), netip.MustParsePrefix("fd00::/64")}
	for range 20 {
		if err := s.admit(t.Context()); err != nil {
			t.Fatalf("in large networks: %v", err)
		}
	}
	if err := (*serviceIPs)(nil).admit(t.Context()); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}
