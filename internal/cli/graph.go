package cli

import (
	"bufio"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func (a *app) graphCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "graph",
		Short: "Draw the clusterset: who exports what, and who imports it",
		Long: "Draws which clusters export which services, as the controllers of the contexts see it, and in which contexts they are\n" +
			"imported. Writes DOT for Graphviz, or SVG.",
		Example: "  kubectl mcs graph --context cls1,cls2 -o svg > clusterset.svg",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := a.clusters()
			if err != nil {
				return err
			}
			p, err := a.picture(cmd.Context(), clusters)
			if err != nil {
				return err
			}
			if format == "svg" {
				return p.svg(a.Out)
			}
			return p.dot(a.Out)
		},
	}
	outputFlag(cmd, &format, "dot", "svg")
	return cmd
}

// A picture is what graph draws: clusters that export at the left, services in the middle, clusters that import at the right.
type picture struct {
	exporters, services, importers []string
	exports                        []arrow // from a cluster to a service
	imports                        []arrow // from a service to a cluster
}

// An arrow leads from one name to another.
type arrow struct{ from, to, label string }

// graphFacts are what one cluster contributes to the picture.
type graphFacts struct {
	name     string
	services []status.Service
	imports  []mcsv1beta1.ServiceImport
	err      error
}

func (a *app) picture(ctx context.Context, clusters []*cluster) (picture, error) {
	facts := eachCluster(clusters, func(k *cluster) graphFacts { return a.gatherGraph(ctx, k) })
	errs := make([]error, len(facts))
	for i, f := range facts {
		errs[i] = f.err
	}
	return draw(facts), joinContexts(clusters, errs)
}

func (a *app) gatherGraph(ctx context.Context, k *cluster) (f graphFacts) {
	var said status.Status
	if said, f.err = askController[status.Status](ctx, a, k, status.PathStatus); f.err != nil {
		return f
	}
	f.name = k.context
	if said.Identity != nil {
		f.name = said.Identity.ClusterID
	}
	if f.services, f.err = askController[[]status.Service](ctx, a, k, status.PathServices); f.err != nil {
		return f
	}
	f.imports, f.err = listImports(ctx, k, "")
	return f
}

// draw decides what the picture shows.
func draw(facts []graphFacts) picture {
	var seen []status.Service
	for _, f := range facts {
		seen = append(seen, f.services...)
	}
	var p picture
	for _, exp := range uniteExports(seen) {
		ready, all := endpointsOf(exp)
		p.exporters = mergeStrings(p.exporters, []string{exp.Cluster})
		p.services = mergeStrings(p.services, []string{exp.Key.String()})
		p.exports = append(p.exports, arrow{exp.Cluster, exp.Key.String(), fmt.Sprintf("%d of %d ready", ready, all)})
	}
	for _, f := range facts {
		for _, i := range f.imports {
			key := mcs.Key{Namespace: i.Namespace, Name: i.Name}.String()
			p.services = mergeStrings(p.services, []string{key})
			p.importers = mergeStrings(p.importers, []string{f.name})
			p.imports = append(p.imports, arrow{key, f.name, strings.Join(i.Spec.IPs, " ")})
		}
	}
	slices.Sort(p.exporters)
	slices.Sort(p.services)
	slices.Sort(p.importers)
	return p
}

// dot writes the picture for Graphviz.
func (p picture) dot(out io.Writer) error {
	w := bufio.NewWriter(out)
	quote := func(kind, name string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(kind+printable(name)) + `"`
	}
	node := func(kind, shape string, names []string) {
		for _, name := range names {
			_, _ = fmt.Fprintf(w, "  %s [label=%s, shape=%s];\n", quote(kind, name), quote("", name), shape)
		}
	}
	_, _ = fmt.Fprint(w, "digraph clusterset {\n  rankdir=LR;\n")
	node("from ", "box", p.exporters)
	node("", "ellipse", p.services)
	node("to ", "box", p.importers)
	for _, e := range p.exports {
		_, _ = fmt.Fprintf(w, "  %s -> %s [label=%s];\n", quote("from ", e.from), quote("", e.to), quote("", e.label))
	}
	for _, i := range p.imports {
		_, _ = fmt.Fprintf(w, "  %s -> %s [label=%s, style=dashed];\n", quote("", i.from), quote("to ", i.to), quote("", i.label))
	}
	_, _ = fmt.Fprint(w, "}\n")
	return w.Flush()
}

// The measures of the SVG, in pixels: three columns of boxes, wide enough for 40 characters at 12 px.
const (
	boxWidth, boxHeight  = 300, 28
	columnStep, rowStep  = 480, 48
	margin, textBaseline = 20, 18
)

// svg writes the picture as an image.
func (p picture) svg(out io.Writer) error {
	w := bufio.NewWriter(out)
	rows := max(len(p.exporters), len(p.services), len(p.importers), 1)
	_, _ = fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		2*margin+2*columnStep+boxWidth, 2*margin+rows*rowStep)
	_, _ = fmt.Fprintln(w, `<rect width="100%" height="100%" fill="white"/>`)
	columns := [][]string{p.exporters, p.services, p.importers}
	for _, e := range p.exports {
		line(w, 0, slices.Index(columns[0], e.from), slices.Index(columns[1], e.to), e.label, "")
	}
	for _, i := range p.imports {
		line(w, 1, slices.Index(columns[1], i.from), slices.Index(columns[2], i.to), i.label, ` stroke-dasharray="4"`)
	}
	for column, names := range columns {
		for row, name := range names {
			x, y := margin+column*columnStep, margin+row*rowStep
			_, _ = fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="%d" rx="%d" fill="#eef" stroke="#336"/>`+"\n",
				x, y, boxWidth, boxHeight, map[bool]int{true: 14, false: 3}[column == 1])
			_, _ = fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", x+boxWidth/2, y+textBaseline, escape(name))
		}
	}
	_, _ = fmt.Fprintln(w, "</svg>")
	return w.Flush()
}

// line joins a box of a column to one of the next.
func line(w io.Writer, column, from, to int, label, style string) {
	x1, y1 := margin+column*columnStep+boxWidth, margin+from*rowStep+boxHeight/2
	x2, y2 := margin+(column+1)*columnStep, margin+to*rowStep+boxHeight/2
	_, _ = fmt.Fprintf(w, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#336"%s/>`+"\n", x1, y1, x2, y2, style)
	_, _ = fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="middle" font-size="10" fill="#555">%s</text>`+"\n", (x1+x2)/2, (y1+y2)/2-3, escape(label))
}

// escape makes a name, which may come from another cluster, text in XML.
func escape(text string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(printable(text))) // a Builder takes everything
	return out.String()
}
