package cloudmap

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestRemovedRecordIsWrittenBeforeNextHeartbeat deletes the own record right after a heartbeat: the
// cluster does not believe a read without it, and writes it again at once.
func TestRemovedRecordIsWrittenBeforeNextHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, exporter, _ := exporting(t)
		time.Sleep(3 * settings.PollInterval) // what is written now is confirmed
		writes := func() int { return w.count()["RegisterInstance members"] }
		before := writes()
		w.until(time.Minute, "a heartbeat", func() bool { return writes() > before })
		time.Sleep(3 * settings.PollInterval)
		admin, members := (&otherWriter{simulation: w}).service(format.MembersService)
		if err := admin.DeregisterInstance(t.Context(), members.ID, "cls1"); err != nil {
			t.Fatal(err)
		}
		before = writes()
		w.until(settings.HeartbeatInterval/2, "the record is written again", func() bool { return writes() > before })
		if got := membersOf(exporter.Registry); len(got) != 1 {
			t.Errorf("members %v, want this cluster", got)
		}
		exporter.kill()
	})
}

// TestPartsAreRemovedAfterAnnouncement shrinks a page: readers of the former generation may still
// read its parts until the record announces the new one.
func TestPartsAreRemovedAfterAnnouncement(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		exporter := w.begin(cls1, nil)
		large := bulky(0, 0)
		publish(t, exporter.Registry, large)
		w.until(time.Minute, "it is exported", isExported(t, exporter.Registry, large.Key))
		time.Sleep(3 * settings.PollInterval)

		var mu sync.Mutex
		var order []string
		w.setWrote(func(req request) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case req.operation == "DeregisterInstance":
				order = append(order, "remove parts")
			case req.names("HEARTBEAT"):
				order = append(order, "announce")
			case req.operation == "RegisterInstance":
				order = append(order, "write page")
			}
		})
		small := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, small)
		w.until(time.Minute, "parts are removed", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Contains(order, "remove parts")
		})
		mu.Lock()
		defer mu.Unlock()
		written, announced, removed := slices.Index(order, "write page"), -1, slices.Index(order, "remove parts")
		if written >= 0 {
			if i := slices.Index(order[written:], "announce"); i >= 0 {
				announced = written + i
			}
		}
		if written < 0 || announced < 0 || removed < announced {
			t.Errorf("order %v, want the page written, then announced, then its excess parts removed", order)
		}
	})
}
