package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/docs"
)

// TestPages runs the commands of several pages about a service "web" in namespace "demo" or "shop",
// here in a namespace of its own. test/docs/README.md names the pages.
func TestPages(t *testing.T) {
	t.Parallel()
	onlyOn(t, clusterset.CloudMap)
	cls1, cls2 := installed(t)
	// The scenario before may have had other arguments, and a page reads the Lease of the leader.
	rolledOut(t, cls1, cls2)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, web(ns, "web", 1))
	export(t, cls1, ns, "web")
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 1) })
	for _, tt := range []struct{ page, section string }{
		{"docs/topology.md", "Clusters"},
		{"docs/security/import-policy.md", "Precedence"},
		{"docs/kubectl-mcs.md", "Sources of the data"},
		{"docs/dns.md", "Upgrading CoreDNS or the cluster"},
		{"docs/api.md", "Exporting"}, // the last one: it ends the import in this cluster
	} {
		t.Run(tt.page, func(t *testing.T) {
			blocks := slices.DeleteFunc(pageBlocks(t, tt.page), func(b docs.Block) bool { return b.Section != tt.section })
			for i := range blocks {
				blocks[i].Script = strings.NewReplacer("-n demo", "-n "+ns, "-n shop", "-n "+ns).Replace(blocks[i].Script)
			}
			runBlocks(t, tt.page, blocks)
		})
	}
	kubectl(t, cls1, "delete", "clusterrole/exporter", "clusterproperty/gpu.example.com")
}
