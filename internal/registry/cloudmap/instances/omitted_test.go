package instances

import (
	"slices"
	"testing"
)

func TestOmittedWarnings(t *testing.T) {
	collisions := []Collision{{ID: "a", ClusterID: "cls2"}, {ID: "b"}, {ID: "c", ClusterID: "cls2"}, {ID: "d", ClusterID: "cls3"}}
	tests := []struct {
		name string
		o    omitted
		want []string
	}{
		{name: "no omissions"},
		{"failed", omitted{failure: "no"}, []string{"the endpoints are not shown as Cloud Map instances: no"}},
		{"too many", omitted{overLimit: 7}, []string{"7 endpoints are not shown as Cloud Map instances: a service has at most 1000 (the other clusters import all of them)"}},
		{"collisions", omitted{collisions: collisions}, []string{"4 endpoints are not shown as Cloud Map instances because others use their IDs (a of cluster cls2, b of no cluster of the clusterset, c of cluster cls2, …): do the pod networks overlap?"}},
		{"refused", omitted{refused: map[string]string{"a": "bad"}}, []string{"1 endpoints are not shown because AWS Cloud Map refuses their instances: a (bad)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.o.warnings(); !slices.Equal(got, tt.want) {
				t.Errorf("warnings %q, want %q", got, tt.want)
			}
		})
	}
}
