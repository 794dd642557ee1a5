package drain

import (
	"net/netip"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestSessions compares terminal sessions with testdata/<name>.txt.
func TestSessions(t *testing.T) {
	// Another cluster serves the service too.
	exportElsewhere := func(clusters clitest.Clusters) {
		clitest.ExportWeb(clusters)
		own := &clusters["cls1"].ServiceList[0]
		other := *own.Own
		other.Cluster = "cls2"
		other.Backends = []mcs.Backends{{Ports: own.Own.Backends[0].Ports, Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.2.0.1"), Ready: true}}}}
		own.Exports = append(own.Exports, other)
	}
	clitest.RunSessions(t, Commands, []clitest.TerminalSession{
		{Name: "drain", Setup: exportElsewhere, Lines: []string{
			"drain", "drain --force", "drain --part 30%", "drain --part 80% --over 9ms", "undrain", "drain web", "undrain web",
			"drain --importers cls2 --wait 5ms",
		}},
		{Name: "drain-last", Setup: clitest.ExportWeb, Lines: []string{"drain", "drain web --importers cls2", "drain --force"}},
		{Name: "drain-usage", Lines: []string{
			"drain --part 0%", "drain --part force", "drain --part 50% --force", "drain web", "undrain web", "drain a b", "drain --context cls1,cls2",
		}},
		{Name: "drain-no-controller", Setup: func(c clitest.Clusters) { c["cls1"].Unreachable = true }, Lines: []string{"drain", "drain --importers cls2"}},
	})
}
