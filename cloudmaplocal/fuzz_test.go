package cloudmaplocal

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// FuzzRequest sends anything to any operation. The server must answer well-formed JSON and never
// fail inside.
func FuzzRequest(f *testing.F) {
	names := sortedKeys(handlers)
	for i, body := range []string{
		`{}`, `null`, `[]`, `{"Name":"x"}`, `{"MaxResults":0,"NextToken":"YWZ0ZXI6"}`, `{"Id":"ns-1","Namespace":{}}`,
		`{"Filters":[{"Name":"UPDATE_DATE","Condition":"BETWEEN","Values":["1","1e400"]}]}`,
		`{"ServiceId":"srv-fuzz","InstanceId":"a","Attributes":{"AWS_INSTANCE_PORT":"-1"}}`,
		`{"Name":"s","NamespaceId":"ns-fuzz","DnsConfig":{"DnsRecords":[{}]}}`,
		`{"Id":"srv-fuzz","Service":{"DnsConfig":{"DnsRecords":[]}}}`,
		`{"ResourceARN":"arn:aws:servicediscovery:us-east-1:123456789012:service/srv-fuzz","Tags":[{"Key":"","Value":""}]}`,
		`{"NamespaceName":"fuzz","ServiceName":"fuzz","QueryParameters":{"":null}}`,
	} {
		f.Add(i, body, "AWS4-HMAC-SHA256 Credential=A/20261120/us-east-1/servicediscovery/aws4_request, SignedHeaders=host, Signature="+strings.Repeat("0", 64))
	}
	f.Fuzz(func(t *testing.T, which int, body, authorization string) {
		server, err := New(Options{Unthrottled: true})
		if err != nil {
			t.Fatal(err)
		}
		seedFuzz(server)
		name := names[(which%len(names)+len(names))%len(names)]
		for range 2 { // the second runs on the state that the first left
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
			r.Header.Set("X-Amz-Target", targetPrefix+name)
			r.Header["Authorization"] = []string{authorization}
			w := httptest.NewRecorder()
			server.ServeHTTP(w, r)
			if w.Code >= 500 {
				t.Errorf("%s %s: %d %s", name, body, w.Code, w.Body)
			}
			if w.Body.Len() > 0 && !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s %s: no JSON: %s", name, body, w.Body)
			}
		}
	})
}

// seedFuzz puts a namespace ns-fuzz of private DNS and a service srv-fuzz into the default region.
func seedFuzz(s *Server) {
	r := s.regions.getRegion(regionKey{DefaultAccount, DefaultRegion})
	r.withState(func() {
		ns := &namespace{ID: "ns-fuzz", Kind: kindPrivate, Name: "fuzz"}
		r.replica.addChange(r.store.addNamespace(ns, "", time.Time{}), time.Time{})
		r.replica.addChange(r.store.addService(ns, &service{
			ID: "srv-fuzz", NamespaceID: ns.ID, Name: "fuzz", Kind: serviceDNSHTTP, Instances: map[string]*instance{},
			DNS: &wire.DNSConfig{RoutingPolicy: routingMultivalue, DnsRecords: []wire.DNSRecord{{Type: "A", TTL: new(int64(1))}}},
		}, time.Time{}), time.Time{})
	})
}

// FuzzToken checks that tokens survive the way to the client and back.
func FuzzToken(f *testing.F) {
	f.Add("ns-1")
	f.Add("")
	f.Fuzz(func(t *testing.T, key string) {
		got, err := decodeToken(encodeToken(key))
		if err != nil || got != key {
			t.Errorf("token of %q = %q, %v", key, got, err)
		}
	})
}
