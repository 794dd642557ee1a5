package show

import (
	"fmt"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// ListProblems returns the problems of all clusters, one line each. A problem that several clusters
// see is listed once.
func ListProblems(statuses []ClusterStatus) []string {
	var lines []string
	for _, c := range statuses {
		if c.Status == nil {
			lines = appendMissing(lines, c.problemLine())
			continue
		}
		lines = appendMissing(lines, Problems(c.Context, c.Status)...)
	}
	return lines
}

// Problems returns the problems in the status of one controller, one line each.
func Problems(context string, s *status.Status) []string {
	return append(clusterProblems(context, s), clustersetProblems(s)...)
}

// clusterProblems returns the problems of the cluster itself.
func clusterProblems(context string, s *status.Status) []string {
	if !s.Leader {
		return []string{context + ": " + status.NoLeader}
	}
	var lines []string
	for _, problem := range []string{s.Problem, s.IdentityProblem, s.ReadProblem, s.WriteProblem} {
		if problem != "" {
			lines = append(lines, context+": "+problem)
		}
	}
	if s.Identity != nil && !s.Synced && s.ReadProblem == "" {
		lines = append(lines, fmt.Sprintf("%s: %s; if it continues, run kubectl mcs check --context %[1]s", context, s.Unanswered()))
	}
	for _, id := range s.Leaving {
		lines = append(lines, fmt.Sprintf("%s: the exports of the cluster as %s in clusterset %s are being removed", context, id.ClusterID, id.ClusterSetID))
	}
	for _, l := range s.Leftovers {
		if !l.IsProtected {
			lines = append(lines, fmt.Sprintf("%s: the cluster has left, but %s stays: %s; to delete it: %s", context, l.Resource, l.Reason, l.Command))
		}
	}
	lines = append(lines, exportProblems(context, s)...)
	lines = append(lines, pathProblems(context, s)...)
	for _, p := range s.Imports {
		lines = append(lines, fmt.Sprintf("%s: the import of %s is not ready: %s: %s", context, p.Key, p.Reason, p.Message))
	}
	return lines
}

// exportProblems returns the problems of this cluster's exports, and of those of the others within
// the budgets.
func exportProblems(context string, s *status.Status) (lines []string) {
	for _, p := range s.Publications {
		if p.Problem != "" {
			lines = append(lines, fmt.Sprintf("%s: %s is not exported: %s", context, p.Key, p.Problem))
		}
	}
	for _, p := range s.InstanceWarnings {
		for _, warning := range p.Warnings {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", context, p.Key, warning))
		}
	}
	for _, b := range s.Budgets {
		if b.IsNear() {
			lines = append(lines, fmt.Sprintf("%s: %s", context, b))
		}
	}
	if n := len(s.OverBudget); n > 0 {
		lines = append(lines, fmt.Sprintf("%s: %d services, such as %s, are not imported: their namespace has too many imports (--budget-scale)", context, n, s.OverBudget[0]))
	}
	return lines
}

// pathProblems returns the problems of the paths to other clusters.
func pathProblems(context string, s *status.Status) (lines []string) {
	if s.FaultHere {
		lines = append(lines, context+": most clusters cannot be reached, so the fault is probably in this cluster: no endpoints are withdrawn")
	}
	for _, p := range s.Paths {
		if p.State == status.PathUnreachable {
			lines = append(lines, fmt.Sprintf("%s: connections to pods of cluster %s have timed out for %s: check routes, security groups and NetworkPolicies", context, p.ClusterID, seconds(p.Seconds)))
		}
	}
	return lines
}

// clustersetProblems returns the problems of the clusterset, which every cluster sees.
func clustersetProblems(s *status.Status) []string {
	var lines []string
	for _, m := range s.Members {
		if m.Stale && !m.Mapped { // its Problems have the services that cannot be read
			lines = append(lines, fmt.Sprintf("member %s is stale: its last heartbeat was %s; if it does not exist any more, run kubectl mcs forget %[1]s", m.ClusterID, heartbeatAge(m)))
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
