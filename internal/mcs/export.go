package mcs

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Key names a service of the clusterset. Namespace sameness (KEP-1645) makes it the same service in
// every cluster.
type Key struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns "namespace/name".
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Identity identifies this cluster (KEP-2149).
type Identity struct {
	// ClusterID is ClusterProperty cluster.clusterset.k8s.io: an RFC 1123 label of at most 63
	// characters, because it is used as a label value and as a DNS label.
	ClusterID string `json:"clusterID"`
	// ClusterSetID is ClusterProperty clusterset.k8s.io; the same rules.
	ClusterSetID string `json:"clusterSetID"`
	// UID is the UID of namespace kube-system. It distinguishes two clusters that claim one
	// ClusterID.
	UID string `json:"uid"`
}

// Export is one cluster's ServiceExport together with its Service and endpoints: everything that
// other clusters need. An Export without endpoints is valid. The JSON encoding is for the CLI and
// the status endpoint; the registry uses package record.
//
// Checklist for a new field:
//   - newexport.go: read it from the Service or the ServiceExport.
//   - canonical.go: default it in Canonical, compare it in equal or sameService (and a case in
//     TestEqual).
//   - sanitize.go: refuse what the API server would refuse, with a bound for its size (and a case
//     in TestSanitizeLeavesOut).
//   - merge.go: if the clusterset must agree on it, a field of Merged and a row in oldestDecides.
//   - registry/record: a field with a new number in recordpb/record.proto (make generate),
//     fromExport and toExport in convert.go (and full in record_test.go);
//     docs/proposals/001-cloud-map-record-format.md.
//   - plan: ServiceImport and MergedFromServiceImport in serviceimport.go, DerivedService in
//     service.go or Slices in slices.go (and fullExport in inverse_test.go).
//   - registry/registrytest: fullExport in harness.go, which every backend must return unchanged.
//   - docs/reference/clauses.md: its clause of KEP-1645; docs/api.md; docs/reference/conditions.md:
//     its conflict reason.
type Export struct {
	Key Key `json:"key"`
	// Cluster is the source cluster's ID.
	Cluster string `json:"cluster"`
	// Created is the ServiceExport's creationTimestamp (UTC, whole seconds): the oldest export wins
	// conflicts.
	Created time.Time `json:"created"`
	// Changed is the time at which the source cluster last saw one of the fields below change (UTC,
	// milliseconds). It is used only to measure propagation: Equal ignores it.
	Changed time.Time `json:"changed,omitzero"`

	Type mcsv1beta1.ServiceImportType `json:"type"`
	// Ports are the Service's ports.
	Ports                 []Port                        `json:"ports"`
	SessionAffinity       corev1.ServiceAffinity        `json:"sessionAffinity,omitempty"`
	SessionAffinityConfig *corev1.SessionAffinityConfig `json:"sessionAffinityConfig,omitempty"`
	// InternalTrafficPolicy is "" when the Service does not set it.
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`
	// TrafficDistribution is "" when the Service does not set it.
	TrafficDistribution string `json:"trafficDistribution,omitempty"`
	// IPFamilies are the Service's IP families, in its order.
	IPFamilies []corev1.IPFamily `json:"ipFamilies,omitempty"`

	// Labels and Annotations are spec.exportedLabels and spec.exportedAnnotations of the
	// ServiceExport, nothing else.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`

	// ClusterSelectors prefer clusters to others (KEP-5939). MinimumReady is the percentage of the
	// endpoints of preferred clusters that must be ready or serving, 0 without selectors.
	ClusterSelectors ClusterSelectors `json:"clusterSelectors,omitempty"`
	MinimumReady     int32            `json:"minimumReady,omitempty"`

	// Drain is the part of the endpoints that other clusters do not use.
	Drain Drain `json:"drain,omitempty"`

	// Recipients select the clusters that the export is for: one of the selectors must match. "" is
	// all clusters.
	Recipients ClusterSelectors `json:"recipients,omitempty"`

	// InstanceAttributes are attributes of the Cloud Map instances, and Region is the Region of the
	// cluster if one of them refers to it. They are meaningful only in the source cluster and are
	// not published.
	InstanceAttributes InstanceAttributes `json:"instanceAttributes,omitempty"`
	Region             string             `json:"region,omitempty"`
	// InstanceDNS selects the DNS records of the Cloud Map service. It is not published.
	InstanceDNS InstanceDNS `json:"instanceDNS,omitempty"`

	// Backends are the endpoints, grouped by the ports on which they listen.
	Backends []Backends `json:"backends,omitempty"`
}

// Port is one port of the exported Service.
type Port struct {
	// Name is "" for a single unnamed port.
	Name        string          `json:"name,omitempty"`
	Protocol    corev1.Protocol `json:"protocol"`
	Port        int32           `json:"port"`
	AppProtocol string          `json:"appProtocol,omitempty"`
	// TargetPort is the Service's targetPort as the user wrote it, a number or a name. Only the
	// instance view uses it.
	TargetPort string `json:"targetPort,omitempty"`
}

// Backends is a group of endpoints that listen on the same ports, as in one EndpointSlice. A
// Service has several groups if its targetPort is a name that pods resolve to different numbers. A
// headless Service may have endpoints without ports.
type Backends struct {
	Ports     []BackendPort `json:"ports"`
	Endpoints []Endpoint    `json:"endpoints"`
}

// BackendPort is a port of an EndpointSlice: the target port of the Service port with the same
// name. A headless Service has endpoints with other ports, too, if others than Kubernetes wrote the
// slice.
type BackendPort struct {
	Name     string          `json:"name,omitempty"`
	Protocol corev1.Protocol `json:"protocol"`
	Port     int32           `json:"port"`
	// AppProtocol is "" if it is that of the Service port with the same name. A clusterset IP has
	// only those.
	AppProtocol string `json:"appProtocol,omitempty"`
}

// Endpoint is one address of a backend. Its IP family is that of the address. Several endpoints of
// a headless Service may have one address and different host names.
type Endpoint struct {
	Address netip.Addr `json:"address"`
	// Ready, Serving and Terminating are the EndpointSlice's conditions with their defaults
	// applied: an absent ready or serving is true, and an absent terminating is false.
	Ready       bool `json:"ready"`
	Serving     bool `json:"serving"`
	Terminating bool `json:"terminating,omitempty"`
	// Hostname is the per-pod DNS name of a headless Service's endpoint, or "".
	Hostname string `json:"hostname,omitempty"`
	Zone     string `json:"zone,omitempty"`
	// Node is the endpoint's node. It is meaningful only in the source cluster and is not published
	// in a page.
	Node string `json:"node,omitempty"`
	// Pod is the name of the endpoint's pod if InstanceAttributes refer to it, or if a Cloud Map
	// instance is to have its addresses of both families. It is not published.
	Pod string `json:"pod,omitempty"`
}
