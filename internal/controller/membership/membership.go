package membership

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// RegistryFactory creates the registry of one identity. It makes no request: an unreachable registry is one that has not
// been read yet.
type RegistryFactory func(context.Context, mcs.Identity) (registry.Registry, error)

// Membership keeps this cluster a member of its clusterset as long as it has a valid identity. It starts a session for a new
// identity and ends the session, with everything that the cluster has in the registry, when the identity changes or is
// removed. Imports stay as they are in between.
type Membership struct {
	properties  *propertyReader
	flags       config.Identity
	reader      client.Reader
	newRegistry RegistryFactory
	identities  *Identities
	// requeuers are notified of every key whose export or import may change.
	requeuers []*kube.Requeuer
	log       logr.Logger

	changed chan struct{}
	state   atomic.Pointer[State]

	// The remaining fields are used by reconcile only. leaving holds the sessions that end for good, withdrawals the
	// withdrawals of previous identities by identity; previousKnown reports whether those were started. lastProblem is the
	// last problem with the identities that was logged.
	leaving       []*Session
	previousKnown bool
	withdrawals   map[mcs.Identity]*withdrawal
	lastProblem   string
}

// identityRetry is the interval at which the identity is read again, for the changes that no watch reports: the CRD of
// ClusterProperty is missing, the API server does not answer or the registry cannot be started.
const identityRetry = 5 * time.Second

// New returns the membership and adds it to mgr.
func New(mgr manager.Manager, d discovery.DiscoveryInterface, options config.Options, newRegistry RegistryFactory, log logr.Logger, requeuers ...*kube.Requeuer) (*Membership, error) {
	uncached, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return nil, fmt.Errorf("creating a client without a cache: %w", err)
	}
	m := &Membership{
		flags:       options.Identity,
		reader:      mgr.GetCache(),
		newRegistry: newRegistry,
		identities:  &Identities{Client: uncached, Namespace: homeNamespace(options.Election)},
		requeuers:   requeuers,
		log:         log,
		changed:     make(chan struct{}, 1),
		withdrawals: map[mcs.Identity]*withdrawal{},
	}
	m.properties = &propertyReader{config: mgr.GetConfig(), discovery: d, changed: m.signalChange, log: m.log}
	if err := mgr.Add(m); err != nil {
		return nil, fmt.Errorf("setting up membership: %w", err)
	}
	return m, nil
}

// State returns the cluster's membership state; it is never nil.
func (m *Membership) State() *State {
	if s := m.state.Load(); s != nil {
		return s
	}
	return &State{}
}

// RememberedIdentities returns the identities under which this cluster may have exports in the registry.
func (m *Membership) RememberedIdentities(ctx context.Context) ([]mcs.Identity, error) {
	return m.identities.List(ctx)
}

// signalChange makes Start reconcile the identity.
func (m *Membership) signalChange() {
	select {
	case m.changed <- struct{}{}:
	default: // the pending signal covers this change too
	}
}

// Start implements manager.Runnable. It returns when ctx and the session have ended.
func (m *Membership) Start(ctx context.Context) error {
	for {
		m.reconcile(ctx)
		select {
		case <-ctx.Done():
			if s := m.State().Session; s != nil {
				<-s.ended
			}
			return nil
		case <-m.changed:
		case <-time.After(identityRetry):
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: one cluster has one writer.
func (m *Membership) NeedLeaderElection() bool { return true }

// reconcile starts and ends sessions so that the session is that of the cluster's identity.
func (m *Membership) reconcile(ctx context.Context) {
	m.finishLeaving(ctx)
	s := m.State().Session
	read, uid, err := m.gather(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && s != nil:
		return // a member stays one while its identity cannot be read
	case err != nil:
		m.setState(ctx, &State{Problem: err.Error()})
		return
	}
	identity, err := decideIdentity(read, m.flags, uid)
	m.withdrawPrevious(ctx, identity, uid)
	if err == nil && s.runsAs(identity) {
		return
	}
	m.leave(ctx, s)
	if err == nil {
		s, err = m.join(ctx, identity)
	}
	if err != nil {
		m.setState(ctx, &State{Problem: err.Error()})
		return
	}
	m.setState(ctx, &State{Session: s})
}

// gather reads what decides the identity.
func (m *Membership) gather(ctx context.Context) (properties, string, error) {
	read, err := m.properties.read(ctx)
	if err != nil {
		return properties{}, "", err
	}
	uid, err := m.clusterUID(ctx)
	return read, uid, err
}

// clusterUID returns the UID of namespace kube-system, which exists as long as the cluster.
func (m *Membership) clusterUID(ctx context.Context) (string, error) {
	ns := kube.NamespaceMetadata()
	if err := m.reader.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("reading the UID of namespace %s, which identifies the cluster: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}

// join starts a session.
func (m *Membership) join(ctx context.Context, identity mcs.Identity) (*Session, error) {
	for _, s := range m.leaving {
		if s.Identity == identity {
			s.waitFor(ctx, nil) // it must not remove what the new session writes
		}
	}
	m.finishLeaving(ctx)
	m.endWithdrawal(identity)
	if err := m.identities.Remember(ctx, identity); err != nil {
		// This matters only if the identity changes while no controller runs.
		m.logOnce(err, "Failed to remember this cluster's identity")
	}
	reg, err := m.newRegistry(ctx, identity)
	if err != nil {
		return nil, fmt.Errorf("starting the registry: %w", err)
	}
	ctx, end := context.WithCancelCause(ctx)
	s := &Session{Identity: identity, Registry: reg, Started: time.Now(), end: end, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		if s.err = reg.Run(ctx, m.requeue); s.err != nil {
			m.log.Error(s.err, "Registry stopped", "cluster", identity.ClusterID)
		}
	}()
	return s, nil
}

// leaveTimeout is how long the next session waits for the previous one to leave. Leaving takes seconds, or minutes while the
// registry is unreachable.
const leaveTimeout = 5 * time.Second

// leave ends a session for good: everything that this cluster has in the registry is removed, in the background if it takes
// long.
func (m *Membership) leave(ctx context.Context, s *Session) {
	if s == nil || s.hasEnded() {
		return
	}
	m.state.Store(&State{})
	s.end(registry.ErrLeave)
	m.leaving = append(m.leaving, s)
	if !s.waitFor(ctx, time.After(leaveTimeout)) {
		m.log.Info("Leaving the clusterset continues in the background", "cluster", s.Identity.ClusterID, "clusterSet", s.Identity.ClusterSetID)
	}
	m.finishLeaving(ctx)
}

// finishLeaving handles the sessions that have ended for good: their identity is forgotten, or withdrawn again if leaving
// failed.
func (m *Membership) finishLeaving(ctx context.Context) {
	m.leaving = slices.DeleteFunc(m.leaving, func(s *Session) bool {
		if !s.hasEnded() {
			return false
		}
		if s.err != nil {
			m.withdraw(ctx, s.Identity)
			return true
		}
		if err := m.identities.Forget(ctx, s.Identity); err != nil {
			m.logOnce(err, "Failed to forget a previous identity; it will be withdrawn once more at the next start")
		}
		m.log.Info("Left the clusterset", "cluster", s.Identity.ClusterID, "clusterSet", s.Identity.ClusterSetID)
		return true
	})
}

// setState changes the cluster's state and requeues all exports and imports if it differs.
func (m *Membership) setState(ctx context.Context, state *State) {
	before := m.state.Load()
	if before != nil && *before == *state {
		return
	}
	m.state.Store(state)
	if state.Session != nil {
		m.log.Info("Joined the clusterset", "cluster", state.Session.Identity.ClusterID, "clusterSet", state.Session.Identity.ClusterSetID)
	} else {
		m.log.Info("Not a member of a clusterset: nothing is exported, imports stay as they are", "problem", state.Problem)
	}
	if err := m.requeueAll(ctx); err != nil {
		m.log.Error(err, "Failed to requeue all exports and imports")
	}
}

// requeue makes all controllers reconcile key.
func (m *Membership) requeue(key mcs.Key) {
	for _, r := range m.requeuers {
		r.Requeue(key)
	}
}

// requeueAll requeues everything that this cluster exports or imports. The registry notifies of the keys that it holds.
func (m *Membership) requeueAll(ctx context.Context) error {
	var exports mcsv1beta1.ServiceExportList
	if err := m.reader.List(ctx, &exports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ServiceExports: %w", err)
	}
	var imports mcsv1beta1.ServiceImportList
	if err := m.reader.List(ctx, &imports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ServiceImports: %w", err)
	}
	for i := range exports.Items {
		m.requeue(kube.KeyOf(client.ObjectKeyFromObject(&exports.Items[i])))
	}
	for i := range imports.Items {
		m.requeue(kube.KeyOf(client.ObjectKeyFromObject(&imports.Items[i])))
	}
	return nil
}

// logOnce logs a problem with the identities, once as long as it stays the same.
func (m *Membership) logOnce(err error, message string) {
	if text := err.Error(); text != m.lastProblem {
		m.lastProblem = text
		m.log.Error(err, message)
	}
}
