package dns

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// probePods queries every ready pod of a Deployment of CoreDNS for clusterset.local.
func probePods(ctx context.Context, k *session.Cluster, deployment *appsv1.Deployment) (responses, error) {
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return responses{}, fmt.Errorf("reading the selector of Deployment %s/%s: %w", namespace, deployment.Name, err)
	}
	found, err := probe(ctx, k, selector)
	if deployment.Name != name {
		found.of = deployment.Name
	}
	return found, err
}

// probeServers queries the pods of the cluster's DNS by the label that they have in all
// distributions, whatever the server is.
func probeServers(ctx context.Context, k *session.Cluster) (responses, error) {
	found, err := probe(ctx, k, labels.SelectorFromSet(labels.Set{"k8s-app": "kube-dns"}))
	found.of = "DNS"
	return found, err
}

// probe queries every ready pod in kube-system with the labels.
func probe(ctx context.Context, k *session.Cluster, selector labels.Selector) (responses, error) {
	allowed, err := k.CanForwardTo(ctx, namespace)
	if err != nil {
		return responses{}, err
	}
	if !allowed {
		return responses{skipped: "you do not have permission to port-forward to pods in " + namespace}, nil
	}
	pods, err := k.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return responses{}, fmt.Errorf("listing the DNS pods: %w", session.WithRule(err, "list", namespace))
	}
	var found responses
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !session.IsPodReady(pod) {
			continue
		}
		found.pods++
		answered, err := probePod(ctx, k, pod)
		if answered {
			found.answered++
		}
		if err != nil {
			found.err = err // one error is enough for the user to act on
		}
	}
	return found, nil
}

// waitForPods waits until CoreDNS has rolled out and every pod answers for clusterset.local or,
// with enable false, none does. If the pods cannot be queried, only the rollout counts, and the
// responses have the reason.
func waitForPods(ctx context.Context, k *session.Cluster, enable bool, timeout time.Duration) (responses, error) {
	var r rollout
	err := k.Poll(ctx, timeout, func() (bool, error) { return r.poll(ctx, k, enable) })
	if err == nil {
		return r.found, nil
	}
	if !wait.Interrupted(err) {
		return r.found, fmt.Errorf("waiting for CoreDNS: %w", err)
	}
	return r.found, r.timeoutError(enable, timeout)
}

// rollout is the state of CoreDNS at the last poll.
type rollout struct {
	status appsv1.DeploymentStatus
	done   bool
	found  responses
}

// poll reads the state and reports whether the wait is over.
func (r *rollout) poll(ctx context.Context, k *session.Cluster, enable bool) (bool, error) {
	deployment, err := k.Kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("reading the Deployment of CoreDNS: %w", err)
	}
	r.status, r.done = deployment.Status, session.IsRolledOut(deployment)
	if !r.done {
		return false, nil
	}
	if r.found, err = probePods(ctx, k, deployment); err != nil {
		return false, err
	}
	return r.found.skipped != "" || r.found.isComplete() && r.found.allAgree(enable), nil
}

// timeoutError names the pods that were not ready at the timeout. It returns nil for pods that run
// but cannot be queried.
func (r *rollout) timeoutError(enable bool, timeout time.Duration) error {
	still := "still "
	if enable {
		still = ""
	}
	switch {
	case !r.done:
		return session.Incompletef("waiting for CoreDNS: after %s %d of %d pods of Deployment %s/%s are updated and available; find the reason with\n"+
			"  kubectl -n %[4]s describe deployment %[5]s\n  kubectl -n %[4]s logs deployment/%[5]s",
			timeout, min(r.status.UpdatedReplicas, r.status.AvailableReplicas), r.status.Replicas, namespace, name)
	case !r.found.isComplete():
		return nil
	default:
		return session.Incompletef("waiting for CoreDNS: after %s %d of %d pods %sanswer for %s", timeout, r.found.answered, r.found.pods, still, coredns.Zone)
	}
}
