package imports

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// A change that is pending is settled after plan.SettleTime. The time begins anew after a restart,
// when the change is another one, and when the import is headless in between.
func TestPortNames(t *testing.T) {
	const half = plan.SettleTime / 2
	key := mcs.Key{Namespace: "demo", Name: "web"}
	renaming := func(to string) plan.PortInput {
		tcp, number := corev1.ProtocolTCP, int32(8080)
		port := func(name string) discoveryv1.EndpointPort {
			return discoveryv1.EndpointPort{Name: &name, Protocol: &tcp, Port: &number}
		}
		return plan.PortInput{
			Key:     key,
			Merged:  mcs.Merged{Key: key, Type: mcsv1beta1.ClusterSetIP, Ports: []mcs.Port{{Name: to, Protocol: tcp, Port: 80}}},
			Service: &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Protocol: tcp, Port: 80}}}},
			Slices: []*discoveryv1.EndpointSlice{{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "demo", Name: mcs.DerivedName(key) + "-cls1-ipv4-0"},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports:       []discoveryv1.EndpointPort{port("http"), port("web"), port("shop")},
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
			}},
		}
	}
	headless := renaming("web")
	headless.Merged.Type = mcsv1beta1.Headless
	start := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	type step struct {
		at        time.Duration
		in        plan.PortInput
		want      string // the name of the Service's port
		wantAgain time.Duration
	}
	for name, steps := range map[string][]step{
		"settled": {
			{0, renaming("web"), "http", plan.SettleTime}, {half, renaming("web"), "http", half}, {2 * half, renaming("web"), "web", 0},
		},
		"another name": {{0, renaming("web"), "http", plan.SettleTime}, {half, renaming("shop"), "http", plan.SettleTime}, {2 * half, renaming("shop"), "http", half}},
		"headless in between": {
			{0, renaming("web"), "http", plan.SettleTime}, {half, headless, "web", 0}, {2 * half, renaming("web"), "http", plan.SettleTime},
		},
		"a restart": {{2 * half, renaming("web"), "http", plan.SettleTime}},
	} {
		t.Run(name, func(t *testing.T) {
			var n portNames
			for _, s := range steps {
				p, again := n.plan(s.in, start.Add(s.at))
				if p.Service[0].Name != s.want || again != s.wantAgain {
					t.Errorf("after %s the Service's port is %q, planned again in %s, want %q, %s", s.at, p.Service[0].Name, again, s.want, s.wantAgain)
				}
			}
		})
	}
	var n portNames
	n.plan(renaming("web"), start)
	n.forget(key)
	n.pending.Range(func(key, _ any) bool {
		t.Errorf("%v is still pending after its import has ended", key)
		return true
	})
}
