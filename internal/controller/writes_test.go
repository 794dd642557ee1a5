package controller

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestWritesPerExportedService counts what a bulk export costs the API servers. Per service the
// exporting cluster writes the status of the ServiceExport, and each cluster creates derived
// Service, ServiceImport and EndpointSlice, adds the owner to the Service and writes the status of
// the ServiceImport. ServiceExport and ServiceImport get an event each. Refused writes, such as
// those that conflict with another client's, do not count.
func TestWritesPerExportedService(t *testing.T) {
	const services = 50
	s := setUp(t, "writes")
	// An import that begins while the export of another cluster is unknown is written once more
	// when it is known (plan.AnnotationExportTimes).
	eventually(t, "the clusters know each other", func() error {
		if !s.hub.AreKnown("set", 2) {
			return errors.New("they do not")
		}
		return nil
	})
	var keys []mcs.Key
	for i := range services {
		keys = append(keys, mcs.Key{Namespace: s.key.Namespace, Name: fmt.Sprintf("web-%d", i)})
	}
	// The controller reads the Services before the ServiceExports, or it would report exports
	// without a Service first.
	for _, key := range keys {
		s.a.create(t, controllertest.Service(key))
		s.a.create(t, controllertest.EndpointSlice(key, controllertest.Endpoints(1, 1)))
	}
	for _, key := range keys {
		s.a.create(t, controllertest.ServiceExport(key))
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
	importing := map[string]int{
		"POST services": services, "POST serviceimports": services, "POST endpointslices": services,
		"PUT services": services, "PUT serviceimports status": services, "POST events": services,
	}
	exporting := maps.Clone(importing)
	exporting["PUT serviceexports status"], exporting["POST events"] = services, 2*services
	for _, c := range []struct {
		cluster *cluster
		want    map[string]int
	}{{s.a, exporting}, {s.b, importing}} {
		eventually(t, "the events, which are written in the background", func() error {
			if got, _ := c.cluster.writes.byKind(s.key.Namespace); got["POST events"] < c.want["POST events"] {
				return fmt.Errorf("%d events, want %d", got["POST events"], c.want["POST events"])
			}
			return nil
		})
		got, refused := c.cluster.writes.byKind(s.key.Namespace)
		// An export that takes longer than three seconds to show in the registry, as on a busy
		// machine, is Pending first.
		delete(got, "PUT serviceexports status Pending")
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("writes for %d services differ (-want +got), refused were %v:\n%s", services, refused, diff)
		}
	}
}
