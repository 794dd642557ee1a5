package cloudmap

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestReader_PageWrittenWithoutAnswer withdraws the only export of a page and publishes it again.
// AWS Cloud Map does not carry out the write of the record that announces the withdrawal, and
// carries out that of the page without an answer. Another cluster reads the page, and then a record
// of before the answer, which also announces a later change of another page: what it has read does
// not go away again.
func TestReader_PageWrittenWithoutAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		first, second, third := webExport("cls1", 0, 1), webExport("cls1", 0, 2), webExport("cls1", 0, 3)
		publish(t, exporter.Registry, first)
		w.until(time.Minute, "the export is known", sees(t, importer.Registry, first))
		time.Sleep(time.Minute)

		w.setIntercept(func(r request) (code, body string, ok bool) {
			return "InternalFailure", "", r.cluster == "cls2" && r.operation == "DiscoverInstances" && r.names(format.CatalogName("cls1"))
		})
		publish(t, exporter.Registry, second)
		time.Sleep(5 * time.Second) // the other cluster has read the record, and not the page
		page := "page-" + format.PageName(format.PageOf(first.Key)) + "-*"
		w.plan(1,
			cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultHang, Operations: []string{"RegisterInstance"}, Instance: "cls1", Next: 1},
			cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultHang, Operations: []string{"RegisterInstance"}, Instance: page, Applied: true, Next: 1})
		if err := exporter.Withdraw(t.Context(), first.Key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		publish(t, exporter.Registry, third)
		time.Sleep(time.Second)
		w.setIntercept(nil)
		w.until(5*time.Second, "the page is read", sees(t, importer.Registry, third))

		other := webExport("cls1", anotherPage(first.Key), 1)
		publish(t, exporter.Registry, other)
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			if !sees(t, importer.Registry, third)() {
				t.Fatal("the export is gone again")
			}
		}
		if !sees(t, importer.Registry, other)() {
			t.Error("the other export is not known")
		}
		if view, _ := viewOf(t, exporter.Registry, third.Key); view.Local.State != registry.Exported {
			t.Errorf("the export is %v, %v", view.Local.State, view.Local.Err)
		}
		exporter.kill()
		importer.kill()
	})
}

// anotherPage returns the number of a service of webExport whose page is not that of key.
func anotherPage(key mcs.Key) int {
	n := 1
	for format.PageOf(webKey(n)) == format.PageOf(key) {
		n++
	}
	return n
}
