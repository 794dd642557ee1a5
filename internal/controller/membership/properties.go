package membership

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
)

// propertySyncTimeout is how long the first read of the ClusterProperties may take: a list of a handful of objects, so
// longer means that the API server is unreachable or refuses.
const propertySyncTimeout = 10 * time.Second

// propertyReader reads the ClusterProperties from a watch that it opens when their CRD is there, which may be long
// after the start. It is used by one goroutine.
type propertyReader struct {
	config    *rest.Config
	discovery discovery.DiscoveryInterface
	// changed is called when a ClusterProperty is.
	changed func()
	log     logr.Logger

	cache cache.Cache
}

// read returns the ClusterProperties. An error means that they are unknown.
func (r *propertyReader) read(ctx context.Context) (properties, error) {
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
	p := properties{Installed: true}
	var err error
	if p.ClusterID, err = r.value(ctx, aboutv1beta1.ClusterIDProperty); err != nil {
		return properties{}, err
	}
	p.ClusterSetID, err = r.value(ctx, aboutv1beta1.ClusterSetIDProperty)
	return p, err
}

// watch starts r.cache, which runs until ctx ends.
func (r *propertyReader) watch(ctx context.Context) error {
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

// value is the value of a ClusterProperty, "" if there is none.
func (r *propertyReader) value(ctx context.Context, name string) (string, error) {
	var property aboutv1beta1.ClusterProperty
	if _, err := kube.Find(ctx, r.cache, types.NamespacedName{Name: name}, &property); err != nil {
		return "", err
	}
	return property.Spec.Value, nil
}
