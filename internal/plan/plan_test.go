package plan

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

var (
	start   = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	key     = mcs.Key{Namespace: "demo", Name: "web"}
	derived = mcs.DerivedName(key)
	owner   = metav1.OwnerReference{APIVersion: "multicluster.x-k8s.io/v1beta1", Kind: "ServiceImport", Name: "web", UID: "uid-1"}

	v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
)

// webExport returns cluster's ClusterSetIP export of port http 80 -> 8080 with ready endpoints of
// these addresses.
func webExport(cluster string, addresses ...string) mcs.Export {
	e := mcs.Export{
		Key: key, Cluster: cluster, Created: start, Type: mcsv1beta1.ClusterSetIP,
		Ports:           []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		SessionAffinity: corev1.ServiceAffinityNone,
		IPFamilies:      []corev1.IPFamily{v4},
	}
	b := mcs.Backends{Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}}
	for _, a := range addresses {
		b.Endpoints = append(b.Endpoints, mcs.Endpoint{Address: netip.MustParseAddr(a), Ready: true, Serving: true})
	}
	e.Backends = []mcs.Backends{b}
	return e
}

func merged(edits ...func(*mcs.Merged)) mcs.Merged {
	m := mcs.Merge([]mcs.Export{webExport("cls1")})
	for _, edit := range edits {
		edit(&m)
	}
	return m
}
