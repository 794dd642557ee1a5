package show

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A ClusterStatus is the status of the controller in the cluster of one context, or why it could
// not be queried.
type ClusterStatus struct {
	Context string         `json:"context"`
	Status  *status.Status `json:"status,omitempty"`
	// State is that of a controller without a Status, such as starting, no permission or
	// unreachable. Problem is the reason, Remedy the action, which may be "".
	State   string `json:"state,omitempty"`
	Problem string `json:"problem,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

func statusCommand(s *session.Session) *cobra.Command {
	var format session.Format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show members, exports, conflicts and registry requests",
		Long: "Shows, as the controller of each context sees them, the members of the clusterset with their last heartbeats and exports,\n" +
			"conflicts, and the requests to the registry. Exit code 3 when there is a problem.",
		Example: "  kubectl mcs status --context cls1,cls2\n  kubectl mcs status -o wide",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := s.Clusters()
			if err != nil {
				return err
			}
			return printStatuses(s, format, QueryStatuses(cmd.Context(), s, clusters))
		},
	}
	format.AddFlag(cmd)
	return cmd
}

// QueryStatuses queries the controllers of all clusters.
func QueryStatuses(ctx context.Context, s *session.Session, clusters []*session.Cluster) []ClusterStatus {
	return session.ForEachCluster(clusters, func(k *session.Cluster) ClusterStatus {
		response, err := session.QueryController[status.Status](ctx, s, k, status.PathStatus)
		if err != nil {
			state, problem, remedy := session.ExplainQuery(err)
			return ClusterStatus{Context: k.Context, State: state, Problem: problem, Remedy: remedy}
		}
		return ClusterStatus{Context: k.Context, Status: &response}
	})
}

func printStatuses(s *session.Session, format session.Format, statuses []ClusterStatus) error {
	problems := lines(ListProblems(statuses))
	err := format.Print(s.Out, statuses, func(t *session.Table, wide bool) {
		t.Row("CONTEXT", "CLUSTER", "CLUSTERSET", "REGISTRY", "VERSION", "SERVICES", "CONFLICTS", "CALLS/MIN", "STATE")
		for _, c := range statuses {
			c.printRow(t)
		}
		printMembers(t, statuses, wide)
		printPaths(t, statuses)
		if wide {
			printHeld(t, statuses)
			printRequests(t, statuses)
		}
		for i, line := range problems {
			if i == 0 {
				t.Line("")
			}
			t.Line(line)
		}
	})
	if err == nil && len(problems) > 0 {
		return session.ErrIncomplete
	}
	return err
}

func (c ClusterStatus) printRow(t *session.Table) {
	if c.Status == nil {
		t.Row(c.Context, "", "", "", "", "", "", "", c.State)
		return
	}
	clusterID, clusterSetID := "", ""
	if id := c.Status.Identity; id != nil {
		clusterID, clusterSetID = id.ClusterID, id.ClusterSetID
	}
	t.Row(c.Context, clusterID, clusterSetID, c.Status.Registry, c.Status.Version, c.Status.Services, len(c.Status.Conflicts), c.Status.Calls(), c.ControllerState())
}

// ControllerState returns the state of the controller, ok if it works.
func (c ClusterStatus) ControllerState() string {
	switch {
	case c.Status == nil:
		return c.State
	case !c.Status.Leader:
		return "no leader"
	case c.Status.Identity == nil:
		return "not a member"
	case c.Status.IdentityProblem != "":
		return "identity problem"
	case !c.Status.Synced:
		return "registry not read"
	case c.Status.ReadProblem != "" || c.Status.WriteProblem != "":
		return "registry failing"
	case len(c.Status.Imports) > 0:
		return "imports failing"
	case slices.ContainsFunc(c.Status.Publications, func(p status.Publication) bool { return p.Problem != "" }):
		return "exports failing"
	}
	return stateOK
}

func printMembers(t *session.Table, statuses []ClusterStatus, wide bool) {
	header := []any{"SEEN FROM", "MEMBER", "HEARTBEAT", "VERSION", "EXPORTS", "ENDPOINTS", "STATE"}
	if wide {
		header = append(header, "UNKNOWN", "UID", "PUBLIC KEY")
	}
	hasHeader := false
	for _, c := range statuses {
		if c.Status == nil {
			continue
		}
		for _, m := range c.Status.Members {
			if !hasHeader {
				hasHeader = true
				t.Line("")
				t.Row(header...)
			}
			row := []any{c.Context, m.ClusterID, heartbeatAge(m), m.Version, m.Exports, m.Endpoints, memberState(m)}
			if wide {
				row = append(row, m.Unknown, m.UID, m.Key)
			}
			t.Row(row...)
		}
	}
}

// printPaths prints which cluster reaches which, as far as the given contexts know it.
func printPaths(t *session.Table, statuses []ClusterStatus) {
	hasHeader := false
	for _, c := range statuses {
		if c.Status == nil {
			continue
		}
		for _, p := range c.Status.Paths {
			if !hasHeader {
				hasHeader = true
				t.Line("")
				t.Row("PATH FROM", "TO", "STATE", "SINCE", "CONTROLLER", "ENDPOINTS", "NOTIFICATIONS")
			}
			t.Row(c.Context, p.ClusterID, PathState(p), seconds(p.Seconds), controllerAnswer(p.Controller), endpointAnswers(p.Endpoints), notificationAge(p.NotificationAge))
		}
	}
}

// The states of paths.
const (
	PathOK          = "ok"
	PathNoAnswer    = "no endpoint answers"
	PathUnreachable = "unreachable"
	PathUnknown     = "unknown"
)

// PathState returns the state of a path.
func PathState(p status.Path) string {
	switch p.State {
	case status.PathReachable:
		if p.Endpoints.Targets > 0 && p.Endpoints.Reached == 0 {
			return PathNoAnswer
		}
		return PathOK
	case status.PathUnreachable:
		return PathUnreachable
	}
	return PathUnknown
}

func controllerAnswer(p status.PathProbes) string {
	switch {
	case p.Targets == 0:
		return "no address"
	case p.Reached == 0:
		return "no answer"
	}
	return "ok"
}

func endpointAnswers(p status.PathProbes) string {
	if p.Targets == 0 {
		return "none"
	}
	return fmt.Sprintf("%d of %d", min(p.Reached, p.Targets), p.Targets)
}

func notificationAge(age *float64) string {
	if age == nil {
		return "none"
	}
	return seconds(*age) + " ago"
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

func heartbeatAge(m status.Member) string {
	return time.Duration(m.HeartbeatAge*float64(time.Second)).Round(time.Second).String() + " ago"
}

func memberState(m status.Member) string {
	switch {
	case m.Stale:
		return "stale"
	case len(m.Problems) > 0:
		return "problem"
	case m.Drain.Percent() == 100:
		return "drained"
	case m.Drain != "":
		return "drained " + string(m.Drain)
	}
	return "ok"
}

// printHeld prints the clusterset IPs that ended imports hold.
func printHeld(t *session.Table, statuses []ClusterStatus) {
	hasHeader := false
	for _, c := range statuses {
		if c.Status == nil {
			continue
		}
		for _, h := range c.Status.Held {
			if !hasHeader {
				hasHeader = true
				t.Line("")
				t.Row("HELD IN", "IMPORT", "IPS", "ENDED")
			}
			t.Row(c.Context, h.Key, strings.Join(h.IPs, ","), c.Status.Time.Sub(h.Since).Round(time.Second).String()+" ago")
		}
		if more := c.Status.HeldImports - len(c.Status.Held); more > 0 {
			t.Row(c.Context, fmt.Sprintf("and %d more", more), "", "")
		}
	}
}

func printRequests(t *session.Table, statuses []ClusterStatus) {
	t.Line("")
	t.Row("CALLS OF", "REGISTRY", "OPERATION", "RESULT", "LAST MINUTE")
	for _, c := range statuses {
		if c.Status == nil {
			continue
		}
		for _, r := range c.Status.Requests {
			t.Row(c.Context, r.Registry, r.Operation, r.Result, r.Count)
		}
	}
}
