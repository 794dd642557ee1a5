package cloudmap

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// TestUnknownCode_NoFasterThanThrottling answers requests of a cluster with an error code that the
// controller does not know. It makes no more requests than if AWS throttled them, and its report
// shows the code.
func TestUnknownCode_NoFasterThanThrottling(t *testing.T) {
	const unknown, throttled = "QuantumFlux", "ThrottlingException"
	for _, operation := range []string{"", "DiscoverInstances", "RegisterInstance"} {
		t.Run(operation, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				failed := map[string]int64{}
				for _, code := range []string{throttled, unknown} {
					w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
					p := beginWithExports(w, 5)
					w.until(2*time.Minute, "all is exported", isExported(t, p.Registry, webKey(4)))
					var n atomic.Int64
					w.setIntercept(func(r request) (string, string, bool) {
						if operation != "" && r.operation != operation {
							return "", "", false
						}
						n.Add(1)
						return code, "", true
					})
					for i := range 5 {
						publish(t, p.Registry, webExport("cls1", i, 2))
					}
					time.Sleep(5 * time.Minute)
					failed[code] = n.Load()
					report := p.Report()
					problem := report.Writing
					if operation == "DiscoverInstances" {
						problem = report.Reading
					}
					if problem == nil || strings.Contains(problem.Error(), docs.URL("aws-behavior.md")) != (code == unknown) {
						t.Errorf("%s: reported: %v", code, problem)
					}
					p.kill()
				}
				// The pauses are random: a half more is far below the twelvefold rate of other
				// failed reads.
				if failed[unknown] > failed[throttled]*3/2 {
					t.Errorf("failed requests: %v, want no more with the unknown code", failed)
				}
			})
		})
	}
}
