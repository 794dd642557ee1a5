package mcs

import (
	"cmp"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionClusterSelection is the type of the ServiceImport condition that reports which clusters
// the cluster selectors have in use. It is not part of mcs-api.
const ConditionClusterSelection = Domain + "/ClusterSelection"

// Reasons of ConditionClusterSelection.
const (
	// SelectionReasonNone: the exports have no cluster selectors.
	SelectionReasonNone = "NoSelectors"
	// SelectionReasonLocal: internalTrafficPolicy is Local, so that only endpoints of this cluster
	// are eligible.
	SelectionReasonLocal = "LocalTraffic"
	// SelectionReasonFirst: the first selector decides about every port.
	SelectionReasonFirst = "FirstSelector"
	// SelectionReasonLater: a later selector decides about a port.
	SelectionReasonLater = "LaterSelector"
	// SelectionReasonAll: all clusters are in use for a port, because no selector has enough ready
	// endpoints.
	SelectionReasonAll = "AllClusters"
)

// ImportSelection returns the ServiceImport condition ConditionClusterSelection. Its message is
// constant while the same clusters are in use.
func ImportSelection(m Merged, tiers []Tier, served []ServedUse) metav1.Condition {
	c := metav1.Condition{Type: ConditionClusterSelection, Status: metav1.ConditionFalse}
	switch {
	case m.ClusterSelectors == "" || len(tiers) == 0:
		c.Reason, c.Message = SelectionReasonNone, "the exports do not prefer any cluster"
		return c
	case len(served) == 0:
		c.Reason, c.Message = SelectionReasonLocal, "internalTrafficPolicy is Local: only endpoints of this cluster are eligible, so no cluster is preferred"
		return c
	}
	c.Status, c.Reason = metav1.ConditionTrue, SelectionReasonFirst
	worst := 0
	for _, u := range served {
		worst = max(worst, u.Tier)
	}
	switch {
	case worst == len(tiers):
		c.Reason = SelectionReasonAll
	case worst > 0:
		c.Reason = SelectionReasonLater
	}
	var lines []string
	for tier := 0; tier <= len(tiers); tier++ {
		for _, ready := range []bool{true, false} {
			if uses := usesOf(served, tier, ready); len(uses) > 0 {
				lines = append(lines, describeUses(uses, len(uses) == len(served))+": "+describeTier(m, tiers, tier, ready))
			}
		}
	}
	c.Message = strings.Join(lines, "; ")
	return c
}

// usesOf returns the names of the uses that a tier serves.
func usesOf(served []ServedUse, tier int, ready bool) (names []string) {
	for _, u := range served {
		if u.Tier == tier && u.Ready == ready {
			names = append(names, fmt.Sprintf("%s %s", cmp.Or(u.Port, "the port"), u.Family))
		}
	}
	return names
}

func describeUses(uses []string, all bool) string {
	if all {
		return "every port"
	}
	return enumerate(uses)
}

// describeTier returns which clusters serve, and why the tiers before do not.
func describeTier(m Merged, tiers []Tier, tier int, ready bool) string {
	if !ready {
		return "no cluster has a ready endpoint"
	}
	missing := "has no ready endpoint"
	if m.MinimumReady > 0 {
		missing = fmt.Sprintf("has less than %d%% of its endpoints ready", m.MinimumReady)
	}
	switch {
	case tier == len(tiers) && tier == 1:
		return "all clusters, because selector 1 " + missing + " (" + describeClusters(tiers[0]) + ")"
	case tier == len(tiers):
		return fmt.Sprintf("all clusters, because each of %d selectors %s", tier, missing)
	case tier == 0:
		return fmt.Sprintf("selector 1 (%s)", describeClusters(tiers[0]))
	case tier == 1:
		return fmt.Sprintf("selector 2 (%s), because selector 1 (%s) %s", describeClusters(tiers[1]), describeClusters(tiers[0]), missing)
	}
	return fmt.Sprintf("selector %d (%s), because each selector before it %s", tier+1, describeClusters(tiers[tier]), missing)
}

func describeClusters(t Tier) string {
	if len(t.Clusters) == 0 {
		return "no cluster"
	}
	return enumerate(t.Clusters)
}
