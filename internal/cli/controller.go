package cli

import (
	"bufio"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// What the controller's objects are called in every installation.
const (
	defaultNamespace = names.Namespace
	managerName      = names.Manager
	leaseName        = names.Lease
)

var managerLabels = client.MatchingLabels{
	"app.kubernetes.io/name": names.Product, "app.kubernetes.io/component": "manager",
}

// fetchTimeout is longer than a probe of the controller takes: a lookup of 5 s beside connections of 3 s.
const fetchTimeout = 15 * time.Second

// A fetcher gets what the status endpoint of a controller's pod says at a path.
type fetcher func(ctx context.Context, pod *corev1.Pod, path string) ([]byte, error)

// fetchThrough asks through the API server's port-forward.
func fetchThrough(config *rest.Config, kube kubernetes.Interface) fetcher {
	return func(ctx context.Context, pod *corev1.Pod, path string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		body, err := throughPort(ctx, config, kube, pod, portNamed(pod, status.PortName, status.DefaultPort), func(conn io.ReadWriter) ([]byte, error) {
			return httpGet(ctx, conn, path)
		})
		if err != nil {
			return nil, fmt.Errorf("asking pod %s/%s for %s: %w", pod.Namespace, pod.Name, path, err)
		}
		return body, nil
	}
}

// httpGet makes one request over a connection.
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
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(body)))
	}
	return body, nil
}

// askController gets what the cluster's leading controller says at path.
func askController[T any](ctx context.Context, a *app, k *cluster, path string) (T, error) {
	var out T
	pod, err := a.leader(ctx, k)
	if err != nil {
		return out, err
	}
	body, err := k.fetch(ctx, pod, path)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return out, fmt.Errorf("reading what pod %s/%s says: %w", pod.Namespace, pod.Name, err)
	}
	return out, nil
}

// leader is the controller's pod that holds the Lease, or without one any that is ready.
func (a *app) leader(ctx context.Context, k *cluster) (*corev1.Pod, error) {
	var pods corev1.PodList
	if err := list(ctx, k, a.controllerNamespace, &pods, managerLabels); err != nil {
		return nil, fmt.Errorf("looking for the controller: %w", err)
	}
	var lease coordinationv1.Lease
	if _, err := find(ctx, k, a.controllerNamespace, leaseName, &lease); err != nil {
		return nil, fmt.Errorf("looking for the controller's leader: %w", err)
	}
	pod, problem := chooseLeader(pods.Items, lease.Spec.HolderIdentity)
	if pod == nil {
		return nil, fmt.Errorf("finding the controller in namespace %s: %s", a.controllerNamespace, problem)
	}
	return pod, nil
}

// chooseLeader is the pod that a Lease's holder names, else the first that is ready, or nil and the reason why there is none.
func chooseLeader(pods []corev1.Pod, holder *string) (*corev1.Pod, string) {
	if holder != nil {
		name, _, _ := strings.Cut(*holder, "_") // client-go appends a UUID to the host's name, which is the pod's
		if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == name }); i >= 0 {
			return &pods[i], ""
		}
	}
	if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return ready(&p) }); i >= 0 {
		return &pods[i], ""
	}
	if len(pods) == 0 {
		return nil, "there is no pod of it: install it with \"kubectl mcs install\", or name its namespace with --controller-namespace"
	}
	return nil, fmt.Sprintf("no pod is ready, for example %s: %s", pods[0].Name, whyNotReady(&pods[0]))
}

// whyNotReady is what Kubernetes says about a pod that does not get ready.
func whyNotReady(pod *corev1.Pod) string {
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

// absent says whether an object, or its whole API, is not there.
func absent(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }
