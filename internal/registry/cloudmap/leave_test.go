package cloudmap

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestLeave_LastClusterWaitsForReaders lets the last cluster of a clusterset leave while another clusterset's cluster only reads its registry: the
// farewell stays until that one has read it, and no longer.
func TestLeave_LastClusterWaitsForReaders(t *testing.T) {
	warmUp(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, cloudmaplocal.Options{Unthrottled: true, ConsistencyDelay: 500 * time.Millisecond})
		last, reader := w.begin(cls1, nil), w.begin(cls2, nil, func(cfg *Config) { cfg.ReadOnly = true })
		exp := webExport("cls1", 0, 1)
		publish(t, last.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, reader.Registry, exp))
		time.Sleep(time.Minute)
		began := time.Now()
		if err := last.end(registry.ErrLeave); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("leaving took %v, want less than 12 s", took)
		}
		if view, ok := viewOf(t, reader.Registry, exp.Key, "cls1"); !ok || len(view.Exports)+len(view.Unknown)+len(view.Unseen) > 0 {
			t.Errorf("the view of the reader is %+v, want none: it has read the farewell", view)
		}
		reader.kill()
	})
}
