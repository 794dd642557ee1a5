// Package deploy embeds the manifests of the controller for the kubectl plugin.
package deploy

import "embed"

// Files are the kustomize folders: crds has the CRDs, base all other objects for one cluster, guard
// protects the CRDs, and components has options of base.
//
//go:embed base components crds guard manager rbac
var Files embed.FS
