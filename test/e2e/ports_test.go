package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// importedPorts checks that the ServiceImport and the derived Service in c have exactly these
// ports, each as "name number/protocol".
func importedPorts(ctx context.Context, c cluster, ns, name string, want ...string) error {
	imp, err := serviceImport(ctx, c, ns, name)
	if err != nil {
		return err
	}
	derived, err := derivedService(ctx, c, ns, name)
	if err != nil {
		return err
	}
	var inImport, inService []string
	for _, p := range imp.Spec.Ports {
		inImport = append(inImport, fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol))
	}
	for _, p := range derived.Spec.Ports {
		inService = append(inService, fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol))
	}
	if d := cmp.Diff(want, inImport) + cmp.Diff(want, inService); d != "" {
		return fmt.Errorf("%s: ports of %s/%s (-want +got):\n%s", c.name, ns, name, d)
	}
	return nil
}

// slicePorts checks that the slices with endpoints from a source cluster have exactly these ports,
// each as "name number/protocol", sorted.
func slicePorts(ctx context.Context, c cluster, ns, name, source string, want ...string) error {
	list, err := importedSlices(ctx, c, ns, name, source)
	if err != nil {
		return err
	}
	var got []string
	for _, s := range list {
		for _, p := range s.Ports {
			if len(s.Endpoints) > 0 {
				got = append(got, fmt.Sprintf("%s %d/%s", *p.Name, *p.Port, *p.Protocol))
			}
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		return fmt.Errorf("%s: ports of the slices of %s/%s from %s (-want +got):\n%s", c.name, ns, name, source, d)
	}
	return nil
}

// TestPortsFollowTheClustersThatHaveThem: the union of all ports is imported, and each leads only
// to clusters that have it.
func TestPortsFollowTheClustersThatHaveThem(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	all := []cluster{cls1, cls2}
	for _, c := range all {
		apply(t, c, servers(c, ns, "web", 1, "--echo-tcp", ":9000"))
		svc := service(ns, "web")
		svc.Spec.Selector = map[string]string{"app": "web"}
		svc.Spec.Ports = []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromInt32(80)},
			{Name: "echo", Port: 9000, TargetPort: intstr.FromInt32(9000)},
		}
		if c.name == "cls2" {
			svc.Spec.Ports[0].Port = 8080 // not the http that cls1, the older, has
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "extra", Port: 7000, TargetPort: intstr.FromInt32(80)})
		}
		create(t, c, svc)
		startClient(t, c, ns)
	}
	nextSecond(t, cls2, export(t, cls1, ns, "web"))
	export(t, cls2, ns, "web")
	for _, c := range all {
		eventually(t, started, func() error {
			return importedPorts(t.Context(), c, ns, "web", "http 80/TCP", "echo 9000/TCP", "extra 7000/TCP")
		})
		eventually(t, started, func() error {
			return slicePorts(t.Context(), c, ns, "web", "cls1", "echo 9000/TCP", "http 80/TCP")
		})
		eventually(t, started, func() error {
			return slicePorts(t.Context(), c, ns, "web", "cls2", "echo 9000/TCP", "extra 80/TCP")
		})
		host := fqdn(ns, "web")
		eventually(t, started, func() error { return answeredBy(t.Context(), c, ns, curl("http://"+host+":80"), "cls1") })
		eventually(t, soon, func() error { return answeredBy(t.Context(), c, ns, curl("http://"+host+":7000"), "cls2") })
		eventually(t, soon, func() error {
			return answeredBy(t.Context(), c, ns, "echo hello | nc -w 3 -N "+host+" 9000", "cls1", "cls2")
		})
	}
}

// TestTargetPortByName: the same name is another number in each of two Deployments.
func TestTargetPortByName(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, deployment(ns, "cls1-low", "web", 1, 80)+"---"+deployment(ns, "cls1-high", "web", 1, 8081))
	svc := service(ns, "web")
	svc.Spec.Selector = map[string]string{"app": "web"}
	svc.Spec.Ports[0].TargetPort = intstr.FromString("web")
	create(t, cls1, svc)
	export(t, cls1, ns, "web")
	startClient(t, cls2, ns)
	eventually(t, started, func() error {
		return slicePorts(t.Context(), cls2, ns, "web", "cls1", "http 80/TCP", "http 8081/TCP")
	})
	eventually(t, soon, func() error {
		got, _, err := answers(t.Context(), cls2, ns, 16, curl("http://"+fqdn(ns, "web")))
		if err == nil && len(got) != 2 {
			err = fmt.Errorf("answered by %v, want both pods", got)
		}
		return err
	})
}

// TestProtocols: one port number with TCP and UDP, each reached by its own; an unnamed single port;
// SCTP and appProtocol in all that is made of them.
func TestProtocols(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, servers(cls1, ns, "web", 1, "--echo-tcp", ":9000", "--echo-udp", ":9000"))
	selector := map[string]string{"app": "web"}
	echo := service(ns, "echo")
	echo.Spec.Selector = selector
	echo.Spec.Ports = []corev1.ServicePort{
		{Name: "tcp", Port: 9000, Protocol: corev1.ProtocolTCP, AppProtocol: new("example.com/echo")},
		{Name: "udp", Port: 9000, Protocol: corev1.ProtocolUDP},
		{Name: "sctp", Port: 9001, Protocol: corev1.ProtocolSCTP},
	}
	create(t, cls1, echo)
	unnamed := service(ns, "unnamed")
	unnamed.Spec.Selector = selector
	unnamed.Spec.Ports = []corev1.ServicePort{{Port: 8000, TargetPort: intstr.FromInt32(80)}}
	create(t, cls1, unnamed)
	export(t, cls1, ns, "echo")
	export(t, cls1, ns, "unnamed")
	startClient(t, cls2, ns)

	eventually(t, started, func() error {
		return importedPorts(t.Context(), cls2, ns, "echo", "tcp 9000/TCP", "udp 9000/UDP", "sctp 9001/SCTP")
	})
	eventually(t, started, func() error {
		return slicePorts(t.Context(), cls2, ns, "echo", "cls1", "sctp 9001/SCTP", "tcp 9000/TCP", "udp 9000/UDP")
	})
	eventually(t, started, func() error { return appProtocol(t.Context(), cls2, ns, "echo", "tcp", "example.com/echo") })
	host := fqdn(ns, "echo")
	eventually(t, soon, func() error {
		return answeredBy(t.Context(), cls2, ns, "echo hello | nc -w 3 -N "+host+" 9000", "cls1")
	})
	eventually(t, soon, func() error {
		return answeredBy(t.Context(), cls2, ns, "echo hello | nc -u -w 1 "+host+" 9000", "cls1")
	})

	eventually(t, soon, func() error { return importedPorts(t.Context(), cls2, ns, "unnamed", " 8000/TCP") })
	eventually(t, soon, func() error { return slicePorts(t.Context(), cls2, ns, "unnamed", "cls1", " 80/TCP") })
	eventually(t, soon, func() error {
		return answeredBy(t.Context(), cls2, ns, curl("http://"+fqdn(ns, "unnamed")+":8000"), "cls1")
	})
}

// appProtocol checks the appProtocol of a port in the ServiceImport, the derived Service and the
// slices.
func appProtocol(ctx context.Context, c cluster, ns, name, port, want string) error {
	imp, err := serviceImport(ctx, c, ns, name)
	if err != nil {
		return err
	}
	derived, err := derivedService(ctx, c, ns, name)
	if err != nil {
		return err
	}
	list, err := importedSlices(ctx, c, ns, name, "cls1")
	if err != nil {
		return err
	}
	got := map[string]string{}
	for _, p := range imp.Spec.Ports {
		if p.Name == port && p.AppProtocol != nil {
			got["ServiceImport"] = *p.AppProtocol
		}
	}
	for _, p := range derived.Spec.Ports {
		if p.Name == port && p.AppProtocol != nil {
			got["Service"] = *p.AppProtocol
		}
	}
	for _, s := range list {
		i := slices.IndexFunc(s.Ports, func(p discoveryv1.EndpointPort) bool { return *p.Name == port })
		if i >= 0 && s.Ports[i].AppProtocol != nil {
			got["EndpointSlice"] = *s.Ports[i].AppProtocol
		}
	}
	if d := cmp.Diff(map[string]string{"ServiceImport": want, "Service": want, "EndpointSlice": want}, got); d != "" {
		return fmt.Errorf("%s: appProtocol of port %s (-want +got):\n%s", c.name, port, d)
	}
	return nil
}
