package cli

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func schemaVersion(group string) schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: "v1beta1"}
}

var demoWeb = mcs.Key{Namespace: "demo", Name: "web"}

// exportWeb makes cls1 export demo/web with two endpoints, and cls2 import it: as it is when all is well.
func exportWeb(f fleet) {
	created := metav1.NewTime(today.Add(-5 * time.Minute))
	meta := metav1.ObjectMeta{Namespace: "demo", Name: "web", CreationTimestamp: created}
	exporter := f["cls1"]
	exporter.add(
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.1.1", Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		}},
		slice("web-1", map[string]string{discoveryv1.LabelServiceName: "web"}),
		&mcsv1beta1.ServiceExport{ObjectMeta: meta, Status: mcsv1beta1.ServiceExportStatus{Conditions: []metav1.Condition{
			{Type: "Valid", Status: metav1.ConditionTrue, Reason: "Valid", Message: "the Service can be exported"},
			{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Exported", Message: "the other clusters of the clusterset can see the export"},
			{Type: "Conflict", Status: metav1.ConditionFalse, Reason: "NoConflicts", Message: "all exports of the service agree"},
		}}},
	)
	exp := mcs.Export{
		Key: demoWeb, Cluster: "cls1", Created: created.Time, Type: mcsv1beta1.ClusterSetIP,
		Ports: []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		Backends: []mcs.Backends{{
			Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
			Endpoints: []mcs.Endpoint{
				{Address: netip.MustParseAddr("10.1.0.1"), Ready: true, Serving: true},
				{Address: netip.MustParseAddr("10.1.0.2"), Ready: true, Serving: true},
			},
		}},
	}
	exporter.services = []status.Service{{Key: demoWeb, Own: &exp, Publication: &status.Publication{Key: demoWeb, State: "Exported"}}}
	f["cls2"].services = []status.Service{{Key: demoWeb, Exports: []mcs.Export{exp}}}
	for _, s := range f {
		s.status.Members[0].Exports, s.status.Members[0].Endpoints = 1, 2
		s.add(
			&mcsv1beta1.ServiceImport{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "demo", Name: "web", CreationTimestamp: created, Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy},
				},
				Spec: mcsv1beta1.ServiceImportSpec{
					Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.96.9.9"}, Ports: []mcsv1beta1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
				},
				Status: mcsv1beta1.ServiceImportStatus{
					Clusters:   []mcsv1beta1.ClusterStatus{{Cluster: "cls1"}},
					Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", Message: "the service can be used by its DNS name and its clusterset IP"}},
				},
			},
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{
				Namespace: "demo", Name: mcs.DerivedName(demoWeb), Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy},
			}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.9.9", ClusterIPs: []string{"10.96.9.9"}}},
			slice("imported-1", map[string]string{
				plan.LabelManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: "web", mcsv1beta1.LabelSourceCluster: "cls1",
			}),
		)
		s.probe = status.Probe{Key: demoWeb, Name: "web.demo.svc.clusterset.local", Addresses: []string{"10.96.9.9"}, Connections: []status.Connection{
			{Target: status.Target{Address: "10.96.9.9:80"}, Milliseconds: 1}, {Target: status.Target{Address: "10.1.0.1:8080", Cluster: "cls1"}, Milliseconds: 1},
		}}
	}
}

// slice has two ready endpoints.
func slice(name string, labels map[string]string) *discoveryv1.EndpointSlice {
	yes := true
	endpoint := func(address string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: labels}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}}, Endpoints: []discoveryv1.Endpoint{endpoint("10.1.0.1"), endpoint("10.1.0.2")},
	}
}
