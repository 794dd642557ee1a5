// Package names holds the names of the product and of the objects that an installation creates.
// Manifests, the chart and RBAC markers repeat them, because they cannot import Go.
package names

const (
	// Product names the controller: its chart, image, log lines, user agent, and the objects that
	// exist once in an installation.
	Product = "cloud-map-mcs-controller"
	// Image is the controller's image without a tag.
	Image = "ghcr.io/cloud-map-mcs/" + Product
	// Namespace is the default namespace of an installation.
	Namespace = "cloud-map-mcs-system"
	// Manager names the controller's Deployment, ServiceAccount and roles.
	Manager = Product + "-manager"
	// Lease names the leader election Lease.
	Lease = Product
	// IdentityConfigMap names the ConfigMap with the state of the cluster's identity.
	IdentityConfigMap = Product
	// PinsConfigMap names the ConfigMap with the public keys of the other clusters.
	PinsConfigMap = Product + "-keys"
	// SigningKeySecret names the Secret with the key that the cluster signs its records with. The
	// manifests create it empty, so that the controller needs permissions on this one Secret only.
	SigningKeySecret = Product + "-signing-key"
	// Plugin is the kubectl plugin, which is also the field manager of its writes.
	Plugin = "kubectl-mcs"
	// CloudMapLocal is the local server that is compatible with AWS Cloud Map.
	CloudMapLocal = "cloudmap-local"
	// CoreDNSRole names the ClusterRole that allows CoreDNS to read ServiceImports.
	CoreDNSRole = "cloud-map-mcs-coredns"
	// ClustersetDNS names the objects of a CoreDNS beside the cluster's own, which serves
	// clusterset.local only.
	ClustersetDNS = "clusterset-dns"
	// EtcdPrefix begins the keys of all clustersets in etcd, unless --etcd-prefix is another
	// prefix.
	EtcdPrefix = "/mcs"
	// StatusPort is the port of the status endpoint, unless --status-bind-address has another one.
	StatusPort = 8082
	// DryRunPrefix begins the generated names of Services that are only created in dry runs.
	DryRunPrefix = "cloud-map-mcs-dry-run-"
)
