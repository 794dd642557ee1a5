package kubestore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// ResourceIDs keeps the Cloud Map resource IDs of a cluster in the ConfigMap with its identities,
// which the controller creates before it joins: under the key
// "<clusterset>.<cluster>.resource-ids", separated by spaces, with - for an ID that is missing.
type ResourceIDs struct {
	Client    client.Client
	Namespace string
	Identity  mcs.Identity
}

var _ cloudmap.ResourceIDStore = ResourceIDs{}

// missingID stands for an ID that is missing.
const missingID = "-"

// LoadResourceIDs implements cloudmap.ResourceIDStore. A value that cannot be read is none.
func (r ResourceIDs) LoadResourceIDs(ctx context.Context) (cloudmap.ResourceIDs, error) {
	var object corev1.ConfigMap
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: names.IdentityConfigMap}, &object)
	if apierrors.IsNotFound(err) {
		return cloudmap.ResourceIDs{}, nil
	}
	if err != nil {
		return cloudmap.ResourceIDs{}, fmt.Errorf("reading resource IDs from ConfigMap %s/%s: %w", r.Namespace, names.IdentityConfigMap, err)
	}
	ids := strings.Fields(object.Data[r.key()])
	if len(ids) != 4 {
		return cloudmap.ResourceIDs{}, nil
	}
	for i := range ids {
		ids[i] = strings.TrimPrefix(ids[i], missingID)
	}
	heartbeat, err := strconv.ParseInt(ids[3], 10, 64)
	if err != nil {
		return cloudmap.ResourceIDs{}, nil //nolint:nilerr // it cannot be read: there is none
	}
	return cloudmap.ResourceIDs{Namespace: ids[0], Members: ids[1], Catalog: ids[2], Heartbeat: engine.SavedHeartbeat(heartbeat)}, nil
}

// SaveResourceIDs implements cloudmap.ResourceIDStore.
func (r ResourceIDs) SaveResourceIDs(ctx context.Context, ids cloudmap.ResourceIDs) error {
	var value any // null removes the key
	if ids != (cloudmap.ResourceIDs{}) {
		value = strings.Join([]string{
			cmp.Or(ids.Namespace, missingID), cmp.Or(ids.Members, missingID), cmp.Or(ids.Catalog, missingID), strconv.FormatInt(int64(ids.Heartbeat), 10),
		}, " ")
	}
	change, err := json.Marshal(map[string]any{"data": map[string]any{r.key(): value}})
	if err != nil {
		return fmt.Errorf("writing resource IDs: %w", err)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: names.IdentityConfigMap}}
	err = r.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, change))
	if apierrors.IsNotFound(err) && value == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing resource IDs to ConfigMap %s/%s: %w", r.Namespace, names.IdentityConfigMap, err)
	}
	return nil
}

// SaveHeartbeat replaces the saved heartbeat. A cluster that exports to etcd has only that: a
// cluster that moves from one registry to another continues after it.
func (r ResourceIDs) SaveHeartbeat(ctx context.Context, heartbeat engine.SavedHeartbeat) error {
	ids, err := r.LoadResourceIDs(ctx)
	if err != nil {
		return err
	}
	ids.Heartbeat = heartbeat
	return r.SaveResourceIDs(ctx, ids)
}

// key returns the key of the identity's resource IDs. It has two dots, so it is not the key of an
// identity.
func (r ResourceIDs) key() string {
	return r.Identity.ClusterSetID + "." + r.Identity.ClusterID + ".resource-ids"
}
