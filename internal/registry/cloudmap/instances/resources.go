package instances

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// resourceCache finds, creates and deletes the Cloud Map namespaces and services of the view. A
// namespace has the name of the Kubernetes namespace, a service that of the Service. AWS allows few
// lists (2 a second and less), so they are cached until a resource in them turns out not to exist.
type resourceCache struct {
	client    *api.Client
	identity  mcs.Identity
	settings  Settings
	deletions *api.Deletions

	// busy is held during requests, which take minutes if AWS throttles: two exports of one
	// namespace must not both create it.
	busy       *semaphore.Weighted
	namespaces map[string]api.Namespace
	listedAt   time.Time
	services   map[string]map[string]api.Service
	// isOutdated: a cached resource does not exist.
	isOutdated atomic.Bool
	// httpNames are the names for DiscoverInstances of the namespaces in the last list.
	httpNames sync.Map
}

func newResourceCache(client *api.Client, identity mcs.Identity, settings Settings) *resourceCache {
	return &resourceCache{client: client, identity: identity, settings: settings, deletions: api.NewDeletions(client, identity), busy: semaphore.NewWeighted(1)}
}

// lock acquires c.busy, which the caller releases, unless ctx ends before.
func (c *resourceCache) lock(ctx context.Context) error {
	if err := c.busy.Acquire(ctx, 1); err != nil {
		return err
	}
	if c.isOutdated.Swap(false) {
		c.namespaces, c.services, c.listedAt = nil, nil, time.Time{}
	}
	return nil
}

// maxListAge is the maximum age of a list of namespaces that proves that one does not exist. AWS
// allows a list in two seconds.
const maxListAge = 10 * time.Second

// find returns the service of key. ok is false if there is none.
func (c *resourceCache) find(ctx context.Context, key mcs.Key) (s api.Service, ok bool, err error) {
	if err := c.lock(ctx); err != nil {
		return s, false, err
	}
	defer c.busy.Release(1)
	in, ok, err := c.findNamespace(ctx, key.Namespace)
	if err != nil || !ok {
		return s, false, err
	}
	return c.findService(ctx, in, key.Name)
}

// httpNameOf returns the name of a namespace for DiscoverInstances as far as it is known. It is the
// namespace's own name unless another namespace had that name before.
func (c *resourceCache) httpNameOf(name string) string {
	if httpName, ok := c.httpNames.Load(name); ok {
		return httpName.(string)
	}
	return name
}

// addNamespaces replaces the cache by a list of namespaces that the caller has made.
func (c *resourceCache) addNamespaces(all map[string]api.Namespace) {
	if !c.busy.TryAcquire(1) {
		return // the holder of c.busy has a list or makes one
	}
	defer c.busy.Release(1)
	c.setNamespaces(maps.Clone(all))
}

// setNamespaces caches a list of namespaces. The caller holds c.busy.
func (c *resourceCache) setNamespaces(all map[string]api.Namespace) {
	c.namespaces, c.listedAt, c.services = all, time.Now(), map[string]map[string]api.Service{}
	c.httpNames.Clear()
	for name, in := range all {
		c.httpNames.Store(name, in.HTTPName)
	}
}

// viewService is a service of the view with the type of its namespace.
type viewService struct {
	api.Service
	in types.NamespaceType
	// isNew: ensure has created it, so that it has no instances.
	isNew bool
}

// ensure returns the service of an export. It creates the service if necessary.
func (c *resourceCache) ensure(ctx context.Context, e mcs.Export) (s viewService, err error) {
	if err := c.lock(ctx); err != nil {
		return s, err
	}
	defer c.busy.Release(1)
	in, ok, err := c.findNamespace(ctx, e.Key.Namespace)
	if err != nil {
		return s, err
	}
	if !ok {
		if in, err = c.createNamespace(ctx, e); err != nil {
			return s, err
		}
		c.namespaces[e.Key.Namespace] = in
		c.httpNames.Store(e.Key.Namespace, in.HTTPName)
	}
	s.in = in.Type
	s.Service, ok, err = c.findService(ctx, in, e.Key.Name)
	if err != nil || ok {
		c.deletions.Keep(in.ARN)
		c.deletions.Keep(s.ARN)
		return s, err
	}
	var isOther bool
	s.Service, isOther, err = c.client.CreateServiceAs(ctx, in, e.Key.Name, c.settings.serviceConfig(e, in.Type), c.identity, api.PartView)
	if err != nil {
		return s, err
	}
	if s.isNew = !isOther; isOther && c.settings.dependsOnService(e) {
		delete(c.services, in.ID) // a list has the configuration
		listed, ok, err := c.findService(ctx, in, e.Key.Name)
		if err != nil {
			return s, err
		}
		if ok {
			s.Service = listed
		}
	}
	c.services[in.ID][e.Key.Name] = s.Service
	return s, nil
}

// createNamespace creates the namespace of an export: for DNS if the export asks for records and
// the VPC is known.
func (c *resourceCache) createNamespace(ctx context.Context, e mcs.Export) (api.Namespace, error) {
	if c.settings.VPC != "" && e.InstanceDNS.IsWanted() {
		return c.client.CreatePrivateNamespace(ctx, e.Key.Namespace, c.settings.VPC, c.identity, api.PartView)
	}
	return c.client.CreateNamespace(ctx, e.Key.Namespace, c.identity, api.PartView)
}

// findNamespace finds a namespace in the list of namespaces. The caller holds c.busy.
func (c *resourceCache) findNamespace(ctx context.Context, name string) (api.Namespace, bool, error) {
	if in, ok := c.namespaces[name]; ok {
		return in, true, nil
	}
	if time.Since(c.listedAt) < maxListAge {
		return api.Namespace{}, false, nil
	}
	all, err := c.client.ListNamespaces(ctx)
	if err != nil {
		return api.Namespace{}, false, err
	}
	c.setNamespaces(all)
	in, ok := all[name]
	return in, ok, nil
}

// findService finds a service in the list of a namespace's services. The caller holds c.busy.
func (c *resourceCache) findService(ctx context.Context, in api.Namespace, name string) (api.Service, bool, error) {
	if c.services[in.ID] == nil {
		all, err := c.client.ListServices(ctx, in)
		if err != nil {
			return api.Service{}, false, err
		}
		c.services[in.ID] = all
	}
	s, ok := c.services[in.ID][name]
	return s, ok, nil
}

// observe makes the next call list everything again if a request failed because a cached resource
// does not exist, or may not exist.
func (c *resourceCache) observe(err error) {
	switch {
	case api.IsNotFound(err):
		c.invalidate()
	case api.IsDenied(err):
		c.doubt()
	}
}

// invalidate makes the next call list everything again because a cached resource does not exist.
func (c *resourceCache) invalidate() { c.isOutdated.Store(true) }

// doubtfulListAge is the age of the lists from which a denied request makes them again. A
// controller without rights makes them once in this time.
const doubtfulListAge = 30 * time.Second

// doubt is invalidate after a denied request, if the lists are not new: with policies by tags, IAM
// denies access to what another cluster has deleted, as it does without rights.
func (c *resourceCache) doubt() {
	if !c.busy.TryAcquire(1) {
		return // a later denial makes them
	}
	defer c.busy.Release(1)
	if time.Since(c.listedAt) >= doubtfulListAge {
		c.invalidate()
	}
}

// forgetService removes the service of key from the cache. Unless it is known to be deleted, the
// services of its namespace, or the namespaces if that is not known, are listed again before they
// are used.
func (c *resourceCache) forgetService(ctx context.Context, key mcs.Key, isDeleted bool) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.busy.Release(1)
	switch in, isKnown := c.namespaces[key.Namespace]; {
	case isDeleted:
		delete(c.services[in.ID], key.Name)
	case isKnown:
		delete(c.services, in.ID)
	default:
		c.listedAt = time.Time{}
	}
	return nil
}

// remove deletes the service of key, and the namespace if that was its last service. It deletes
// only resources that are unused and have the tags of this clusterset.
func (c *resourceCache) remove(ctx context.Context, key mcs.Key) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.busy.Release(1)
	in, ok, err := c.findNamespace(ctx, key.Namespace)
	if err != nil || !ok {
		return err
	}
	s, ok, err := c.findService(ctx, in, key.Name)
	if err != nil {
		return err
	}
	if ok {
		gone, err := c.deletions.Service(ctx, in, s)
		if err != nil || !gone {
			return err
		}
		delete(c.services[in.ID], key.Name)
	}
	return c.removeIfEmpty(ctx, in)
}

// removeIfEmpty deletes a namespace that has no services if it has the tags of this clusterset. The
// caller holds c.busy and has listed the services.
func (c *resourceCache) removeIfEmpty(ctx context.Context, in api.Namespace) error {
	if len(c.services[in.ID]) > 0 {
		return nil
	}
	gone, err := c.deletions.Namespace(ctx, in)
	if gone {
		delete(c.namespaces, in.Name)
	}
	if gone || api.IsInUse(err) { // another cluster may have created a service
		delete(c.services, in.ID)
	}
	return err
}

// list returns all services that may have instances of this cluster. It deletes namespaces without
// services that this cluster created, which a previous process had no time to delete. An empty
// namespace of another cluster may be about to get a service.
func (c *resourceCache) list(ctx context.Context) ([]mcs.Key, error) {
	c.invalidate()
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.busy.Release(1)
	var found []mcs.Key
	if _, _, err := c.findNamespace(ctx, ""); err != nil {
		return nil, err
	}
	for name, in := range c.namespaces {
		// The names of control namespaces, and of most namespaces of others, cannot be those of a
		// Kubernetes namespace.
		if len(validation.IsDNS1123Label(name)) > 0 {
			continue
		}
		if _, _, err := c.findService(ctx, in, ""); err != nil {
			return nil, err
		}
		if len(c.services[in.ID]) == 0 {
			isOurs, err := c.client.IsCreatedBy(ctx, in.ARN, c.identity)
			if err == nil && isOurs {
				err = c.removeIfEmpty(ctx, in)
			}
			if err != nil {
				return nil, err
			}
		}
		for service := range c.services[in.ID] {
			if len(validation.IsDNS1123Label(service)) == 0 {
				found = append(found, mcs.Key{Namespace: name, Name: service})
			}
		}
	}
	return found, nil
}
