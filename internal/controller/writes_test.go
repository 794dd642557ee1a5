package controller

import (
	"fmt"
	"testing"

	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestWritesPerExportedService counts what a bulk export costs the API servers. Per service the exporting cluster writes the
// status of the ServiceExport, and each cluster creates derived Service, ServiceImport and EndpointSlice, adds the owner to the
// Service and writes the status of the ServiceImport.
func TestWritesPerExportedService(t *testing.T) {
	const services = 50
	s := setUp(t, "writes")
	var keys []mcs.Key
	for i := range services {
		keys = append(keys, mcs.Key{Namespace: s.key.Namespace, Name: fmt.Sprintf("web-%d", i)})
	}
	for _, key := range keys {
		s.a.export(t, key, 1, 1)
	}
	for _, key := range keys {
		s.a.condition(t, key, "Ready=True Exported", "")
		for _, k := range []*cluster{s.a, s.b} {
			k.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
			eventually(t, "status of the import", func() error {
				var imp mcsv1beta1.ServiceImport
				if err := k.get(t, key, &imp); err != nil || len(imp.Status.Conditions) == 0 {
					return fmt.Errorf("the ServiceExport has no conditions (%w)", err)
				}
				return nil
			})
		}
	}
	for _, c := range []struct {
		cluster *cluster
		want    int
	}{{s.a, 6 * services}, {s.b, 5 * services}} {
		// On a busy machine some first statuses are Pending, and a conflict repeats a request.
		if got := c.cluster.writes.in(s.key.Namespace); got < c.want || got > c.want+services/2 {
			t.Errorf("%d writes for %d services, want %d", got, services, c.want)
		}
	}
}
