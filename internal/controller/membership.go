package controller

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// NewRegistry makes the registry of one identity. It makes no request: a registry that cannot be reached is one that
// has not been read yet.
type NewRegistry func(context.Context, mcs.Identity) (registry.Registry, error)

// session is this cluster's membership under one identity.
type session struct {
	identity mcs.Identity
	registry registry.Registry
	started  time.Time
	end      context.CancelCauseFunc
	// ended is closed when the registry's Run has returned, with err.
	ended chan struct{}
	err   error
}

// standing is where this cluster stands: either a member with a session, or the reason why not, for users. With neither it
// is being decided, and everybody will be told to look again.
type standing struct {
	session *session
	problem string
}

// membership keeps this cluster a member of its clusterset for as long as it has a valid identity. It starts a session
// when there is one, leaves when that changes or goes, and leaves the imports as they are in between.
type membership struct {
	properties  *propertyReader
	flags       config.Identity
	reader      client.Reader
	newRegistry NewRegistry
	identities  *identities
	// look are told of every key that may look different now.
	look []*trigger
	log  logr.Logger

	wake    chan struct{}
	current atomic.Pointer[standing]

	// The rest is step's alone. leaving are sessions that are being ended for good. pastKnown says that what earlier lives left is being withdrawn, withdrawals are those that
	// were begun, complaint is the last one that was logged of the identities.
	leaving     []*session
	pastKnown   bool
	withdrawals map[mcs.Identity]*withdrawal
	complaint   string
}

// identityRetry is how soon the identity is looked for again when nothing will tell of a change: the CRD of
// ClusterProperty is missing, the API server does not answer or the registry cannot be started.
const identityRetry = 5 * time.Second

// standing is never nil.
func (m *membership) standing() *standing {
	if s := m.current.Load(); s != nil {
		return s
	}
	return &standing{}
}

// poke makes Start look at the identity again.
func (m *membership) poke() {
	select {
	case m.wake <- struct{}{}:
	default: // one pending look covers this change too
	}
}

// Start implements manager.Runnable. It returns when ctx ends and the session with it.
func (m *membership) Start(ctx context.Context) error {
	for {
		m.step(ctx)
		select {
		case <-ctx.Done():
			if s := m.standing().session; s != nil {
				<-s.ended
			}
			return nil
		case <-m.wake:
		case <-time.After(identityRetry):
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: one cluster has one writer.
func (m *membership) NeedLeaderElection() bool { return true }

// step brings the session in line with the identity.
func (m *membership) step(ctx context.Context) {
	m.finishLeaving(ctx)
	s := m.standing().session
	read, uid, err := m.gather(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && s != nil:
		return // not knowing changes nothing for a member
	case err != nil:
		m.stand(ctx, &standing{problem: err.Error()})
		return
	}
	identity, err := decideIdentity(read, m.flags, uid)
	m.withdrawPast(ctx, identity, uid)
	if err == nil && s.runsAs(identity) {
		return
	}
	m.leave(ctx, s)
	if err == nil {
		s, err = m.join(ctx, identity)
	}
	if err != nil {
		m.stand(ctx, &standing{problem: err.Error()})
		return
	}
	m.stand(ctx, &standing{session: s})
}

// gather reads what decides the identity.
func (m *membership) gather(ctx context.Context) (properties, string, error) {
	read, err := m.properties.read(ctx)
	if err != nil {
		return properties{}, "", err
	}
	uid, err := m.clusterUID(ctx)
	return read, uid, err
}

// clusterUID is the UID of namespace kube-system: it lives as long as the cluster.
func (m *membership) clusterUID(ctx context.Context) (string, error) {
	ns := namespaceMetadata()
	if err := m.reader.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("reading the UID of namespace %s, which identifies the cluster: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}

// join starts a session.
func (m *membership) join(ctx context.Context, identity mcs.Identity) (*session, error) {
	for _, s := range m.leaving {
		if s.identity == identity {
			s.waitFor(ctx, nil) // it must not remove what this one writes
		}
	}
	m.finishLeaving(ctx)
	m.endWithdrawal(identity)
	if err := m.identities.remember(ctx, identity); err != nil {
		// The clusterset can do without, until the identity changes while no controller runs.
		m.complain(err, "Cannot remember this cluster's identity")
	}
	reg, err := m.newRegistry(ctx, identity)
	if err != nil {
		return nil, fmt.Errorf("starting the registry: %w", err)
	}
	ctx, end := context.WithCancelCause(ctx)
	s := &session{identity: identity, registry: reg, started: time.Now(), end: end, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		if s.err = reg.Run(ctx, m.notify); s.err != nil {
			m.log.Error(s.err, "The registry gave up", "cluster", identity.ClusterID)
		}
	}()
	return s, nil
}

// leaveFirst is how long leaving may take until the cluster goes on without it. It takes seconds, but minutes
// while the registry cannot be reached.
const leaveFirst = 5 * time.Second

// leave ends a session for good: what this cluster has in the registry goes, later if not now.
func (m *membership) leave(ctx context.Context, s *session) {
	if s == nil || s.hasEnded() {
		return
	}
	m.current.Store(&standing{})
	s.end(registry.ErrLeave)
	m.leaving = append(m.leaving, s)
	if !s.waitFor(ctx, time.After(leaveFirst)) {
		m.log.Info("Leaving the clusterset takes a while, and goes on in the background", "cluster", s.identity.ClusterID, "clusterSet", s.identity.ClusterSetID)
	}
	m.finishLeaving(ctx)
}

// finishLeaving sees to the sessions that have ended for good: their identity is forgotten, or withdrawn later if something is left.
func (m *membership) finishLeaving(ctx context.Context) {
	m.leaving = slices.DeleteFunc(m.leaving, func(s *session) bool {
		if !s.hasEnded() {
			return false
		}
		if s.err != nil {
			m.withdraw(ctx, s.identity)
			return true
		}
		if err := m.identities.forget(ctx, s.identity); err != nil {
			m.complain(err, "Cannot forget an identity that this cluster has no more; it will be withdrawn once more at the next start")
		}
		m.log.Info("Left the clusterset", "cluster", s.identity.ClusterID, "clusterSet", s.identity.ClusterSetID)
		return true
	})
}

// waitFor waits until the session has ended, until enough if that is not nil, and says whether it has.
func (s *session) waitFor(ctx context.Context, enough <-chan time.Time) bool {
	select {
	case <-s.ended:
	case <-ctx.Done():
	case <-enough:
	}
	return s.hasEnded()
}

// runsAs says whether s, which may be nil, is a living session of identity.
func (s *session) runsAs(identity mcs.Identity) bool {
	return s != nil && s.identity == identity && !s.hasEnded()
}

func (s *session) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// stand makes now the cluster's standing. When that is news, everybody looks again.
func (m *membership) stand(ctx context.Context, now *standing) {
	was := m.current.Load()
	if was != nil && *was == *now {
		return
	}
	m.current.Store(now)
	if now.session != nil {
		m.log.Info("Joined the clusterset", "cluster", now.session.identity.ClusterID, "clusterSet", now.session.identity.ClusterSetID)
	} else {
		m.log.Info("Not a member of a clusterset: nothing is exported, imports stay as they are", "reason", now.problem)
	}
	if err := m.notifyAll(ctx); err != nil {
		m.log.Error(err, "Looking at all exports and imports again")
	}
}

func (m *membership) notify(key mcs.Key) {
	for _, t := range m.look {
		t.notify(key)
	}
}

// notifyAll says "look again" at all that this cluster exports or imports. The registry does so for what it holds.
func (m *membership) notifyAll(ctx context.Context) error {
	var exports mcsv1beta1.ServiceExportList
	if err := m.reader.List(ctx, &exports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ServiceExports: %w", err)
	}
	var imports mcsv1beta1.ServiceImportList
	if err := m.reader.List(ctx, &imports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ServiceImports: %w", err)
	}
	for i := range exports.Items {
		m.notify(keyOf(client.ObjectKeyFromObject(&exports.Items[i])))
	}
	for i := range imports.Items {
		m.notify(keyOf(client.ObjectKeyFromObject(&imports.Items[i])))
	}
	return nil
}

// undecided says whether it is not known yet where the cluster stands.
func (s *standing) undecided() bool { return s.session == nil && s.problem == "" }

// identity is the member's, or the zero identity.
func (s *standing) identity() mcs.Identity {
	if s.session == nil {
		return mcs.Identity{}
	}
	return s.session.identity
}
