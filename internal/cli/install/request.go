package install

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/configmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// readRequests returns the content of the ConfigMap in which the controller keeps the cluster's
// identities and reads the requests of users.
func readRequests(ctx context.Context, s *session.Session, k *session.Cluster) (map[string]string, error) {
	var object corev1.ConfigMap
	if _, err := k.Find(ctx, s.ControllerNamespace, names.IdentityConfigMap, &object); err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", s.ControllerNamespace, names.IdentityConfigMap, err)
	}
	return object.Data, nil
}

// writeRequests sets keys of the ConfigMap; nil removes one. Without the controller's namespace
// there is no controller, and it writes nothing.
func writeRequests(ctx context.Context, s *session.Session, k *session.Cluster, values map[string]any) error {
	c, err := k.Objects()
	if err != nil {
		return err
	}
	name := types.NamespacedName{Namespace: s.ControllerNamespace, Name: names.IdentityConfigMap}
	err = configmap.Merge(ctx, client.WithFieldOwner(c, fieldManager), name, values)
	if session.IsNotFound(err) {
		return nil
	}
	return err
}

// readMember returns the status of the controller of a context. It returns an error, which begins
// with the purpose, unless the controller is the leader and the cluster a member.
func readMember(ctx context.Context, s *session.Session, k *session.Cluster, purpose string) (status.Status, error) {
	st, err := session.QueryController[status.Status](ctx, s, k, status.PathStatus)
	switch {
	case err != nil:
		return st, err
	case !st.Leader:
		return st, fmt.Errorf("%s: %s", purpose, status.NoLeader)
	case st.Identity == nil:
		return st, fmt.Errorf("%s: %s", purpose, st.Problem)
	}
	return st, nil
}

// sendRequest sets a key of the ConfigMap, and waits until the controller has handled the request.
// A limit of 0 does not wait: then handled is false. effect completes "the controller …" for users.
func sendRequest(ctx context.Context, s *session.Session, k *session.Cluster, key, value, effect string, limit time.Duration) (handled bool, err error) {
	if err := writeRequests(ctx, s, k, map[string]any{key: value}); err != nil {
		return false, err
	}
	if limit <= 0 {
		s.Printf("%s: requested that the controller %s", k.Context, effect)
		return false, nil
	}
	err = awaitRequest(ctx, s, k, key, limit)
	if err != nil && wait.Interrupted(err) {
		return false, session.Incompletef("waiting until the controller %s: it has not done so within %s; it will as soon as it is a member", effect, limit)
	}
	return err == nil, err
}

// awaitRequest waits until the controller has handled a request, and so deleted its key.
func awaitRequest(ctx context.Context, s *session.Session, k *session.Cluster, key string, limit time.Duration) error {
	return k.Poll(ctx, limit, func() (bool, error) {
		data, err := readRequests(ctx, s, k)
		_, pending := data[key]
		return !pending, err
	})
}

// requestedAt is the value of a request, for users.
func requestedAt(k *session.Cluster, command string) string {
	return "kubectl mcs " + command + " at " + k.Now().UTC().Format("2006-01-02T15:04:05Z")
}

// readIdentities returns the identities of the cluster, without UIDs: those that the controller
// remembers and that of the ClusterProperties.
func readIdentities(ctx context.Context, s *session.Session, k *session.Cluster) ([]mcs.Identity, error) {
	data, err := readRequests(ctx, s, k)
	if err != nil {
		return nil, err
	}
	var identities []mcs.Identity
	for _, key := range slices.Sorted(maps.Keys(data)) {
		clusterSet, cluster, _ := strings.Cut(key, ".")
		if mcs.ValidateClusterID(clusterSet) == nil && mcs.ValidateClusterID(cluster) == nil {
			identities = append(identities, mcs.Identity{ClusterSetID: clusterSet, ClusterID: cluster})
		}
	}
	var id, set aboutv1beta1.ClusterProperty
	for name, property := range map[string]*aboutv1beta1.ClusterProperty{aboutv1beta1.ClusterIDProperty: &id, aboutv1beta1.ClusterSetIDProperty: &set} {
		if _, err := k.Find(ctx, "", name, property); err != nil {
			return nil, fmt.Errorf("reading ClusterProperty %s: %w", name, err)
		}
	}
	current := mcs.Identity{ClusterSetID: set.Spec.Value, ClusterID: id.Spec.Value}
	if current.ClusterID != "" && current.ClusterSetID != "" && !slices.Contains(identities, current) {
		identities = append(identities, current)
	}
	return identities, nil
}
