package membership

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// requeues requeues services for all controllers.
type requeues struct {
	reader client.Reader
	// requeuers are notified of every key whose export or import may change.
	requeuers []*kube.Requeuer
	// state returns the cluster's membership state.
	state func() *State
}

// requeue makes all controllers reconcile key.
func (q *requeues) requeue(key mcs.Key) {
	for _, r := range q.requeuers {
		r.Requeue(key)
	}
}

// requeueAfter makes all controllers reconcile key after a delay.
func (q *requeues) requeueAfter(key mcs.Key, delay time.Duration) {
	for _, r := range q.requeuers {
		r.RequeueAfter(key, delay)
	}
}

// RequeueAll requeues all exports and imports of this cluster, and all keys in the registry.
func (q *requeues) RequeueAll(ctx context.Context) error {
	if s := q.state().Session; s != nil {
		for _, key := range registry.ReportOf(s.Registry).Keys {
			q.requeue(key)
		}
	}
	return q.requeueAll(ctx)
}

// RequeueSession is RequeueAll, if there is a session. Without one, as on a standby, it does
// nothing: a new session requeues everything.
func (q *requeues) RequeueSession(ctx context.Context) error {
	if q.state().Session == nil {
		return nil
	}
	return q.RequeueAll(ctx)
}

// RequeueAddresses requeues, at low priority, the services that another cluster exports with one of
// addresses. Without a session it does nothing: a new session requeues everything.
func (q *requeues) RequeueAddresses(ctx context.Context, addresses map[netip.Addr]struct{}) error {
	s := q.state().Session
	if s == nil {
		return nil
	}
	for _, key := range registry.ReportOf(s.Registry).Keys {
		view, err := s.Registry.Lookup(ctx, key)
		if errors.Is(err, registry.ErrNotSynced) {
			return nil // the first read notifies of all keys
		}
		if err != nil {
			return fmt.Errorf("looking up the exports of %s: %w", key, err)
		}
		if slices.ContainsFunc(view.Exports(), func(e mcs.Export) bool { return hasAddress(e, addresses) }) {
			for _, r := range q.requeuers {
				r.RequeueAtLowPriority(key)
			}
		}
	}
	return nil
}

// hasAddress reports whether an endpoint of e has one of addresses.
func hasAddress(e mcs.Export, addresses map[netip.Addr]struct{}) bool {
	return slices.ContainsFunc(e.Backends, func(b mcs.Backends) bool {
		return slices.ContainsFunc(b.Endpoints, func(ep mcs.Endpoint) bool {
			_, ok := addresses[ep.Address]
			return ok
		})
	})
}

// requeueAll requeues everything that this cluster exports or imports. The registry notifies of the
// keys that it holds.
func (q *requeues) requeueAll(ctx context.Context) error {
	var exports mcsv1beta1.ServiceExportList
	if err := q.reader.List(ctx, &exports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ServiceExports: %w", err)
	}
	var imports mcsv1beta1.ServiceImportList
	if err := q.reader.List(ctx, &imports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ServiceImports: %w", err)
	}
	for i := range exports.Items {
		q.requeue(kube.KeyOf(client.ObjectKeyFromObject(&exports.Items[i])))
	}
	for i := range imports.Items {
		q.requeue(kube.KeyOf(client.ObjectKeyFromObject(&imports.Items[i])))
	}
	return nil
}
