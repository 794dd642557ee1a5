// Package membership determines the identity of this cluster, from ClusterProperties or flags, and
// keeps the cluster a member of its clusterset under it. The other controllers read the result with
// Membership.State.
package membership
