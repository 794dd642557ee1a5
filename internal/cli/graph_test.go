package cli

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// Names come from other clusters: whatever they are, the SVG stays XML and the DOT's strings stay closed.
func FuzzPicture(f *testing.F) {
	f.Add("cls1", "demo/web")
	f.Add(`"];evil [label="`, `<script>alert("x")</script>`)
	f.Add("\x1b[31m\x00", `back\slash"`)
	f.Fuzz(func(t *testing.T, cluster, service string) {
		p := picture{
			exporters: []string{cluster}, services: []string{service}, importers: []string{cluster},
			exports: []arrow{{cluster, service, service}}, imports: []arrow{{service, cluster, cluster}},
		}
		var svg, dot strings.Builder
		if err := errors.Join(p.svg(&svg), p.dot(&dot)); err != nil {
			t.Fatal(err)
		}
		elements := 0
		for d := xml.NewDecoder(strings.NewReader(svg.String())); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v in %s", err, svg.String())
			}
			if _, ok := token.(xml.StartElement); ok {
				elements++
			}
		}
		if elements != 12 { // the image, its ground, 2 lines and 3 boxes with their texts
			t.Errorf("%d elements in %s", elements, svg.String())
		}
		for l := range strings.Lines(dot.String()) {
			if quotes := strings.Count(strings.NewReplacer(`\\`, "", `\"`, "").Replace(l), `"`); quotes%2 != 0 || quotes > 6 {
				t.Errorf("%d quotes in %s", quotes, l)
			}
		}
	})
}
