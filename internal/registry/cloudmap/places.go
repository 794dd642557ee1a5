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
)

// places finds, makes and removes the Cloud Map namespaces and services of the instance view: the namespace is named as
// the Kubernetes namespace, the service as the Service. Lists are slow at AWS (2 a second and less), so they are
// remembered until something turns out not to be there.
type places struct {
	client   *Client
	identity mcs.Identity

	// looking is held over requests, which take minutes when AWS throttles: two exports of one namespace must not both make it.
	looking    *semaphore.Weighted
	namespaces map[string]namespace
	listed     time.Time
	services   map[string]map[string]service
	// forgotten says that something was not as remembered.
	forgotten atomic.Bool
	// httpNames are the names by which namespaces are discovered, of those that were ever seen.
	httpNames sync.Map
}

func newPlaces(client *Client, identity mcs.Identity) *places {
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
func (p *places) find(ctx context.Context, key mcs.Key) (s service, ok bool, err error) {
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
func (p *places) seed(all map[string]namespace) {
	if !p.looking.TryAcquire(1) {
		return // who is at work has a list, or makes one
	}
	defer p.looking.Release(1)
	p.keep(maps.Clone(all))
}

// keep remembers a list of namespaces. The caller holds p.looking.
func (p *places) keep(all map[string]namespace) {
	p.namespaces, p.listed, p.services = all, time.Now(), map[string]map[string]service{}
	p.httpNames.Clear()
	for name, in := range all {
		p.httpNames.Store(name, in.httpName)
	}
}

// ensure returns the service of key, which it makes if need be; made says that it is new.
func (p *places) ensure(ctx context.Context, key mcs.Key) (s service, made bool, err error) {
	if err := p.lock(ctx); err != nil {
		return s, false, err
	}
	defer p.looking.Release(1)
	in, ok, err := p.findNamespace(ctx, key.Namespace)
	if err != nil {
		return s, false, err
	}
	if !ok {
		if in, err = p.client.createNamespace(ctx, key.Namespace, p.identity, partView); err != nil {
			return s, false, err
		}
		p.namespaces[key.Namespace] = in
		p.httpNames.Store(key.Namespace, in.httpName)
	}
	s, ok, err = p.findService(ctx, in, key.Name)
	if err != nil || ok {
		return s, false, err
	}
	if s, err = p.client.createService(ctx, in, key.Name, p.identity, partView); err != nil {
		return s, false, err
	}
	p.services[in.id][key.Name] = s
	return s, true, nil
}

// findNamespace looks in the list of namespaces. The caller holds p.looking.
func (p *places) findNamespace(ctx context.Context, name string) (namespace, bool, error) {
	if in, ok := p.namespaces[name]; ok {
		return in, true, nil
	}
	if time.Since(p.listed) < fresh {
		return namespace{}, false, nil
	}
	all, err := p.client.namespaces(ctx)
	if err != nil {
		return namespace{}, false, err
	}
	p.keep(all)
	in, ok := all[name]
	return in, ok, nil
}

// findService looks in the list of a namespace's services. The caller holds p.looking.
func (p *places) findService(ctx context.Context, in namespace, name string) (service, bool, error) {
	if p.services[in.id] == nil {
		all, err := p.client.services(ctx, in)
		if err != nil {
			return service{}, false, err
		}
		p.services[in.id] = all
	}
	s, ok := p.services[in.id][name]
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
		gone, err := p.client.removeIfOurs(ctx, s.arn, p.identity, func() error { return p.client.deleteService(ctx, s) })
		if err != nil || !gone {
			return err
		}
		delete(p.services[in.id], key.Name)
	}
	return p.removeEmpty(ctx, in)
}

// removeEmpty deletes a namespace that has no services, if it is ours by its tags. The caller holds p.looking, and has listed the services.
func (p *places) removeEmpty(ctx context.Context, in namespace) error {
	if len(p.services[in.id]) > 0 {
		return nil
	}
	gone, err := p.client.removeIfOurs(ctx, in.arn, p.identity, func() error { return p.client.deleteNamespace(ctx, in) })
	if gone {
		delete(p.namespaces, in.name)
		delete(p.services, in.id)
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
		if len(p.services[in.id]) == 0 {
			made, err := p.client.madeHere(ctx, in.arn, p.identity)
			if err == nil && made {
				err = p.removeEmpty(ctx, in)
			}
			if err != nil {
				return nil, err
			}
		}
		for service := range p.services[in.id] {
			if len(validation.IsDNS1123Label(service)) == 0 {
				found[in.httpName] = append(found[in.httpName], mcs.Key{Namespace: name, Name: service})
			}
		}
	}
	return found, nil
}
