package session

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// The names of the controller's objects, the same in every installation.
const (
	DefaultNamespace = names.Namespace
	ManagerName      = names.Manager
	LeaseName        = names.Lease
)

// ManagerLabels returns the labels of the controller's pods.
func ManagerLabels() client.MatchingLabels {
	return client.MatchingLabels{"app.kubernetes.io/name": names.Product, "app.kubernetes.io/component": "manager"}
}

// maxResponse bounds the response of a controller, which is not trusted. The status of 1,000
// clusters with 5,000 imports is some MiB.
const maxResponse = 64 << 20

// readAll returns what r has, or an error if that is more than limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(body)) > limit {
		return nil, fmt.Errorf("the response has more than %d bytes: the pod is not the controller, or not one of this version", limit)
	}
	return body, err
}

// queryTimeout exceeds the duration of a probe by the controller: a lookup of 5 s, concurrent with
// connections of 3 s.
const queryTimeout = 15 * time.Second

// QueryController returns the response of the leading controller's status endpoint at path.
func QueryController[T any](ctx context.Context, s *Session, k *Cluster, path string) (T, error) {
	var response T
	body, err := ReadController(ctx, s, k, path)
	if err != nil {
		return response, err
	}
	if err := json.Unmarshal(body, &response); err != nil {
		return response, fmt.Errorf("decoding the response of the controller in %s: %w", k.Context, err)
	}
	return response, nil
}

// ReadController returns the text of the response.
func ReadController(ctx context.Context, s *Session, k *Cluster, path string) ([]byte, error) {
	pod, err := s.Leader(ctx, k)
	if err != nil {
		return nil, err
	}
	body, err := k.query(ctx, pod, path)
	if err != nil {
		return nil, fmt.Errorf("querying %s of pod %s/%s: %w", path, pod.Namespace, pod.Name, err)
	}
	return body, nil
}

// query returns the response of the controller in pod at path.
func (k *Cluster) query(ctx context.Context, pod *corev1.Pod, path string) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var body []byte
	err := k.ForwardPort(limited, pod, ContainerPort(pod, status.PortName, names.StatusPort), func(conn io.ReadWriter) (err error) {
		body, err = httpGet(limited, conn, path)
		return err
	})
	if err == nil {
		return body, nil
	}
	// a refused upgrade to WebSocket or SPDY has no status
	if allowed, problem := k.CanForwardTo(ctx, pod.Namespace); problem == nil && !allowed {
		return nil, &NoPermissionError{"create", "pods/portforward", pod.Namespace, err}
	}
	return nil, err
}

// httpGet sends one request over a connection and returns the body of the response.
func httpGet(ctx context.Context, conn io.ReadWriter, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := readAll(resp.Body, maxResponse)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(body)))
	}
	return body, nil
}

// Leader returns the controller's pod that holds the Lease or, without a holder, any ready pod.
func (s *Session) Leader(ctx context.Context, k *Cluster) (*corev1.Pod, error) {
	var pods corev1.PodList
	if err := k.List(ctx, s.ControllerNamespace, &pods, ManagerLabels()); err != nil {
		return nil, fmt.Errorf("listing the controller's pods: %w", err)
	}
	var lease coordinationv1.Lease
	if _, err := k.Find(ctx, s.ControllerNamespace, LeaseName, &lease); err != nil {
		return nil, fmt.Errorf("reading the controller's Lease: %w", err)
	}
	pod, problem := chooseLeader(pods.Items, lease.Spec.HolderIdentity)
	if pod == nil {
		return nil, fmt.Errorf("finding the controller in namespace %s: %s", s.ControllerNamespace, problem)
	}
	return pod, nil
}

// chooseLeader returns the pod that the Lease's holder names, else the first ready pod, or nil and
// the reason.
func chooseLeader(pods []corev1.Pod, holder *string) (*corev1.Pod, string) {
	if holder != nil {
		// client-go appends a UUID to the hostname, which is the pod's name
		name, _, _ := strings.Cut(*holder, "_")
		if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == name }); i >= 0 {
			return &pods[i], ""
		}
	}
	if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return IsPodReady(&p) }); i >= 0 {
		return &pods[i], ""
	}
	if len(pods) == 0 {
		return nil, "no pod found: run \"kubectl mcs install\", or set --controller-namespace"
	}
	return nil, fmt.Sprintf("no pod is ready, for example %s: %s", pods[0].Name, notReadyReason(&pods[0]))
}

// notReadyReason returns the reason in the pod's status for not being ready.
func notReadyReason(pod *corev1.Pod) string {
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

// LastMessage returns the last message of a controller that failed and does not work now, with the
// name of its pod, "" if there is none. The kubelet keeps it in the status of the pod
// (terminationMessagePolicy).
func LastMessage(pods []corev1.Pod) string {
	for _, pod := range pods {
		for _, c := range pod.Status.ContainerStatuses {
			ended := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
			if c.Ready || ended == nil || ended.ExitCode == 0 {
				continue
			}
			if text := cmp.Or(lastLine(ended.Message), ended.Reason); text != "" {
				return fmt.Sprintf("the last message of pod %s: %s", pod.Name, text)
			}
		}
	}
	return ""
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
