package mcs

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PathHealth is the policy for clusters that the pods of this cluster cannot reach.
type PathHealth string

const (
	// PathHealthOff probes nothing.
	PathHealthOff PathHealth = "off"
	// PathHealthObserve probes and reports.
	PathHealthObserve PathHealth = "observe"
	// PathHealthWithdraw also withdraws the endpoints of unreachable clusters, but not the last
	// ones of a port and family.
	PathHealthWithdraw PathHealth = "withdraw"
)

// PathHealths returns all values.
func PathHealths() []string {
	return []string{string(PathHealthOff), string(PathHealthObserve), string(PathHealthWithdraw)}
}

// UnreachableRule decides about the endpoints of unreachable clusters. FaultHere reports whether
// most clusters are unreachable, so that the fault is probably in this cluster.
type UnreachableRule struct {
	Mode      PathHealth
	FaultHere bool
}

// Withdraws reports whether unreachable clusters are put in reserve.
func (r UnreachableRule) Withdraws() bool { return r.Mode == PathHealthWithdraw && !r.FaultHere }

// WithUnreachable returns c with the unreachable clusters in reserve if the rule withdraws their
// endpoints.
func (c Candidates) WithUnreachable(unreachable []string, rule UnreachableRule) Candidates {
	if rule.Withdraws() {
		c.Reserve = slices.Concat(c.Reserve, unreachable)
	}
	return c
}

// ConditionUnreachable is the type of the ServiceImport condition that reports whether pods of this
// cluster cannot reach exporting clusters. It is not part of mcs-api.
const ConditionUnreachable = Domain + "/Unreachable"

// Reasons of ConditionUnreachable.
const (
	UnreachableReasonNone          = "NoneUnreachable"
	UnreachableReasonWithdrawn     = "Withdrawn"
	UnreachableReasonLastEndpoints = "LastEndpointsKept"
	UnreachableReasonObserved      = "Observed"
	UnreachableReasonFaultHere     = "FaultInThisCluster"
)

// ImportUnreachable returns the ServiceImport condition ConditionUnreachable. unreachable are
// clusters among the exports, and choice is the result of Choose. Its message is constant while the
// same clusters are unreachable with the same decisions.
func ImportUnreachable(choice Choice, unreachable []string, rule UnreachableRule) metav1.Condition {
	c := metav1.Condition{
		Type: ConditionUnreachable, Status: conditionStatus(len(unreachable) > 0), Reason: UnreachableReasonNone,
		Message: "no exporting cluster is known to be unreachable",
	}
	if len(unreachable) == 0 {
		return c
	}
	var clusters []string
	kept := false
	for _, id := range unreachable {
		decision := "endpoints withdrawn"
		if !rule.Withdraws() || slices.Contains(choice.Remaining, id) {
			decision, kept = "endpoints kept", true
		}
		clusters = append(clusters, fmt.Sprintf("%s (%s)", id, decision))
	}
	c.Message = "the controller of this cluster cannot connect to pods of cluster " + enumerate(clusters)
	switch {
	case rule.Mode != PathHealthWithdraw:
		c.Reason = UnreachableReasonObserved
		c.Message += ": --path-health=" + string(rule.Mode)
	case rule.FaultHere:
		c.Reason = UnreachableReasonFaultHere
		c.Message += ": more than half of the clusters are unreachable, so the fault is probably in this cluster"
	case kept:
		c.Reason = UnreachableReasonLastEndpoints
		c.Message += ": no other cluster has ready endpoints for the service, one of its ports or one of its IP families"
	default:
		c.Reason = UnreachableReasonWithdrawn
	}
	return c
}
