package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

func TestScope(t *testing.T) {
	tests := []struct {
		name                         string
		exports, imports             string
		namespace                    string
		labels                       map[string]string
		wantMayExport, wantMayImport bool
	}{
		{name: "default", namespace: "shop", wantMayExport: true, wantMayImport: true},
		{name: "system", namespace: "kube-system"},
		{name: "system by name", exports: "shop,kube-system", namespace: "kube-system", wantMayExport: true},
		{name: "default is not imported into", namespace: "default", wantMayExport: true},
		{name: "default by a label is not imported into", imports: "mcs=yes", namespace: "default", labels: map[string]string{"mcs": "yes"}, wantMayExport: true},
		{name: "default by a selector of all is not imported into", imports: "kubernetes.io/metadata.name", namespace: "default", wantMayExport: true},
		{name: "default by name", imports: "shop,default", namespace: "default", wantMayExport: true, wantMayImport: true},
		{name: "default by name and label", imports: "kubernetes.io/metadata.name in (shop,default),mcs=yes", namespace: "default", labels: map[string]string{"mcs": "yes"}, wantMayExport: true, wantMayImport: true},
		{name: "default by name, without the label", imports: "kubernetes.io/metadata.name in (shop,default),mcs=yes", namespace: "default", wantMayExport: true},
		{name: "namespaces of Kubernetes", namespace: "kube-flannel", wantMayExport: true},
		{name: "the controller's own", namespace: "cloud-map-mcs-system", wantMayExport: true},
		{name: "listed in the policy", namespace: "kube-public", wantMayImport: true},
		{name: "not in the list", exports: "blog", imports: "blog,shop", namespace: "shop", wantMayImport: true},
		{name: "label", exports: "mcs=yes", imports: "mcs!=no", namespace: "shop", labels: map[string]string{"mcs": "yes"}, wantMayExport: true, wantMayImport: true},
		{name: "no label", exports: "mcs=yes", imports: "mcs!=no", namespace: "shop", wantMayImport: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			flags := config.Default().Scope
			if tt.exports != "" {
				flags.ExportNamespaces = tt.exports
			}
			if tt.imports != "" {
				flags.ImportNamespaces = tt.imports
			}
			s, err := NewScope(flags)
			if err != nil {
				t.Fatal(err)
			}
			s = s.WithRules(Rules{OwnNamespace: "cloud-map-mcs-system", AllowsSystemNamespace: func(name string) bool { return name == "kube-public" }})
			ns := NamespaceMetadata()
			ns.Name, ns.Labels = tt.namespace, map[string]string{corev1.LabelMetadataName: tt.namespace}
			for k, v := range tt.labels {
				ns.Labels[k] = v
			}
			why := s.ExportDenial(ns)
			if (why == "") != tt.wantMayExport {
				t.Errorf("exporting is refused with %q, want it allowed: %t", why, tt.wantMayExport)
			}
			if why != "" && (!strings.Contains(why, "namespace "+tt.namespace+" may not export") || !strings.Contains(why, flags.ExportNamespaces)) {
				t.Errorf("%q does not say what to change", why)
			}
			if got := s.AllowsImport(ns); got != tt.wantMayImport {
				t.Errorf("importing is allowed: %t, want %t", got, tt.wantMayImport)
			}
		})
	}
	if _, err := NewScope(config.Scope{}); err == nil {
		t.Error("flags that select nothing and say nothing are accepted")
	}
}
