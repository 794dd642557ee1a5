package cloudmaplocal

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// call answers a request without a network.
func call(b *testing.B, s *Server, operation, body string) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("X-Amz-Target", targetPrefix+operation)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		b.Fatalf("%s: %d %s", operation, w.Code, w.Body)
	}
}

// benchServer starts a server with a service that has n instances with the attributes of the
// tutorial, and returns the ID of the service.
func benchServer(b *testing.B, instances int) (*Server, string) {
	s, err := New(Options{Unthrottled: true})
	if err != nil {
		b.Fatal(err)
	}
	call(b, s, "CreateHttpNamespace", `{"Name":"demo"}`)
	r := s.regions.getRegion(regionKey{DefaultAccount, DefaultRegion})
	call(b, s, "CreateService", `{"Name":"svc","NamespaceId":"`+sortedKeys(r.store.namespaces)[0]+`"}`)
	svc := sortedKeys(r.store.services)[0]
	for i := range instances {
		call(b, s, "RegisterInstance", registration(svc, i))
	}
	return s, svc
}

func registration(svc string, i int) string {
	return `{"ServiceId":"` + svc + `","InstanceId":"tcp-10_0_` + strconv.Itoa(i) + `-80","Attributes":{"AWS_INSTANCE_IPV4":"10.0.0.1",` +
		`"AWS_INSTANCE_PORT":"80","ENDPOINT_PORT_NAME":"http","ENDPOINT_PROTOCOL":"TCP","SERVICE_PORT":"80","SERVICE_PORT_NAME":"http",` +
		`"SERVICE_PROTOCOL":"TCP","SERVICE_TARGET_PORT":"80","CLUSTER_ID":"cls1","CLUSTERSET_ID":"set1","SERVICE_TYPE":"ClusterSetIP",` +
		`"SERVICE_EXPORT_CREATION_TIMESTAMP":"1795213927","READY":"true","HOSTNAME":"","NODENAME":"cls1-node-1","K8S_CONTROLLER":"x"}}`
}

func BenchmarkRegisterInstance(b *testing.B) {
	s, svc := benchServer(b, 0)
	for i := 0; b.Loop(); i++ {
		call(b, s, "RegisterInstance", registration(svc, i%1000))
	}
}

func BenchmarkDiscoverInstances1000(b *testing.B) {
	s, _ := benchServer(b, 1000)
	for b.Loop() {
		call(b, s, "DiscoverInstances", `{"NamespaceName":"demo","ServiceName":"svc","MaxResults":1000}`)
	}
}

func BenchmarkDiscoverInstancesQuery(b *testing.B) {
	s, _ := benchServer(b, 1000)
	for b.Loop() {
		call(b, s, "DiscoverInstances", `{"NamespaceName":"demo","ServiceName":"svc","QueryParameters":{"CLUSTER_ID":"none"}}`)
	}
}

func BenchmarkDiscoverInstancesRevision(b *testing.B) {
	s, _ := benchServer(b, 1000)
	for b.Loop() {
		call(b, s, "DiscoverInstancesRevision", `{"NamespaceName":"demo","ServiceName":"svc"}`)
	}
}
