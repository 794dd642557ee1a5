package membership

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/configmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// IdentitiesName is the name of the ConfigMap that remembers identities; deploy/rbac allows just this one.
const IdentitiesName = names.IdentityConfigMap

// Identities remembers under which identities this cluster may have something in the registry, in a ConfigMap: its keys are those of
// package names. From it, a controller learns of an identity that was changed while none ran, and of what users request: leaving, and
// forgetting another cluster.
type Identities struct {
	// Client reads and writes without a cache: one object, read every few seconds.
	Client client.Client
	// Namespace is where the ConfigMap is; "" is nowhere, and nothing is remembered.
	Namespace string
}

// remembered is the content of the ConfigMap.
type remembered struct {
	// Identities are sorted. UIDs may be another cluster's, if the ConfigMap was copied from there.
	Identities []mcs.Identity
	// data has all keys.
	data map[string]string
}

// shouldLeave reports whether a user requests that the cluster leaves under identity.
func (r remembered) shouldLeave(identity mcs.Identity) bool {
	_, ok := r.data[names.LeaveKey(identity.ClusterSetID, identity.ClusterID)]
	return ok
}

// isLeaving reports whether the controller began to leave under identity.
func (r remembered) isLeaving(identity mcs.Identity) bool {
	_, ok := r.data[names.LeavingKey(identity.ClusterSetID, identity.ClusterID)]
	return ok
}

// contains reports whether identity is remembered.
func (r remembered) contains(identity mcs.Identity) bool {
	return slices.Contains(r.Identities, identity)
}

// listWithSuffix returns the clusters of which there is a key with a suffix, without UIDs, sorted.
func (r remembered) listWithSuffix(suffix string) []mcs.Identity {
	var out []mcs.Identity
	for _, key := range slices.Sorted(maps.Keys(r.data)) {
		name, ok := strings.CutSuffix(key, suffix)
		if identity, valid := parseIdentity(name); ok && valid {
			out = append(out, identity)
		}
	}
	return out
}

// joined returns when the cluster became a member under identity for the first time, zero if it never did.
func (r remembered) joined(identity mcs.Identity) time.Time {
	if !r.contains(identity) {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, r.data[names.JoinedKey(identity.ClusterSetID, identity.ClusterID)])
	if err != nil {
		return time.Time{}
	}
	return at
}

// parseIdentity returns the identity of a key "<clusterset>.<cluster>", without a UID.
func parseIdentity(key string) (mcs.Identity, bool) {
	clusterSet, cluster, _ := strings.Cut(key, ".")
	valid := mcs.ValidateClusterID(clusterSet) == nil && mcs.ValidateClusterID(cluster) == nil
	return mcs.Identity{ClusterSetID: clusterSet, ClusterID: cluster}, valid
}

// read returns what is remembered.
func (i *Identities) read(ctx context.Context) (remembered, error) {
	if i.Namespace == "" {
		return remembered{}, nil
	}
	var object corev1.ConfigMap
	name := types.NamespacedName{Namespace: i.Namespace, Name: IdentitiesName}
	if _, err := kube.Find(ctx, i.Client, name, &object); err != nil {
		return remembered{}, fmt.Errorf("reading ConfigMap %s, which remembers this cluster's identities: %w", name, err)
	}
	out := remembered{data: object.Data}
	for _, key := range slices.Sorted(maps.Keys(object.Data)) {
		if identity, ok := parseIdentity(key); ok {
			identity.UID = object.Data[key]
			out.Identities = append(out.Identities, identity)
		}
	}
	return out, nil
}

// List returns the identities that are remembered, sorted. UIDs may be another cluster's, if the ConfigMap was copied from there.
func (i *Identities) List(ctx context.Context) ([]mcs.Identity, error) {
	stored, err := i.read(ctx)
	return stored.Identities, err
}

// Joined returns when the cluster became a member under identity for the first time, zero if it never did.
func (i *Identities) Joined(ctx context.Context, identity mcs.Identity) (time.Time, error) {
	stored, err := i.read(ctx)
	return stored.joined(identity), err
}

// Remember notes that there may be something under identity.
func (i *Identities) Remember(ctx context.Context, identity mcs.Identity) error {
	return i.patch(ctx, map[string]any{names.IdentityKey(identity.ClusterSetID, identity.ClusterID): identity.UID})
}

// rememberJoined notes when the cluster became a member under identity.
func (i *Identities) rememberJoined(ctx context.Context, identity mcs.Identity, at time.Time) error {
	return i.patch(ctx, map[string]any{names.JoinedKey(identity.ClusterSetID, identity.ClusterID): at.UTC().Format(time.RFC3339)})
}

// rememberLeaving notes that the cluster leaves under identity, and why.
func (i *Identities) rememberLeaving(ctx context.Context, identity mcs.Identity, reason string) error {
	return i.patch(ctx, map[string]any{names.LeavingKey(identity.ClusterSetID, identity.ClusterID): reason})
}

// forgetLeaving notes that the cluster does not leave under identity any more.
func (i *Identities) forgetLeaving(ctx context.Context, identity mcs.Identity) error {
	return i.patch(ctx, map[string]any{names.LeavingKey(identity.ClusterSetID, identity.ClusterID): nil})
}

// Forget notes that there is nothing under identity any more. What a user requests stays.
func (i *Identities) Forget(ctx context.Context, identity mcs.Identity) error {
	return i.patch(ctx, map[string]any{
		names.IdentityKey(identity.ClusterSetID, identity.ClusterID): nil,
		names.JoinedKey(identity.ClusterSetID, identity.ClusterID):   nil,
		names.LeavingKey(identity.ClusterSetID, identity.ClusterID):  nil,
	})
}

// removeRequest deletes the key of a request of a user.
func (i *Identities) removeRequest(ctx context.Context, key string) error {
	return i.patch(ctx, map[string]any{key: nil})
}

// patch sets values of the ConfigMap; nil removes a key.
func (i *Identities) patch(ctx context.Context, values map[string]any) error {
	if i.Namespace == "" {
		return nil
	}
	return configmap.Merge(ctx, i.Client, types.NamespacedName{Namespace: i.Namespace, Name: IdentitiesName}, values)
}

// object returns the ConfigMap without content.
func (i *Identities) object() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: IdentitiesName}}
}
