package imports

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
)

// An API server that, like one before Kubernetes 1.34, knows neither PreferSameZone nor
// PreferSameNode.
func TestOlderKubernetesGetsPreferClose(t *testing.T) {
	apiservertest.NeedAssets(t)
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Configure().
		Append("emulated-version", "1.34"). // the last one in which the feature can be turned off
		Append("feature-gates", "PreferSameTrafficDistribution=false")
	cfg, err := apiservertest.Start(env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ wanted, want string }{
		{"", ""}, {"PreferClose", "PreferClose"}, {"PreferSameZone", "PreferClose"}, {"PreferSameNode", "PreferClose"},
	}
	d := &distributions{client: c}
	for _, tc := range tests {
		got, err := d.usable(t.Context(), "default", tc.wanted)
		if err != nil || got != tc.want {
			t.Errorf("%q became %q (%v), want %q", tc.wanted, got, err, tc.want)
		}
	}

	// So slices must be planned with the value that the API server supports, too.
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "hints"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Hints: &discoveryv1.EndpointHints{
			ForZones: []discoveryv1.ForZone{{Name: "a"}}, ForNodes: []discoveryv1.ForNode{{Name: "n"}},
		}}},
	}
	if err := c.Create(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	if hints := slice.Endpoints[0].Hints; len(hints.ForZones) != 1 || len(hints.ForNodes) != 0 {
		t.Errorf("the API server kept the hints %+v, want those for zones only", hints)
	}
}
