package doctor

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func TestBudgetsCheck(t *testing.T) {
	half := status.Budget{Scope: "total", Kind: "exports", Used: 50, Limit: 100}
	near := status.Budget{Scope: "member", Kind: "ports", Used: 81, Limit: 100}
	over := status.Member{ClusterID: "cls2", Problems: []string{"over budget: 3 exports"}, OverBudget: []string{"over budget: 3 exports"}}
	tests := map[string]struct {
		status status.Status
		want   string // "" is OK
	}{
		"half used":           {status.Status{Budgets: []status.Budget{half}}, ""},
		"nearly used up":      {status.Status{Budgets: []status.Budget{half, near}}, "81 of the budget of 100 ports of one cluster are used (--budget-scale)"},
		"a member is over":    {status.Status{Members: []status.Member{over}}, "cls2: over budget: 3 exports"},
		"imports that wait":   {status.Status{OverBudget: []mcs.Key{{Namespace: "demo", Name: "web"}}}, "1 services, such as demo/web, are not imported"},
		"an older controller": {status.Status{}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &clusterFacts{controller: &tt.status}
			c := f.budgetsCheck()
			if got := c.Result != check.OK; got != (tt.want != "") || !strings.Contains(c.Detail, tt.want) {
				t.Errorf("%v: %s, want %q", c.Result, c.Detail, tt.want)
			}
			if c := f.membersCheck(); c.Result != check.OK {
				t.Errorf("the members' check is %v: %s", c.Result, c.Detail)
			}
		})
	}
}
