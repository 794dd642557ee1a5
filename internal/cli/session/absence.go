package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// An AbsentError is the reason why no pod of the controller answers.
type AbsentError struct {
	// State names the reason: not installed, not found, scaled to zero, without pods, crashing, not
	// started or starting. Detail has the rest, Remedy the action.
	State, Detail, Remedy string
}

// Error implements error.
func (e *AbsentError) Error() string { return e.describe() + ": " + e.Remedy }

func (e *AbsentError) describe() string { return "the controller is " + e.State + ": " + e.Detail }

// The states of a controller that cannot be queried and is not known to be absent.
const (
	StateNoPermission = "no permission"
	stateUnreachable  = "unreachable"
)

// ExplainQuery returns the state of a controller whose query has failed, with the reason and the
// action, which may be "".
func ExplainQuery(err error) (state, detail, remedy string) {
	if absent, ok := errors.AsType[*AbsentError](err); ok {
		return absent.State, absent.describe(), absent.Remedy
	}
	if IsNoPermission(err) {
		return StateNoPermission, err.Error(), seePermissions()
	}
	return stateUnreachable, err.Error(), ""
}

// newAbsentError returns the reason why none of pods answers. It reads the Deployment, if that is
// allowed.
func (s *Session) newAbsentError(ctx context.Context, k *Cluster, pods []corev1.Pod) *AbsentError {
	var deployment appsv1.Deployment
	exists, err := k.Find(ctx, s.ControllerNamespace, ManagerName, &deployment)
	kubectl := "kubectl --context " + k.Context + " -n " + s.ControllerNamespace
	switch {
	case exists && deployment.Spec.Replicas != nil && *deployment.Spec.Replicas == 0:
		return &AbsentError{"scaled to zero", "Deployment " + ManagerName + " has 0 replicas", "run " + kubectl + " scale deployment " + ManagerName + " --replicas=2"}
	case len(pods) > 0:
		return describePods(kubectl, k.Context, pods)
	case err != nil:
		return &AbsentError{"not found", "namespace " + s.ControllerNamespace + " has no pod of it", "check that it is installed there, or set --controller-namespace"}
	case !exists:
		return &AbsentError{
			"not installed", "namespace " + s.ControllerNamespace + " has no Deployment " + ManagerName + " and no pod of it",
			"run kubectl mcs install --context " + k.Context + ", or set --controller-namespace",
		}
	}
	detail := "Deployment " + ManagerName + " has created none"
	for _, c := range deployment.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			detail += ": " + c.Message
		}
	}
	return &AbsentError{"without pods", detail, "find the reason: " + kubectl + " describe deployment " + ManagerName}
}

// describePods returns the reason why none of the pods answers: a pod that crashes first.
func describePods(kubectl, context string, pods []corev1.Pod) *AbsentError {
	for i := range pods {
		if reason, crashed := crashReason(&pods[i]); crashed {
			return &AbsentError{"crashing", "pod " + pods[i].Name + ": " + reason, "find the reason: " + kubectl + " logs " + pods[i].Name + " --previous"}
		}
	}
	pod := &pods[0]
	describe := kubectl + " describe pod " + pod.Name
	if reason, blocked := startProblem(pod); blocked {
		return &AbsentError{"not started", "pod " + pod.Name + ": " + reason, "find the reason: " + describe}
	}
	detail := fmt.Sprintf("pod %s is not ready: %s", pod.Name, notReadyReason(pod))
	if failed := LastFailure(pods); failed != "" {
		detail += "; " + failed
	}
	return &AbsentError{"starting", detail, "wait: kubectl mcs check --wait 1m --context " + context + "; if it continues, " + describe}
}

// crashReason returns the failure of a container that does not run.
func crashReason(pod *corev1.Pod) (reason string, crashed bool) {
	for _, c := range pod.Status.ContainerStatuses {
		if reason := failure(c); reason != "" && c.State.Running == nil {
			return reason, true
		}
	}
	return "", false
}

// LastFailure returns the failure of a container that does not work now, with the name of its pod,
// "" if there is none.
func LastFailure(pods []corev1.Pod) string {
	for _, pod := range pods {
		for _, c := range pod.Status.ContainerStatuses {
			if reason := failure(c); reason != "" {
				return "pod " + pod.Name + ": " + reason
			}
		}
	}
	return ""
}

// failure returns the exit code of a container that has ended with one and is not ready, and the
// last line of its log, which the kubelet keeps in the status (terminationMessagePolicy). It is ""
// for other containers.
func failure(c corev1.ContainerStatus) string {
	ended := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
	if c.Ready || ended == nil || ended.ExitCode == 0 {
		return ""
	}
	text := fmt.Sprintf("container %s has ended %d times, with exit code %d", c.Name, max(1, c.RestartCount), ended.ExitCode)
	if ended.Reason != "" && ended.Reason != "Error" {
		text += " (" + ended.Reason + ")"
	}
	if line := lastLine(ended.Message); line != "" {
		text += ": " + line
	}
	return text
}

// lastLine returns the last line of a log or, before the stack of a panic, its reason.
func lastLine(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	for _, line := range lines {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

// startProblem returns the reason why a container of the pod cannot start or the pod has no node.
func startProblem(pod *corev1.Pod) (reason string, blocked bool) {
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, w.Reason) {
			return strings.TrimSuffix(w.Reason+": "+w.Message, ": "), true
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "it has no node: " + c.Message, true
		}
	}
	return "", false
}

// notReadyReason returns the reason in the pod's status for not being ready.
func notReadyReason(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			return c.Message
		}
	}
	return "phase " + string(pod.Status.Phase)
}
