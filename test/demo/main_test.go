package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

func TestOptions(t *testing.T) {
	dualStack := []string{"--dual-stack"}
	tests := map[string]struct {
		env   map[string]string
		want  clusterset.Options
		fails string
	}{
		"default":        {nil, clusterset.Options{Clusters: 2, Registry: clusterset.CloudMap, Sealed: true}, ""},
		"etcd":           {map[string]string{"REGISTRY": "etcd"}, clusterset.Options{Clusters: 2, Registry: clusterset.Etcd}, ""},
		"dual stack":     {map[string]string{"DUAL_STACK": "1"}, clusterset.Options{Clusters: 2, Registry: clusterset.CloudMap, Sealed: true, TestbedArgs: dualStack}, ""},
		"three clusters": {map[string]string{"CLUSTERS": "3"}, clusterset.Options{Clusters: 3, Registry: clusterset.CloudMap, Sealed: true}, ""},
		"all of them": {
			map[string]string{"CLUSTERS": "4", "DUAL_STACK": "1", "REGISTRY": "etcd"},
			clusterset.Options{Clusters: 4, Registry: clusterset.Etcd, TestbedArgs: dualStack}, "",
		},
		"one cluster":      {map[string]string{"CLUSTERS": "1"}, clusterset.Options{}, "CLUSTERS=1: want 2, 3 or 4"},
		"too many":         {map[string]string{"CLUSTERS": "5"}, clusterset.Options{}, "CLUSTERS=5: want 2, 3 or 4"},
		"no number":        {map[string]string{"CLUSTERS": "two"}, clusterset.Options{}, "CLUSTERS=two: want 2, 3 or 4"},
		"another registry": {map[string]string{"REGISTRY": "consul"}, clusterset.Options{}, "REGISTRY=consul: want cloudmap or etcd"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{"CLUSTERS", "DUAL_STACK", "REGISTRY"} {
				t.Setenv(variable, tt.env[variable])
			}
			got, err := options(clusterset.RegistryName())
			if err != nil || tt.fails != "" {
				if err == nil || err.Error() != tt.fails {
					t.Errorf("error %v, want %q", err, tt.fails)
				}
				return
			}
			if d := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(clusterset.Options{}, "Out")); d != "" {
				t.Errorf("options (-want +got):\n%s", d)
			}
		})
	}
}
