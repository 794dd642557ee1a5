package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/leaderelection"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

// The times of the leader election. A standby takes over as soon as it sees that the leader has
// released the Lease. After a lost node it waits until the Lease has expired: with a second for its
// start that is 8 s.
const (
	leaseDuration = 7 * time.Second
	// renewDeadline is the time without an answer of the API server after which a leader ends. The
	// 2 s up to leaseDuration are those in which its last request may still be on its way.
	renewDeadline = 5 * time.Second
	// renewInterval is the time between two writes of the Lease, 60 a minute. A standby writes and
	// reads nothing: it watches.
	renewInterval = time.Second
)

// electionLock is the lock of the leader election. The elector of client-go reads the Lease every 1
// to 2.2 times renewInterval until it can take it. This lock answers the elector of a standby when
// the Lease can be taken, which it sees by a watch.
type electionLock struct {
	resourcelock.Interface
	leases coordinationclient.LeaseInterface
	name   string
	logger logr.Logger

	// hasHeld is set once this process has held the Lease: then Get does not wait.
	hasHeld bool
	// renewed is the record that was seen last, and expiry the time at which it expires, by the
	// clock of this process.
	renewed resourcelock.LeaderElectionRecord
	expiry  time.Time
}

var _ resourcelock.Interface = (*electionLock)(nil)

// newElectionLock returns the lock of the replicas, nil if there is no leader election.
func newElectionLock(cfg *rest.Config, o config.Election, logger logr.Logger) (resourcelock.Interface, error) {
	if !o.Enabled {
		return nil, nil
	}
	namespace := o.OwnNamespace()
	if namespace == "" {
		return nil, errors.New("the controller does not run in a pod: name the namespace of the leader election Lease with --leader-election-namespace")
	}
	recorders, err := newLeaseRecorders(cfg, namespace)
	if err != nil {
		return nil, err
	}
	lock, err := leaderelection.NewResourceLock(rest.CopyConfig(cfg), recorders, leaderelection.Options{
		LeaderElection: true, LeaderElectionID: leaseName, LeaderElectionNamespace: namespace, RenewDeadline: renewDeadline,
	})
	if err != nil {
		return nil, fmt.Errorf("creating the lock of the leader election: %w", err)
	}
	// without the timeout that the client of the lock has: a watch lasts
	leases, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("creating a client for Leases: %w", err)
	}
	return &electionLock{Interface: lock, leases: leases.Leases(namespace), name: leaseName, logger: logger}, nil
}

// Get returns the record of the Lease. While another process holds it, Get waits until it is
// released or has expired. The record of an expired Lease has no holder.
func (l *electionLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := l.Interface.Get(ctx)
	if err != nil || l.hasHeld || l.observe(*r) {
		return r, raw, err
	}
	if err := l.awaitEnd(ctx); err != nil {
		l.logger.V(1).Info("Cannot watch the Lease of the leader election, reading it at intervals", "reason", err.Error())
		return r, raw, nil
	}
	if r, raw, err = l.Interface.Get(ctx); err == nil && l.observe(*r) {
		r.HolderIdentity = ""
	}
	return r, raw, err
}

// observe records what the Lease is now. It reports whether it can be taken: it was released, or it
// was not renewed until it expired.
func (l *electionLock) observe(r resourcelock.LeaderElectionRecord) (isFree bool) {
	if l.renewed != r {
		l.renewed, l.expiry = r, time.Now().Add(time.Duration(r.LeaseDurationSeconds)*time.Second)
	}
	return r.HolderIdentity == "" || !time.Now().Before(l.expiry)
}

// awaitEnd watches the Lease until it can be taken, or the watch ends.
func (l *electionLock) awaitEnd(ctx context.Context) error {
	w, err := l.leases.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, l.name).String()})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		expired := time.NewTimer(time.Until(l.expiry))
		select {
		case event := <-w.ResultChan():
			lease, isLease := event.Object.(*coordinationv1.Lease)
			if !isLease || event.Type == watch.Deleted || l.observe(*resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)) {
				expired.Stop()
				return nil
			}
		case <-expired.C:
			return nil
		case <-ctx.Done():
			expired.Stop()
			return ctx.Err()
		}
		expired.Stop()
	}
}

// Create creates the Lease, which this process holds then.
func (l *electionLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, r)
	l.hasHeld = l.hasHeld || err == nil
	return err
}

// Update writes the Lease, which this process holds then, or has held.
func (l *electionLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, r)
	l.hasHeld = l.hasHeld || err == nil
	return err
}

// leaseRecorders makes the recorder of the events of the Lease: it exists before the manager and
// its recorders.
type leaseRecorders struct{ broadcaster record.EventBroadcaster }

var _ recorder.Provider = leaseRecorders{}

func newLeaseRecorders(cfg *rest.Config, namespace string) (leaseRecorders, error) {
	core, err := coreclient.NewForConfig(cfg)
	if err != nil {
		return leaseRecorders{}, fmt.Errorf("creating a client for events: %w", err)
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&coreclient.EventSinkImpl{Interface: core.Events(namespace)})
	return leaseRecorders{broadcaster: broadcaster}, nil
}

// GetEventRecorderFor implements recorder.Provider.
func (r leaseRecorders) GetEventRecorderFor(name string) record.EventRecorder {
	return r.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: name})
}

// GetEventRecorder implements recorder.Provider. The leader election uses the old events only.
func (r leaseRecorders) GetEventRecorder(string) recorder.EventRecorder { return nil }
