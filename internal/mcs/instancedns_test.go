package mcs

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNewExport_InstanceDNS: the annotation of the namespace counts before the default, and a
// dual-stack export with addresses keeps the pods, by which its addresses are paired.
func TestNewExport_InstanceDNS(t *testing.T) {
	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for name, tc := range map[string]struct {
		byDefault  InstanceDNS
		annotation string
		families   []corev1.IPFamily
		want       InstanceDNS
		pod, left  string
	}{
		"none":                  {byDefault: "none"},
		"no default":            {},
		"default":               {byDefault: "auto", want: "auto"},
		"annotation":            {byDefault: "none", annotation: "srv", want: "srv"},
		"annotation none":       {byDefault: "auto", annotation: "none"},
		"invalid":               {byDefault: "auto", annotation: "SRV", want: "auto", left: `is "SRV", must be one of none, auto, address, srv`},
		"dual-stack":            {byDefault: "auto", families: both, want: "auto", pod: "web-0"},
		"dual-stack, addresses": {byDefault: "address", families: both, want: "address", pod: "web-0"},
		"dual-stack, SRV":       {byDefault: "srv", families: both, want: "srv"},
		"dual-stack, none":      {families: both},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := pod("10.10.0.1", true)
			endpoint.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "demo", Name: "web-0"}
			src := webSource(webSlice("web-1", endpoint))
			src.InstanceDNS = tc.byDefault
			if tc.families != nil {
				src.Service.Spec.IPFamilies = tc.families
			}
			if tc.annotation != "" {
				src.NamespaceAnnotations = map[string]string{AnnotationInstanceDNS: tc.annotation}
			}
			e, left, err := NewExport(src, nil, start)
			if err != nil {
				t.Fatal(err)
			}
			if e.InstanceDNS != tc.want || e.Backends[0].Endpoints[0].Pod != tc.pod {
				t.Errorf("records %q with pod %q, want %q with %q", e.InstanceDNS, e.Backends[0].Endpoints[0].Pod, tc.want, tc.pod)
			}
			if got := strings.Join(left.lines(), "; "); !strings.Contains(got, tc.left) || (got == "") != (tc.left == "") {
				t.Errorf("left out: %s, want %q", got, tc.left)
			}
		})
	}
}
