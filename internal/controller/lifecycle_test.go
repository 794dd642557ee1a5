package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// importedPorts waits until key is imported as a ClusterSetIP service with ports, sorted, such as
// "http:80", and its slices have slicePorts.
func (k *cluster) importedPorts(t *testing.T, key mcs.Key, ports, slicePorts []string) {
	t.Helper()
	eventually(t, fmt.Sprintf("ports %v of %s", ports, key), func() error {
		var imp mcsv1beta1.ServiceImport
		if err := k.get(t, key, &imp); err != nil {
			return err
		}
		if err := k.importComplete(t, key, &imp); err != nil {
			return err
		}
		var svc corev1.Service
		if err := k.get(t, mcs.Key{Namespace: key.Namespace, Name: mcs.DerivedName(key)}, &svc); err != nil {
			return err
		}
		var ofImport, ofService, ofSlices []string
		for _, p := range imp.Spec.Ports {
			ofImport = append(ofImport, fmt.Sprintf("%s:%d", p.Name, p.Port))
		}
		for _, p := range svc.Spec.Ports {
			ofService = append(ofService, fmt.Sprintf("%s:%d", p.Name, p.Port))
		}
		for _, s := range k.slicesOf(t, key) {
			for _, p := range s.Ports {
				ofSlices = append(ofSlices, fmt.Sprintf("%s:%d", *p.Name, *p.Port))
			}
		}
		for _, list := range [][]string{ofImport, ofService, ofSlices} {
			slices.Sort(list)
		}
		if d := cmp.Diff(ports, ofImport); d != "" {
			return fmt.Errorf("ports of the ServiceImport (-want +got):\n%s", d)
		}
		if d := cmp.Diff(ports, ofService); d != "" {
			return fmt.Errorf("ports of the derived Service (-want +got):\n%s", d)
		}
		if d := cmp.Diff(slicePorts, ofSlices); d != "" {
			return fmt.Errorf("ports of the slices (-want +got):\n%s", d)
		}
		if svc.Spec.Type != corev1.ServiceTypeClusterIP {
			return fmt.Errorf("the derived Service is of type %s", svc.Spec.Type)
		}
		return nil
	})
}

// A NodePort or LoadBalancer Service is imported as a ClusterSetIP service. The exported Service
// keeps its type.
func TestExports_AcceptAllServiceTypes(t *testing.T) {
	s := setUp(t, "types")
	svc := controllertest.Service(s.key)
	svc.Spec.Type = corev1.ServiceTypeNodePort
	s.a.create(t, svc)
	s.a.create(t, controllertest.EndpointSlice(s.key, controllertest.Endpoints(1, 1)))
	s.a.create(t, controllertest.ServiceExport(s.key))
	want := map[string][]string{"cls1": {"10.1.0.1"}}
	before := s.b.imported(t, s.key, want)
	s.b.importedPorts(t, s.key, []string{"http:80"}, []string{"http:8080"})
	for i, serviceType := range []corev1.ServiceType{corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
		change(t, s.a, controllertest.Service(s.key), func(svc *corev1.Service) { svc.Spec.Type = serviceType })
		// The marker shows that the change was reconciled.
		marker := mcs.Key{Namespace: s.key.Namespace, Name: fmt.Sprintf("marker-%d", i)}
		s.a.export(t, marker, 1, 1)
		s.b.imported(t, marker, want)
		s.b.importedPorts(t, s.key, []string{"http:80"}, []string{"http:8080"})
		s.a.condition(t, s.key, "Ready=True Exported", "")
		var now corev1.Service
		if err := s.a.get(t, s.key, &now); err != nil || now.Spec.Type != serviceType {
			t.Errorf("the user's Service is of type %s, want %s: %v", now.Spec.Type, serviceType, err)
		}
	}
	after := s.b.imported(t, s.key, want)
	if before.UID != after.UID || before.Spec.IPs[0] != after.Spec.IPs[0] {
		t.Errorf("the import changed: %s %v, then %s %v", before.UID, before.Spec.IPs, after.UID, after.Spec.IPs)
	}
}

// If ports and selector of an exported Service change, the slices are updated and the clusterset IP
// stays.
func TestExports_FollowPortsAndSelector(t *testing.T) {
	s := setUp(t, "ports")
	slice := s.a.export(t, s.key, 1, 1)
	before := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	s.b.importedPorts(t, s.key, []string{"http:80"}, []string{"http:8080"})

	change(t, s.a, controllertest.Service(s.key), func(svc *corev1.Service) {
		svc.Spec.Ports = []corev1.ServicePort{
			{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)},
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromString("dns")},
		}
	})
	change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) {
		e.Ports = append(e.Ports, discoveryv1.EndpointPort{Name: new("dns"), Port: new(int32(5353)), Protocol: new(corev1.ProtocolUDP)})
	})
	s.b.importedPorts(t, s.key, []string{"dns:53", "http:81"}, []string{"dns:5353", "http:8080"})

	// One port again, and other pods: with another selector Kubernetes writes another slice.
	change(t, s.a, controllertest.Service(s.key), func(svc *corev1.Service) {
		svc.Spec.Ports = svc.Spec.Ports[:1]
		svc.Spec.Selector = map[string]string{"app": "other"}
	})
	s.a.delete(t, slice)
	other := controllertest.EndpointSlice(s.key, controllertest.Endpoints(9, 2))
	other.Name += "-other"
	s.a.create(t, other)
	after := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.9.0.1", "10.9.0.2"}})
	s.b.importedPorts(t, s.key, []string{"http:81"}, []string{"http:8080"})
	if before.UID != after.UID || before.Spec.IPs[0] != after.Spec.IPs[0] {
		t.Errorf("the import changed: %s %v, then %s %v", before.UID, before.Spec.IPs, after.UID, after.Spec.IPs)
	}
}

// A port gets another name in steps, so that kube-proxy always finds its endpoints: the slices have
// both names, then the derived Service has the new one, then the slices lose the old one. The
// ServiceImport has the new one at once. It takes 11 s.
func TestImports_PortNamesChangeInSteps(t *testing.T) {
	s := setUp(t, "port-names")
	s.a.create(t, controllertest.Service(s.key))
	s.a.create(t, controllertest.ServiceExport(s.key))
	s.b.imported(t, s.key, map[string][]string{"cls1": nil})
	s.b.export(t, s.key, 1, 1)
	s.b.imported(t, s.key, map[string][]string{"cls1": nil, "cls2": {"10.1.0.1"}})
	s.b.importedPorts(t, s.key, []string{"http:80"}, []string{"http:8080"})
	begin := time.Now()
	change(t, s.a, controllertest.Service(s.key), func(svc *corev1.Service) { svc.Spec.Ports[0].Name = "web" })
	s.b.importedPorts(t, s.key, []string{"web:80"}, []string{"web:8080"})
	if took := time.Since(begin); took < 2*plan.SettleTime {
		t.Errorf("all objects had the new name alone after %s, want that Service and slices each wait %s", took, plan.SettleTime)
	}
}

// A Service without a selector has the EndpointSlices that the user writes by hand, with optional
// fields left out.
func TestExports_ServiceWithoutSelector(t *testing.T) {
	s := setUp(t, "byhand")
	s.a.create(t, controllertest.Service(s.key))
	s.a.create(t, controllertest.ServiceExport(s.key))
	s.b.imported(t, s.key, map[string][]string{"cls1": nil})
	byHand := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: s.key.Namespace, Name: "by-hand"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(3306))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}}},
	}
	// without a manager and without readiness
	byHand.Labels = map[string]string{discoveryv1.LabelServiceName: s.key.Name}
	s.a.create(t, byHand)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"192.0.2.7"}})
	s.b.importedPorts(t, s.key, []string{"http:80"}, []string{"http:3306"})
	change(t, s.a, byHand, func(e *discoveryv1.EndpointSlice) { e.Labels[discoveryv1.LabelServiceName] = "another" })
	s.b.imported(t, s.key, map[string][]string{"cls1": nil})
}

// Conditions have the current observedGeneration, also if no other field of them changes.
func TestObservedGeneration(t *testing.T) {
	s := setUp(t, "generation")
	s.a.export(t, s.key, 1, 1)
	s.a.condition(t, s.key, "Ready=True Exported", "")
	exp := controllertest.ServiceExport(s.key)
	change(t, s.a, exp, func(e *mcsv1beta1.ServiceExport) { e.Spec.ExportedLabels = map[string]string{"team": "a"} })
	if exp.Generation != 2 {
		t.Fatalf("the ServiceExport has generation %d, want 2", exp.Generation)
	}
	for _, want := range []string{"Valid=True Valid", "Ready=True Exported", "Conflict=False NoConflicts"} {
		s.a.condition(t, s.key, want, "")
	}
	change(t, s.a, controllertest.Service(s.key), func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 81 })
	eventually(t, "the import's conditions", func() error {
		imp := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
		c := imp.Status.Conditions[0]
		if imp.Spec.Ports[0].Port != 81 || imp.Labels["team"] != "a" || c.ObservedGeneration != imp.Generation {
			return fmt.Errorf("port %d, labels %v, generation %d of %d", imp.Spec.Ports[0].Port, imp.Labels, c.ObservedGeneration, imp.Generation)
		}
		return nil
	})
}
