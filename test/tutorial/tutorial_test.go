package tutorial

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// TestSteps checks which steps have commands for a third and a fourth cluster: they install, join,
// use the service and uninstall.
func TestSteps(t *testing.T) {
	for _, registry := range []string{clusterset.CloudMap, clusterset.Etcd} {
		for clusters, want := range map[int]string{2: "[] []", 3: "[1 2 3 4 11 15] []", 4: "[1 2 3 4 11 15] [1 2 3 4 11 15]"} {
			var third, fourth []int
			for _, step := range Steps(registry, clusters) {
				mentions := func(cluster string) bool {
					return slices.ContainsFunc(step.Commands, func(c Command) bool { return strings.Contains(c.Line, "--context "+cluster) })
				}
				if mentions("cls3") {
					third = append(third, step.Number)
				}
				if mentions("cls4") {
					fourth = append(fourth, step.Number)
				}
				if i := slices.IndexFunc(step.Commands, func(c Command) bool { return strings.Contains(c.Line, "CLS") }); i >= 0 {
					t.Errorf("step %d has no cluster in the command %s", step.Number, step.Commands[i].Line)
				}
			}
			if got := fmt.Sprint(third, " ", fourth); got != want {
				t.Errorf("%s with %d clusters: the steps %s have commands for cls3 and cls4, want %s", registry, clusters, got, want)
			}
		}
	}
}
