// Package kube has the shared code of the controllers: the indices of the cache and reads through
// them, the mapping of objects to the services that they belong to, the scope that the
// administrator sets, events, and the requeueing of keys for reasons outside of Kubernetes.
package kube
