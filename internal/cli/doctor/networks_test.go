package doctor

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func TestNetworksCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		members []status.Member
		result  check.Result
		want    string
	}{
		"all announce": {
			[]status.Member{{ClusterID: "cls1", Networks: "10.10.0.0/16"}, {ClusterID: "cls2", Networks: "10.12.0.0/16,fd00::/48"}, {ClusterID: "cloud-map", Mapped: true}},
			check.OK, "cls1 10.10.0.0/16; cls2 10.12.0.0/16,fd00::/48",
		},
		"one does not":             {[]status.Member{{ClusterID: "cls1", Networks: "10.10.0.0/16"}, {ClusterID: "cls2"}}, check.Unknown, "of cls2 are not announced"},
		"networks of a later form": {[]status.Member{{ClusterID: "cls1", Networks: "everything"}}, check.Unknown, "of cls1 are not announced"},
		"two announce the same": {
			[]status.Member{{ClusterID: "cls1", Networks: "10.10.0.0/16"}, {ClusterID: "cls2", Networks: "10.0.0.0/8"}, {ClusterID: "cls3"}},
			check.Warning, "cls1 and cls2 both announce 10.10.0.0/16",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &clusterFacts{controller: &status.Status{Members: tt.members}}
			if c := f.networksCheck(); c.Result != tt.result || !strings.Contains(c.Detail, tt.want) {
				t.Errorf("%v %s, want %v with %q", c.Result, c.Detail, tt.result, tt.want)
			}
		})
	}
}
