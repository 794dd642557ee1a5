package imports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// releasePause is the time between two releases of held IPs in one place. The controller-manager
// counts the use of a quota again some time after a deletion, usually within a second; without the
// pause all held IPs would go meanwhile.
const releasePause = 5 * time.Second

// heldReleases releases held clusterset IPs when a derived Service cannot be created because
// Services or IPs are used up.
type heldReleases struct {
	mu sync.Mutex
	// last has the time of the last release, by namespace, "" for the IPs of the cluster.
	last map[string]time.Time
}

// begin reports whether a release in namespace is due. The caller calls undo if it releases
// nothing: an import that finds no IP to release must not keep others from releasing one.
func (h *heldReleases) begin(namespace string, now time.Time) (undo func(), isDue bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.last[namespace]
	if now.Sub(before) < releasePause {
		return nil, false
	}
	if h.last == nil {
		h.last = map[string]time.Time{}
	}
	h.last[namespace] = now
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.last[namespace] = before
	}, true
}

// Texts of the API server's errors about quotas and full ranges. Neither has a reason or code of
// its own: k8s.io/apiserver/pkg/admission/plugin/resourcequota and
// k8s.io/kubernetes/pkg/registry/core/service/ipallocator.
const (
	quotaText = "exceeded quota"
	rangeText = "range is full"
)

// scarceIn returns the namespace in which Services are used up according to err, the error of a
// creation, "" for the whole cluster.
func scarceIn(namespace string, err error) (in string, scarce bool) {
	var share shareError
	switch {
	case err == nil:
		return "", false
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), quotaText):
		return namespace, true
	case errors.As(err, &share), strings.Contains(err.Error(), rangeText):
		return "", true
	}
	return "", false
}

// giveWay releases held IPs if err, the error of creating the derived Service of an import, is
// about a quota or about IPs that are used up. It returns the error, with the released IPs; a retry
// comes soon then.
func (r *Controller) giveWay(ctx context.Context, f importFacts, err error) error {
	key := f.key
	namespace, scarce := scarceIn(key.Namespace, err)
	if !scarce {
		return err
	}
	undo, isDue := r.releases.begin(namespace, r.now())
	if !isDue {
		return err
	}
	held, listErr := r.findHeld(ctx, namespace, f)
	if held == nil || listErr != nil {
		undo()
		return errors.Join(err, listErr)
	}
	// The precondition on the version keeps a Service whose import has begun again.
	deleteErr := r.client.Delete(ctx, held, client.Preconditions{UID: &held.UID, ResourceVersion: &held.ResourceVersion})
	if client.IgnoreNotFound(deleteErr) != nil {
		return errors.Join(err, deleteErr)
	}
	ended := mcs.Key{Namespace: held.Namespace, Name: held.Labels[mcsv1beta1.LabelServiceName]}
	message := fmt.Sprintf("released the held clusterset IPs %s of the ended import %s, because the Service of import %s could not be created",
		strings.Join(ipsOf(held), ","), ended, key)
	log.FromContext(ctx).Info("Released clusterset IPs", "ips", ipsOf(held), "of", ended.String())
	r.events.Publish(kube.HeldIPReleased(ended, message))
	return fmt.Errorf("%s: %v", message, err) //nolint:errorlint // not a refusal: the next attempt may succeed
}

// findHeld returns the Service in namespace, or in any if that is "", whose IPs give way to an
// import, nil if there is none.
func (r *Controller) findHeld(ctx context.Context, namespace string, f importFacts) (*corev1.Service, error) {
	var list corev1.ServiceList
	options := []client.ListOption{client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}}
	if namespace != "" {
		options = append(options, client.InNamespace(namespace))
	}
	if err := r.client.List(ctx, &list, options...); err != nil {
		return nil, fmt.Errorf("listing the Services that hold IPs: %w", err)
	}
	held := slices.DeleteFunc(slices.Clone(list.Items), func(svc corev1.Service) bool {
		key := mcs.Key{Namespace: svc.Namespace, Name: svc.Labels[mcsv1beta1.LabelServiceName]}
		return svc.DeletionTimestamp != nil || len(heldServices(key, []*corev1.Service{&svc})) == 0
	})
	var exporters []string
	isEstablished := f.imp != nil && len(f.imp.Spec.IPs) > 0
	// to an export of this cluster, and to an import that had IPs, each gives way
	if f.local == nil && !isEstablished {
		exporters = f.view.In(registry.Exports)
	}
	return chooseHeld(held, exporters, max(1, len(list.Items)/heldPart)).DeepCopy(), nil
}

// heldPart divides the derived Services: the ended imports of a cluster, up to one part in heldPart
// of them, keep their IPs whatever other clusters export. With half of the 256 Service IPs of a
// small network in use by imports, that are 16 of each cluster.
const heldPart = 8

// chooseHeld returns the Service that gives way to an import from the clusters exporters, nil if
// there is none. It is the one that has held its IPs longest of the clusters that ask, or else of
// those that hold more than limit: a cluster that exports one name after the other takes the IPs of
// its own ended imports. Without exporters it is any.
func chooseHeld(held []corev1.Service, exporters []string, limit int) *corev1.Service {
	count := map[string]int{}
	for i := range held {
		for _, cluster := range plan.HeldFor(&held[i]) {
			count[cluster]++
		}
	}
	givesWay := func(svc *corev1.Service, isEligible func(cluster string) bool) bool {
		return len(exporters) == 0 || !slices.ContainsFunc(plan.HeldFor(svc), func(c string) bool { return !isEligible(c) })
	}
	for _, isEligible := range []func(string) bool{
		func(c string) bool { return slices.Contains(exporters, c) },
		func(c string) bool { return slices.Contains(exporters, c) || count[c] > limit },
	} {
		var oldest *corev1.Service
		for i := range held {
			if svc := &held[i]; givesWay(svc, isEligible) && (oldest == nil || heldOrder(svc) < heldOrder(oldest)) {
				oldest = svc
			}
		}
		if oldest != nil {
			return oldest
		}
	}
	return nil
}

// heldOrder sorts Services by the time since when they are held: RFC 3339 in UTC sorts by time.
func heldOrder(svc *corev1.Service) string {
	return svc.Annotations[plan.AnnotationHeldSince] + svc.Name
}
