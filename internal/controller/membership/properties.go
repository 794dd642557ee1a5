package membership

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
)

// propertySyncTimeout is the time that the first read of the ClusterProperties may take: a list of
// a handful of objects, so longer means that the API server is unreachable or refuses.
const propertySyncTimeout = 10 * time.Second

// propertyObjects reads the ClusterProperties from a watch that it opens when their CRD is there,
// which may be long after the start, and writes those that are derived. It is used by one
// goroutine.
type propertyObjects struct {
	config    *rest.Config
	discovery discovery.DiscoveryInterface
	// changed is called when a ClusterProperty is.
	changed func()
	log     logr.Logger

	// cache and writer are nil until the CRD was there.
	cache  cache.Cache
	writer client.Writer
}

// read returns the ClusterProperties. An error means that they are unknown.
func (r *propertyObjects) read(ctx context.Context) (properties, error) {
	if r.cache == nil {
		version, ok, err := served.About(r.discovery)
		if err != nil || !ok {
			return properties{}, err
		}
		scheme := runtime.NewScheme()
		aboutv1beta1.AddToScheme(scheme, version)
		if r.cache, err = cache.New(r.config, cache.Options{Scheme: scheme}); err != nil {
			return properties{}, fmt.Errorf("watching ClusterProperties: %w", err)
		}
		if r.writer, err = client.New(r.config, client.Options{Scheme: scheme, FieldOwner: names.Product}); err != nil {
			r.cache = nil
			return properties{}, fmt.Errorf("creating a client for ClusterProperties: %w", err)
		}
		if err := r.watch(ctx); err != nil {
			r.cache = nil
			return properties{}, err
		}
	}
	syncing, cancel := context.WithTimeout(ctx, propertySyncTimeout)
	defer cancel()
	if !r.cache.WaitForCacheSync(syncing) {
		return properties{}, fmt.Errorf("reading ClusterProperties: no answer within %s, see the log for the API server's reason", propertySyncTimeout)
	}
	var list aboutv1beta1.ClusterPropertyList
	if err := r.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return properties{}, fmt.Errorf("listing ClusterProperties: %w", err)
	}
	return propertiesOf(list.Items), nil
}

// propertiesOf returns the properties that objects have.
func propertiesOf(objects []aboutv1beta1.ClusterProperty) properties {
	all := make(mcs.Properties, len(objects))
	for i := range objects {
		if !plan.IsDerivedProperty(&objects[i]) {
			all[objects[i].Name] = objects[i].Spec.Value
		}
	}
	deprecation := ""
	for i := range objects {
		if objects[i].Name != aboutv1beta1.ClusterIDProperty {
			continue
		}
		if _, drain, _ := mcs.Annotation(objects[i].Annotations, mcs.AnnotationDrain); drain != "" {
			all[mcs.PropertyDrain] = drain
		}
		deprecation = mcs.Deprecation(objects[i].Annotations, " of ClusterProperty "+aboutv1beta1.ClusterIDProperty, mcs.AnnotationDrain)
	}
	return properties{
		Deprecation: deprecation,
		Installed:   true, ClusterID: all[aboutv1beta1.ClusterIDProperty], ClusterSetID: all[aboutv1beta1.ClusterSetIDProperty], All: all, Objects: objects,
	}
}

// write makes one write. It follows a read that found the CRD.
func (r *propertyObjects) write(ctx context.Context, w plan.PropertyWrite) error {
	switch w.Verb {
	case plan.VerbCreate:
		return r.writer.Create(ctx, w.Property)
	case plan.VerbUpdate:
		return r.writer.Update(ctx, w.Property)
	case plan.VerbDelete:
		return r.writer.Delete(ctx, w.Property, client.Preconditions{UID: &w.Property.UID, ResourceVersion: &w.Property.ResourceVersion})
	}
	return fmt.Errorf("verb %q is unknown", w.Verb)
}

// watch starts r.cache, which runs until ctx ends.
func (r *propertyObjects) watch(ctx context.Context) error {
	informer, err := r.cache.GetInformer(ctx, &aboutv1beta1.ClusterProperty{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching ClusterProperties: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { r.changed() },
		UpdateFunc: func(any, any) { r.changed() },
		DeleteFunc: func(any) { r.changed() },
	})
	if err != nil {
		return fmt.Errorf("watching ClusterProperties: %w", err)
	}
	go func() {
		if err := r.cache.Start(ctx); err != nil {
			r.log.Error(err, "Failed to watch ClusterProperties")
		}
	}()
	return nil
}

// nodeFacts are the networks of the pods, and the zones, of the nodes that existed since the start,
// so that a node that goes does not change what the cluster announces.
type nodeFacts struct {
	networks map[netip.Prefix]struct{}
	zones    mcs.Zones
}

func newNodeFacts() nodeFacts {
	return nodeFacts{networks: map[netip.Prefix]struct{}{}, zones: mcs.Zones{}}
}

// add adds the facts of the present nodes.
func (n nodeFacts) add(nodes []corev1.Node) {
	ids := map[string]map[string]struct{}{} // by the name of the zone
	for i := range nodes {
		for _, text := range nodes[i].Spec.PodCIDRs {
			if network, err := netip.ParsePrefix(text); err == nil {
				n.networks[network.Masked()] = struct{}{}
			}
		}
		name := nodes[i].Labels[corev1.LabelTopologyZone]
		if name == "" {
			continue
		}
		if _, known := n.zones[name]; !known {
			n.zones[name] = ""
		}
		if id := nodes[i].Labels[mcs.LabelZoneID]; id != "" {
			if ids[name] == nil {
				ids[name] = map[string]struct{}{}
			}
			ids[name][id] = struct{}{}
		}
	}
	for name, found := range ids {
		n.zones[name] = ""
		if len(found) == 1 { // nodes that disagree, as of two accounts, give the zone no ID
			n.zones[name] = slices.Collect(maps.Keys(found))[0]
		}
	}
}

// derive returns the ClusterProperties for region and zone that the labels of the nodes have in
// common, for the networks of their pods, and for the IDs of their zones.
func (n nodeFacts) derive(ctx context.Context, reader client.Reader) (mcs.Properties, error) {
	var nodes corev1.NodeList
	if err := reader.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the nodes: %w", err)
	}
	n.add(nodes.Items)
	out := mcs.Properties{
		mcs.PropertyNetworks: mcs.FormatNetworks(slices.Collect(maps.Keys(n.networks))),
		mcs.PropertyZones:    n.zones.String(),
		mcs.PropertyRegion:   commonLabel(nodes.Items, corev1.LabelTopologyRegion),
		mcs.PropertyZone:     commonLabel(nodes.Items, corev1.LabelTopologyZone),
	}
	maps.DeleteFunc(out, func(_, value string) bool { return value == "" })
	return out, nil
}

// commonLabel returns the value of a label that all nodes with the label agree on, "" if there is
// none.
func commonLabel(nodes []corev1.Node, label string) (common string) {
	for i := range nodes {
		switch value := nodes[i].Labels[label]; {
		case value == "":
		case common == "":
			common = value
		case value != common:
			return ""
		}
	}
	return common
}
