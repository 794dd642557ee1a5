package membership

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

func TestDecideIdentity(t *testing.T) {
	none := properties{Installed: true}
	both := properties{Installed: true, ClusterID: "cls1", ClusterSetID: "set1"}
	byFlag := config.Identity{ClusterID: "cls9", ClusterSetID: "set9"}
	tests := []struct {
		name       string
		properties properties
		flags      config.Identity
		want       mcs.Identity
		wantErr    []string
	}{
		{name: "properties", properties: both, want: mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "u"}},
		{name: "properties before flags", properties: both, flags: byFlag, want: mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "u"}},
		{name: "flags", properties: none, flags: byFlag, want: mcs.Identity{ClusterID: "cls9", ClusterSetID: "set9", UID: "u"}},
		{name: "flags without the CRD", flags: byFlag, want: mcs.Identity{ClusterID: "cls9", ClusterSetID: "set9", UID: "u"}},
		{
			name: "one of each", properties: properties{Installed: true, ClusterID: "cls1"}, flags: config.Identity{ClusterSetID: "set9"},
			want: mcs.Identity{ClusterID: "cls1", ClusterSetID: "set9", UID: "u"},
		},
		{
			name: "no flags, no ClusterProperties", properties: none,
			wantErr: []string{"create ClusterProperty cluster.clusterset.k8s.io, or set --cluster-id", "create ClusterProperty clusterset.k8s.io, or set --clusterset-id"},
		},
		{name: "no CRD", wantErr: []string{"install the CRD clusterproperties.about.k8s.io"}},
		{
			name: "invalid property is not replaced by the flag", properties: properties{Installed: true, ClusterID: "a.b", ClusterSetID: "set1"}, flags: byFlag,
			wantErr: []string{`ClusterProperty cluster.clusterset.k8s.io: ID "a.b" is not a DNS label`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decideIdentity(tt.properties, tt.flags, "u")
			if (err != nil) != (len(tt.wantErr) > 0) {
				t.Fatalf("error %v", err)
			}
			for _, text := range tt.wantErr {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q lacks %q", err, text)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("identity (-want +got):\n%s", d)
			}
		})
	}
}
