// Package deploy embeds the manifests of the controller for the kubectl plugin.
package deploy

import "embed"

// Files are the kustomize folders: base has all objects for one cluster, guard protects the CRDs.
//
//go:embed base crds guard manager rbac
var Files embed.FS
