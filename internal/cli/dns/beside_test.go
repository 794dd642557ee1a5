package dns

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// TestPlace has a case for each distribution.
func TestPlace(t *testing.T) {
	own := func(change func(*coreDNS)) *coreDNS {
		fake := clitest.NewCoreDNS()
		c := &coreDNS{deployment: fake.Deployment, config: fake.Config}
		change(c)
		return c
	}
	mounted := func(c *coreDNS) {
		c.deployment.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "custom", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: coredns.CustomName}},
		}}}
	}
	for _, tt := range []struct {
		name       string
		dns        clusterDNS
		want       place
		wantForced place
	}{
		{"kubeadm", clusterDNS{own: own(func(*coreDNS) {})}, inCorefile, inCorefile},
		{"EKS", clusterDNS{own: own(func(c *coreDNS) { c.deployment.Labels["eks.amazonaws.com/component"] = "coredns" })}, inAddOn, inCorefile},
		{"AKS, k3s and Gardener", clusterDNS{own: own(func(c *coreDNS) { mounted(c); c.inspection.ImportsServers = true })}, inCustom, inCustom},
		{"imports files of another ConfigMap", clusterDNS{own: own(func(c *coreDNS) { c.inspection.ImportsServers = true })}, inCorefile, inCorefile},
		{"imports options only", clusterDNS{own: own(mounted)}, inCorefile, inCorefile},
		{"GKE", clusterDNS{other: kubeDNSName}, inKubeDNS, inKubeDNS},
		{"RKE2", clusterDNS{other: rke2Name}, inHelmChart, inHelmChart},
		{"EKS Auto Mode", clusterDNS{}, inPods, inPods},
	} {
		if got, forced := tt.dns.place(false), tt.dns.place(true); got != tt.want || forced != tt.wantForced {
			t.Errorf("%s: place %s, with force %s, want %s and %s", tt.name, got, forced, tt.want, tt.wantForced)
		}
	}
}

func TestIsForwarded(t *testing.T) {
	ips := clitest.BesideIPs
	for _, tt := range []struct {
		name string
		dns  clusterDNS
		want bool
	}{
		{"to the Service", clusterDNS{own: &coreDNS{inspection: coredns.Inspection{Forward: ips, ForwardNoted: true}}, beside: beside{addresses: ips}}, true},
		{"to the Service, written manually", clusterDNS{own: &coreDNS{inspection: coredns.Inspection{Forward: ips}}, beside: beside{addresses: ips}}, true},
		{"to a previous IP", clusterDNS{own: &coreDNS{inspection: coredns.Inspection{Forward: []string{"10.0.0.9"}, ForwardNoted: true}}, beside: beside{addresses: ips}}, true},
		{"by another implementation", clusterDNS{own: &coreDNS{inspection: coredns.Inspection{Forward: []string{"10.0.0.9"}}}, beside: beside{addresses: ips}}, false},
		{"by an imported block", clusterDNS{own: &coreDNS{}, custom: "clusterset.local:53 {\n}\n"}, true},
		{"not at all", clusterDNS{own: &coreDNS{}}, false},
		{"by a server that cannot be read", clusterDNS{beside: beside{addresses: ips}}, false},
	} {
		if got := tt.dns.isForwarded(); got != tt.want {
			t.Errorf("%s: isForwarded = %v", tt.name, got)
		}
	}
}

func TestBesideCheck(t *testing.T) {
	deployment := func(image string) *appsv1.Deployment {
		d := &appsv1.Deployment{}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "coredns", Image: image}}
		return d
	}
	for _, tt := range []struct {
		name       string
		beside     beside
		wantFailed bool
		want       string
	}{
		{"runs", beside{deployment: deployment(coredns.BesideImage)}, false, "with image " + coredns.BesideImage},
		{"image without a version", beside{deployment: deployment("example.com/coredns@sha256:0123")}, false, "@sha256:0123"},
		{"too old", beside{deployment: deployment("coredns:v1.11.4")}, true, "is too old"},
		{"not pulled", beside{deployment: deployment("coredns:v1.15.0"), problem: "ErrImagePull"}, true, "cannot pull the image coredns:v1.15.0 (ErrImagePull)"},
		{"deleted", beside{}, true, "does not exist"},
	} {
		got := (&clusterDNS{beside: tt.beside}).besideCheck()
		if got.IsFailure() != tt.wantFailed || !strings.Contains(got.Detail, tt.want) || got.IsFailure() != (got.Remedy != "") {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func TestPodsWithServer(t *testing.T) {
	pod := func(name string, config *corev1.PodDNSConfig) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name}, Spec: corev1.PodSpec{DNSConfig: config}}
	}
	got := podsWithServer([]corev1.Pod{
		pod("plain", nil), pod("other", &corev1.PodDNSConfig{Nameservers: []string{"10.0.0.9"}}),
		pod("user", &corev1.PodDNSConfig{Nameservers: []string{"10.0.0.9", clitest.BesideIPs[1]}}),
	}, clitest.BesideIPs)
	if want := []string{"demo/user"}; !slices.Equal(got, want) {
		t.Errorf("pods %v, want %v", got, want)
	}
}
