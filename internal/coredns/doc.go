// Package coredns decides what makes clusterset.local resolvable in a cluster, and what takes it back: pure edits of
// CoreDNS's Corefile, the permission CoreDNS needs, and the version it must have. It does no I/O.
//
// Stock CoreDNS answers the names of the Multi-Cluster Services API itself when its kubernetes plugin is told to:
//
//	kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {
//	    pods insecure
//	    multicluster clusterset.local
//	}
//
// [Enable] adds exactly these words to a Corefile, [Disable] takes them out, and every other byte stays. What
// Disable leaves of an enabled Corefile is the original, byte for byte; Enable refuses a layout for which it is not.
package coredns

// Zone is the zone of the Multi-Cluster Services API. Its specification allows no other.
const Zone = "clusterset.local"

// DefaultClusterDomain is the zone of a cluster's own Services unless the cluster was set up with another.
const DefaultClusterDomain = "cluster.local"
