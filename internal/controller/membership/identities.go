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

// IdentitiesName is the name of the ConfigMap with the identities; deploy/rbac allows just this
// one.
const IdentitiesName = names.IdentityConfigMap

// Identities stores the identities under which the registry may have records of this cluster in a
// ConfigMap, with the keys of package names. From it, a controller learns that the identity was
// changed while no controller ran. Users add requests: to leave, and to forget another cluster.
type Identities struct {
	// Client reads and writes without a cache: one object, read every few seconds.
	Client client.Client
	// Namespace is the namespace of the ConfigMap. If it is "", nothing is stored.
	Namespace string
}

// remembered is the content of the ConfigMap.
type storedIdentities struct {
	// Identities are sorted. UIDs may be another cluster's, if the ConfigMap was copied from there.
	Identities []mcs.Identity
	// data has all keys.
	data map[string]string
}

// shouldLeave reports whether a user requests that the cluster leaves under identity.
func (s storedIdentities) shouldLeave(identity mcs.Identity) bool {
	_, ok := s.data[names.LeaveKey(identity.ClusterSetID, identity.ClusterID)]
	return ok
}

// isLeaving reports whether the controller has begun to leave under identity.
func (s storedIdentities) isLeaving(identity mcs.Identity) bool {
	_, ok := s.data[names.LeavingKey(identity.ClusterSetID, identity.ClusterID)]
	return ok
}

// contains reports whether identity is stored.
func (s storedIdentities) contains(identity mcs.Identity) bool {
	return slices.Contains(s.Identities, identity)
}

// listWithSuffix returns the clusters that have a key with a suffix, without UIDs, sorted.
func (s storedIdentities) listWithSuffix(suffix string) []mcs.Identity {
	var out []mcs.Identity
	for _, key := range slices.Sorted(maps.Keys(s.data)) {
		name, ok := strings.CutSuffix(key, suffix)
		if identity, valid := parseIdentity(name); ok && valid {
			out = append(out, identity)
		}
	}
	return out
}

// joined returns the time at which the cluster became a member under identity for the first time,
// zero if it never did.
func (s storedIdentities) joined(identity mcs.Identity) time.Time {
	if !s.contains(identity) {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, s.data[names.JoinedKey(identity.ClusterSetID, identity.ClusterID)])
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

// read returns the content of the ConfigMap.
func (i *Identities) read(ctx context.Context) (storedIdentities, error) {
	if i.Namespace == "" {
		return storedIdentities{}, nil
	}
	var object corev1.ConfigMap
	name := types.NamespacedName{Namespace: i.Namespace, Name: IdentitiesName}
	if _, err := kube.Find(ctx, i.Client, name, &object); err != nil {
		return storedIdentities{}, fmt.Errorf("reading ConfigMap %s, which has this cluster's identities: %w", name, err)
	}
	out := storedIdentities{data: object.Data}
	for _, key := range slices.Sorted(maps.Keys(object.Data)) {
		if identity, ok := parseIdentity(key); ok {
			identity.UID = object.Data[key]
			out.Identities = append(out.Identities, identity)
		}
	}
	return out, nil
}

// List returns the stored identities, sorted. UIDs may be another cluster's, if the ConfigMap was
// copied from there.
func (i *Identities) List(ctx context.Context) ([]mcs.Identity, error) {
	stored, err := i.read(ctx)
	return stored.Identities, err
}

// Joined returns the time at which the cluster became a member under identity for the first time,
// zero if it never did.
func (i *Identities) Joined(ctx context.Context, identity mcs.Identity) (time.Time, error) {
	stored, err := i.read(ctx)
	return stored.joined(identity), err
}

// Add stores identity: the registry may have records under it.
func (i *Identities) Add(ctx context.Context, identity mcs.Identity) error {
	return i.patch(ctx, map[string]any{names.IdentityKey(identity.ClusterSetID, identity.ClusterID): identity.UID})
}

// setJoined stores the time at which the cluster became a member under identity.
func (i *Identities) setJoined(ctx context.Context, identity mcs.Identity, at time.Time) error {
	return i.patch(ctx, map[string]any{names.JoinedKey(identity.ClusterSetID, identity.ClusterID): at.UTC().Format(time.RFC3339)})
}

// setLeaving stores that the cluster leaves under identity, with the reason.
func (i *Identities) setLeaving(ctx context.Context, identity mcs.Identity, reason string) error {
	return i.patch(ctx, map[string]any{names.LeavingKey(identity.ClusterSetID, identity.ClusterID): reason})
}

// clearLeaving removes the mark of setLeaving.
func (i *Identities) clearLeaving(ctx context.Context, identity mcs.Identity) error {
	return i.patch(ctx, map[string]any{names.LeavingKey(identity.ClusterSetID, identity.ClusterID): nil})
}

// Remove removes identity: the registry has no records under it. The requests of users stay.
func (i *Identities) Remove(ctx context.Context, identity mcs.Identity) error {
	return i.patch(ctx, map[string]any{
		names.IdentityKey(identity.ClusterSetID, identity.ClusterID): nil,
		names.JoinedKey(identity.ClusterSetID, identity.ClusterID):   nil,
		names.LeavingKey(identity.ClusterSetID, identity.ClusterID):  nil,
	})
}

// removeRequest removes a user's request by its key.
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
