package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// webSlice returns slice number i of cluster, with ready endpoints of these addresses.
func webSlice(cluster string, i int, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: fmt.Sprintf("%s-%s-ipv4-%d", derived, cluster, i),
			Labels: map[string]string{
				"kubernetes.io/service-name": derived, "multicluster.kubernetes.io/service-name": "web",
				"multicluster.kubernetes.io/source-cluster": cluster, "endpointslice.kubernetes.io/managed-by": "cloud-map-mcs-controller",
			},
			OwnerReferences: []metav1.OwnerReference{owner},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](8080)}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, readyEndpoint(a))
	}
	return s
}

func readyEndpoint(address string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
	}
}

// placeholder makes s the slice of a cluster without endpoints.
func placeholder(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.Ports, s.Endpoints = nil, nil
	return s
}

func edited(s *discoveryv1.EndpointSlice, edit func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	edit(s)
	return s
}

func ipv6(s *discoveryv1.EndpointSlice) {
	s.Name = s.Name[:len(s.Name)-len("ipv4-0")] + "ipv6-0"
	s.AddressType = discoveryv1.AddressTypeIPv6
}

// input returns the input for these exports in cluster local, with at most four endpoints in a
// slice.
func input(exports []mcs.Export, existing ...*discoveryv1.EndpointSlice) SliceInput {
	return SliceInput{
		Key: key, Merged: mcs.Merge(exports), Exports: exports, LocalCluster: "local", Owner: owner,
		Existing: existing, MaxEndpoints: 4,
	}
}

// addresses returns "10.10.0.from" up to "10.10.0.to".
func addresses(from, to int) []string {
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprintf("10.10.0.%d", i))
	}
	return out
}

func TestSlices(t *testing.T) {
	none := SliceChanges{}
	tests := []struct {
		name string
		in   SliceInput
		want SliceChanges
	}{
		{name: "no exports", in: input(nil)},
		{
			name: "one slice for each cluster",
			in:   input([]mcs.Export{webExport("cls2", "10.12.0.1"), webExport("cls1", addresses(1, 2)...)}),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, addresses(1, 2)...), webSlice("cls2", 0, "10.12.0.1")}},
		},
		{
			name: "nothing to do",
			in: input([]mcs.Export{webExport("cls2", "10.12.0.1"), webExport("cls1", addresses(1, 2)...)},
				webSlice("cls2", 0, "10.12.0.1"), webSlice("cls1", 0, "10.10.0.2", "10.10.0.1")),
		},
		{
			name: "one slice per family, nodes only of local endpoints",
			in: input([]mcs.Export{
				func() mcs.Export {
					e := webExport("local", "10.10.0.1", "fd00:10::1")
					e.IPFamilies = []corev1.IPFamily{v4, v6}
					for i := range e.Backends[0].Endpoints {
						ep := &e.Backends[0].Endpoints[i]
						ep.Node, ep.Zone, ep.Hostname, ep.Ready, ep.Terminating = "node-1", "zone-a", "web-0", false, true
					}
					return e
				}(),
				func() mcs.Export {
					e := webExport("remote", "10.12.0.1")
					e.Backends[0].Endpoints[0].Node = "node-1"
					return e
				}(),
			}),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{
				edited(webSlice("local", 0), func(s *discoveryv1.EndpointSlice) {
					s.Endpoints = []discoveryv1.Endpoint{{
						Addresses:  []string{"10.10.0.1"},
						Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)},
						Hostname:   ptr.To("web-0"), Zone: ptr.To("zone-a"), NodeName: ptr.To("node-1"),
					}}
				}),
				edited(webSlice("local", 0), func(s *discoveryv1.EndpointSlice) {
					ipv6(s)
					s.Endpoints = []discoveryv1.Endpoint{{
						Addresses:  []string{"fd00:10::1"},
						Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)},
						Hostname:   ptr.To("web-0"), Zone: ptr.To("zone-a"), NodeName: ptr.To("node-1"),
					}}
				}),
				webSlice("remote", 0, "10.12.0.1"),
			}},
		},
		{
			name: "more than fit into one slice",
			in:   input([]mcs.Export{webExport("cls1", addresses(1, 9)...)}),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{
				webSlice("cls1", 0, addresses(1, 4)...), webSlice("cls1", 1, addresses(5, 8)...), webSlice("cls1", 2, addresses(9, 9)...),
			}},
		},
		{
			name: "ports that pods resolve differently have slices of their own",
			in: input([]mcs.Export{func() mcs.Export {
				e := webExport("cls1", "10.10.0.1")
				e.Ports[0].AppProtocol = "http"
				e.Backends = append(e.Backends, mcs.Backends{
					Ports:     []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
					Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.10.0.2"), Ready: true, Serving: true}},
				})
				return e
			}()}),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{
				edited(webSlice("cls1", 0, "10.10.0.2"), func(s *discoveryv1.EndpointSlice) {
					s.Ports[0].Port, s.Ports[0].AppProtocol = ptr.To[int32](80), ptr.To("http")
				}),
				edited(webSlice("cls1", 1, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) { s.Ports[0].AppProtocol = ptr.To("http") }),
			}},
		},
		{
			name: "a readiness flip writes one slice and moves nothing",
			in: input([]mcs.Export{func() mcs.Export {
				e := webExport("cls1", addresses(1, 6)...)
				e.Backends[0].Endpoints[1].Ready = false
				return e
			}()}, webSlice("cls1", 0, "10.10.0.3", "10.10.0.2"), webSlice("cls1", 1, "10.10.0.1", "10.10.0.6", "10.10.0.5", "10.10.0.4")),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{
				edited(webSlice("cls1", 0, "10.10.0.3", "10.10.0.2"), func(s *discoveryv1.EndpointSlice) { s.Endpoints[1].Conditions.Ready = ptr.To(false) }),
			}},
		},
		{
			name: "a new endpoint goes into the fullest slice with room",
			in:   input([]mcs.Export{webExport("cls1", addresses(1, 8)...)}, webSlice("cls1", 0, addresses(1, 4)...), webSlice("cls1", 1, "10.10.0.5"), webSlice("cls1", 2, "10.10.0.6", "10.10.0.7")),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 2, "10.10.0.6", "10.10.0.7", "10.10.0.8")}},
		},
		{
			name: "a new endpoint fills a slice",
			in:   input([]mcs.Export{webExport("cls1", addresses(1, 4)...)}, webSlice("cls1", 0, addresses(1, 3)...)),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, addresses(1, 4)...)}},
		},
		{
			name: "the endpoints after a removed one keep their places",
			in:   input([]mcs.Export{webExport("cls1", addresses(1, 3)...)}, webSlice("cls1", 0, "10.10.0.3", "10.10.0.9", "10.10.0.2", "10.10.0.1")),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.3", "10.10.0.2", "10.10.0.1")}},
		},
		{
			name: "an endpoint without addresses is removed",
			in: input([]mcs.Export{webExport("cls1", "10.10.0.1")}, edited(webSlice("cls1", 0, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{})
			})),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")}},
		},
		{
			name: "a new endpoint goes into a slice that is written anyway",
			in: input([]mcs.Export{func() mcs.Export {
				e := webExport("cls1", addresses(1, 6)...)
				e.Backends[0].Endpoints[0].Ready = false
				return e
			}()}, webSlice("cls1", 0, addresses(1, 2)...), webSlice("cls1", 1, addresses(3, 5)...)),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{
				edited(webSlice("cls1", 0, "10.10.0.1", "10.10.0.2", "10.10.0.6"), func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = ptr.To(false) }),
			}},
		},
		{
			name: "a replaced pod uses the freed place",
			in:   input([]mcs.Export{webExport("cls1", addresses(2, 9)...)}, webSlice("cls1", 0, addresses(1, 4)...), webSlice("cls1", 1, addresses(5, 8)...)),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.2", "10.10.0.3", "10.10.0.4", "10.10.0.9")}},
		},
		{
			name: "another slice gets the first free name",
			in:   input([]mcs.Export{webExport("cls1", addresses(1, 9)...)}, webSlice("cls1", 0, addresses(1, 4)...), webSlice("cls1", 2, addresses(5, 8)...)),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{webSlice("cls1", 1, "10.10.0.9")}},
		},
		{
			name: "half-full slices are not repacked",
			in:   input([]mcs.Export{webExport("cls1", "10.10.0.1", "10.10.0.2", "10.10.0.5", "10.10.0.6")}, webSlice("cls1", 0, addresses(1, 3)...), webSlice("cls1", 1, addresses(5, 7)...)),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, addresses(1, 2)...), webSlice("cls1", 1, addresses(5, 6)...)}},
		},
		{
			name: "the rest of a shrunk slice moves to another slice",
			in:   input([]mcs.Export{webExport("cls1", "10.10.0.1", "10.10.0.2", "10.10.0.5")}, webSlice("cls1", 0, addresses(1, 2)...), webSlice("cls1", 1, addresses(5, 6)...)),
			want: SliceChanges{
				Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1", "10.10.0.2", "10.10.0.5")},
				Delete: []*discoveryv1.EndpointSlice{webSlice("cls1", 1, addresses(5, 6)...)},
			},
		},
		{
			name: "the rest of a shrunk slice moves to a slice that is written anyway",
			in: input([]mcs.Export{func() mcs.Export {
				e := webExport("cls1", "10.10.0.1", "10.10.0.2", "10.10.0.3", "10.10.0.5", "10.10.0.6", "10.10.0.8")
				e.Backends[0].Endpoints[3].Ready = false
				return e
			}()}, webSlice("cls1", 0, addresses(1, 3)...), webSlice("cls1", 1, addresses(5, 6)...), webSlice("cls1", 2, addresses(8, 9)...)),
			want: SliceChanges{
				Update: []*discoveryv1.EndpointSlice{
					edited(webSlice("cls1", 1, "10.10.0.5", "10.10.0.6", "10.10.0.8"), func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = ptr.To(false) }),
				},
				Delete: []*discoveryv1.EndpointSlice{webSlice("cls1", 2, addresses(8, 9)...)},
			},
		},
		{
			name: "a small slice that has not shrunk stays",
			in:   input([]mcs.Export{webExport("cls1", "10.10.0.1", "10.10.0.2", "10.10.0.3", "10.10.0.5", "10.10.0.8")}, webSlice("cls1", 0, addresses(1, 3)...), webSlice("cls1", 1, addresses(5, 6)...), webSlice("cls1", 2, "10.10.0.8")),
			want: SliceChanges{
				Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1", "10.10.0.2", "10.10.0.3", "10.10.0.5")},
				Delete: []*discoveryv1.EndpointSlice{webSlice("cls1", 1, addresses(5, 6)...)},
			},
		},
		{
			name: "the rest of a shrunk slice does not move to an empty one",
			in:   input([]mcs.Export{webExport("cls1", "10.10.0.5")}, webSlice("cls1", 0, addresses(1, 2)...), webSlice("cls1", 1, addresses(5, 6)...)),
			want: SliceChanges{
				Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 1, "10.10.0.5")},
				Delete: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, addresses(1, 2)...)},
			},
		},
		{
			name: "another target port is an update, not a deletion",
			in:   input([]mcs.Export{webExport("cls1", addresses(1, 5)...)}, withPort(webSlice("cls1", 0, addresses(1, 4)...), 80), withPort(webSlice("cls1", 1, addresses(5, 5)...), 80)),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, addresses(1, 4)...), webSlice("cls1", 1, addresses(5, 5)...)}},
		},
		{
			name: "an address in two slices stays in one",
			in:   input([]mcs.Export{webExport("cls1", addresses(1, 4)...)}, webSlice("cls1", 0, addresses(1, 3)...), webSlice("cls1", 1, addresses(2, 4)...)),
			want: SliceChanges{
				Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, addresses(1, 4)...)},
				Delete: []*discoveryv1.EndpointSlice{webSlice("cls1", 1, addresses(2, 4)...)},
			},
		},
		{
			name: "a slice over the limit is cut down",
			in:   input([]mcs.Export{webExport("cls1", addresses(1, 6)...)}, webSlice("cls1", 0, addresses(1, 6)...)),
			want: SliceChanges{
				Create: []*discoveryv1.EndpointSlice{webSlice("cls1", 1, addresses(5, 6)...)},
				Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, addresses(1, 4)...)},
			},
		},
		{
			name: "a cluster without endpoints shows an empty slice",
			in:   input([]mcs.Export{webExport("cls1"), webExport("cls2", "10.12.0.1")}, webSlice("cls2", 0, "10.12.0.1")),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{placeholder(webSlice("cls1", 0))}},
		},
		{name: "the empty slice stays", in: input([]mcs.Export{webExport("cls1")}, placeholder(webSlice("cls1", 0)))},
		{
			name: "scaled to zero",
			in:   input([]mcs.Export{webExport("cls1")}, webSlice("cls1", 0, addresses(1, 4)...), webSlice("cls1", 1, addresses(5, 5)...)),
			want: SliceChanges{
				Update: []*discoveryv1.EndpointSlice{placeholder(webSlice("cls1", 0))},
				Delete: []*discoveryv1.EndpointSlice{webSlice("cls1", 1, addresses(5, 5)...)},
			},
		},
		{
			name: "scaled to zero without ports",
			in: input([]mcs.Export{func() mcs.Export {
				e := webExport("cls1")
				e.Type, e.Ports = mcsv1beta1.Headless, nil
				return e
			}()}, withoutPorts(webSlice("cls1", 0, "10.10.0.1"))),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{withoutPorts(webSlice("cls1", 0))}},
		},
		{
			name: "scaled up from zero",
			in:   input([]mcs.Export{webExport("cls1", addresses(1, 5)...)}, placeholder(webSlice("cls1", 0))),
			want: SliceChanges{
				Create: []*discoveryv1.EndpointSlice{webSlice("cls1", 1, addresses(5, 5)...)},
				Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, addresses(1, 4)...)},
			},
		},
		{
			name: "no longer exported",
			in:   input([]mcs.Export{webExport("cls2", "10.12.0.1")}, webSlice("cls1", 0, "10.10.0.1"), webSlice("cls2", 0, "10.12.0.1")),
			want: SliceChanges{Delete: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")}},
		},
		{
			name: "unknown is not empty",
			in: func() SliceInput {
				in := input([]mcs.Export{webExport("cls2", "10.12.0.1")}, webSlice("cls1", 0, "10.10.0.1"), webSlice("cls2", 0, "10.12.0.1"), webSlice("cls3", 0, "10.14.0.1"))
				in.Unknown = []string{"cls1"}
				return in
			}(),
			want: SliceChanges{Delete: []*discoveryv1.EndpointSlice{webSlice("cls3", 0, "10.14.0.1")}},
		},
		{
			name: "empty slices in deletion and slices in other namespaces stay, their names are taken",
			in: input([]mcs.Export{webExport("cls1", "10.10.0.1")},
				edited(webSlice("cls1", 0), func(s *discoveryv1.EndpointSlice) { s.DeletionTimestamp = ptr.To(metav1.NewTime(start)) }),
				edited(webSlice("cls1", 1, "10.10.0.9"), func(s *discoveryv1.EndpointSlice) { s.Namespace = "other" }),
			),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{webSlice("cls1", 2, "10.10.0.1")}},
		},
		{
			name: "a slice in deletion is emptied, its endpoints that stay go to another one",
			in: input([]mcs.Export{webExport("cls1", "10.10.0.1")},
				edited(webSlice("cls1", 0, "10.10.0.1", "10.10.0.2"), func(s *discoveryv1.EndpointSlice) {
					s.DeletionTimestamp, s.ResourceVersion, s.Finalizers = ptr.To(metav1.NewTime(start)), "7", []string{"example.com/theirs"}
				}),
			),
			want: SliceChanges{
				Create: []*discoveryv1.EndpointSlice{webSlice("cls1", 1, "10.10.0.1")},
				Update: []*discoveryv1.EndpointSlice{edited(webSlice("cls1", 0), func(s *discoveryv1.EndpointSlice) {
					s.DeletionTimestamp, s.ResourceVersion, s.Finalizers = ptr.To(metav1.NewTime(start)), "7", []string{"example.com/theirs"}
				})},
			},
		},
		{
			name: "slices in deletion of an unknown cluster and of other controllers stay",
			in: func() SliceInput {
				deleted := func(s *discoveryv1.EndpointSlice) { s.DeletionTimestamp = ptr.To(metav1.NewTime(start)) }
				in := input(nil, edited(webSlice("cls1", 0, "10.10.0.1"), deleted),
					edited(webSlice("cls2", 0, "10.12.0.1"), func(s *discoveryv1.EndpointSlice) { s.Name, s.Labels = "theirs", nil; deleted(s) }))
				in.Unknown = []string{"cls1"}
				return in
			}(),
		},
		{
			name: "a slice that Kubernetes created for the derived Service stays",
			in: input([]mcs.Export{webExport("cls1", "10.10.0.1")}, webSlice("cls1", 0, "10.10.0.1"),
				edited(webSlice("cls1", 1, "10.10.0.9"), func(s *discoveryv1.EndpointSlice) {
					s.Name, s.Labels["endpointslice.kubernetes.io/managed-by"] = mcs.DerivedName(mcs.Key{Namespace: s.Namespace, Name: "web"})+"-x7kqp", "endpointslice-controller.k8s.io"
				})),
		},
		{
			name: "slices with the labels of another owner, cluster or service are repaired, found by their names",
			in: input([]mcs.Export{webExport("cls1", "10.10.0.1"), webExport("cls2", "10.20.0.1")},
				edited(webSlice("cls1", 0, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) { s.Labels["endpointslice.kubernetes.io/managed-by"] = "me" }),
				edited(webSlice("cls1", 1, "10.10.0.9"), func(s *discoveryv1.EndpointSlice) { s.Labels["multicluster.kubernetes.io/service-name"] = "other" }),
				edited(webSlice("cls2", 0, "10.20.0.1"), func(s *discoveryv1.EndpointSlice) { s.Labels["multicluster.kubernetes.io/source-cluster"] = "cls1" }),
			),
			want: SliceChanges{
				Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1"), webSlice("cls2", 0, "10.20.0.1")},
				Delete: []*discoveryv1.EndpointSlice{edited(webSlice("cls1", 1, "10.10.0.9"), func(s *discoveryv1.EndpointSlice) {
					s.Labels["multicluster.kubernetes.io/service-name"] = "other"
				})},
			},
		},
		{
			name: "labels and owner are restored, labels of others stay",
			in: input([]mcs.Export{webExport("cls1", "10.10.0.1")}, edited(webSlice("cls1", 0, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) {
				s.ResourceVersion = "7"
				s.Labels["kubernetes.io/service-name"], s.Labels["theirs"] = "web", "1"
				s.OwnerReferences[0].UID = "of a previous object"
			})),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{edited(webSlice("cls1", 0, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) {
				s.ResourceVersion, s.Labels["theirs"] = "7", "1"
			})}},
		},
		{
			name: "headless: a label, but not of the derived Service",
			in: input([]mcs.Export{func() mcs.Export {
				e := webExport("cls1", "10.10.0.1")
				e.Type, e.Ports, e.Backends[0].Ports = mcsv1beta1.Headless, nil, nil
				return e
			}()}, webSlice("cls1", 0, "10.10.0.1")),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{edited(webSlice("cls1", 0, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) {
				withoutService(s)
				s.Ports = nil
			})}},
		},
		{
			name: "no slices of families that the derived Service does not have",
			in: func() SliceInput {
				e := webExport("cls1", "10.10.0.1", "fd00:10::1")
				e.IPFamilies = []corev1.IPFamily{v4, v6}
				in := input([]mcs.Export{e}, edited(webSlice("cls1", 0, "fd00:10::1"), ipv6))
				in.Families = []corev1.IPFamily{v4}
				return in
			}(),
			want: SliceChanges{
				Create: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
				Delete: []*discoveryv1.EndpointSlice{edited(webSlice("cls1", 0, "fd00:10::1"), ipv6)},
			},
		},
		{
			name: "only slices of the second family, which the derived Service has",
			in: func() SliceInput {
				e := webExport("cls1", "10.10.0.1", "fd00:10::1")
				e.IPFamilies = []corev1.IPFamily{v4, v6}
				in := input([]mcs.Export{e})
				in.Families = []corev1.IPFamily{v6}
				return in
			}(),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{edited(webSlice("cls1", 0, "fd00:10::1"), ipv6)}},
		},
		{
			name: "headless: the ports of the source's slices, although the Services have others",
			in: func() SliceInput {
				older, younger := webExport("cls1", "10.10.0.1"), webExport("cls2", "10.12.0.1")
				older.Type, younger.Type, younger.Created = mcsv1beta1.Headless, mcsv1beta1.Headless, start.Add(time.Minute)
				older.Ports[0].AppProtocol, younger.Ports[0].Port = "h2c", 81
				younger.Backends[0].Ports = []mcs.BackendPort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 81, AppProtocol: "grpc"}}
				return input([]mcs.Export{older, younger})
			}(),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{
				edited(webSlice("cls1", 0, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) {
					withoutService(s)
					s.Ports[0].AppProtocol = ptr.To("h2c")
				}),
				edited(webSlice("cls2", 0, "10.12.0.1"), func(s *discoveryv1.EndpointSlice) {
					withoutService(s)
					s.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("web"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](81), AppProtocol: ptr.To("grpc")}}
				}),
			}},
		},
		{
			name: "headless: slices of all families",
			in: func() SliceInput {
				e := webExport("cls1", "fd00:10::1")
				e.Type = mcsv1beta1.Headless
				in := input([]mcs.Export{e})
				in.Families = []corev1.IPFamily{v4}
				return in
			}(),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{
				edited(placeholder(webSlice("cls1", 0)), withoutService),
				edited(webSlice("cls1", 0, "fd00:10::1"), func(s *discoveryv1.EndpointSlice) {
					withoutService(s)
					ipv6(s)
				}),
			}},
		},
		{
			name: "no longer headless: no label that hides the slices from kube-proxy",
			in:   input([]mcs.Export{webExport("cls1", "10.10.0.1")}, edited(webSlice("cls1", 0, "10.10.0.1"), withoutService)),
			want: SliceChanges{Update: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")}},
		},
		{
			name: "headless: no empty slice of a family that this cluster does not have",
			in: func() SliceInput {
				e := webExport("cls1", "10.10.0.1")
				e.Type, e.IPFamilies = mcsv1beta1.Headless, []corev1.IPFamily{v4, v6}
				in := input([]mcs.Export{e})
				in.Families = []corev1.IPFamily{v4}
				return in
			}(),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{edited(webSlice("cls1", 0, "10.10.0.1"), withoutService)}},
		},
		{
			name: "no families in the export: those of its endpoints",
			in: input([]mcs.Export{func() mcs.Export {
				e := webExport("cls1", "fd00:10::1")
				e.IPFamilies = nil
				return e
			}()}),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{edited(webSlice("cls1", 0, "fd00:10::1"), ipv6)}},
		},
		{
			name: "no families and no endpoints in the export: IPv4",
			in: input([]mcs.Export{func() mcs.Export {
				e := webExport("cls1")
				e.IPFamilies = nil
				return e
			}()}),
			want: SliceChanges{Create: []*discoveryv1.EndpointSlice{placeholder(webSlice("cls1", 0))}},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got := Slices(tc.in)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Slices (-want +got):\n%s", diff)
			}
			tc.in.Existing = apply(tc.in.Existing, got)
			if diff := cmp.Diff(none, Slices(tc.in)); diff != "" {
				t.Errorf("the next reconcile finds more changes:\n%s", diff)
			}
		})
	}
}

// If the cache does not have a new slice yet, Slices creates it again under the same name, which
// the API server refuses.
func TestSlicesStaleCache(t *testing.T) {
	in := input([]mcs.Export{webExport("cls1", addresses(1, 9)...), webExport("cls2", "10.12.0.1")}, webSlice("cls1", 0, addresses(1, 4)...))
	if diff := cmp.Diff(Slices(in), Slices(in)); diff != "" {
		t.Errorf("two passes over the same cache differ:\n%s", diff)
	}
}

// The end of an import removes its slices, and empties those that a finalizer keeps.
func TestRemovedSlices(t *testing.T) {
	deleted := func(s *discoveryv1.EndpointSlice) { s.DeletionTimestamp = ptr.To(metav1.NewTime(start)) }
	got := RemovedSlices([]*discoveryv1.EndpointSlice{
		webSlice("cls1", 0, "10.10.0.1"), edited(webSlice("cls2", 0, "10.12.0.1"), deleted), edited(webSlice("cls3", 0), deleted),
	})
	want := SliceChanges{
		Delete: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
		Update: []*discoveryv1.EndpointSlice{edited(webSlice("cls2", 0), deleted)},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
}

// withoutService makes s that of a headless service, which has no derived Service.
func withoutService(s *discoveryv1.EndpointSlice) {
	s.Labels["kubernetes.io/service-name"] = derived + "-headless"
	s.Labels["service.kubernetes.io/headless"] = ""
}

// withoutPorts makes s that of a headless service without ports.
func withoutPorts(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.Ports = nil
	withoutService(s)
	return s
}

func withPort(s *discoveryv1.EndpointSlice, number int32) *discoveryv1.EndpointSlice {
	s.Ports[0].Port = &number
	return s
}

// apply returns the slices on the API server after the changes.
func apply(existing []*discoveryv1.EndpointSlice, c SliceChanges) []*discoveryv1.EndpointSlice {
	byName := map[string]*discoveryv1.EndpointSlice{}
	for _, list := range [][]*discoveryv1.EndpointSlice{existing, c.Create, c.Update} {
		for _, s := range list {
			byName[s.Namespace+"/"+s.Name] = s
		}
	}
	for _, s := range c.Delete {
		delete(byName, s.Namespace+"/"+s.Name)
	}
	return slices.Collect(maps.Values(byName))
}

// The endpoints of a cluster that cannot be read are those of its slices.
func TestExportsOf(t *testing.T) {
	m := mcs.Merge([]mcs.Export{webExport("cls1", "10.10.0.1")})
	got := ExportsOf(m, []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1"), webSlice("cls2", 0, "10.20.0.1"), webSlice("cls2", 1, "10.20.0.2")}, []string{"cls2", "cls3"})
	if len(got) != 1 || got[0].Cluster != "cls2" || got[0].EndpointCount() != 2 || len(m.Backends(got[0])) != 1 {
		t.Errorf("%+v", got)
	}
}
