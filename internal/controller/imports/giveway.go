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
)

// releasePause is the time between two releases of held IPs in one place. The controller-manager counts the use of a quota again some time
// after a deletion, usually within a second; without the pause all held IPs would go meanwhile.
const releasePause = 5 * time.Second

// heldReleases releases held clusterset IPs when a derived Service cannot be created because Services or IPs are used up.
type heldReleases struct {
	mu sync.Mutex
	// last has the time of the last release, by namespace, "" for the IPs of the cluster.
	last map[string]time.Time
}

// begin reports whether a release in namespace is due.
func (h *heldReleases) begin(namespace string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.last[namespace]) < releasePause {
		return false
	}
	if h.last == nil {
		h.last = map[string]time.Time{}
	}
	h.last[namespace] = now
	return true
}

// Texts of the API server's errors about quotas and full ranges. Neither has a reason or code of its own: k8s.io/apiserver/pkg/admission/plugin/resourcequota
// and k8s.io/kubernetes/pkg/registry/core/service/ipallocator.
const (
	quotaText = "exceeded quota"
	rangeText = "range is full"
)

// scarceIn returns the namespace in which Services are used up according to err, the error of a creation, "" for the whole cluster.
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

// giveWay releases the IPs that have been held longest if err, the error of creating the derived Service of key, is about a quota or about IPs that are
// used up. Holding is a comfort: it must not prevent an import. It returns the error, with the released IPs; a retry comes soon then.
func (r *Controller) giveWay(ctx context.Context, key mcs.Key, err error) error {
	namespace, scarce := scarceIn(key.Namespace, err)
	if !scarce || !r.releases.begin(namespace, r.now()) {
		return err
	}
	held, listErr := r.oldestHeld(ctx, namespace)
	if held == nil || listErr != nil {
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

// oldestHeld returns the Service in namespace, or in any if that is "", that has held its IPs longest, nil if there is none.
func (r *Controller) oldestHeld(ctx context.Context, namespace string) (*corev1.Service, error) {
	var list corev1.ServiceList
	options := []client.ListOption{client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}}
	if namespace != "" {
		options = append(options, client.InNamespace(namespace))
	}
	if err := r.client.List(ctx, &list, options...); err != nil {
		return nil, fmt.Errorf("listing the Services that hold IPs: %w", err)
	}
	held := slices.DeleteFunc(list.Items, func(svc corev1.Service) bool {
		key := mcs.Key{Namespace: svc.Namespace, Name: svc.Labels[mcsv1beta1.LabelServiceName]}
		return svc.DeletionTimestamp != nil || len(heldServices(key, []*corev1.Service{&svc})) == 0
	})
	if len(held) == 0 {
		return nil, nil
	}
	oldest := slices.MinFunc(held, func(a, b corev1.Service) int {
		// RFC 3339 in UTC sorts by time.
		return strings.Compare(a.Annotations[plan.AnnotationHeldSince]+a.Name, b.Annotations[plan.AnnotationHeldSince]+b.Name)
	})
	return oldest.DeepCopy(), nil
}
