package show

import (
	"strings"
	"testing"
)

// FuzzWriteDOT checks that strings in DOT stay closed, whatever the names from other clusters.
func FuzzWriteDOT(f *testing.F) {
	f.Add("cls1", "demo/web")
	f.Add(`"];evil [label="`, `<script>alert("x")</script>`)
	f.Add("\x1b[31m\x00", `back\slash"`)
	f.Fuzz(func(t *testing.T, cluster, service string) {
		g := graphModel{
			exporters: []string{cluster}, services: []string{service}, importers: []string{cluster},
			exports: []edge{{cluster, service, service}}, imports: []edge{{service, cluster, cluster}},
		}
		var dot strings.Builder
		if err := g.writeDOT(&dot); err != nil {
			t.Fatal(err)
		}
		// 3 nodes and 2 edges within 3 lines
		if lines := strings.Count(dot.String(), "\n"); lines != 8 {
			t.Errorf("%d lines in %s", lines, dot.String())
		}
		for l := range strings.Lines(dot.String()) {
			if quotes := strings.Count(strings.NewReplacer(`\\`, "", `\"`, "").Replace(l), `"`); quotes%2 != 0 || quotes > 6 {
				t.Errorf("%d quotes in %s", quotes, l)
			}
		}
	})
}
