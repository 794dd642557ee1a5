package membership

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
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

// The drain is that of the annotation in the project's domain, or else of the deprecated one.
func TestPropertiesOf_Drain(t *testing.T) {
	const newKey, oldKey = "cloud-map-mcs.github.io/drain", "multicluster.k8s.aws/" + "drain"
	for name, tt := range map[string]struct {
		annotations map[string]string
		want        string
		deprecated  bool
	}{
		"none": {},
		"new":  {map[string]string{newKey: "50%"}, "50%", false},
		"old":  {map[string]string{oldKey: "50%"}, "50%", true},
		"both": {map[string]string{newKey: "50%", oldKey: "force"}, "50%", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := propertiesOf([]aboutv1beta1.ClusterProperty{
				{ObjectMeta: metav1.ObjectMeta{Name: "other.example.com", Annotations: map[string]string{newKey: "1%", oldKey: "1%"}}},
				{ObjectMeta: metav1.ObjectMeta{Name: aboutv1beta1.ClusterIDProperty, Annotations: tt.annotations}},
			})
			if got.All[mcs.PropertyDrain] != tt.want || strings.Contains(got.Deprecation, oldKey) != tt.deprecated || (got.Deprecation != "") != tt.deprecated {
				t.Errorf("drain %q, deprecation %q; want drain %q, deprecated %t", got.All[mcs.PropertyDrain], got.Deprecation, tt.want, tt.deprecated)
			}
		})
	}
}
