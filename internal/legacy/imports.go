package legacy

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/imports"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// drainTime is the time for which a superfluous derived Service keeps its IP after the
// ServiceImport no longer shows it. CoreDNS answers for clusterset.local with a TTL of 5 s, and its
// cache keeps that for 30 s at most; two minutes cover clients that use an address longer than its
// TTL.
const drainTime = 2 * time.Minute

// Takeover takes over the legacy controller's imports and ServiceExports in this cluster.
type Takeover struct {
	client client.Client
	// enabled allows taking over. Imports that have been taken over keep their derived Service
	// without it.
	enabled bool
	now     func() time.Time
}

var _ imports.Takeover = (*Takeover)(nil)

// NewTakeover returns the takeover. If it is not enabled, it changes only objects that have been
// taken over before.
func NewTakeover(c client.Client, enabled bool) *Takeover {
	return &Takeover{client: c, enabled: enabled, now: time.Now}
}

// GatherObjects implements imports.Takeover.
func (t *Takeover) GatherObjects(ctx context.Context, key mcs.Key, imp *mcsv1beta1.ServiceImport, derived *corev1.Service) (imports.TakeoverObjects, error) {
	candidates, err := kube.ListDerivedServices(ctx, t.client, key)
	if err != nil {
		return imports.TakeoverObjects{}, err
	}
	d := ChooseDerived(key, imp, derived, candidates, t.enabled)
	legacyImport := IsServiceImport(imp)
	o := imports.TakeoverObjects{
		Derived:      d.Service,
		DerivedName:  d.Name,
		TakesImport:  t.enabled && legacyImport,
		TakesDerived: d.Service != nil && !plan.IsManaged(d.Service) && !d.Foreign,
		Superfluous:  d.Superfluous,
	}
	if legacyImport {
		o.NotOwnedMessage = "the clusterset exports this service, but its ServiceImport was created by the AWS Cloud Map MCS Controller for K8s: " +
			"run this controller with --import-from-aws-controller to have it taken over with its IP"
	}
	if mcs.IsDerivedNameOf(d.Name, key) && len(d.Superfluous) == 0 {
		return o, nil
	}
	o.Slices, err = t.listSlices(ctx, key.Namespace, append(slices.Clone(d.Superfluous), d.Service))
	return o, err
}

// listSlices reads the EndpointSlices that the legacy controller created for its derived Services,
// by Service.
func (t *Takeover) listSlices(ctx context.Context, namespace string, services []*corev1.Service) (map[string][]*discoveryv1.EndpointSlice, error) {
	out := map[string][]*discoveryv1.EndpointSlice{}
	for _, svc := range services {
		if svc == nil {
			continue
		}
		list, err := kube.ListSlices(ctx, t.client, namespace, kube.IndexService, svc.Name)
		if err != nil {
			return nil, err
		}
		for i := range list {
			if IsEndpointSlice(&list[i]) {
				out[svc.Name] = append(out[svc.Name], &list[i])
			}
		}
	}
	return out, nil
}

// RetireObjects implements imports.Takeover. At once it deletes the slices of the Service that is
// kept, because no controller updates them any more. After drainTime it deletes the other Services:
// until then clients may use their IPs.
func (t *Takeover) RetireObjects(ctx context.Context, o imports.TakeoverObjects) (time.Duration, error) {
	if o.Slices == nil {
		return 0, nil
	}
	if o.TakesImport {
		log.FromContext(ctx).Info("Took over the import of the AWS Cloud Map MCS Controller for K8s", "service", nameOf(o.Derived), "superfluous", len(o.Superfluous))
	}
	if err := t.deleteSlices(ctx, o, nameOf(o.Derived)); err != nil {
		return 0, err
	}
	var requeueAfter time.Duration
	for _, svc := range o.Superfluous {
		wait, err := t.retireService(ctx, o, svc)
		if err != nil {
			return 0, err
		}
		if requeueAfter == 0 || wait > 0 && wait < requeueAfter {
			requeueAfter = wait
		}
	}
	return requeueAfter, nil
}

// retireService marks a superfluous derived Service for deletion, or deletes it when its drain time
// is over. It returns the time that is left.
func (t *Takeover) retireService(ctx context.Context, o imports.TakeoverObjects, svc *corev1.Service) (time.Duration, error) {
	now := t.now()
	updated, at, drained := Retire(svc, now, drainTime)
	if drained {
		return 0, t.deleteService(ctx, o, svc)
	}
	if updated.Annotations[AnnotationRetires] != svc.Annotations[AnnotationRetires] || !plan.IsManaged(svc) {
		if err := t.client.Update(ctx, updated); err != nil {
			return 0, fmt.Errorf("marking the superfluous derived Service %s/%s: %w", svc.Namespace, svc.Name, err)
		}
	}
	return at.Sub(now), nil
}

// DeleteServices implements imports.Takeover.
func (t *Takeover) DeleteServices(ctx context.Context, o imports.TakeoverObjects) error {
	for _, svc := range o.Superfluous {
		if err := t.deleteService(ctx, o, svc); err != nil {
			return err
		}
	}
	return nil
}

// deleteService deletes a superfluous derived Service and its slices.
func (t *Takeover) deleteService(ctx context.Context, o imports.TakeoverObjects, svc *corev1.Service) error {
	if err := t.deleteSlices(ctx, o, svc.Name); err != nil {
		return err
	}
	return kube.Delete(ctx, t.client, svc)
}

func (t *Takeover) deleteSlices(ctx context.Context, o imports.TakeoverObjects, service string) error {
	for _, s := range o.Slices[service] {
		if err := kube.Delete(ctx, t.client, s); err != nil {
			return err
		}
	}
	return nil
}

// ReleaseExport removes the legacy controller's finalizer from a ServiceExport. Without that
// controller neither the ServiceExport nor its namespace could ever be deleted.
func (t *Takeover) ReleaseExport(ctx context.Context, key mcs.Key) error {
	if !t.enabled {
		return nil
	}
	var exp mcsv1beta1.ServiceExport
	found, err := kube.Find(ctx, t.client, kube.NameOf(key), &exp, client.UnsafeDisableDeepCopy)
	if err != nil || !found || !slices.Contains(exp.Finalizers, Finalizer) {
		return err
	}
	released := exp.DeepCopy()
	controllerutil.RemoveFinalizer(released, Finalizer)
	patch := client.MergeFromWithOptions(&exp, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(t.client.Patch(ctx, released, patch)); err != nil {
		return fmt.Errorf("removing the finalizer of the AWS Cloud Map MCS Controller for K8s from ServiceExport %s: %w", key, err)
	}
	log.FromContext(ctx).Info("Removed the finalizer of the AWS Cloud Map MCS Controller for K8s")
	return nil
}

// nameOf returns svc's name, "" if there is none.
func nameOf(svc *corev1.Service) string {
	if svc == nil {
		return ""
	}
	return svc.Name
}
