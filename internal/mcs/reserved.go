package mcs

import "strings"

// reservedDomains are the domains whose labels and annotations have a meaning for Kubernetes, an
// MCS implementation, or a tool that changes or deletes the objects that carry them. Their
// subdomains are reserved too.
var reservedDomains = []string{
	// Kubernetes and the MCS API, with ApplySets of kubectl, cli-utils and Cluster API in
	// kubernetes.io and k8s.io.
	"kubernetes.io", "k8s.io", "multicluster.x-k8s.io", domainAWS,
	// This project.
	Domain,
	// Tools that delete the objects that they believe to own, and that are not in their sources:
	// Argo CD, Flux, Helm, kapp, Rancher Fleet, Google's Config Sync, kpt.
	"argoproj.io", "fluxcd.io", "helm.sh", "k14s.io", "carvel.dev", "cattle.io", "configsync.gke.io", "configmanagement.gke.io", "kpt.dev",
	// Tools that delete objects after a time: Kyverno's cleanup, kube-janitor.
	"kyverno.io", "janitor",
}

// reservedUserKeys are the keys of app.kubernetes.io that are reserved; users have the others.
// managed-by identifies the owner of a ServiceImport. By instance, Argo CD finds the objects that
// it prunes.
var reservedUserKeys = map[string]bool{"managed-by": true, "instance": true}

// isReservedKey reports whether another cluster must not set a label or annotation key.
func isReservedKey(key string) bool {
	prefix, name, ok := strings.Cut(strings.ToLower(key), "/")
	if !ok {
		return false
	}
	if prefix == "app.kubernetes.io" {
		return reservedUserKeys[name]
	}
	for _, domain := range reservedDomains {
		if prefix == domain || strings.HasSuffix(prefix, "."+domain) {
			return true
		}
	}
	return false
}
