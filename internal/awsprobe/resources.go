package awsprobe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// isProbe reports whether a namespace has the name of one of a probe.
func isProbe(name string) bool {
	return strings.HasPrefix(name, namePrefix) || strings.HasPrefix(name, format.ControlNamespace(namePrefix))
}

// leftovers returns the account's own namespaces that probes have made. It uses no filter, which
// AWS may refuse, and sees namespaces of the same name, which package api does not.
func (c *connection) leftovers(ctx context.Context) ([]types.NamespaceSummary, error) {
	var found []types.NamespaceSummary
	in := &servicediscovery.ListNamespacesInput{}
	for {
		var out *servicediscovery.ListNamespacesOutput
		err := unthrottled(ctx, func() (err error) { out, err = c.sdk.ListNamespaces(ctx, in); return err })
		if err != nil {
			return nil, fmt.Errorf("listing the namespaces: %w", err)
		}
		for _, ns := range out.Namespaces {
			if owner := aws.ToString(ns.ResourceOwner); isProbe(aws.ToString(ns.Name)) && (owner == "" || owner == c.account) {
				found = append(found, ns)
			}
		}
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return found, nil
		}
	}
}

func describe(namespaces []types.NamespaceSummary) string {
	var names []string
	for _, ns := range namespaces {
		names = append(names, fmt.Sprintf("namespace %s (%s)", aws.ToString(ns.Name), aws.ToString(ns.Id)))
	}
	return strings.Join(names, ", ")
}

// sweep removes all resources of probes, and returns those that it could not remove before ctx
// ends.
func (p *prober) sweep(ctx context.Context) (left []string) {
	found, err := p.leftovers(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	note := func(name string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			left = append(left, fmt.Sprintf("%s: %v", name, err))
			p.print("left: %s: %v", name, err)
			return
		}
		p.print("removed %s", name)
	}
	for _, ns := range found {
		all.Go(func() { note(describe([]types.NamespaceSummary{ns}), p.removeNamespace(ctx, ns)) })
	}
	if p.opts.Share != "" {
		all.Go(func() {
			if err := p.removeServices(ctx, p.opts.Share, true); err != nil {
				note("services in "+p.opts.Share, err)
			}
		})
	}
	all.Wait()
	slices.Sort(left)
	return left
}

// removeNamespace removes a namespace that has the tags of a probe, with its services.
func (p *prober) removeNamespace(ctx context.Context, ns types.NamespaceSummary) error {
	tags, err := p.sdk.ListTagsForResource(ctx, &servicediscovery.ListTagsForResourceInput{ResourceARN: ns.Arn})
	if err != nil {
		return fmt.Errorf("reading the tags: %w", err)
	}
	if !slices.ContainsFunc(tags.Tags, func(t types.Tag) bool {
		return aws.ToString(t.Key) == "clusterset" && strings.HasPrefix(aws.ToString(t.Value), namePrefix)
	}) {
		return errors.New("it has not the tags of a probe: if it is one, delete it with the AWS console")
	}
	if err := p.removeServices(ctx, aws.ToString(ns.Id), false); err != nil {
		return err
	}
	return p.deleteNamespace(ctx, aws.ToString(ns.Id))
}

// removeServices removes the services of a namespace with their instances; in a share only those of
// this account's probes.
func (p *prober) removeServices(ctx context.Context, namespace string, shared bool) error {
	var services []types.ServiceSummary
	in := &servicediscovery.ListServicesInput{
		Filters: []types.ServiceFilter{{Name: types.ServiceFilterNameNamespaceId, Values: []string{namespace}}},
	}
	for {
		var out *servicediscovery.ListServicesOutput
		err := unthrottled(ctx, func() (err error) { out, err = p.sdk.ListServices(ctx, in); return err })
		if err != nil {
			return fmt.Errorf("listing the services: %w", err)
		}
		services = append(services, out.Services...)
		if in.NextToken = out.NextToken; in.NextToken == nil {
			break
		}
	}
	return inParallel(services, func(s types.ServiceSummary) error {
		id := aws.ToString(s.Id)
		if shared {
			if id = aws.ToString(s.Arn); aws.ToString(s.CreatedByAccount) != p.account || !isProbe(aws.ToString(s.Name)) {
				return nil
			}
		}
		if err := p.removeService(ctx, id); err != nil {
			return fmt.Errorf("service %s: %w", aws.ToString(s.Name), err)
		}
		return nil
	})
}

// removeService removes a service with its instances. Reads may miss instances that are new, so it
// tries again.
func (p *prober) removeService(ctx context.Context, id string) error {
	_, err := within(ctx, sweepTime, "the service can be deleted", func() (bool, error) {
		instances, err := p.api.ListInstances(ctx, api.Service{ID: id, Name: id})
		switch {
		case api.IsNotFound(err):
			return true, nil
		case err != nil:
			return false, err
		}
		if err := p.deregister(ctx, id, instances); err != nil {
			return false, err
		}
		err = unthrottled(ctx, func() error {
			_, err := p.sdk.DeleteService(ctx, &servicediscovery.DeleteServiceInput{Id: &id})
			return err
		})
		if api.IsInUse(err) {
			return false, nil
		}
		return err == nil || api.IsNotFound(err), ignore(err, api.IsNotFound)
	})
	return err
}

// ignore returns err unless it is expected.
func ignore(err error, expected func(error) bool) error {
	if err != nil && expected(err) {
		return nil
	}
	return err
}

// concurrency is the number of registrations at once: at 20 to 50 ms a request they use the 50
// requests a second.
const concurrency = 8

// inParallel calls f for each item, and returns the first error.
func inParallel[T any](items []T, f func(T) error) error {
	var mu sync.Mutex
	var first error
	var all sync.WaitGroup
	next := make(chan T)
	for range concurrency {
		all.Go(func() {
			for item := range next {
				if err := f(item); err != nil {
					mu.Lock()
					first = errors.Join(first, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, item := range items {
		next <- item
	}
	close(next)
	all.Wait()
	return first
}

// deregister removes instances.
func (p *prober) deregister(ctx context.Context, service string, instances []api.Instance) error {
	return inParallel(instances, func(i api.Instance) error {
		_, err := p.api.StartDeregistration(ctx, service, i.ID)
		return err
	})
}

// deleteNamespace deletes a namespace and waits until it is gone. Package api does not return the
// operation.
func (p *prober) deleteNamespace(ctx context.Context, id string) error {
	var operation string
	_, err := within(ctx, sweepTime, "the namespace can be deleted", func() (bool, error) {
		err := unthrottled(ctx, func() error {
			out, err := p.sdk.DeleteNamespace(ctx, &servicediscovery.DeleteNamespaceInput{Id: &id})
			if err == nil {
				operation = aws.ToString(out.OperationId)
			}
			return err
		})
		if api.IsInUse(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil || operation == "" {
		return ignore(err, api.IsNotFound)
	}
	_, err = p.api.AwaitOperation(ctx, operation)
	return err
}

// createNamespace creates an HTTP namespace with tags.
func (p *prober) createNamespace(ctx context.Context, name string) (ns api.Namespace, err error) {
	err = unthrottled(ctx, func() (err error) {
		ns, err = p.api.CreateNamespace(ctx, name, p.identity(), api.PartControl)
		return err
	})
	return ns, err
}

// createService creates a service with tags in the main namespace.
func (p *prober) createService(ctx context.Context, name string) (api.Service, error) {
	if p.shared.main.ID == "" {
		return api.Service{}, errors.New("the namespace of probe 2 is missing")
	}
	return p.createServiceIn(ctx, p.shared.main, name, api.ServiceConfig{})
}

func (p *prober) createServiceIn(ctx context.Context, ns api.Namespace, name string, config api.ServiceConfig) (s api.Service, err error) {
	err = unthrottled(ctx, func() (err error) {
		s, _, err = p.api.CreateServiceAs(ctx, ns, name, config, p.identity(), api.PartCatalog)
		return err
	})
	if err == nil {
		p.services = append(p.services, s)
	}
	return s, err
}

// register writes an instance and waits until the operation has ended.
func (p *prober) register(ctx context.Context, s api.Service, id string, attributes map[string]string) error {
	operation, err := p.api.RegisterInstance(ctx, s.ID, api.Instance{ID: id, Attributes: attributes})
	if err != nil {
		return err
	}
	_, err = p.api.AwaitOperation(ctx, operation)
	return err
}

// visible waits until a read of a service in the main namespace is as it should be.
func (p *prober) visible(ctx context.Context, s api.Service, what string, isSo func(map[string]api.Instance) bool) error {
	_, err := within(ctx, visibleLimit, what, func() (bool, error) {
		found, _, err := p.api.DiscoverInstances(ctx, p.shared.main.HTTPName, s.Name, nil)
		if err != nil {
			return false, ignore(err, api.IsNotFound)
		}
		byID := map[string]api.Instance{}
		for _, i := range found {
			byID[i.ID] = i
		}
		return isSo(byID), nil
	})
	return err
}

// visibleLimit is longer than any delay of reads with which the product was tried (90 s).
const visibleLimit = 100 * time.Second
