package mcs

import (
	"strings"
	"testing"
)

func TestImportUnreachable(t *testing.T) {
	withdraw := UnreachableRule{Mode: PathHealthWithdraw}
	tests := map[string]struct {
		unreachable, remaining string
		rule                   UnreachableRule
		status, reason, text   string
	}{
		"none":                    {"", "cls1 cls2", withdraw, "False", UnreachableReasonNone, "no exporting cluster is known to be unreachable"},
		"withdrawn":               {"cls1", "cls2", withdraw, "True", UnreachableReasonWithdrawn, "pods of cluster cls1 (endpoints withdrawn)"},
		"the last endpoints":      {"cls1 cls2", "cls2", withdraw, "True", UnreachableReasonLastEndpoints, "cls1 (endpoints withdrawn), cls2 (endpoints kept): no other cluster"},
		"observed":                {"cls1", "cls1 cls2", UnreachableRule{Mode: PathHealthObserve}, "True", UnreachableReasonObserved, "cls1 (endpoints kept): --path-health=observe"},
		"the fault is here":       {"cls1", "cls1 cls2", UnreachableRule{Mode: PathHealthWithdraw, FaultHere: true}, "True", UnreachableReasonFaultHere, "more than half"},
		"observed, and most fail": {"cls1", "cls1 cls2", UnreachableRule{Mode: PathHealthObserve, FaultHere: true}, "True", UnreachableReasonObserved, "--path-health=observe"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := ImportUnreachable(Choice{Remaining: strings.Fields(tt.remaining)}, strings.Fields(tt.unreachable), tt.rule)
			if string(c.Status) != tt.status || c.Reason != tt.reason || !strings.Contains(c.Message, tt.text) {
				t.Errorf("condition %+v, want %s %s with %q", c, tt.status, tt.reason, tt.text)
			}
		})
	}
}
