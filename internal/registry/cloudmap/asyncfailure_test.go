package cloudmap

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestUndone has AWS accept the writes of one page, and fail to carry them out: the users of that
// page get why, others get nothing, and their changes and the heartbeats go on as ever.
func TestUndone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{})
		hurt, other := webExport("cls1", 0, 1), webExport("cls1", 8, 1) // of different pages
		fails := cloudmaplocal.FaultPlan{Rules: []cloudmaplocal.FaultRule{{
			Kind: cloudmaplocal.FaultFail, Operations: []string{"RegisterInstance"}, Service: format.CatalogName("cls1"),
			Instance: format.PartID(format.PageOf(hurt.Key), 0), Code: "INTERNAL_FAILURE", Message: "the quota of something",
		}}}
		if err := w.server.SetFaults(fails); err != nil {
			t.Fatal(err)
		}
		var log transcript
		exporter := w.begin(cls1, nil, func(cfg *Config) { cfg.Logger = funcr.New(log.line, funcr.Options{}) })
		importer := w.begin(cls2, nil)
		publish(t, exporter.Registry, other)
		w.until(time.Minute, "the clusters see each other", sees(t, importer.Registry, other))
		publish(t, exporter.Registry, hurt)

		// Changes of the other page for as long as it takes to try several times.
		reported := 0
		for began, n := time.Now(), 1; time.Since(began) < 2*time.Minute; n++ {
			other = webExport("cls1", 8, 1+n%2)
			publish(t, exporter.Registry, other)
			// A poll and the time in which changes are gathered; a pause before a retry would be
			// added.
			w.until(1500*time.Millisecond, "a change of another page arrives", sees(t, importer.Registry, other))
			if err := exporter.Report().Writing; err != nil {
				t.Fatalf("writing as a whole is said to fail: %v", err)
			}
			if own := look(t, exporter.Registry, other.Key).Local; own.Err != nil {
				t.Fatalf("the users of another page get %v", own.Err)
			}
			own := look(t, exporter.Registry, hurt.Key).Local
			if own.State != registry.Pending {
				t.Fatalf("what came to nothing is %v", own.State)
			}
			if own.Err != nil && strings.Contains(own.Err.Error(), "the operation failed: INTERNAL_FAILURE: the quota of something") {
				reported++
			} else if own.Err != nil || reported > 0 {
				t.Fatalf("after %v the users of the page get %v", time.Since(began), own.Err)
			}
		}
		if reported == 0 {
			t.Error("no cluster got why")
		}
		if n := strings.Count(log.String(), "Failed to write a page that AWS had accepted"); n != 1 {
			t.Errorf("it is in the log %d times, want once:\n%s", n, log.String())
		}
		if err := w.server.SetFaults(cloudmaplocal.FaultPlan{}); err != nil {
			t.Fatal(err)
		}
		// An operation that has begun may still fail, which shows after 15 s at most, and before
		// and after it is a pause of 30 s at most.
		w.until(2*time.Minute, "it is written after all", isExported(t, exporter.Registry, hurt.Key))
		w.until(time.Minute, "it is seen", sees(t, importer.Registry, hurt))
		exporter.kill()
		importer.kill()
	})
}

// TestUndone_MissingService has another user delete a service with a cluster's records while AWS
// accepts registrations in services that do not exist, and fails to carry them out.
func TestUndone_MissingService(t *testing.T) {
	for deleted, within := range map[string]time.Duration{
		// Reads of the own page show after some seconds that its service is gone.
		format.CatalogName("cls1"): 12 * time.Second,
		// The other cluster creates the service again, so reads do not show that: a record counts
		// as not shown after 15 s.
		format.MembersService: 40 * time.Second,
	} {
		t.Run(deleted, func(t *testing.T) { inBubble(t, func(t *testing.T) { recoversFrom(t, deleted, within) }) })
	}
}

// recoversFrom deletes a service, and waits until a change of an export arrives.
func recoversFrom(t *testing.T, deleted string, within time.Duration) {
	t.Helper()
	w := newSimulation(t, 0, cloudmaplocal.Options{Behaviors: cloudmaplocal.Behaviors{MissingService: cloudmaplocal.MissingAccept}})
	exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
	first, second := webExport("cls1", 0, 1), webExport("cls1", 0, 2)
	publish(t, exporter.Registry, first)
	w.until(time.Minute, "the importer sees the export", sees(t, importer.Registry, first))

	admin, line := w.clientAt("admin", nil)
	line.unsigned = true
	_, service := (&otherWriter{simulation: w}).service(deleted)
	listed, err := admin.ListInstances(t.Context(), service)
	if err != nil {
		t.Fatal(err)
	}
	for _, instance := range listed {
		if err := admin.DeregisterInstance(t.Context(), service.ID, instance.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.DeleteService(t.Context(), service); err != nil {
		t.Fatal(err)
	}

	publish(t, exporter.Registry, second)
	w.until(within, "the importer sees the change", sees(t, importer.Registry, second))
	exporter.kill()
	importer.kill()
}
