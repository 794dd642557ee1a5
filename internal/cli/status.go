package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A sight is what the controller of one context's cluster says, or why it could not be asked.
type sight struct {
	Context string         `json:"context"`
	Status  *status.Status `json:"status,omitempty"`
	Problem string         `json:"problem,omitempty"`
}

func (a *app) statusCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the clusterset at a glance",
		Long: "Asks the controller of each context what it knows: who the members are and when they last gave a sign of life, what\n" +
			"they export, conflicts, and the calls to the registry. Exit code 3 when something is not as it should be.",
		Example: "  kubectl mcs status --context cls1,cls2\n  kubectl mcs status -o wide",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := a.clusters()
			if err != nil {
				return err
			}
			return a.printSights(o, a.sights(cmd.Context(), clusters))
		},
	}
	o.bind(cmd)
	return cmd
}

// sights asks every cluster's controller.
func (a *app) sights(ctx context.Context, clusters []*cluster) []sight {
	return eachCluster(clusters, func(k *cluster) sight {
		s, err := askController[status.Status](ctx, a, k, status.PathStatus)
		if err != nil {
			return sight{Context: k.context, Problem: err.Error()}
		}
		return sight{Context: k.context, Status: &s}
	})
}

func (a *app) printSights(o output, sights []sight) error {
	err := o.print(a.Out, sights, func(t *table, wide bool) {
		t.row("CONTEXT", "CLUSTER", "CLUSTERSET", "REGISTRY", "VERSION", "SERVICES", "CONFLICTS", "CALLS/MIN", "STATE")
		for _, s := range sights {
			s.row(t)
		}
		membersTable(t, sights, wide)
		if wide {
			requestsTable(t, sights)
		}
		for i, line := range troubles(sights) {
			if i == 0 {
				t.line("")
			}
			t.line(line)
		}
	})
	if err != nil {
		return err
	}
	if len(troubles(sights)) > 0 {
		return exitError(ExitIncomplete)
	}
	return nil
}

func (s sight) row(t *table) {
	if s.Status == nil {
		t.row(s.Context, "", "", "", "", "", "", "", "unreachable")
		return
	}
	clusterID, clusterSetID, state := "", "", "ok"
	if id := s.Status.Identity; id != nil {
		clusterID, clusterSetID = id.ClusterID, id.ClusterSetID
	}
	switch {
	case s.Status.Identity == nil:
		state = "no member"
	case !s.Status.Synced:
		state = "registry unreadable"
	case s.Status.ReadProblem != "" || s.Status.WriteProblem != "":
		state = "registry in trouble"
	}
	t.row(s.Context, clusterID, clusterSetID, s.Status.Registry, s.Status.Version, s.Status.Services, len(s.Status.Conflicts), s.Status.Calls(), state)
}

func membersTable(t *table, sights []sight, wide bool) {
	header := []any{"SEEN FROM", "MEMBER", "HEARTBEAT", "VERSION", "EXPORTS", "ENDPOINTS", "STATE"}
	if wide {
		header = append(header, "UNKNOWN", "UID")
	}
	begun := false
	for _, s := range sights {
		if s.Status == nil {
			continue
		}
		for _, m := range s.Status.Members {
			if !begun {
				begun = true
				t.line("")
				t.row(header...)
			}
			row := []any{s.Context, m.ClusterID, heartbeat(m), m.Version, m.Exports, m.Endpoints, memberState(m)}
			if wide {
				row = append(row, m.Unknown, m.UID)
			}
			t.row(row...)
		}
	}
}

func heartbeat(m status.Member) string {
	return time.Duration(m.HeartbeatAge*float64(time.Second)).Round(time.Second).String() + " ago"
}

func memberState(m status.Member) string {
	switch {
	case m.Stale:
		return "stale"
	case len(m.Problems) > 0:
		return "problem"
	}
	return "ok"
}

func requestsTable(t *table, sights []sight) {
	t.line("")
	t.row("CALLS OF", "REGISTRY", "OPERATION", "RESULT", "LAST MINUTE")
	for _, s := range sights {
		if s.Status == nil {
			continue
		}
		for _, r := range s.Status.Requests {
			t.row(s.Context, r.Registry, r.Operation, r.Result, r.Count)
		}
	}
}

// troubles are what is not as it should be, one line each and each once, though several clusters may see it.
func troubles(sights []sight) []string {
	var lines []string
	for _, s := range sights {
		if s.Status == nil {
			lines = mergeStrings(lines, []string{s.Context + ": " + s.Problem})
			continue
		}
		lines = mergeStrings(lines, ownTroubles(s.Context, s.Status))
		lines = mergeStrings(lines, sharedTroubles(s.Status))
	}
	return lines
}

// ownTroubles are those of the cluster itself.
func ownTroubles(context string, s *status.Status) []string {
	var lines []string
	for _, problem := range []string{s.Problem, s.ReadProblem, s.WriteProblem} {
		if problem != "" {
			lines = append(lines, context+": "+problem)
		}
	}
	for _, id := range s.Leaving {
		lines = append(lines, fmt.Sprintf("%s: what the cluster has as %s in clusterset %s is being removed", context, id.ClusterID, id.ClusterSetID))
	}
	for _, p := range s.Publications {
		if p.Problem != "" {
			lines = append(lines, fmt.Sprintf("%s: %s is not exported: %s", context, p.Key, p.Problem))
		}
	}
	return lines
}

// sharedTroubles are those of the clusterset, which every cluster sees.
func sharedTroubles(s *status.Status) []string {
	var lines []string
	for _, m := range s.Members {
		if m.Stale {
			lines = append(lines, fmt.Sprintf("member %s is stale: its last sign of life was %s", m.ClusterID, heartbeat(m)))
		}
		for _, p := range m.Problems {
			lines = append(lines, fmt.Sprintf("member %s: %s", m.ClusterID, p))
		}
	}
	for _, c := range s.Conflicts {
		lines = append(lines, fmt.Sprintf("%s: %s", c.Key, strings.Join(c.Problems, "; ")))
	}
	return lines
}
