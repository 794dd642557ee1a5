package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func (a *app) diagnoseCommand() *cobra.Command {
	var o output
	noProbe := false
	cmd := &cobra.Command{
		Use:   "diagnose SERVICE",
		Short: "Follow a service hop by hop and say where it stops",
		Long: "Follows a service from its Service and endpoints in the clusters that export it, through the registry, to the\n" +
			"ServiceImport, its slices, its DNS answer and a connection in every cluster that --context names. The lookup and the\n" +
			"connection are made by the controller's own pod, so no other image is needed.\n" +
			"Exit code 3 when it stops somewhere.",
		Example:           "  kubectl mcs diagnose web -n shop --context cls1,cls2",
		Args:              oneService,
		ValidArgsFunction: a.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			facts, key, err := a.factsOf(cmd, args[0], !noProbe)
			if err != nil {
				return err
			}
			return a.printDiagnosis(o, diagnose(key, facts))
		},
	}
	o.bind(cmd)
	cmd.Flags().BoolVar(&noProbe, "no-probe", false, "look nothing up and connect to nothing")
	return cmd
}

// factsOf gathers the facts of a service in every context.
func (a *app) factsOf(cmd *cobra.Command, name string, probe bool) ([]serviceFacts, mcs.Key, error) {
	namespace, clusters, err := a.inNamespace(false)
	if err != nil {
		return nil, mcs.Key{}, err
	}
	key := mcs.Key{Namespace: namespace, Name: name}
	return eachCluster(clusters, func(k *cluster) serviceFacts { return a.gatherService(cmd.Context(), k, key, probe) }), key, nil
}

func (a *app) printDiagnosis(o output, d diagnosis) error {
	if err := o.print(a.Out, d, func(t *table, _ bool) { d.print(t) }); err != nil {
		return err
	}
	if d.Stop != nil {
		return exitError(ExitIncomplete)
	}
	return nil
}

func (d diagnosis) print(t *table) {
	d.printStages(t)
	t.line("")
	if d.Stop == nil {
		t.line(d.Service + " works everywhere that was looked at.")
		return
	}
	t.line(fmt.Sprintf("It stops in %s at %s: %s.", d.Stop.Context, d.Stop.Name, strings.TrimSuffix(d.Stop.Detail, ".")))
	if d.Stop.Hint != "" {
		t.line("What to do: " + d.Stop.Hint)
	}
}

func (d diagnosis) printStages(t *table) {
	t.row("CONTEXT", "WAY", "HOP", "RESULT", "DETAIL")
	for _, s := range d.Stages {
		for _, hop := range s.Hops {
			t.row(s.Context, s.Role, hop.Name, hop.Result, hop.Detail)
		}
	}
}

// A description is what describe prints: who exports the service, how it is imported, and the hops without probes.
type description struct {
	Service string        `json:"service"`
	Exports []mcs.Export  `json:"exports"`
	Imports []importState `json:"imports"`
	// Conflicts are what the exports disagree about.
	Conflicts []string `json:"conflicts,omitempty"`
	diagnosis
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

func (a *app) describeCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:               "describe SERVICE",
		Short:             "Show all that is known of a service of the clusterset",
		Long:              "Shows who exports a service, as what, how each cluster of --context imports it, and how every hop in between stands.",
		Example:           "  kubectl mcs describe web -n shop --context cls1,cls2",
		Args:              oneService,
		ValidArgsFunction: a.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			facts, key, err := a.factsOf(cmd, args[0], false)
			if err != nil {
				return err
			}
			d := describe(key, facts)
			return o.print(a.Out, d, func(t *table, _ bool) { d.print(t) })
		},
	}
	o.bind(cmd)
	return cmd
}

// describe collects what facts say of the service.
func describe(key mcs.Key, all []serviceFacts) description {
	d := description{Service: key.String(), Exports: []mcs.Export{}, Imports: []importState{}, diagnosis: diagnose(key, all)}
	var seen []status.Service
	for _, f := range all {
		if f.seen != nil {
			seen = append(seen, *f.seen)
			d.Conflicts = mergeStrings(d.Conflicts, f.seen.Conflicts)
		}
		if f.imported != nil {
			ready, count := readyCount(f.imports)
			d.Imports = append(d.Imports, importState{
				Context: f.context, Type: string(f.imported.Spec.Type), IPs: f.imported.Spec.IPs, Ports: importPorts(f.imported),
				Clusters: exporting(f.imported), Ready: ready, Endpoints: count,
			})
		}
	}
	d.Exports = append(d.Exports, uniteExports(seen)...)
	return d
}

func (d description) print(t *table) {
	t.line("Service " + d.Service)
	t.line("")
	t.row("EXPORTED BY", "SINCE", "TYPE", "PORTS", "ENDPOINTS", "READY")
	for _, e := range d.Exports {
		var ports []string
		for _, p := range e.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
		ready, count := endpointsOf(e)
		t.row(e.Cluster, e.Created.UTC().Format(time.RFC3339), e.Type, strings.Join(ports, ","), count, ready)
	}
	t.line("")
	t.row("IMPORTED IN", "TYPE", "IPS", "PORTS", "FROM", "ENDPOINTS", "READY")
	for _, i := range d.Imports {
		t.row(i.Context, i.Type, strings.Join(i.IPs, ","), i.Ports, strings.Join(i.Clusters, ","), i.Endpoints, i.Ready)
	}
	for i, c := range d.Conflicts {
		if i == 0 {
			t.line("")
		}
		t.line("Conflict: " + c)
	}
	t.line("")
	d.printStages(t)
}
