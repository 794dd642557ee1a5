package membership

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// The zones of nodes that were there since the start stay, and the labels of the present ones
// decide about their IDs. The order of the nodes makes no difference.
func TestNodeFacts_Zones(t *testing.T) {
	for name, tt := range map[string]struct {
		// steps are the zones and IDs of the nodes at one time after the other.
		steps [][][2]string
		want  string
	}{
		"none":                                {[][][2]string{{{"", ""}}}, ""},
		"an ID without a zone":                {[][][2]string{{{"", "euc1-az2"}}}, ""},
		"one node in each zone":               {[][][2]string{{{"b", "2"}, {"a", "1"}}}, "a=1,b=2"},
		"a node without the ID of its zone":   {[][][2]string{{{"a", ""}, {"a", "1"}}}, "a=1"},
		"no node has the ID of the zone":      {[][][2]string{{{"a", ""}, {"b", "2"}}}, "a,b=2"},
		"nodes that disagree":                 {[][][2]string{{{"a", "1"}, {"a", "2"}}}, "a"},
		"nodes that disagreed":                {[][][2]string{{{"a", "1"}, {"a", "2"}}, {{"a", "2"}}}, "a=2"},
		"the last node of a zone goes":        {[][][2]string{{{"a", "1"}, {"b", "2"}}, {{"b", "2"}}, {}}, "a=1,b=2"},
		"a node comes before its label":       {[][][2]string{{{"a", "1"}}, {{"a", ""}}}, "a=1"},
		"the label of the zone is corrected":  {[][][2]string{{{"a", "1"}}, {{"a", "2"}}}, "a=2"},
		"a zone appears":                      {[][][2]string{{{"a", "1"}}, {{"a", "1"}, {"b", "2"}}}, "a=1,b=2"},
		"the node of a zone gets its ID late": {[][][2]string{{{"a", ""}}, {{"a", "1"}}}, "a=1"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, reversed := range []bool{false, true} {
				facts := newNodeFacts()
				for _, step := range tt.steps {
					var nodes []corev1.Node
					for _, labels := range step {
						nodes = append(nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelTopologyZone: labels[0], mcs.LabelZoneID: labels[1]}}})
					}
					if reversed {
						slices.Reverse(nodes)
					}
					facts.add(nodes)
				}
				if got := facts.zones.String(); got != tt.want {
					t.Errorf("zones %q, want %q (reversed: %t)", got, tt.want, reversed)
				}
			}
		})
	}
}
