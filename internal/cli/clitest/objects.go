package clitest

import (
	"net/netip"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// DemoWeb is the service of ExportWeb.
var DemoWeb = mcs.Key{Namespace: "demo", Name: "web"}

// CRD returns a CRD of the MCS API.
func CRD(plural, release, revision string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name:   plural + ".multicluster.x-k8s.io",
		Labels: map[string]string{"multicluster.x-k8s.io/release-version": release, "multicluster.x-k8s.io/crd-schema-revision": revision},
	}}
}

// ControllerPod returns a ready pod of the controller.
func ControllerPod(name, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: session.DefaultNamespace, Name: name, Labels: session.ManagerLabels()},
		Status: corev1.PodStatus{
			PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

// ControllerDeployment returns the Deployment of two pods.
func ControllerDeployment(ready int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: session.DefaultNamespace, Name: session.ManagerName},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(2))},
		Status:     appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: ready, AvailableReplicas: ready},
	}
}

// KubeProxy returns a DaemonSet kube-proxy with three pods.
func KubeProxy(ready int32) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, NumberReady: ready},
	}
}

// Property returns a ClusterProperty.
func Property(name, value string) *aboutv1beta1.ClusterProperty {
	return &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: aboutv1beta1.ClusterPropertySpec{Value: value}}
}

// ExportWeb makes cls1 export demo/web with two ready endpoints, and both clusters import it.
func ExportWeb(clusters Clusters) {
	created := metav1.NewTime(Today.Add(-5 * time.Minute))
	meta := metav1.ObjectMeta{Namespace: "demo", Name: "web", CreationTimestamp: created}
	exporter := clusters["cls1"]
	exporter.Add(
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.1.1", Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		}},
		Slice("web-1", map[string]string{discoveryv1.LabelServiceName: "web"}),
		&mcsv1beta1.ServiceExport{ObjectMeta: meta, Status: mcsv1beta1.ServiceExportStatus{Conditions: []metav1.Condition{
			{Type: "Valid", Status: metav1.ConditionTrue, Reason: "Valid", Message: "the Service can be exported"},
			{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Exported", Message: "the other clusters of the clusterset can see the export"},
			{Type: "Conflict", Status: metav1.ConditionFalse, Reason: "NoConflicts", Message: "all exports of the service agree"},
		}}},
	)
	exp := mcs.Export{
		Key: DemoWeb, Cluster: "cls1", Created: created.Time, Type: mcsv1beta1.ClusterSetIP,
		Ports: []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		Backends: []mcs.Backends{{
			Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
			Endpoints: []mcs.Endpoint{
				{Address: netip.MustParseAddr("10.1.0.1"), Ready: true, Serving: true},
				{Address: netip.MustParseAddr("10.1.0.2"), Ready: true, Serving: true},
			},
		}},
	}
	exporter.ServiceList = []status.Service{{Key: DemoWeb, Own: &exp, Publication: &status.Publication{Key: DemoWeb, State: "Exported"},
		Importers: &mcs.Importers{Recipients: []string{"cls2"}, Importing: []string{"cls2"}}}}
	clusters["cls2"].ServiceList = []status.Service{{Key: DemoWeb, Exports: []mcs.Export{exp}}}
	for _, c := range clusters {
		c.ControllerStatus.Members[0].Exports, c.ControllerStatus.Members[0].Endpoints = 1, 2
		c.ControllerStatus.Members[1].ImportReport = mcs.NewImportReport(map[string][]mcs.Key{"cls1": {DemoWeb}}, nil)
		c.importWeb(created)
	}
}

func (c *Cluster) importWeb(created metav1.Time) {
	c.Add(
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
			Namespace: "demo", Name: mcs.DerivedName(DemoWeb), Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy},
		}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.9.9", ClusterIPs: []string{"10.96.9.9"}}},
		Slice("imported-1", map[string]string{
			plan.LabelManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: "web", mcsv1beta1.LabelSourceCluster: "cls1",
		}),
	)
	c.ProbeResult = status.Probe{Key: DemoWeb, Name: "web.demo.svc.clusterset.local", Addresses: []string{"10.96.9.9"}, Connections: []status.Connection{
		{Target: status.Target{Address: "10.96.9.9:80"}, Milliseconds: 1}, {Target: status.Target{Address: "10.1.0.1:8080", Cluster: "cls1"}, Milliseconds: 1},
	}}
}

// Slice returns an EndpointSlice in namespace demo with two ready endpoints.
func Slice(name string, labels map[string]string) *discoveryv1.EndpointSlice {
	yes := true
	endpoint := func(address string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: labels}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}}, Endpoints: []discoveryv1.Endpoint{endpoint("10.1.0.1"), endpoint("10.1.0.2")},
	}
}
