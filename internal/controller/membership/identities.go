package membership

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// IdentitiesName is the name of the ConfigMap that remembers identities; deploy/rbac allows just this one.
const IdentitiesName = names.IdentityConfigMap

// Identities remembers under which identities this cluster may have something in the registry: in a ConfigMap with a key
// "<clusterset>.<cluster>" for each, both DNS labels, and the UID of namespace kube-system for its value. From it, a
// controller learns of an identity that was changed while none ran.
type Identities struct {
	// Client reads and writes without a cache: one object, a few times per process.
	Client client.Client
	// Namespace is where the ConfigMap is; "" is nowhere, and nothing is remembered.
	Namespace string
}

// List returns the identities that are remembered, sorted. UIDs may be another cluster's, when the ConfigMap was copied from there.
func (i *Identities) List(ctx context.Context) ([]mcs.Identity, error) {
	if i.Namespace == "" {
		return nil, nil
	}
	var remembered corev1.ConfigMap
	name := types.NamespacedName{Namespace: i.Namespace, Name: IdentitiesName}
	if _, err := kube.Find(ctx, i.Client, name, &remembered); err != nil {
		return nil, err
	}
	var out []mcs.Identity
	for _, key := range slices.Sorted(maps.Keys(remembered.Data)) {
		clusterSet, cluster, _ := strings.Cut(key, ".")
		if mcs.ValidateClusterID(clusterSet) == nil && mcs.ValidateClusterID(cluster) == nil {
			out = append(out, mcs.Identity{ClusterSetID: clusterSet, ClusterID: cluster, UID: remembered.Data[key]})
		}
	}
	return out, nil
}

// Remember notes that there may be something under identity.
func (i *Identities) Remember(ctx context.Context, identity mcs.Identity) error {
	return i.patch(ctx, identity, &identity.UID)
}

// Forget notes that there is nothing under identity any more.
func (i *Identities) Forget(ctx context.Context, identity mcs.Identity) error {
	return i.patch(ctx, identity, nil)
}

// patch sets the value of an identity's key; nil removes it.
func (i *Identities) patch(ctx context.Context, identity mcs.Identity, value *string) error {
	if i.Namespace == "" {
		return nil
	}
	key := identity.ClusterSetID + "." + identity.ClusterID
	change, err := json.Marshal(map[string]any{"data": map[string]*string{key: value}})
	if err != nil {
		return fmt.Errorf("writing identity %s: %w", key, err)
	}
	remembered := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: IdentitiesName}}
	err = i.Client.Patch(ctx, remembered, client.RawPatch(types.MergePatchType, change))
	if apierrors.IsNotFound(err) && value == nil {
		return nil
	}
	if apierrors.IsNotFound(err) {
		remembered.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
		remembered.Data = map[string]string{key: *value}
		err = i.Client.Create(ctx, remembered)
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s, which remembers this cluster's identities: %w", i.Namespace, IdentitiesName, err)
	}
	return nil
}

// podNamespaceFile is the file in which Kubernetes mounts a pod's namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// homeNamespace returns the controller's own namespace, "" if it runs outside of a cluster and no flag sets it.
func homeNamespace(o config.Election) string {
	if o.Namespace != "" {
		return o.Namespace
	}
	namespace, err := os.ReadFile(podNamespaceFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(namespace))
}
