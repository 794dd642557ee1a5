// Package deploy embeds the manifests of the controller for the kubectl plugin.
package deploy

import "embed"

// Files are the kustomize folders: crds has the CRDs, base all other objects for one cluster, and
// guard protects the CRDs.
//
//go:embed base crds guard manager rbac
var Files embed.FS
