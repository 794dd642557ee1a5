package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A Problem is a problem of a clusterset or of one of its clusters.
type Problem struct {
	// Context is the first one whose cluster has or reports the problem.
	Context string `json:"context"`
	// Cluster is the member that the problem is about, in the clusterset of the context, and
	// Service the service: "" and nil if it is about the cluster of the context.
	ClusterSetID string   `json:"clusterSetID,omitempty"`
	Cluster      string   `json:"cluster,omitempty"`
	Service      *mcs.Key `json:"service,omitempty"`
	// Text begins with the context unless every cluster sees the problem. Remedy is the action, ""
	// if a check has to find it.
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
	// joint is between the two in a line, "; " if it is "".
	joint string
}

// String returns the line of the problem.
func (p Problem) String() string {
	if p.Remedy == "" {
		return p.Text
	}
	return p.Text + cmp.Or(p.joint, "; ") + p.Remedy
}

// ListProblems returns the problems of all clusters. A problem that several clusters see is listed
// once.
func ListProblems(statuses []ClusterStatus) []Problem {
	var all []Problem
	for _, c := range statuses {
		if c.Status == nil {
			all = append(all, c.unanswered())
			continue
		}
		all = append(all, problems(c.Context, c.Status)...)
	}
	listed := map[string]bool{}
	return slices.DeleteFunc(all, func(p Problem) bool {
		line := p.String()
		known := listed[line]
		listed[line] = true
		return known
	})
}

// unanswered returns the problem of a context without a Status.
func (c ClusterStatus) unanswered() Problem {
	return Problem{Context: c.Context, Text: c.Context + ": " + c.Problem, Remedy: c.Remedy, joint: ": "}
}

// Problems returns the problems in the status of one controller, one line each.
func Problems(context string, s *status.Status) []string {
	return lines(problems(context, s))
}

func lines(list []Problem) (lines []string) {
	for _, p := range list {
		lines = append(lines, p.String())
	}
	return lines
}

func problems(context string, s *status.Status) []Problem {
	list := append(clusterProblems(context, s), clustersetProblems(s)...)
	for i := range list {
		list[i].Context = context
		if s.Identity != nil {
			list[i].ClusterSetID = s.Identity.ClusterSetID
		}
	}
	return list
}

// clusterProblems returns the problems of the cluster itself.
func clusterProblems(context string, s *status.Status) []Problem {
	if !s.Leader {
		return []Problem{{Text: context + ": " + status.NoLeader}}
	}
	var list []Problem
	for _, problem := range []string{s.Problem, s.IdentityProblem, s.ReadProblem, s.WriteProblem} {
		if problem != "" {
			list = append(list, Problem{Text: context + ": " + problem})
		}
	}
	if s.Identity != nil && !s.Synced && s.ReadProblem == "" {
		list = append(list, Problem{Text: context + ": " + s.Unanswered(), Remedy: "if it continues, run kubectl mcs check --context " + context})
	}
	for _, id := range s.Leaving {
		list = append(list, Problem{Text: fmt.Sprintf("%s: the exports of the cluster as %s in clusterset %s are being removed", context, id.ClusterID, id.ClusterSetID)})
	}
	for _, l := range s.Leftovers {
		if !l.IsProtected {
			list = append(list, Problem{Text: fmt.Sprintf("%s: the cluster has left, but %s stays: %s", context, l.Resource, l.Reason), Remedy: "to delete it: " + l.Command})
		}
	}
	list = append(list, exportProblems(context, s)...)
	list = append(list, pathProblems(context, s)...)
	for _, p := range s.Imports {
		list = append(list, Problem{Service: &p.Key, Text: fmt.Sprintf("%s: the import of %s is not ready: %s: %s", context, p.Key, p.Reason, p.Message)})
	}
	return list
}

// exportProblems returns the problems of this cluster's exports, and of those of the others within
// the budgets.
func exportProblems(context string, s *status.Status) (list []Problem) {
	for _, p := range s.Publications {
		if p.Problem != "" {
			list = append(list, Problem{Service: &p.Key, Text: fmt.Sprintf("%s: %s is not exported: %s", context, p.Key, p.Problem)})
		}
	}
	for _, p := range s.InstanceWarnings {
		for _, warning := range p.Warnings {
			list = append(list, Problem{Service: &p.Key, Text: fmt.Sprintf("%s: %s: %s", context, p.Key, warning)})
		}
	}
	for _, b := range s.Budgets {
		if b.IsNear() {
			list = append(list, Problem{Text: fmt.Sprintf("%s: %s", context, b)})
		}
	}
	if n := len(s.OverBudget); n > 0 {
		list = append(list, Problem{Service: &s.OverBudget[0], Text: fmt.Sprintf("%s: %d services, such as %s, are not imported: their namespace has too many imports (--budget-scale)", context, n, s.OverBudget[0])})
	}
	return list
}

// pathProblems returns the problems of the paths to other clusters.
func pathProblems(context string, s *status.Status) (list []Problem) {
	if s.FaultHere {
		list = append(list, Problem{Text: context + ": most clusters cannot be reached, so the fault is probably in this cluster: no endpoints are withdrawn"})
	}
	for _, p := range s.Paths {
		if p.State == status.PathUnreachable {
			list = append(list, Problem{
				Cluster: p.ClusterID, Text: fmt.Sprintf("%s: connections to pods of cluster %s have timed out for %s", context, p.ClusterID, seconds(p.Seconds)),
				Remedy: "check routes, security groups and NetworkPolicies", joint: ": ",
			})
		}
	}
	return list
}

// clustersetProblems returns the problems of the clusterset, which every cluster sees.
func clustersetProblems(s *status.Status) (list []Problem) {
	for _, m := range s.Members {
		if m.Stale && !m.Mapped { // its Problems have the services that cannot be read
			list = append(list, Problem{
				Cluster: m.ClusterID, Text: fmt.Sprintf("member %s is stale: its last heartbeat was %s", m.ClusterID, heartbeatAge(m)),
				Remedy: "if it does not exist any more, run kubectl mcs forget " + m.ClusterID,
			})
		}
		for _, p := range m.Problems {
			list = append(list, Problem{Cluster: m.ClusterID, Text: fmt.Sprintf("member %s: %s", m.ClusterID, p)})
		}
	}
	for _, c := range s.Conflicts {
		list = append(list, Problem{Service: &c.Key, Text: fmt.Sprintf("%s: %s", c.Key, strings.Join(c.Problems, "; "))})
	}
	return list
}
