package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/doctor"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A description is the output of describe: the exports and imports of a service, and its diagnosis
// without probes.
type description struct {
	Service string       `json:"service"`
	Exports []mcs.Export `json:"exports"`
	// Importers are the other members that an export is for, by exporting cluster: those of the
	// contexts by their ServiceImports, the others by what they report. They are known of exporting
	// clusters with a context.
	Importers map[string]mcs.Importers `json:"importers,omitempty"`
	// sources are the clusters in the status of the ServiceImport, by cluster with a context.
	sources map[string][]string
	Imports []importState `json:"imports"`
	// Conflicts are the properties on which the exports disagree.
	Conflicts []string `json:"conflicts,omitempty"`
	// OtherExporters are clusters of which only ServiceImports show that they export the service.
	OtherExporters []string `json:"otherExporters,omitempty"`
	// Unread are the contexts whose controllers do not say what the registry has, with the reason,
	// such as a missing permission, and what the ServiceExport shows.
	Unread []string `json:"unread,omitempty"`
	doctor.Diagnosis
}

// importState is the import in one context.
type importState struct {
	Context   string   `json:"context"`
	Type      string   `json:"type"`
	IPs       []string `json:"ips,omitempty"`
	Ports     string   `json:"ports"`
	Clusters  []string `json:"clusters"`
	Ready     int      `json:"ready"`
	Endpoints int      `json:"endpoints"`
}

func describeCommand(s *session.Session) *cobra.Command {
	var format session.Format
	cmd := &cobra.Command{
		Use:   "describe SERVICE",
		Short: "Show the exports and imports of a service",
		Long: "Shows the exports of a service, its imports in the clusters of --context, and the result of every step in between.\n" +
			"Exit code 3 when a step failed, or the objects of the service cannot be read.",
		Example:           "  kubectl mcs describe web -n shop --context cls1,cls2",
		Args:              session.RequireService,
		ValidArgsFunction: s.CompleteServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			facts, key, err := doctor.GatherService(cmd.Context(), s, args[0], false)
			if err != nil {
				return err
			}
			d := newDescription(key, facts)
			if err := format.Print(s.Out, d, func(t *session.Table, _ bool) { d.print(t) }); err != nil {
				return err
			}
			return d.Err()
		},
	}
	s.AddNamespaceFlag(cmd)
	format.AddFlag(cmd)
	return cmd
}

// newDescription returns the description of a service from the facts.
func newDescription(key mcs.Key, all []doctor.ServiceFacts) description {
	d := description{
		Service: key.String(), Exports: []mcs.Export{}, Imports: []importState{}, sources: map[string][]string{}, Diagnosis: doctor.Diagnose(key, all),
	}
	var services []status.Service
	for _, f := range all {
		if f.Registry != nil {
			services = append(services, *f.Registry)
			d.addImporters(f.Registry)
			d.Conflicts = appendMissing(d.Conflicts, f.Registry.Conflicts...)
		} else {
			d.Conflicts = appendMissing(d.Conflicts, f.ExportConflicts()...)
			d.Unread = append(d.Unread, f.Unread()...)
			d.OtherExporters = appendMissing(d.OtherExporters, f.ImportedFrom()...)
		}
		if f.Import != nil {
			ready, count := doctor.CountReady(f.ImportedSlices)
			d.Imports = append(d.Imports, importState{
				Context: f.Context, Type: string(f.Import.Spec.Type), IPs: f.Import.Spec.IPs, Ports: importPorts(f.Import),
				Clusters: session.SourceClusters(f.Import), Ready: ready, Endpoints: count,
			})
		}
		if id := f.ClusterID(); id != "" {
			d.sources[id] = f.ImportedFrom()
		}
	}
	for exporter, importers := range d.Importers {
		d.Importers[exporter] = d.correct(importers, exporter)
	}
	d.Exports = append(d.Exports, mergeExports(services)...)
	d.OtherExporters = slices.DeleteFunc(d.OtherExporters, func(id string) bool {
		return slices.ContainsFunc(d.Exports, func(e mcs.Export) bool { return e.Cluster == id })
	})
	slices.Sort(d.OtherExporters)
	return d
}

// addImporters adds the importers of the export of the cluster that has answered.
func (d *description) addImporters(s *status.Service) {
	if s.Own == nil || s.Importers == nil {
		return
	}
	if d.Importers == nil {
		d.Importers = map[string]mcs.Importers{}
	}
	d.Importers[s.Own.Cluster] = *s.Importers
}

func (d description) print(t *session.Table) {
	t.Line("Service " + d.Service)
	t.Line("")
	t.Row("EXPORTED BY", "SINCE", "TYPE", "PORTS", "ENDPOINTS", "READY", "EXPORTED TO", "IMPORTED BY")
	for _, e := range d.Exports {
		var ports []string
		for _, p := range e.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
		ready, count := countEndpoints(e)
		t.Row(e.Cluster, e.Created.UTC().Format(time.RFC3339), e.Type, strings.Join(ports, ","), count, ready, d.recipients(e), d.importers(e))
	}
	for _, id := range d.OtherExporters {
		t.Row(id, unknown, unknown, unknown, unknown, unknown, unknown, unknown)
	}
	if len(d.Exports)+len(d.OtherExporters) == 0 && len(d.Unread) > 0 {
		t.Row(unknown, unknown, unknown, unknown, unknown, unknown, unknown, unknown)
	}
	t.Line("")
	t.Row("IMPORTED IN", "TYPE", "IPS", "PORTS", "FROM", "ENDPOINTS", "READY")
	for _, i := range d.Imports {
		t.Row(i.Context, i.Type, strings.Join(i.IPs, ","), i.Ports, strings.Join(i.Clusters, ","), i.Endpoints, i.Ready)
	}
	for i, c := range d.Conflicts {
		if i == 0 {
			t.Line("")
		}
		t.Line("Conflict: " + c)
	}
	for i, line := range d.Unread {
		if i == 0 {
			t.Line("")
		}
		t.Line(line)
	}
	t.Line("")
	d.PrintPhases(t)
	d.PrintFailure(t)
}

// maxImporterNames bounds the clusters in a cell.
const maxImporterNames = 16

// recipients returns the cell with the clusters that an export is for.
func (d description) recipients(e mcs.Export) string {
	importers, known := d.Importers[e.Cluster]
	switch {
	case e.Recipients == "":
		return "all"
	case !known:
		return "some"
	case len(importers.Recipients) == 0:
		return "none"
	}
	return mcs.JoinClusters(importers.Recipients, maxImporterNames)
}

// importers returns the cell with the clusters that import an export.
func (d description) importers(e mcs.Export) string {
	importers, known := d.Importers[e.Cluster]
	if !known {
		importers = d.correct(importers, e.Cluster)
	}
	return importerCell(importers, known)
}

// correct returns the importers of an export with those of the contexts.
func (d description) correct(importers mcs.Importers, exporter string) mcs.Importers {
	imports := map[string]bool{}
	for id, sources := range d.sources {
		if id != exporter {
			imports[id] = slices.Contains(sources, exporter)
		}
	}
	return correctImporters(importers, imports)
}
