// Package serve answers HTTP requests about the controller: metrics of the objects in the cluster,
// the status endpoint that "kubectl mcs" reads, and probes.
package serve
