package drain

import (
	"net/netip"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
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
	// Another cluster exports the service too, but not to all clusters.
	exportToSome := func(clusters clitest.Clusters) {
		exportElsewhere(clusters)
		recipients, err := mcs.ParseRecipients("cls3")
		if err != nil {
			t.Fatal(err)
		}
		clusters["cls1"].ServiceList[0].Exports[0].Recipients = recipients
	}
	// The service has no ready endpoint in any cluster.
	exportNotReady := func(clusters clitest.Clusters) {
		clitest.ExportWeb(clusters)
		own := clusters["cls1"].ServiceList[0].Own
		for i := range own.Backends[0].Endpoints {
			own.Backends[0].Endpoints[i].Ready, own.Backends[0].Endpoints[i].Serving = false, false
		}
		imported := clitest.Slice("imported-1", map[string]string{
			plan.LabelManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: "web", mcsv1beta1.LabelSourceCluster: "cls1",
		})
		for i := range imported.Endpoints {
			imported.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}
		}
		clusters["cls2"].Remove(imported)
		clusters["cls2"].Add(imported)
	}
	clitest.RunSessions(t, Commands, []clitest.TerminalSession{
		{Name: "drain", Setup: exportElsewhere, Lines: []string{
			"drain", "drain --force", "drain --part 30%", "drain --part 80% --over 9ms", "undrain", "drain web", "undrain web",
			"drain --importers cls2 --wait 5ms",
		}},
		{Name: "drain-last", Setup: clitest.ExportWeb, Lines: []string{"drain", "drain web --importers cls2", "drain --force"}},
		{Name: "drain-recipients", Setup: exportToSome, Lines: []string{"drain"}},
		{Name: "drain-not-ready", Setup: exportNotReady, Lines: []string{"drain --importers cls2"}},
		{Name: "drain-over", Setup: exportElsewhere, Lines: []string{
			"drain --part 5% --over 9ms", "drain web --part 50%", "drain web --over 9ms", "drain web --over 9ms", "drain web --part 90% --over 9ms", "drain web --force", "drain web --over 9ms",
			"drain --part 97%", "drain --over 9ms",
		}},
		{Name: "drain-usage", Lines: []string{
			"drain --part 0%", "drain --part force", "drain --part 50% --force", "drain --part 50% --importers cls2", "drain web", "drain web --over 9ms", "undrain web", "drain a b", "drain --context cls1,cls2",
		}},
		{Name: "drain-no-controller", Setup: func(c clitest.Clusters) { c["cls1"].Unreachable = true }, Lines: []string{"drain", "drain --importers cls2"}},
	})
}

// Both keys are written and removed, because a controller of an earlier version reads only the
// deprecated one.
func TestAnnotationPatch(t *testing.T) {
	const newKey, oldKey = "cloud-map-mcs.github.io/drain", "multicluster.k8s.aws/" + "drain"
	for drain, value := range map[mcs.Drain]string{"50%": `"50%"`, "": "null"} {
		want := `{"metadata":{"annotations":{"` + newKey + `":` + value + `,"` + oldKey + `":` + value + `}}}`
		if got, err := annotationPatch(drain); err != nil || string(got) != want {
			t.Errorf("drain %q: %s (%v), want %s", drain, got, err, want)
		}
	}
}
