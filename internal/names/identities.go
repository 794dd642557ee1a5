package names

// The keys of ConfigMap IdentityConfigMap that begin with IDs of a clusterset and a cluster, which
// are DNS labels.

// IdentityKey is the key of an identity under which this cluster may have exports in the registry.
// Its value is the UID of namespace kube-system.
func IdentityKey(clusterSetID, clusterID string) string { return clusterSetID + "." + clusterID }

// JoinedKey is the key of the time at which this cluster became a member under an identity for the
// first time, in RFC 3339.
func JoinedKey(clusterSetID, clusterID string) string {
	return IdentityKey(clusterSetID, clusterID) + JoinedSuffix
}

// LeaveKey is the key by which a user makes this cluster leave under an identity: while it exists,
// the cluster does not join under that identity. Its value is for users.
func LeaveKey(clusterSetID, clusterID string) string {
	return IdentityKey(clusterSetID, clusterID) + LeaveSuffix
}

// LeavingKey is the key with which the controller stores that it has begun to leave under an
// identity. Its value is the reason.
func LeavingKey(clusterSetID, clusterID string) string {
	return IdentityKey(clusterSetID, clusterID) + LeavingSuffix
}

// ForgetKey is the key by which a user makes this cluster forget another cluster. The controller
// deletes it when that is done. Its value is for users.
func ForgetKey(clusterSetID, clusterID string) string {
	return IdentityKey(clusterSetID, clusterID) + ForgetSuffix
}

// TrustKey is the key by which a user makes this cluster trust a public key of another cluster. The
// controller deletes it when that is done. The first word of its value is the public key, the rest
// is for users.
func TrustKey(clusterSetID, clusterID string) string {
	return IdentityKey(clusterSetID, clusterID) + TrustSuffix
}

// The suffixes of the keys.
const (
	JoinedSuffix  = ".joined"
	LeaveSuffix   = ".leave"
	LeavingSuffix = ".leaving"
	ForgetSuffix  = ".forget"
	TrustSuffix   = ".trust"
)
