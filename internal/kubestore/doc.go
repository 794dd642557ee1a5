// Package kubestore keeps the state of a controller in ConfigMaps and a Secret of its namespace:
// the resource IDs of the cluster in AWS Cloud Map, its signing key, and the pinned keys of the
// other clusters. Registries see interfaces of their own packages.
package kubestore
