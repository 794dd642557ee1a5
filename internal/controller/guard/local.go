package guard

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
)

// kubernetesService is the Service of the API server, in namespace default. Its EndpointSlices have
// the addresses of the API servers.
const kubernetesService = "kubernetes"

// listInterval is the interval at which the addresses that no handler watches are read: those of
// the API servers, and the cluster IPs of Services where the API server does not serve ServiceCIDR.
const listInterval = 30 * time.Second

// LocalReader reads the addresses of this cluster from watches: of nodes, ServiceCIDRs and the
// EndpointSlices of the API server.
type LocalReader struct {
	reader client.Reader
	// serviceCIDRs reports whether the API server serves ServiceCIDR. Otherwise the cluster IPs of
	// the existing Services are used.
	serviceCIDRs bool
	changed      atomic.Bool
	listed       time.Time
}

var _ LocalSource = (*LocalReader)(nil)

// NodeTransform reduces a node in the cache to its name, its addresses, its region and zone with
// its ID, and the networks of its pods.
func NodeTransform(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	labels := map[string]string{}
	for _, label := range []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, mcs.LabelZoneID} {
		if value, ok := node.Labels[label]; ok {
			labels[label] = value
		}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: labels},
		Spec:       corev1.NodeSpec{PodCIDRs: node.Spec.PodCIDRs},
		Status:     corev1.NodeStatus{Addresses: node.Status.Addresses},
	}, nil
}

// ServesServiceCIDR reports whether the API server serves ServiceCIDR in version v1, as Kubernetes
// 1.33 and newer do.
func ServesServiceCIDR(d discovery.DiscoveryInterface) (bool, error) {
	list, err := d.ServerResourcesForGroupVersion(networkingv1.SchemeGroupVersion.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("discovering %s: %w", networkingv1.SchemeGroupVersion, err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "servicecidrs" }), nil
}

// NewLocalReader returns a LocalReader that watches objects in the cache c, which starts later.
func NewLocalReader(ctx context.Context, c cache.Cache, serviceCIDRs bool) (*LocalReader, error) {
	l := &LocalReader{reader: c, serviceCIDRs: serviceCIDRs}
	objects := []client.Object{&corev1.Node{}}
	if serviceCIDRs {
		objects = append(objects, &networkingv1.ServiceCIDR{})
	}
	for _, obj := range objects {
		informer, err := c.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { l.changed.Store(true) },
				UpdateFunc: func(any, any) { l.changed.Store(true) },
				DeleteFunc: func(any) { l.changed.Store(true) },
			})
		}
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w", obj, err)
		}
	}
	return l, nil
}

// ReadLocal implements LocalSource.
func (l *LocalReader) ReadLocal(ctx context.Context) (*policy.Local, error) {
	if changed := l.changed.Swap(false); !changed && !l.listed.IsZero() && time.Since(l.listed) < listInterval {
		return nil, nil
	}
	local := &policy.Local{Addresses: map[netip.Addr]string{}}
	for _, read := range []func(context.Context, *policy.Local) error{l.readNodes, l.readAPIServers, l.readServices} {
		if err := read(ctx, local); err != nil {
			l.changed.Store(true)
			return nil, err
		}
	}
	l.listed = time.Now()
	return local, nil
}

func (l *LocalReader) readNodes(ctx context.Context, local *policy.Local) error {
	var nodes corev1.NodeList
	if err := l.reader.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing the nodes: %w", err)
	}
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			addAddress(local, a.Address, "the address of node "+nodes.Items[i].Name)
		}
	}
	return nil
}

func (l *LocalReader) readAPIServers(ctx context.Context, local *policy.Local) error {
	list, err := kube.ListSlices(ctx, l.reader, metav1.NamespaceDefault, kube.IndexService, kubernetesService)
	if err != nil {
		return err
	}
	for i := range list {
		for _, e := range list[i].Endpoints {
			for _, a := range e.Addresses {
				addAddress(local, a, "the address of an API server")
			}
		}
	}
	return nil
}

// readServices reads the Service networks, or where they are not known the cluster IPs of all
// Services.
func (l *LocalReader) readServices(ctx context.Context, local *policy.Local) error {
	if l.serviceCIDRs {
		var networks networkingv1.ServiceCIDRList
		if err := l.reader.List(ctx, &networks, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("listing the ServiceCIDRs: %w", err)
		}
		for i := range networks.Items {
			for _, text := range networks.Items[i].Spec.CIDRs {
				if network, err := netip.ParsePrefix(text); err == nil {
					local.ServiceNetworks = append(local.ServiceNetworks, network.Masked())
				}
			}
		}
		slices.SortFunc(local.ServiceNetworks, netip.Prefix.Compare)
		return nil
	}
	var services corev1.ServiceList
	if err := l.reader.List(ctx, &services, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing the Services: %w", err)
	}
	for i := range services.Items {
		for _, ip := range services.Items[i].Spec.ClusterIPs {
			addAddress(local, ip, "the cluster IP of a Service of this cluster")
		}
	}
	return nil
}

// addAddress adds an address, if text is one. Of several names of an address the first in order
// counts, so that the result depends on the objects only.
func addAddress(local *policy.Local, text, name string) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return // a host name
	}
	a = a.Unmap()
	if before, ok := local.Addresses[a]; !ok || name < before {
		local.Addresses[a] = name
	}
}
