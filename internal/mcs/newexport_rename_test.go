package mcs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestNewExportFollowsNames: while the EndpointSlice controller has not read a Service whose port
// names have changed, its slices have the previous names. Their endpoints stay exported, with the
// ports that the Service has.
func TestNewExportFollowsNames(t *testing.T) {
	for name, tt := range map[string]struct {
		// service and slice are ports such as "http 80 8080" and "http 8080".
		service, slice string
		handMade       bool
		want           string
	}{
		"nothing changes":                 {service: "http 80 8080", slice: "http 8080", want: "http 8080"},
		"renamed":                         {service: "web 80 8080", slice: "http 8080", want: "web 8080"},
		"named":                           {service: "http 80 8080", slice: " 8080", want: "http 8080"},
		"no name any more":                {service: " 80 8080", slice: "http 8080", want: " 8080"},
		"one of two is renamed":           {service: "web 80 8080,alt 81 8081", slice: "http 8080,alt 8081", want: "alt 8081,web 8080"},
		"swapped":                         {service: "alt 80 8080,http 81 8081", slice: "http 8080,alt 8081", want: "alt 8081,http 8080"},
		"its number has another name":     {service: "http 80 9090,admin 81 8080", slice: "http 8080", want: "http 8080"},
		"its name is that of another one": {service: "a 80 9090", slice: "a 8080,b 9090", want: "a 8080"},
		"two of one target":               {service: "web 80 8080,alt 81 8080", slice: "http 8080,alt 8080", want: "alt 8080,web 8080"},
		"both of one target":              {service: "a 80 8080,b 81 8080", slice: "c 8080,d 8080", want: ""},
		"another target":                  {service: "web 80 9090", slice: "http 8080", want: ""},
		"another target of the same name": {service: "http 80 9090", slice: "http 8080", want: "http 8080"},
		"a named target":                  {service: "web 80 www", slice: "http 8080", want: ""},
		"a named target of its own name":  {service: "http 80 www", slice: "http 8080", want: "http 8080"},
		"a slice of the user":             {service: "web 80 8080", slice: "http 8080", handMade: true, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web", UID: "u"}, Spec: corev1.ServiceSpec{
				ClusterIP: "172.20.0.1", Selector: map[string]string{"app": "web"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			}}
			for item := range strings.SplitSeq(tt.service, ",") {
				fields := strings.Split(item, " ")
				p := corev1.ServicePort{Name: fields[0], Protocol: corev1.ProtocolTCP, TargetPort: intstr.Parse(fields[2])}
				if _, err := fmt.Sscan(fields[1], &p.Port); err != nil {
					t.Fatal(err)
				}
				svc.Spec.Ports = append(svc.Spec.Ports, p)
			}
			slice := discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: endpointSliceController},
					OwnerReferences: []metav1.OwnerReference{{UID: "u"}},
				},
				AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
			}
			if tt.handMade {
				slice.Labels[discoveryv1.LabelManagedBy] = "user"
			}
			for item := range strings.SplitSeq(tt.slice, ",") {
				name, number, _ := strings.Cut(item, " ")
				p := discoveryv1.EndpointPort{Name: &name, Protocol: new(corev1.ProtocolTCP), Port: new(int32)}
				if _, err := fmt.Sscan(number, p.Port); err != nil {
					t.Fatal(err)
				}
				slice.Ports = append(slice.Ports, p)
			}
			src := webSource(slice)
			src.Service = svc
			e, _, err := NewExport(src, nil, start)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, b := range e.Backends {
				for _, p := range b.Ports {
					got = append(got, fmt.Sprint(p.Name, " ", p.Port))
				}
			}
			slices.Sort(got)
			if strings.Join(got, ",") != tt.want {
				t.Errorf("exported are %q, want %q", got, tt.want)
			}
		})
	}
}
