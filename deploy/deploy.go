// Package deploy holds the manifests that install the product, for the kubectl plugin.
package deploy

import "embed"

// Files are the kustomize folders: base is the whole product for one cluster, guard protects its CRDs.
//
//go:embed base crds guard manager rbac
var Files embed.FS
