package cli

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// mayAsk tells whether the user may port-forward to CoreDNS's pods.
func mayAsk(ctx context.Context, k *cluster) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: coreDNSNamespace, Verb: "create", Resource: "pods", Subresource: "portforward",
		},
	}}
	review, err := k.kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("asking whether port-forward is allowed: %w", err)
	}
	return review.Status.Allowed, nil
}

// askPods asks every ready pod of CoreDNS whether it answers for clusterset.local.
func askPods(ctx context.Context, k *cluster, deployment *appsv1.Deployment) (answers, error) {
	allowed, err := mayAsk(ctx, k)
	if err != nil {
		return answers{}, err
	}
	if !allowed {
		return answers{skipped: "you may not port-forward to pods in " + coreDNSNamespace}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return answers{}, fmt.Errorf("reading the selector of Deployment %s/%s: %w", coreDNSNamespace, coreDNSName, err)
	}
	pods, err := k.kube.CoreV1().Pods(coreDNSNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return answers{}, fmt.Errorf("listing CoreDNS's pods: %w", err)
	}
	var found answers
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !ready(pod) {
			continue
		}
		found.pods++
		yes, err := k.ask(ctx, pod)
		if yes {
			found.yes++
		}
		if err != nil {
			found.problem = err // one is enough to act upon
		}
	}
	return found, nil
}

func ready(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// rolledOut tells whether every pod of the Deployment runs its current template and no other pod is left.
func rolledOut(d *appsv1.Deployment) bool {
	replicas := int32(1)
	if d.Spec.Replicas != nil {
		replicas = *d.Spec.Replicas
	}
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas && s.Replicas == replicas
}

// agree tells whether every pod says what is wanted: that it answers for the zone, or that it does not.
func (a answers) agree(want bool) bool {
	if want {
		return a.yes == a.pods && a.pods > 0
	}
	return a.yes == 0
}

// known tells whether the pods could be asked.
func (a answers) known() bool { return a.skipped == "" && a.problem == nil }

// await waits until CoreDNS has rolled out and every pod does, or no longer does, answer for clusterset.local. Where the
// pods cannot be asked the rollout alone counts, and the answers returned say why.
func await(ctx context.Context, k *cluster, want bool, timeout time.Duration) (answers, error) {
	var w waiting
	err := poll(ctx, k, timeout, func() (bool, error) { return w.look(ctx, k, want) })
	if err == nil {
		return w.said, nil
	}
	if !wait.Interrupted(err) || ctx.Err() != nil {
		return w.said, fmt.Errorf("waiting for CoreDNS: %w", err)
	}
	return w.said, w.timedOut(want, timeout)
}

// waiting is what was seen last.
type waiting struct {
	status appsv1.DeploymentStatus
	rolled bool
	said   answers
}

func (w *waiting) look(ctx context.Context, k *cluster, want bool) (bool, error) {
	deployment, err := k.kube.AppsV1().Deployments(coreDNSNamespace).Get(ctx, coreDNSName, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("reading CoreDNS's Deployment: %w", err)
	}
	w.status, w.rolled = deployment.Status, rolledOut(deployment)
	if !w.rolled {
		return false, nil
	}
	if w.said, err = askPods(ctx, k, deployment); err != nil {
		return false, err
	}
	return w.said.skipped != "" || w.said.known() && w.said.agree(want), nil
}

// timedOut says what was still missing. Pods that run but could not be asked are no failure.
func (w *waiting) timedOut(want bool, timeout time.Duration) error {
	still := "still "
	if want {
		still = ""
	}
	switch {
	case !w.rolled:
		return fmt.Errorf("waiting for CoreDNS: after %s %d of %d pods of Deployment %s/%s are updated and available; see why with\n"+
			"  kubectl -n %[4]s describe deployment %[5]s\n  kubectl -n %[4]s logs deployment/%[5]s",
			timeout, min(w.status.UpdatedReplicas, w.status.AvailableReplicas), w.status.Replicas, coreDNSNamespace, coreDNSName)
	case !w.said.known():
		return nil
	default:
		return fmt.Errorf("waiting for CoreDNS: after %s %d of %d pods %sanswer for %s", timeout, w.said.yes, w.said.pods, still, coredns.Zone)
	}
}
