package session

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
	if err != nil && !IsPodReady(pod) && !IsNoPermission(err) {
		return nil, s.newAbsentError(ctx, k, []corev1.Pod{*pod})
	}
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

// Leader returns the controller's pod that holds the Lease or, without a holder, any ready pod. The
// error is an AbsentError if there is none.
func (s *Session) Leader(ctx context.Context, k *Cluster) (*corev1.Pod, error) {
	var pods corev1.PodList
	if err := k.List(ctx, s.ControllerNamespace, &pods, ManagerLabels()); err != nil {
		return nil, fmt.Errorf("listing the controller's pods: %w", err)
	}
	var lease coordinationv1.Lease
	if _, err := k.Find(ctx, s.ControllerNamespace, LeaseName, &lease); err != nil {
		return nil, fmt.Errorf("reading the controller's Lease: %w", err)
	}
	if pod := chooseLeader(pods.Items, lease.Spec.HolderIdentity); pod != nil {
		return pod, nil
	}
	return nil, s.newAbsentError(ctx, k, pods.Items)
}

// chooseLeader returns the pod that the Lease's holder names, else the first ready pod, or nil.
func chooseLeader(pods []corev1.Pod, holder *string) *corev1.Pod {
	if holder != nil {
		// client-go appends a UUID to the hostname, which is the pod's name
		name, _, _ := strings.Cut(*holder, "_")
		if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == name }); i >= 0 {
			return &pods[i]
		}
	}
	if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return IsPodReady(&p) }); i >= 0 {
		return &pods[i]
	}
	return nil
}
