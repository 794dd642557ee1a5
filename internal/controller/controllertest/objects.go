// Package controllertest builds the Kubernetes objects of a service for tests of the controllers,
// and reads the events that they record.
package controllertest

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// MCSVersion is a version of the MCS API that a cluster may serve.
var MCSVersion = schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"}

// Scheme returns the controllers' scheme with MCSVersion.
func Scheme() *runtime.Scheme {
	scheme, err := kube.NewScheme(MCSVersion)
	if err != nil {
		panic(err)
	}
	return scheme
}

// NewClient returns a client with objects, and with the scheme and the indices of the controllers.
func NewClient(objects ...client.Object) client.Client {
	builder := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(objects...)
	if err := kube.AddIndices(context.Background(), indexer{builder}); err != nil {
		panic(err)
	}
	return builder.Build()
}

// indexer adds indices to a client.
type indexer struct{ *fake.ClientBuilder }

// IndexField implements client.FieldIndexer.
func (i indexer) IndexField(_ context.Context, obj client.Object, field string, extract client.IndexerFunc) error {
	i.WithIndex(obj, field, extract)
	return nil
}

func objectMeta(key mcs.Key) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}
}

// Service returns a Service with port 80.
func Service(key mcs.Key) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: objectMeta(key),
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

// ServiceExport returns the ServiceExport of key.
func ServiceExport(key mcs.Key) *mcsv1beta1.ServiceExport {
	return &mcsv1beta1.ServiceExport{ObjectMeta: objectMeta(key)}
}

// ServiceExportOf returns the ServiceExport of key that exports the Service of another name.
func ServiceExportOf(key mcs.Key, service string) *mcsv1beta1.ServiceExport {
	exp := ServiceExport(key)
	exp.Annotations = map[string]string{mcs.AnnotationService: service}
	return exp
}

// Endpoints returns n ready endpoints from 10.x.0.1 on.
func Endpoints(x, n int) []discoveryv1.Endpoint {
	var out []discoveryv1.Endpoint
	for i := range n {
		out = append(out, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", x, i/200, i%200+1)}})
	}
	return out
}

// EndpointSlice returns a slice of the Service of key with these endpoints at port 8080.
func EndpointSlice(key mcs.Key, list []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	m := objectMeta(key)
	m.Name += "-slice"
	m.Labels = map[string]string{discoveryv1.LabelServiceName: key.Name, discoveryv1.LabelManagedBy: "test"}
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  m,
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints:   list,
	}
}

// Recorded returns the events that a recorder has recorded, and closes it.
func Recorded(recorder *events.FakeRecorder) (all []string) {
	close(recorder.Events)
	for e := range recorder.Events {
		all = append(all, e)
	}
	return all
}
