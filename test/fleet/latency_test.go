package fleet

import (
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing/tracingtest"
)

// A change has the trace that began in its time. The durations of its steps are its duration.
func TestLatencySteps(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(1_800_000_000_000 + int64(ms)) }
	trace := func(from int) []tracingtest.Span {
		return []tracingtest.Span{
			{Name: tracing.Export, Began: at(from + 3), Ended: at(from + 4)},
			{Name: tracing.WriteExport, Began: at(from + 5), Ended: at(from + 9)},
			{Name: tracing.ReadExport, Began: at(from + 8), Ended: at(from + 10)},
			{Name: tracing.Import, Began: at(from + 11), Ended: at(from + 20)},
			{Name: tracing.WriteSlices, Began: at(from + 13), Ended: at(from + 20)},
		}
	}
	r := latencyRun{options: LatencyOptions{Registry: config.RegistryEtcd, Out: io.Discard}, changes: []latencyChange{{at(0), at(21)}, {at(100), at(121)}}}
	steps, err := r.stepsOf([][]tracingtest.Span{trace(-50), trace(0), trace(100)})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int64{}
	var sum time.Duration
	for _, s := range steps {
		for _, d := range s.Durations {
			got[s.Name] = append(got[s.Name], d.Milliseconds())
		}
		if s.Name != TotalStep {
			sum += s.Durations[1]
		}
	}
	want := map[string][]int64{
		"EndpointSlice written, watch event, reconcile": {3, 3}, "objects read, export made, published": {1, 1}, "write awaited": {1, 1},
		"export and own record signed and written, event of the watch": {3, 3}, "verified and decoded": {2, 2}, "key requeued, reconcile": {1, 1},
		"looked up, planned": {2, 2}, "EndpointSlice written": {7, 7}, SeenStep: {1, 1}, TotalStep: {21, 21},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if sum != 21*time.Millisecond {
		t.Errorf("the steps take %v together, want 21ms", sum)
	}
	if _, err := r.stepsOf([][]tracingtest.Span{trace(0), trace(100)[:3]}); err == nil {
		t.Error("a trace that is not complete is no error")
	}
}
