package doctor

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func TestZonesChecks(t *testing.T) {
	for name, tt := range map[string]struct {
		members []status.Member
		// result is none without a check.
		result check.Result
		none   bool
		want   string
	}{
		"no zones":            {members: []status.Member{{ClusterID: "cls1"}, {ClusterID: "cls2"}}, none: true},
		"zones without IDs":   {members: []status.Member{{ClusterID: "cls1", Zones: "rack-1"}, {ClusterID: "cls2", Zones: "rack-1"}}, none: true},
		"one account":         {members: []status.Member{{ClusterID: "cls1", Zones: "a=1,b=2"}, {ClusterID: "cls2", Zones: "a=1"}}, result: check.OK, want: "cls1 a=1,b=2; cls2 a=1"},
		"two accounts":        {members: []status.Member{{ClusterID: "cls1", Zones: "a=1"}, {ClusterID: "cls2", Zones: "a=2"}, {ClusterID: "cloud-map", Mapped: true}}, result: check.OK, want: "cls1 a=1; cls2 a=2"},
		"a cluster elsewhere": {members: []status.Member{{ClusterID: "cls1", Zones: "a=1"}, {ClusterID: "cls2", Zones: "rack-1"}}, result: check.OK, want: "cls1 a=1; cls2 rack-1"},
		"an ID is missing": {
			members: []status.Member{{ClusterID: "cls1", Zones: "a=1"}, {ClusterID: "cls2", Zones: "a=2"}, {ClusterID: "cls3", Zones: "a"}, {ClusterID: "cls4"}},
			result:  check.Warning, want: "a is 1 or 2, but a of cls3 has no ID",
		},
		"a cluster announces none": {members: []status.Member{{ClusterID: "cls1", Zones: "a=1"}, {ClusterID: "cls2"}}, result: check.Unknown, want: "the zones of cls2 are not announced"},
		"zones of a later form":    {members: []status.Member{{ClusterID: "cls1", Zones: "a=1"}, {ClusterID: "cls2", Zones: "a=1=2"}}, result: check.Unknown, want: "the zones of cls2 are not announced"},
	} {
		t.Run(name, func(t *testing.T) {
			checks := (&clusterFacts{controller: &status.Status{Synced: true, Members: tt.members}}).zonesChecks()
			if tt.none || len(checks) != 1 {
				if !tt.none || len(checks) > 0 {
					t.Errorf("%+v", checks)
				}
				return
			}
			if c := checks[0]; c.Result != tt.result || !strings.Contains(c.Detail, tt.want) || (c.Remedy == "") != (c.Result == check.OK) {
				t.Errorf("%+v, want %v with %q", c, tt.result, tt.want)
			}
		})
	}
}
