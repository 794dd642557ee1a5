package mcs

import "testing"

func TestIsReservedKey(t *testing.T) {
	tests := map[string]bool{
		"kubernetes.io/service-name":                 true,
		"Multicluster.Kubernetes.IO/derived-service": true,
		"applyset.kubernetes.io/part-of":             true,
		"config.k8s.io/owning-inventory":             true,
		"multicluster.x-k8s.io/x":                    true,
		"app.kubernetes.io/managed-by":               true,
		"app.kubernetes.io/instance":                 true,
		"App.Kubernetes.io/Instance":                 true,
		"argocd.argoproj.io/tracking-id":             true,
		"argocd.argoproj.io/sync-options":            true,
		"kustomize.toolkit.fluxcd.io/name":           true,
		"kustomize.toolkit.fluxcd.io/prune":          true,
		"helm.toolkit.fluxcd.io/namespace":           true,
		"fluxcd.io/sync-gc-mark":                     true,
		"meta.helm.sh/release-name":                  true,
		"helm.sh/resource-policy":                    true,
		"kapp.k14s.io/app":                           true,
		"objectset.rio.cattle.io/hash":               true,
		"configsync.gke.io/resource-id":              true,
		"configmanagement.gke.io/managed":            true,
		"cleanup.kyverno.io/ttl":                     true,
		"janitor/ttl":                                true,
		"app.kubernetes.io/name":                     false,
		"app.kubernetes.io/part-of":                  false,
		"apps.kubernetes.io/x":                       true,
		"example.com/argocd.argoproj.io":             false,
		"notargoproj.io/x":                           false,
		"instance":                                   false,
		"team":                                       false,
		"":                                           false,
	}
	for key, want := range tests {
		if got := isReservedKey(key); got != want {
			t.Errorf("%q: %t, want %t", key, got, want)
		}
	}
}
