package cloudmap

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestRefusedPageHasItsOwnTime is a page that AWS goes on to refuse: the others are not held up by it, and it is not tried all the time.
func TestRefusedPageHasItsOwnTime(t *testing.T) {
	warmUp(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 3})
		w.plan(1, cloudmaplocal.FaultRule{
			Operations: []string{"RegisterInstance"}, Instance: format.PartID(format.PageOf(webKey(0)), 0), Kind: cloudmaplocal.FaultError, Code: "ResourceLimitExceeded",
		})
		refused := func() int {
			_, hits := w.server.Faults()
			return hits[0]
		}
		exporter := w.begin(cls1, nil)
		publish(t, exporter.Registry, webExport("cls1", 0, 1))
		w.until(time.Minute, "the page is refused", func() bool {
			return look(t, exporter.Registry, webKey(0)).Local.Err != nil && refused() > 0
		})
		time.Sleep(5 * time.Minute)
		if n := refused(); n > 60 {
			t.Errorf("it was tried %d times in five minutes, want about twice a minute once it has failed for long", n)
		}
		for i := range 20 {
			exp := webExport("cls1", 8, i+1)
			publish(t, exporter.Registry, exp)
			w.until(3*time.Second, "another page is written and shown", isExported(t, exporter.Registry, exp.Key))
		}
		exporter.kill()
	})
}
