package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

const (
	// InUsePatience is the time for which a resource that is in use may be so because AWS Cloud Map
	// has not processed the removal of its users. Terraform's provider waits as long
	// (http_namespace.go); its users saw 43 s (its pull request 25162).
	InUsePatience = 2 * time.Minute
	// listedPatience is the time after which the list of a service that is in use shows no instance
	// that was removed before (Intervals.Confirm): those that it shows are of others.
	listedPatience = 15 * time.Second
	// inUsePause is the longest pause between the attempts of one call.
	inUsePause = 3 * time.Second
)

// Deletions deletes resources that controllers of a clusterset have created, and knows those that
// stay. It is safe for concurrent use.
type Deletions struct {
	client   *Client
	identity mcs.Identity

	mu sync.Mutex
	// failingSince is the time since which the deletion of each resource fails, by ARN.
	failingSince map[string]time.Time
	left         map[string]registry.Leftover
	gone         map[string]bool
}

// NewDeletions returns the deletions of a cluster.
func NewDeletions(c *Client, identity mcs.Identity) *Deletions {
	return &Deletions{client: c, identity: identity, failingSince: map[string]time.Time{}, left: map[string]registry.Leftover{}, gone: map[string]bool{}}
}

// Service deletes a service that a controller of this clusterset created. gone is false without an
// error if it stays: others created it, access rights protect it, or AWS has refused the deletion
// for InUsePatience, such as that of a service in use.
func (d *Deletions) Service(ctx context.Context, in Namespace, s Service) (gone bool, err error) {
	gone, err = d.delete(ctx, resource{kind: "service", id: s.ID, arn: s.ARN, text: fmt.Sprintf("service %s of namespace %s", s.Name, in.Name)},
		func() error { return d.client.DeleteService(ctx, s) })
	if IsInUse(err) && d.isFailingFor(s.ARN, listedPatience) {
		listed, listError := d.client.ListInstances(ctx, s)
		if len(listed) > 0 || listError != nil {
			// another cluster with this ID has registered them, and deletes it when it leaves
			return false, listError
		}
	}
	return gone, err
}

// Keep ends the deletion of a resource that is used again or gone: the time for which it has
// failed, and the report that it stays, say nothing about the next one.
func (d *Deletions) Keep(arn string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.failingSince, arn)
	delete(d.left, arn)
}

// isFailingFor reports whether the deletion of a resource has failed for a time.
func (d *Deletions) isFailingFor(arn string, during time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, isFailing := d.failingSince[arn]
	return isFailing && time.Since(since) >= during
}

// Namespace is Service for a namespace. One with other services than those that d has deleted is in
// use for good.
func (d *Deletions) Namespace(ctx context.Context, n Namespace) (gone bool, err error) {
	return d.delete(ctx, resource{kind: "namespace", id: n.ID, arn: n.ARN, text: "namespace " + n.Name}, func() error {
		err := d.client.DeleteNamespace(ctx, n)
		if !IsInUse(err) {
			return err
		}
		services, listError := d.client.ListServices(ctx, n)
		if listError != nil {
			return listError
		}
		for _, name := range slices.Sorted(maps.Keys(services)) {
			if !d.isGone(services[name].ARN) {
				return &usedError{service: name}
			}
		}
		return err
	})
}

// usedError is a namespace that others use.
type usedError struct{ service string }

func (e *usedError) Error() string { return "it has services of others, such as " + e.service }

// isGone reports whether d has deleted a resource: lists may still show it.
func (d *Deletions) isGone(arn string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone[arn]
}

// Review ends the report of resources that are gone: others may have deleted them since.
func (d *Deletions) Review(ctx context.Context) error {
	d.mu.Lock()
	reported := slices.Sorted(maps.Keys(d.left))
	d.mu.Unlock()
	for _, arn := range reported {
		_, err := d.client.tagsOf(ctx, arn)
		switch {
		case IsNotFound(err):
			d.Keep(arn)
		case IsRetryable(err):
			return err
		}
	}
	return nil
}

// Left returns the resources that stay although controllers of this clusterset created them:
// services first, because a namespace can be deleted after its services only.
func (d *Deletions) Left() []registry.Leftover {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Values(d.left), func(a, b registry.Leftover) int { return strings.Compare(b.Resource, a.Resource) })
}

// resource is a service or a namespace.
type resource struct{ kind, id, arn, text string }

func (d *Deletions) delete(ctx context.Context, r resource, remove func() error) (gone bool, err error) {
	managed, err := d.isManaged(ctx, r)
	switch {
	case IsNotFound(err):
		return true, d.conclude(r, nil)
	case err != nil || !managed:
		return false, err
	}
	err = retryInUse(ctx, remove)
	return err == nil, d.conclude(r, err)
}

// isManaged reports whether a controller of this clusterset created a resource. In a shared
// namespace, where AWS supports no tags, AWS lets an account delete its own services only, and
// callers name services of the control namespace that only controllers create.
func (d *Deletions) isManaged(ctx context.Context, r resource) (bool, error) {
	if d.client.UsesSharedNamespace() {
		return r.kind == "service", nil
	}
	return d.client.isManaged(ctx, r.arn, d.identity)
}

// conclude records the result of a deletion, and returns its error if another attempt may succeed.
func (d *Deletions) conclude(r resource, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var used *usedError
	switch {
	case err == nil:
		d.gone[r.arn] = true
		delete(d.left, r.arn)
		delete(d.failingSince, r.arn)
		return nil
	case errors.As(err, &used), IsDenied(err): // another attempt has the same answer
	case IsRetryable(err) && !IsInUse(err):
		return err
	default:
		if d.failingSince[r.arn].IsZero() {
			d.failingSince[r.arn] = time.Now()
		}
		if time.Since(d.failingSince[r.arn]) < InUsePatience {
			return err
		}
	}
	d.left[r.arn] = registry.Leftover{
		Resource: r.text, Reason: err.Error(), IsProtected: IsDenied(err),
		Command: fmt.Sprintf("aws servicediscovery delete-%s --region %s --id %s", r.kind, d.client.sdk.Options().Region, r.id),
	}
	return nil
}

// retryInUse repeats a deletion for some seconds while the resource is in use: AWS Cloud Map may
// process the removal of its users.
func retryInUse(ctx context.Context, remove func() error) error {
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		err := remove()
		if !IsInUse(err) || pause > inUsePause {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}
