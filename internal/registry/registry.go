// Package registry holds the contract of the clusterset's shared memory. Its backends are sub-packages: cloudmap, etcd
// and memory; package registrytest is the conformance suite that each of them passes.
package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Registry is the clusterset's shared memory as one cluster sees it. One writer per cluster, many readers. It is made for
// one mcs.Identity and is level-triggered: a notification says "look again", Look tells the state.
//
// All methods may be called from many goroutines, before and while Run runs.
type Registry interface {
	// Publish makes exp this cluster's export of exp.Key. It returns fast and does no I/O: writing, pacing and
	// confirming go on behind it in Run, changes in quick succession are written once, and repeating what is already
	// published costs nothing. exp.Cluster must be the registry's own cluster. The error is about exp itself
	// (*InvalidExportError): what can never be written.
	Publish(ctx context.Context, exp mcs.Export) error

	// Withdraw removes this cluster's export of key, in the same way. Withdrawing what is not there is not an error.
	Withdraw(ctx context.Context, key mcs.Key) error

	// Lookup is what is known of key: whole, as last read, or an error wrapping ErrNotSynced while there has been no whole read
	// yet. It answers from memory. The result is the caller's to keep but not to change. A key of which Lookup could not tell
	// everything, for ErrNotSynced or for Unknown clusters, is notified of when more is known.
	Lookup(ctx context.Context, key mcs.Key) (View, error)

	// Members are the clusters of the clusterset, sorted by ID, this one included once it has joined.
	Members(ctx context.Context) ([]Member, error)

	// Run joins the clusterset, keeps the view current and the registry in step with what was published until ctx ends. It
	// calls notify for each key whose View may have changed, starting with every key found (this cluster's own, left from an
	// earlier life, included: what is no longer exported must be withdrawn by the caller). Calling too often is allowed,
	// missing a change is not. notify must not block.
	//
	// When ctx ends with cause ErrLeave, Run first removes all that this cluster has in the registry, within a bounded
	// time, or returns an error; with any other cause it leaves everything as it is. That holds for a ctx that has ended
	// so before Run begins: then what an earlier life left is removed, unless somebody else lives under the same identity, as
	// a clone of the cluster does. Otherwise Run returns an error only for what waiting cannot mend; an unreachable,
	// throttling or denying registry is retried for ever.
	Run(ctx context.Context, notify func(mcs.Key)) error
}

// View is what a registry knows of one key.
type View struct {
	// Exports are the other clusters' exports, sorted by cluster. This cluster's own never travels through the registry.
	Exports []mcs.Export
	// Unknown are the clusters, sorted, whose export of this key could not be read whole since this process started:
	// it may or may not exist. Unknown is not empty: what is there from an earlier life stays.
	Unknown []string
	// Incomplete says that a part of what the View is made from has not been read yet, with clusters that are not known by
	// name: besides those in Unknown, any cluster that is not in Exports may have an export. That is so where several registries
	// are one, one of which has not been read, and in the first moments of a controller that starts while the registry throttles.
	// The key is notified when it is over.
	Incomplete bool
	// Stale are the clusters, sorted, of those in Exports that have shown no sign of life for the configured time, judged by
	// this cluster's clock and only while the registry itself answers (Liveness). What becomes of their endpoints is the
	// caller's decision; the key is notified when a cluster becomes stale and when it is back.
	Stale []string
	// LivenessUnknown are the clusters, sorted, of those in Exports of which it is not known yet whether they are stale: since this process
	// started they have shown no sign of life, but not for long enough. What an earlier life made of them stays. The key is
	// notified when it is known.
	LivenessUnknown []string
	// Local says where this cluster's own export of the key stands.
	Local PublishStatus
}

// PublishStatus says where this cluster's own export of a key stands.
type PublishStatus struct {
	State PublishState
	// Err says why a Pending publication makes no progress, for the user to act upon; nil while all is well.
	// It is a *DuplicateIDError when another live cluster uses this cluster's ID: nothing is exported until it is gone.
	Err error
	// Warnings say, one line each, what of a published export is not as the user may expect, and what to do about it: nothing that
	// other clusters would notice.
	Warnings []string
}

// PublishState is how far a publication has got.
type PublishState int

const (
	// Absent means that nothing is published for the key, and the registry shows nothing.
	Absent PublishState = iota
	// Pending means that what was last asked for, an export or its withdrawal, is not yet what the registry shows.
	Pending
	// Exported means that the registry itself has shown the export as last published, by this process or in an earlier life.
	Exported
)

// String is the state's name.
func (s PublishState) String() string {
	switch s {
	case Absent:
		return "Absent"
	case Pending:
		return "Pending"
	case Exported:
		return "Exported"
	}
	return fmt.Sprintf("PublicationState(%d)", int(s))
}

// Member is one cluster of the clusterset.
type Member struct {
	ClusterID string
	// UID is the UID of its namespace kube-system.
	UID string
	// Version is the controller's version there.
	Version string
	// LastSeen is when its heartbeat was last seen to advance, by this cluster's own clock.
	LastSeen time.Time
	// Joined is when it became a member here and Beat when it last said that it lives, both by its own clock; zero where
	// a registry does not keep that. They tell the same to every cluster, over restarts too: which of two registries a
	// cluster that moved writes to now.
	Joined, Beat time.Time
	// Stale says that it has shown no sign of life for the configured time (View.Stale).
	Stale bool
	// Problems are what was wrong with its records in the last read, one line each; empty when all was well.
	Problems []string
}

// ErrNotSynced means that nothing is known yet: there has been no whole read of the registry.
var ErrNotSynced = errors.New("the registry has not been read yet")

// NotSynced is ErrNotSynced with what keeps the registry from being read, if there is something.
func NotSynced(problem error) error {
	if problem == nil {
		return ErrNotSynced
	}
	return fmt.Errorf("%w: %w", ErrNotSynced, problem)
}

// ErrLeave is the cause with which Run's context is cancelled when this cluster leaves the clusterset.
var ErrLeave = errors.New("the cluster leaves the clusterset")

// ErrReadOnly is the answer to Publish and Withdraw of a registry that is only imported from.
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

// Published is what the other clusters see of exp: its canonical form without what means nothing outside its own cluster.
// Backends compare exports in this form.
func Published(exp mcs.Export) mcs.Export {
	exp = exp.Canonical()
	for _, group := range exp.Backends {
		for i := range group.Endpoints {
			group.Endpoints[i].Node = ""
		}
	}
	return exp
}

// CheckIdentity is what every backend asks of the identity that it is made for.
func CheckIdentity(identity mcs.Identity) error {
	for name, id := range map[string]string{"cluster": identity.ClusterID, "clusterset": identity.ClusterSetID} {
		if err := mcs.ValidateClusterID(id); err != nil {
			return fmt.Errorf("checking the %s ID: %w", name, err)
		}
	}
	if identity.UID == "" {
		return errors.New("the UID of namespace kube-system is needed to tell clusters with one ID apart")
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
