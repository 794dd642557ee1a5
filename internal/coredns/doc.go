// Package coredns enables and disables clusterset.local in a cluster's CoreDNS: pure edits of the
// Corefile, the permission that CoreDNS needs, and the required version. It does no I/O.
//
// Stock CoreDNS resolves the names of the Multi-Cluster Services API with this configuration of its
// kubernetes plugin:
//
//	kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {
//	    pods insecure
//	    multicluster clusterset.local
//	}
//
// [Enable] adds exactly these words to a Corefile, [Disable] removes them, and no other byte
// changes. Disabling an enabled Corefile restores the original byte for byte; Enable refuses a
// layout for which it would not.
package coredns

// Zone is the DNS zone of the Multi-Cluster Services API, whose specification allows no other.
const Zone = "clusterset.local"

// DefaultClusterDomain is the default zone of a cluster's own Services.
const DefaultClusterDomain = "cluster.local"
