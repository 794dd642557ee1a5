package imports

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

func TestObservePropagationMeasuresWrittenChangesOfOtherClusters(t *testing.T) {
	start := time.Unix(1000, 0)
	s := &membership.Session{Identity: mcs.Identity{ClusterID: "cls1"}, Started: start}
	exports := []mcs.Export{
		{Cluster: "cls1", Changed: start.Add(time.Second)}, // its own
		{Cluster: "cls2", Changed: start.Add(8 * time.Second)},
		{Cluster: "cls3", Changed: start.Add(-time.Hour)},  // from before the session
		{Cluster: "cls4", Changed: start.Add(time.Second)}, // not written
	}
	written := map[string]bool{"cls1": true, "cls2": true, "cls3": true}
	registerer := prometheus.NewPedanticRegistry()
	metrics, err := NewMetrics(registerer)
	if err != nil {
		t.Fatal(err)
	}
	metrics.observePropagation(arrivedExports(s, exports, written), start.Add(10*time.Second))
	families, err := registerer.Gather()
	if err != nil || len(families) != 2 {
		t.Fatalf("%d metrics (%v), want 2", len(families), err)
	}
	got := families[1].Metric // sorted by name
	if len(got) != 1 || got[0].Label[0].GetValue() != "cls2" || got[0].Histogram.GetSampleSum() != 2 {
		t.Errorf("propagation is %v, want 2 s of cls2 alone", got)
	}
}
