package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

func diagnoseCommand(s *session.Session) *cobra.Command {
	var format session.Format
	noProbe := false
	cmd := &cobra.Command{
		Use:   "diagnose SERVICE",
		Short: "Find the step at which a multi-cluster Service fails",
		Long: "Checks a service step by step: its Service and endpoints in the clusters that export it, the registry, and the\n" +
			"ServiceImport, EndpointSlices, DNS answer and a connection in every cluster that --context names. The controller's\n" +
			"own pod performs the DNS lookup and the connections, so no other image is needed.\n" +
			"A step is unknown if you do not have the permission to read what it needs: those of the controller need a port-forward to its pod.\n" +
			"Exit code 3 when a step failed, or the objects of the service cannot be read.",
		Example:           "  kubectl mcs diagnose web -n shop --context cls1,cls2",
		Args:              session.RequireService,
		ValidArgsFunction: s.CompleteServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := diagnose(cmd.Context(), s, args[0], !noProbe)
			if err != nil {
				return err
			}
			return printDiagnosis(s, format, d)
		},
	}
	s.AddNamespaceFlag(cmd)
	format.AddFlag(cmd)
	cmd.Flags().BoolVar(&noProbe, "no-probe", false, "skip the DNS lookup and the connections")
	return cmd
}

// settleTime is the number of poll intervals, of a second, after which a change has arrived in all
// clusters.
const settleTime = 3

// diagnose gathers the facts and decides. If endpoints are missing, it does so again: a change may
// be on its way.
func diagnose(ctx context.Context, s *session.Session, name string, probe bool) (Diagnosis, error) {
	clusters, namespace, err := s.ClustersAndNamespace(false)
	if err != nil {
		return Diagnosis{}, err
	}
	key := mcs.Key{Namespace: namespace, Name: name}
	d := Diagnose(key, GatherServiceIn(ctx, s, clusters, key, probe))
	if !d.isUnsettled() {
		return d, nil
	}
	select {
	case <-time.After(settleTime * clusters[0].PollInterval):
	case <-ctx.Done():
		return d, nil
	}
	return Diagnose(key, GatherServiceIn(ctx, s, clusters, key, probe)), nil
}

// GatherService gathers the facts about a service in the clusters of all contexts, optionally with
// probes.
func GatherService(ctx context.Context, s *session.Session, name string, probe bool) ([]ServiceFacts, mcs.Key, error) {
	clusters, namespace, err := s.ClustersAndNamespace(false)
	if err != nil {
		return nil, mcs.Key{}, err
	}
	key := mcs.Key{Namespace: namespace, Name: name}
	return GatherServiceIn(ctx, s, clusters, key, probe), key, nil
}

// GatherServiceIn gathers the facts about the service of key in clusters, optionally with probes.
func GatherServiceIn(ctx context.Context, s *session.Session, clusters []*session.Cluster, key mcs.Key, probe bool) []ServiceFacts {
	return session.ForEachCluster(clusters, func(k *session.Cluster) ServiceFacts { return gatherService(ctx, s, k, key, probe) })
}

func printDiagnosis(s *session.Session, format session.Format, d Diagnosis) error {
	if err := format.Print(s.Out, d, func(t *session.Table, _ bool) { d.print(t) }); err != nil {
		return err
	}
	return d.Err()
}

// Err returns session.ErrIncomplete if a step failed, or the objects of the service cannot be read.
func (d Diagnosis) Err() error {
	if d.Failure != nil || d.isUnread() {
		return session.ErrIncomplete
	}
	return nil
}

func (d Diagnosis) print(t *session.Table) {
	d.PrintPhases(t)
	d.PrintFailure(t)
	if d.Failure == nil {
		t.Line("")
		d.printNoFailure(t)
	}
}

// PrintFailure prints the first step that failed, and its remedy, if there is one.
func (d Diagnosis) PrintFailure(t *session.Table) {
	if d.Failure == nil {
		return
	}
	t.Line("")
	t.Line(fmt.Sprintf("Failed in %s at %s: %s.", d.Failure.Context, d.Failure.Name, strings.TrimSuffix(d.Failure.Detail, ".")))
	if d.Failure.Remedy != "" {
		t.Line("Remedy: " + d.Failure.Remedy)
	}
}

// printNoFailure prints the result of a diagnosis without a failed step.
func (d Diagnosis) printNoFailure(t *session.Table) {
	unknown, remedy := d.unknown()
	if len(unknown) == 0 {
		t.Line("No step failed: " + d.Service + " works in all contexts that were checked.")
		return
	}
	t.Line("No step failed, but some are unknown, so it is unknown whether " + d.Service + " works.")
	for _, text := range unknown {
		t.Line("Unknown " + text)
	}
	if remedy != "" {
		t.Line("Remedy: " + remedy)
	}
}

// PrintPhases prints one row for each step.
func (d Diagnosis) PrintPhases(t *session.Table) {
	t.Row("CONTEXT", "PHASE", "STEP", "RESULT", "DETAIL")
	for _, p := range d.Phases {
		for _, step := range p.Steps {
			t.Row(p.Context, p.Name, step.Name, step.Result, step.Detail)
		}
	}
}
