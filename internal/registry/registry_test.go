package registry_test

import (
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func TestCheckIdentity(t *testing.T) {
	valid := mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}
	tests := map[string]struct {
		change func(*mcs.Identity)
		want   bool
	}{
		"valid":                  {func(*mcs.Identity) {}, true},
		"no cluster ID":          {func(i *mcs.Identity) { i.ClusterID = "" }, false},
		"no clusterset ID":       {func(i *mcs.Identity) { i.ClusterSetID = "" }, false},
		"dots in the cluster ID": {func(i *mcs.Identity) { i.ClusterID = "a.b" }, false},
		"no UID":                 {func(i *mcs.Identity) { i.UID = "" }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			identity := valid
			tt.change(&identity)
			if err := registry.CheckIdentity(identity); (err == nil) != tt.want {
				t.Errorf("error = %v, want valid: %t", err, tt.want)
			}
		})
	}
}
