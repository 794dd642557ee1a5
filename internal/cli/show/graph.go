package show

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func graphCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use:   "graph",
		Short: "Print the exports and imports of the clusterset as a graph",
		Long: "Prints a graph in the DOT language of Graphviz: the clusters that export services, as the controllers of the contexts see\n" +
			"them, the services, and the contexts that import them.",
		Example: "  kubectl mcs graph --context cls1,cls2 | dot -Tsvg > clusterset.svg",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := s.Clusters()
			if err != nil {
				return err
			}
			facts := session.ForEachCluster(clusters, func(k *session.Cluster) graphFacts { return gatherGraph(cmd.Context(), s, k) })
			errs := make([]error, len(facts))
			for i, f := range facts {
				errs[i] = f.err
			}
			if err := session.JoinErrors(clusters, errs); err != nil {
				return err
			}
			return newGraphModel(facts).writeDOT(s.Out)
		},
	}
}

// A graphModel has the nodes and edges of the graph: exporting clusters, services, importing
// clusters.
type graphModel struct {
	exporters, services, importers []string
	exports                        []edge // from a cluster to a service
	imports                        []edge // from a service to a cluster
}

// An edge connects two nodes.
type edge struct{ from, to, label string }

// graphFacts are the exports and imports that one cluster knows.
type graphFacts struct {
	name     string
	services []status.Service
	imports  []mcsv1beta1.ServiceImport
	err      error
}

func gatherGraph(ctx context.Context, s *session.Session, k *session.Cluster) (f graphFacts) {
	var controller status.Status
	if controller, f.err = session.QueryController[status.Status](ctx, s, k, status.PathStatus); f.err != nil {
		return f
	}
	f.name = k.Context
	if controller.Identity != nil {
		f.name = controller.Identity.ClusterID
	}
	if f.services, f.err = session.QueryController[[]status.Service](ctx, s, k, status.PathServices); f.err != nil {
		return f
	}
	f.imports, f.err = k.ListImports(ctx, "")
	return f
}

// newGraphModel returns the graph of the facts.
func newGraphModel(facts []graphFacts) graphModel {
	var services []status.Service
	for _, f := range facts {
		services = append(services, f.services...)
	}
	var g graphModel
	for _, exp := range mergeExports(services) {
		ready, all := countEndpoints(exp)
		g.exporters = appendMissing(g.exporters, exp.Cluster)
		g.services = appendMissing(g.services, exp.Key.String())
		g.exports = append(g.exports, edge{exp.Cluster, exp.Key.String(), fmt.Sprintf("%d of %d ready", ready, all)})
	}
	for _, f := range facts {
		for _, i := range f.imports {
			key := mcs.Key{Namespace: i.Namespace, Name: i.Name}.String()
			g.services = appendMissing(g.services, key)
			g.importers = appendMissing(g.importers, f.name)
			g.imports = append(g.imports, edge{key, f.name, strings.Join(i.Spec.IPs, " ")})
		}
	}
	slices.Sort(g.exporters)
	slices.Sort(g.services)
	slices.Sort(g.importers)
	return g
}

// writeDOT writes the graph in the DOT language. Names may come from other clusters, so all are
// quoted.
func (g graphModel) writeDOT(out io.Writer) error {
	w := bufio.NewWriter(out)
	quote := func(kind, name string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(kind+session.Printable(name)) + `"`
	}
	writeNodes := func(kind, shape string, names []string) {
		for _, name := range names {
			_, _ = fmt.Fprintf(w, "  %s [label=%s, shape=%s];\n", quote(kind, name), quote("", name), shape)
		}
	}
	_, _ = fmt.Fprint(w, "digraph clusterset {\n  rankdir=LR;\n")
	writeNodes("from ", "box", g.exporters)
	writeNodes("", "ellipse", g.services)
	writeNodes("to ", "box", g.importers)
	for _, e := range g.exports {
		_, _ = fmt.Fprintf(w, "  %s -> %s [label=%s];\n", quote("from ", e.from), quote("", e.to), quote("", e.label))
	}
	for _, i := range g.imports {
		_, _ = fmt.Fprintf(w, "  %s -> %s [label=%s, style=dashed];\n", quote("", i.from), quote("to ", i.to), quote("", i.label))
	}
	_, _ = fmt.Fprint(w, "}\n")
	return w.Flush()
}
