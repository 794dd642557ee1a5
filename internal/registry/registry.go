// Package registry is the contract of the registry, the shared store of a clusterset. Its backends
// are sub-packages: cloudmap, etcd and memory. Package registrytest has the tests that each of them
// passes, package engine has their shared code.
package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
)

// Registry is the registry of a clusterset as seen by one cluster, identified by an mcs.Identity.
// Each cluster writes its own exports and reads those of the others. A Registry is level-triggered:
// a notification says that a key may have changed, Lookup returns its state.
//
// All methods may be called concurrently, before and while Run runs.
type Registry interface {
	// Publish sets exp as this cluster's export of exp.Key. It returns quickly and does no I/O: Run
	// writes and confirms the export, combines changes in quick succession, and writes nothing if
	// exp is already published. exp.Cluster must be the registry's own cluster. It returns an
	// *InvalidExportError if exp can never be written.
	Publish(ctx context.Context, exp mcs.Export) error

	// Withdraw removes this cluster's export of key in the same way. Withdrawing a missing export
	// is not an error.
	Withdraw(ctx context.Context, key mcs.Key) error

	// SetProperties sets the ClusterProperties of this cluster that the other clusters read
	// (Member.Properties). Until it is called, those of a previous process stay. It returns quickly
	// and does no I/O.
	SetProperties(properties mcs.Properties)

	// SetImports sets the report of this cluster's imports that the other clusters read
	// (Member.Imports). The next write of the member record has it: the report makes no request of
	// its own. Until it is called, that of a previous process stays. It does no I/O.
	SetImports(report mcs.ImportReport)

	// Lookup returns the View of key as last read, from memory, or an error that wraps ErrNotSynced
	// before the first complete read. The caller may keep the result but must not change it. If the
	// answer is incomplete (ErrNotSynced, or a View with Unknown or Unseen clusters), the key is
	// notified when more is known about an imported cluster, and when the answer is complete.
	// imported are the clusters of the import that exists in the caller's cluster; see Unseen.
	Lookup(ctx context.Context, key mcs.Key, imported ...string) (View, error)

	// Members returns the clusters of the clusterset, sorted by ID, including this one once it has
	// joined.
	Members(ctx context.Context) ([]Member, error)

	// Forget drops all records of another cluster, which will never sign a farewell, and notifies
	// its keys. The cluster returns with its next record.
	Forget(clusterID string)

	// Run joins the clusterset, keeps the Views current and writes published exports until ctx
	// ends. It calls notify for each key whose View may have changed, or whose exporting clusters
	// have other Properties. First it notifies of every key that it finds, including those that a
	// previous process of this cluster exported. Notifying too often is allowed, missing a change
	// is not. notify must not block.
	//
	// Before Run, the caller publishes every export of this cluster. Those that a previous process
	// has left besides, and of which Run notifies, the caller withdraws; Run may do so by itself.
	//
	// If ctx ends with cause ErrLeave, Run removes everything of this cluster from the registry
	// within a bounded time, or returns an error; with any other cause it keeps everything. If ctx
	// has ended with ErrLeave before Run begins, Run removes the records of a previous process,
	// unless another controller uses the same identity, as a clone of the cluster does. When the
	// context of WithLeaveContext ends, leaving is canceled: Run returns an error soon, and records
	// that it has removed stay removed. Otherwise Run returns an error only for a problem that
	// retrying cannot solve; it retries forever while the registry is unreachable, throttles or
	// denies access.
	Run(ctx context.Context, notify func(mcs.Key)) error
}

// PublishStatus is the status of this cluster's own export of a key.
type PublishStatus struct {
	State PublishState
	// Err is the reason why a Pending export makes no progress, for the user to act upon, or nil.
	// It is a *DuplicateIDError if another live cluster uses this cluster's ID: nothing is exported
	// until that cluster is gone.
	Err error
	// Warnings are problems of a published export that other clusters do not notice, one line each,
	// with an action for the user.
	Warnings []string
}

// PublishState is the state of this cluster's own export of a key.
type PublishState int

const (
	// Absent means that no export is published, and the registry shows none.
	Absent PublishState = iota
	// Pending means that the registry does not show the last requested export or withdrawal yet.
	Pending
	// Exported means that the registry shows the export as last published, by this process or a
	// previous one.
	Exported
)

// String returns the state's name.
func (s PublishState) String() string {
	switch s {
	case Absent:
		return "Absent"
	case Pending:
		return "Pending"
	case Exported:
		return "Exported"
	}
	return fmt.Sprintf("PublishState(%d)", int(s))
}

// Member is one cluster of the clusterset.
type Member struct {
	ClusterID string
	// UID is the UID of its namespace kube-system.
	UID string
	// Version is the version of its controller.
	Version string
	// Key is the public key that its records are signed with, as --trusted-keys has it; "" if the
	// registry has no signatures.
	Key string
	// RefusedKey is the key that a record under the cluster's ID is signed with, and that is not
	// Key; "" without one. An administrator may trust it.
	RefusedKey string
	// Seal reports whether another member can write into the place of the cluster in the registry.
	Seal Seal
	// LastSeen is the time at which its heartbeat was last seen to advance, by this cluster's own
	// clock.
	LastSeen time.Time
	// Joined is the time at which it became a member, Heartbeat the time of its last heartbeat,
	// both by its own clock; zero if the registry does not keep them. All clusters read the same
	// values, also after a restart. So they agree to which of two registries a cluster that moved
	// writes.
	Joined, Heartbeat time.Time
	// Stale is true if it had no heartbeat for the configured time (see Stale).
	Stale bool
	// NoRecord is true if the registry shows no record that the cluster has signed: its member
	// record is missing or was refused.
	NoRecord bool
	// Properties are its ClusterProperties, without those with its IDs. The cluster claims them; no
	// other cluster verifies them.
	Properties mcs.Properties
	// Imports is its report of its imports. The cluster claims it. No key is notified when it
	// changes.
	Imports mcs.ImportReport
	// OverBudget are its exports that are over the budgets of this cluster.
	OverBudget mcs.OverBudget
	// Mapped is true for the pseudo-cluster of mapped services, which has no controller and imports
	// nothing.
	Mapped bool
	// Problems are the problems of its records in the last read, one line each.
	Problems []string
	// Address is the address of its controller's pod, zero if its record has none. The cluster
	// claims it. Notified is the time at which its last peer notification arrived, zero if none
	// did.
	Address  netip.Addr
	Notified time.Time
}

// Seal reports whether only a cluster itself can write into its place in the registry, the catalog
// in AWS Cloud Map.
type Seal string

// The values of Seal.
const (
	SealUnknown    Seal = ""           // not read yet, or the registry has no seals
	Sealed         Seal = "Sealed"     // only the cluster can write there
	Unsealed       Seal = "Unsealed"   // another member can give itself the right to
	SealUnreadable Seal = "Unreadable" // the last read failed
)

// refusedPrefix begins the problems of RefusedProblem.
const refusedPrefix = "refused "

// RefusedProblem returns the problem of a Member whose record was refused, because its signature is
// missing or does not verify. record names the record, such as "the member record" or "page 7".
func RefusedProblem(record string, reason error) string {
	return refusedPrefix + record + ": " + reason.Error()
}

// IsRefused reports whether a problem of a Member is one of RefusedProblem, in any registry.
func IsRefused(problem string) bool {
	return strings.HasPrefix(withoutRegistry(problem), refusedPrefix)
}

// budgetPrefix begins the problems of BudgetProblem.
const budgetPrefix = "over budget: "

// BudgetProblem returns the problem of a Member that has a number of exports, such as that of key,
// over a budget of this cluster.
func BudgetProblem(exports int, key mcs.Key, excess budget.Excess) string {
	return fmt.Sprintf("%s%d exports, such as %s, exceed %s: they are not imported, or stay as they were imported before", budgetPrefix, exports, key, excess)
}

// IsOverBudget reports whether a problem of a Member is one of BudgetProblem, in any registry.
func IsOverBudget(problem string) bool {
	return strings.HasPrefix(withoutRegistry(problem), budgetPrefix)
}

// registryPrefix begins the problems of ProblemIn.
const registryPrefix = "registry "

// ProblemIn returns a problem of a Member with the name of the registry that has it.
func ProblemIn(name, problem string) string { return registryPrefix + name + ": " + problem }

// withoutRegistry returns a problem without the name that ProblemIn has added. No name has a space.
func withoutRegistry(problem string) string {
	if named, ok := strings.CutPrefix(problem, registryPrefix); ok {
		if _, rest, ok := strings.Cut(named, ": "); ok {
			return rest
		}
	}
	return problem
}

// ErrNotSynced means that there has been no complete read of the registry yet.
var ErrNotSynced = errors.New("the registry has not been read yet")

// NotSynced returns ErrNotSynced with the problem that keeps the registry from being read, which
// may be nil.
func NotSynced(problem error) error {
	if problem == nil {
		return ErrNotSynced
	}
	return &notSynced{problem}
}

// notSynced is ErrNotSynced with the problem that keeps the registry from being read.
type notSynced struct{ problem error }

// Error implements error.
func (e *notSynced) Error() string { return ErrNotSynced.Error() + ": " + e.problem.Error() }

// Unwrap makes errors.Is find both.
func (e *notSynced) Unwrap() []error { return []error{ErrNotSynced, e.problem} }

// SyncProblem returns the problem in an error of NotSynced, nil if it has none.
func SyncProblem(err error) error {
	var e *notSynced
	if !errors.As(err, &e) {
		return nil
	}
	return e.problem
}

// ErrLeave is the cause with which the context of Run is cancelled when this cluster leaves the
// clusterset.
var ErrLeave = errors.New("the cluster leaves the clusterset")

// leaveContext is the key of the context of WithLeaveContext.
type leaveContext struct{}

// WithLeaveContext returns a copy of ctx for Run, in which leaving runs until leave ends. Without
// it nothing but time limits leaving.
func WithLeaveContext(ctx, leave context.Context) context.Context {
	return context.WithValue(ctx, leaveContext{}, leave)
}

// LeaveContext returns the context in which leaving runs after ctx, the context of Run, has ended.
func LeaveContext(ctx context.Context) context.Context {
	if leave, ok := ctx.Value(leaveContext{}).(context.Context); ok {
		return leave
	}
	return context.WithoutCancel(ctx)
}

// ErrReadOnly is returned by Publish and Withdraw of a registry that is only imported from.
var ErrReadOnly = errors.New("this registry is only imported from")

// DuplicateIDError means that another live cluster uses this cluster's ID.
type DuplicateIDError struct {
	ClusterID string
	// OtherUID is the UID of the other cluster's namespace kube-system.
	OtherUID string
}

func (e *DuplicateIDError) Error() string {
	return fmt.Sprintf("cluster ID %q is already used by another cluster of the clusterset (its namespace kube-system has UID %s): "+
		"give this cluster another ID in ClusterProperty cluster.clusterset.k8s.io", e.ClusterID, e.OtherUID)
}

// Published returns exp as the other clusters see it: its canonical form without node names, pod
// names, and attributes and records of instances, which mean nothing to them. Backends compare
// exports in this form.
func Published(exp mcs.Export) mcs.Export {
	exp = exp.Canonical()
	exp.InstanceAttributes, exp.Region, exp.InstanceDNS = "", "", ""
	for _, group := range exp.Backends {
		for i := range group.Endpoints {
			group.Endpoints[i].Node, group.Endpoints[i].Pod = "", ""
		}
	}
	return exp
}

// CheckIdentity returns an error if identity is not complete and valid.
func CheckIdentity(identity mcs.Identity) error {
	for name, id := range map[string]string{"cluster": identity.ClusterID, "clusterset": identity.ClusterSetID} {
		if err := mcs.ValidateClusterID(id); err != nil {
			return fmt.Errorf("checking the %s ID: %w", name, err)
		}
	}
	if identity.UID == "" {
		return errors.New("the UID of namespace kube-system is required to detect duplicate cluster IDs")
	}
	return nil
}

// InvalidExportError means that an export can never be written to the registry as it is.
type InvalidExportError struct {
	Key    mcs.Key
	Reason string
}

func (e *InvalidExportError) Error() string {
	return fmt.Sprintf("export %s cannot be published: %s", e.Key, e.Reason)
}
