package cloudmap

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// places finds, makes and removes the Cloud Map namespaces and services of the instance view: the namespace is named as
// the Kubernetes namespace, the service as the Service. Lists are slow at AWS (2 a second and less), so they are
// remembered until something turns out not to be there.
type places struct {
	client   *api.Client
	identity mcs.Identity

	// looking is held over requests, which take minutes when AWS throttles: two exports of one namespace must not both make it.
	looking    *semaphore.Weighted
	namespaces map[string]api.Namespace
	listed     time.Time
	services   map[string]map[string]api.Service
	// forgotten says that something was not as remembered.
	forgotten atomic.Bool
	// httpNames are the names by which namespaces are discovered, of those that were ever seen.
	httpNames sync.Map
}

func newPlaces(client *api.Client, identity mcs.Identity) *places {
	return &places{client: client, identity: identity, looking: semaphore.NewWeighted(1)}
}

// lock waits until nobody else looks, or ctx ends. Who gets it releases p.looking.
func (p *places) lock(ctx context.Context) error {
	if err := p.looking.Acquire(ctx, 1); err != nil {
		return err
	}
	if p.forgotten.Swap(false) {
		p.namespaces, p.services, p.listed = nil, nil, time.Time{}
	}
	return nil
}

// fresh is how old the list of namespaces may be to say that one does not exist. AWS allows a list every two seconds.
const fresh = 10 * time.Second

// find returns the service of key. ok is false when there is none.
func (p *places) find(ctx context.Context, key mcs.Key) (s api.Service, ok bool, err error) {
	if err := p.lock(ctx); err != nil {
		return s, false, err
	}
	defer p.looking.Release(1)
	in, ok, err := p.findNamespace(ctx, key.Namespace)
	if err != nil || !ok {
		return s, false, err
	}
	return p.findService(ctx, in, key.Name)
}

// httpNameOf is the name by which a namespace is discovered, as far as that is known: its own name, unless it was used before.
func (p *places) httpNameOf(name string) string {
	if httpName, ok := p.httpNames.Load(name); ok {
		return httpName.(string)
	}
	return name
}

// seed takes in a list of namespaces that was made for somebody else.
func (p *places) seed(all map[string]api.Namespace) {
	if !p.looking.TryAcquire(1) {
		return // who is at work has a list, or makes one
	}
	defer p.looking.Release(1)
	p.keep(maps.Clone(all))
}

// keep remembers a list of namespaces. The caller holds p.looking.
func (p *places) keep(all map[string]api.Namespace) {
	p.namespaces, p.listed, p.services = all, time.Now(), map[string]map[string]api.Service{}
	p.httpNames.Clear()
	for name, in := range all {
		p.httpNames.Store(name, in.HTTPName)
	}
}

// ensure returns the service of key, which it makes if need be; made says that it is new.
func (p *places) ensure(ctx context.Context, key mcs.Key) (s api.Service, made bool, err error) {
	if err := p.lock(ctx); err != nil {
		return s, false, err
	}
	defer p.looking.Release(1)
	in, ok, err := p.findNamespace(ctx, key.Namespace)
	if err != nil {
		return s, false, err
	}
	if !ok {
		if in, err = p.client.CreateNamespace(ctx, key.Namespace, p.identity, api.PartView); err != nil {
			return s, false, err
		}
		p.namespaces[key.Namespace] = in
		p.httpNames.Store(key.Namespace, in.HTTPName)
	}
	s, ok, err = p.findService(ctx, in, key.Name)
	if err != nil || ok {
		return s, false, err
	}
	if s, err = p.client.CreateService(ctx, in, key.Name, p.identity, api.PartView); err != nil {
		return s, false, err
	}
	p.services[in.ID][key.Name] = s
	return s, true, nil
}

// findNamespace looks in the list of namespaces. The caller holds p.looking.
func (p *places) findNamespace(ctx context.Context, name string) (api.Namespace, bool, error) {
	if in, ok := p.namespaces[name]; ok {
		return in, true, nil
	}
	if time.Since(p.listed) < fresh {
		return api.Namespace{}, false, nil
	}
	all, err := p.client.ListNamespaces(ctx)
	if err != nil {
		return api.Namespace{}, false, err
	}
	p.keep(all)
	in, ok := all[name]
	return in, ok, nil
}

// findService looks in the list of a namespace's services. The caller holds p.looking.
func (p *places) findService(ctx context.Context, in api.Namespace, name string) (api.Service, bool, error) {
	if p.services[in.ID] == nil {
		all, err := p.client.ListServices(ctx, in)
		if err != nil {
			return api.Service{}, false, err
		}
		p.services[in.ID] = all
	}
	s, ok := p.services[in.ID][name]
	return s, ok, nil
}

// forget makes the next look list everything again: something was not as remembered.
func (p *places) forget() { p.forgotten.Store(true) }

// remove deletes the service of key, and the namespace if that was its last service. Both must be ours by their tags, and
// whoever uses them keeps them.
func (p *places) remove(ctx context.Context, key mcs.Key) error {
	if err := p.lock(ctx); err != nil {
		return err
	}
	defer p.looking.Release(1)
	in, ok, err := p.findNamespace(ctx, key.Namespace)
	if err != nil || !ok {
		return err
	}
	s, ok, err := p.findService(ctx, in, key.Name)
	if err != nil {
		return err
	}
	if ok {
		gone, err := p.client.DeleteIfManaged(ctx, s.ARN, p.identity, func() error { return p.client.DeleteService(ctx, s) })
		if err != nil || !gone {
			return err
		}
		delete(p.services[in.ID], key.Name)
	}
	return p.removeEmpty(ctx, in)
}

// removeEmpty deletes a namespace that has no services, if it is ours by its tags. The caller holds p.looking, and has listed the services.
func (p *places) removeEmpty(ctx context.Context, in api.Namespace) error {
	if len(p.services[in.ID]) > 0 {
		return nil
	}
	gone, err := p.client.DeleteIfManaged(ctx, in.ARN, p.identity, func() error { return p.client.DeleteNamespace(ctx, in) })
	if gone {
		delete(p.namespaces, in.Name)
		delete(p.services, in.ID)
	}
	return err
}

// candidates are the services in which instances of ours may be, by the namespace's name for discovery. A namespace without services
// that this cluster made is deleted: an earlier life ended before it could do that. Another cluster's may be about to get its first one.
func (p *places) candidates(ctx context.Context) (map[string][]mcs.Key, error) {
	p.forget()
	if err := p.lock(ctx); err != nil {
		return nil, err
	}
	defer p.looking.Release(1)
	found := map[string][]mcs.Key{}
	if _, _, err := p.findNamespace(ctx, ""); err != nil {
		return nil, err
	}
	for name, in := range p.namespaces {
		// A control namespace, and most of what is not ours, is no name of a Kubernetes namespace.
		if len(validation.IsDNS1123Label(name)) > 0 {
			continue
		}
		if _, _, err := p.findService(ctx, in, ""); err != nil {
			return nil, err
		}
		if len(p.services[in.ID]) == 0 {
			made, err := p.client.IsCreatedBy(ctx, in.ARN, p.identity)
			if err == nil && made {
				err = p.removeEmpty(ctx, in)
			}
			if err != nil {
				return nil, err
			}
		}
		for service := range p.services[in.ID] {
			if len(validation.IsDNS1123Label(service)) == 0 {
				found[in.HTTPName] = append(found[in.HTTPName], mcs.Key{Namespace: name, Name: service})
			}
		}
	}
	return found, nil
}
