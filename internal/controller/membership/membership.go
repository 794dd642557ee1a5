package membership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// RegistryFactory creates the registry of one identity. It makes no request: an unreachable
// registry is one that has not been read yet.
type RegistryFactory func(context.Context, mcs.Identity) (registry.Registry, error)

// PublishAllFunc publishes every export of this cluster under an identity.
type PublishAllFunc func(context.Context, mcs.Identity, registry.Registry) error

// Membership keeps this cluster a member of its clusterset under its identity. Leaving is an act: a
// user requests it with kubectl mcs leave, or the ClusterProperties are missing for --leave-after.
// Until then a cluster without a readable identity keeps its last one. A changed identity gets a
// session of its own, and the session of the previous identity ends when all exports are confirmed
// under the new one. Imports stay as they are in between.
//
// reconcile decides and never waits: sessions run, and end, in the background.
type Membership struct {
	*requeues
	properties  propertySource
	flags       config.Identity
	leaveAfter  time.Duration
	scope       *kube.Scope
	newRegistry RegistryFactory
	identities  *Identities
	// publishAll publishes in the registry of each session before it runs.
	publishAll PublishAllFunc
	// events may be without a recorder.
	events kube.EventRecorder
	log    logr.Logger
	// settle is the time for which the exports under a new identity must be confirmed before the
	// previous one ends: the time in which the other clusters read them.
	settle time.Duration

	changed chan struct{}
	state   atomic.Pointer[State]

	// left are the resources that stayed in the registry when the cluster left. leftMu guards it.
	leftMu sync.Mutex
	left   map[mcs.Identity][]registry.Leftover

	// own are the ClusterProperties of this cluster with those of its nodes, nil while they are not
	// known.
	own atomic.Pointer[mcs.Properties]

	// The remaining fields are used by reconcile only. next is the session under the identity that
	// the cluster changes to. hadIdentity reports whether this process has read a valid identity,
	// missingSince is the time since which there is none.
	next         *Session
	departures   map[mcs.Identity]*departure
	hadIdentity  bool
	missingSince time.Time
	// departing is why the cluster does not leave under an identity of a previous process yet, ""
	// if there is none.
	departing string
	// drainText is the drain as the user wrote it, and deprecation the sentence about its key, or
	// "".
	drainText, deprecation string
	// nodes are the facts about the nodes since the start, and refused has the ClusterProperties of
	// a user whose values are not valid.
	nodes   nodeFacts
	refused mcs.Properties
	// writeProblem is the last problem of writing a ClusterProperty, and writeAfter the time of the
	// next attempt.
	writeProblem string
	writeAfter   time.Time
	// lastProblem is the last problem with the identities that was logged.
	lastProblem string
	// keys decides which events report the keys of the other clusters.
	keys keyWatch
}

// propertySource reads and writes the ClusterProperties. An error of read means that they are
// unknown.
type propertySource interface {
	read(ctx context.Context) (properties, error)
	write(ctx context.Context, w plan.PropertyWrite) error
}

// identityRetry is the longest interval at which the identity and the requests of users are read
// again, for the changes that no watch reports.
const identityRetry = 5 * time.Second

// New returns the membership and adds it to mgr.
func New(mgr manager.Manager, d discovery.DiscoveryInterface, options config.Options, newRegistry RegistryFactory, log logr.Logger, requeuers ...*kube.Requeuer) (*Membership, error) {
	uncached, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return nil, fmt.Errorf("creating a client without a cache: %w", err)
	}
	scope, err := kube.NewScope(options.Scope)
	if err != nil {
		return nil, err
	}
	m := &Membership{
		flags:       options.Identity,
		leaveAfter:  options.Membership.LeaveAfter,
		scope:       scope,
		newRegistry: newRegistry,
		identities:  &Identities{Client: uncached, Namespace: options.Election.OwnNamespace()},
		events:      kube.EventRecorder{Recorder: mgr.GetEventRecorder(names.Lease)},
		log:         log,
		settle:      2 * max(options.Registry.PollInterval, options.Registry.PollIntervalWithNotifications),
		changed:     make(chan struct{}, 1),
		departures:  map[mcs.Identity]*departure{},
		nodes:       newNodeFacts(),
		refused:     mcs.Properties{},
	}
	m.requeues = &requeues{reader: mgr.GetCache(), requeuers: requeuers, state: m.State}
	m.properties = &propertyObjects{config: mgr.GetConfig(), discovery: d, changed: m.signalChange, log: m.log}
	if err := mgr.Add(m); err != nil {
		return nil, fmt.Errorf("setting up membership: %w", err)
	}
	return m, nil
}

// SetPublishAll sets the function that publishes every export in the registry of a session. It is
// called before the manager starts.
func (m *Membership) SetPublishAll(publishAll PublishAllFunc) { m.publishAll = publishAll }

// State returns the cluster's membership state; it is never nil.
func (m *Membership) State() *State {
	if s := m.state.Load(); s != nil {
		return s
	}
	return &State{}
}

// LeavingIdentities returns the identities under which this cluster is leaving or will leave.
func (m *Membership) LeavingIdentities(ctx context.Context) ([]mcs.Identity, error) {
	stored, err := m.identities.read(ctx)
	if err != nil {
		return nil, err
	}
	state := m.State()
	return slices.DeleteFunc(stored.Identities, func(i mcs.Identity) bool {
		if stored.shouldLeave(i) || stored.isLeaving(i) {
			return false
		}
		// the previous identity stays a member until all exports are confirmed
		isAwaiting := state.Session != nil && state.Next == state.Session.Identity
		return state.Session == nil || i == state.Session.Identity || i == state.Next || isAwaiting
	}), nil
}

// signalChange makes Start reconcile the identity.
func (m *Membership) signalChange() {
	select {
	case m.changed <- struct{}{}:
	default: // the pending signal covers this change too
	}
}

// Start implements manager.Runnable. It returns when ctx and the sessions have ended.
func (m *Membership) Start(ctx context.Context) error {
	for {
		m.reconcile(ctx)
		select {
		case <-ctx.Done():
			m.waitForEnd()
			return nil
		case <-m.changed:
		case <-time.After(m.interval()):
		}
	}
}

// interval returns the time to the next reconcile without a signal. A reconcile takes one request
// to the API server.
func (m *Membership) interval() time.Duration {
	if m.next == nil {
		return identityRetry
	}
	return min(identityRetry, max(time.Second, m.settle/2))
}

// waitForEnd waits for all sessions, whose context has ended.
func (m *Membership) waitForEnd() {
	for _, s := range []*Session{m.State().Session, m.next} {
		if s != nil {
			<-s.ended
		}
	}
	for _, d := range m.departures {
		<-d.done
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: one cluster has one writer.
func (m *Membership) NeedLeaderElection() bool { return true }

// reconcile starts and ends sessions so that the session is that of the cluster's identity.
func (m *Membership) reconcile(ctx context.Context) {
	m.reapDepartures()
	stored, uid, err := m.gather(ctx)
	if err != nil {
		if m.State().Session == nil && ctx.Err() == nil {
			m.setState(ctx, &State{Problem: err.Error()})
		}
		m.logOnce(ctx, err, "Failed to read what this cluster's identity depends on, retrying")
		return
	}
	m.handleRequests(ctx, stored)
	d := m.decide(ctx, stored, uid)
	if ctx.Err() != nil {
		return
	}
	if d.identity == (mcs.Identity{}) {
		m.departSessions(ctx)
		m.setState(ctx, &State{Problem: d.problem})
	} else {
		m.follow(ctx, stored, d)
	}
	m.departStored(ctx, stored)
	m.removeLeaveRequests(ctx, stored, d)
	m.reportKeys(ctx)
}

// gather returns the stored identities, without those of other clusters, and the UID of this
// cluster.
func (m *Membership) gather(ctx context.Context) (storedIdentities, string, error) {
	uid, err := m.clusterUID(ctx)
	if err != nil {
		return storedIdentities{}, "", err
	}
	stored, err := m.identities.read(ctx)
	stored.Identities = slices.DeleteFunc(stored.Identities, func(i mcs.Identity) bool {
		if i.UID == uid {
			return false
		}
		// Another cluster's ConfigMap, restored here from a backup.
		if err := m.identities.Remove(ctx, i); err != nil {
			m.logOnce(ctx, err, "Failed to remove the identity of another cluster from the ConfigMap")
		}
		return true
	})
	return stored, uid, err
}

// clusterUID returns the UID of namespace kube-system, which exists as long as the cluster.
func (m *Membership) clusterUID(ctx context.Context) (string, error) {
	ns := kube.NamespaceMetadata()
	if err := m.reader.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("reading the UID of namespace %s, which identifies the cluster: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}

// decision is the result of decide.
type decision struct {
	// identity is the identity that the cluster should have, zero to leave.
	identity mcs.Identity
	// problem is the reason why identity is zero, or differs from that of the ClusterProperties and
	// flags; "" otherwise.
	problem string
	// configured is the identity of the ClusterProperties and flags, zero if there is none; known
	// is false if they could not be read.
	configured mcs.Identity
	known      bool
}

// decide returns the identity that the cluster should have.
func (m *Membership) decide(ctx context.Context, stored storedIdentities, uid string) decision {
	read, err := m.properties.read(ctx)
	if err != nil {
		m.missingSince = time.Time{}
		return m.keepIdentity(stored, uid, decision{problem: err.Error()})
	}
	m.reportDeprecation(read.Deprecation)
	derived := m.followProperties(ctx, read.All)
	d := m.decideRead(ctx, read, stored, uid)
	if isMember := d.identity != (mcs.Identity{}); read.Installed && derived != nil {
		m.writeDerived(ctx, read, derived, isMember)
	}
	return d
}

// decideRead returns the identity that the cluster should have, given its ClusterProperties.
func (m *Membership) decideRead(ctx context.Context, read properties, stored storedIdentities, uid string) decision {
	configured, err := decideIdentity(read, m.flags, uid)
	if err != nil {
		return m.decideWithoutIdentity(ctx, stored, uid, err)
	}
	m.missingSince, m.hadIdentity = time.Time{}, true
	d := decision{identity: configured, configured: configured, known: true}
	if stored.shouldLeave(configured) {
		d.identity, d.problem = mcs.Identity{}, leftOnRequest(configured)
	}
	return d
}

// Properties returns the ClusterProperties of this cluster, without those that identify it; known
// is false until they were read.
func (m *Membership) Properties() (own mcs.Properties, known bool) {
	if p := m.own.Load(); p != nil {
		return *p, true
	}
	return nil, false
}

// Importer returns the ClusterProperties of this cluster with those that identify it; known is
// false until they were read.
func (m *Membership) Importer() (properties mcs.Properties, known bool) {
	own, known := m.Properties()
	s := m.State().Session
	if !known || s == nil {
		return nil, false
	}
	return own.OfCluster(s.Identity.ClusterID, s.Identity.ClusterSetID), true
}

// followProperties publishes the ClusterProperties of this cluster if they have changed. Region,
// zone, the networks of pods and the IDs of zones are those of the nodes if no ClusterProperty of a
// user has them. It returns those of the nodes, nil if they are not known.
func (m *Membership) followProperties(ctx context.Context, configured mcs.Properties) mcs.Properties {
	derived, err := m.nodes.derive(ctx, m.reader)
	if err != nil {
		m.logOnce(ctx, err, "Failed to read the nodes, retrying")
		return nil
	}
	all := maps.Clone(derived)
	maps.Copy(all, configured)
	m.followDrain(all)
	m.dropInvalid(all)
	own, omitted := all.Publishable()
	if before := m.own.Load(); before != nil && maps.Equal(*before, own) {
		return derived
	}
	if len(omitted) > 0 {
		m.log.Info("Other clusters do not see all ClusterProperties of this cluster: they are too long", "omitted", omitted)
	}
	m.own.Store(&own)
	for _, s := range []*Session{m.State().Session, m.next} {
		if s != nil {
			s.Registry.SetProperties(own)
		}
	}
	if err := m.RequeueAll(ctx); err != nil {
		m.log.Error(err, "Failed to requeue all imports after a change of ClusterProperties")
	}
	return derived
}

// propertyRetry is the time between two attempts to write a ClusterProperty that the API server
// refuses, as a role without the permission makes it do: reconciles without a signal come every
// 5 s, and nothing waits for the object.
const propertyRetry = time.Minute

// writeDerived writes the Region and zone of the nodes as ClusterProperties, for others to read,
// while the cluster is a member. It changes nothing that a user has written.
func (m *Membership) writeDerived(ctx context.Context, read properties, derived mcs.Properties, isMember bool) {
	if !isMember {
		derived = nil
	}
	if time.Now().Before(m.writeAfter) {
		return
	}
	var problem string
	for _, w := range plan.PropertyWrites(derived, read.Objects) {
		log := m.log.WithValues("property", w.Property.Name, "value", w.Property.Spec.Value)
		err := m.properties.write(ctx, w)
		switch {
		case err == nil:
			log.Info("Wrote a ClusterProperty with the label of the nodes", "write", w.Verb)
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), ctx.Err() != nil:
			// Another client was faster. The watch shows the object.
		default:
			if problem = err.Error(); problem != m.writeProblem {
				log.Error(err, "Failed to write a ClusterProperty, retrying: the other clusters know the value without it", "write", w.Verb)
			}
			m.writeAfter = time.Now().Add(propertyRetry)
		}
	}
	m.writeProblem = problem
}

// dropInvalid removes the properties that a user has written and that are not valid. It reports
// each value once.
func (m *Membership) dropInvalid(properties mcs.Properties) {
	for _, name := range []string{mcs.PropertyNetworks, mcs.PropertyZones} {
		value, isSet := properties[name]
		err := mcs.CheckAnnouncement(name, value)
		if !isSet || err == nil {
			delete(m.refused, name)
			continue
		}
		delete(properties, name)
		if m.refused[name] != value {
			m.log.Error(err, "Ignored a ClusterProperty: correct its value", "property", name)
		}
		m.refused[name] = value
	}
}

// reportDeprecation records an event when the drain gets a deprecated key.
func (m *Membership) reportDeprecation(deprecation string) {
	if deprecation != "" && deprecation != m.deprecation && m.identities.Namespace != "" && m.events.Recorder != nil {
		m.events.Publish(kube.DeprecatedAnnotation(m.identities.object(), deprecation))
	}
	m.deprecation = deprecation
}

// followDrain replaces the drain in properties by its canonical form. One that is not valid is
// reported, and none.
func (m *Membership) followDrain(properties mcs.Properties) {
	text := properties[mcs.PropertyDrain]
	drain, err := mcs.ParseDrain(text)
	if changed := text != m.drainText; changed && err != nil {
		m.log.Error(err, "The cluster is not drained: the annotation is not valid", "annotation", mcs.AnnotationDrain)
		if m.identities.Namespace != "" && m.events.Recorder != nil {
			m.events.Publish(kube.InvalidDrain(m.identities.object(), fmt.Sprintf("the cluster is not drained: annotation %s: %v", mcs.AnnotationDrain, err)))
		}
	} else if changed {
		m.log.Info("Changed the drain of the cluster", "before", m.drainText, "drain", string(drain))
	}
	m.drainText = text
	if properties[mcs.PropertyDrain] = string(drain); drain == "" {
		delete(properties, mcs.PropertyDrain)
	}
}

// decideWithoutIdentity decides while the ClusterProperties and flags have no identity. This is not
// leaving: ClusterProperties are missing for a moment when they or their CRD are applied again.
// After --leave-after the cluster leaves, unless there was no identity since this process started.
func (m *Membership) decideWithoutIdentity(ctx context.Context, stored storedIdentities, uid string, problem error) decision {
	if m.missingSince.IsZero() {
		m.missingSince = time.Now()
	}
	d := m.keepIdentity(stored, uid, decision{problem: problem.Error(), known: true})
	switch {
	case d.identity == (mcs.Identity{}):
		return d
	case m.leaveAfter == 0 || !m.hadIdentity:
		d.problem += "; it leaves with kubectl mcs leave only"
		return d
	case time.Since(m.missingSince) < m.leaveAfter:
		d.problem += "; it leaves at " + m.missingSince.Add(m.leaveAfter).UTC().Format(time.RFC3339) + " (--leave-after)"
		return d
	}
	for _, s := range []*Session{m.State().Session, m.next} {
		if s == nil {
			continue
		}
		// A later process goes on leaving.
		if err := m.identities.setLeaving(ctx, s.Identity, "no identity since "+m.missingSince.UTC().Format(time.RFC3339)); err != nil {
			m.logOnce(ctx, err, "Failed to store that the cluster leaves, retrying")
			return d
		}
	}
	return decision{problem: notMember(problem.Error()), known: true}
}

// keepIdentity completes d with the identity that the cluster has, or had when the previous process
// ended.
func (m *Membership) keepIdentity(stored storedIdentities, uid string, d decision) decision {
	var kept mcs.Identity
	candidates := slices.DeleteFunc(slices.Clone(stored.Identities), func(i mcs.Identity) bool {
		return i.UID != uid || stored.shouldLeave(i) || stored.isLeaving(i)
	})
	switch s := m.State().Session; {
	case m.next != nil:
		kept = m.next.Identity
	case s != nil:
		kept = s.Identity
	case len(candidates) == 1:
		kept = candidates[0]
	}
	switch {
	case kept == (mcs.Identity{}):
		d.problem = notMember(d.problem)
	case stored.shouldLeave(kept):
		d.problem = leftOnRequest(kept)
	default:
		d.identity = kept
		d.problem = fmt.Sprintf("%s; the cluster stays %s of clusterset %s", d.problem, kept.ClusterID, kept.ClusterSetID)
	}
	return d
}

func notMember(problem string) string {
	return "this cluster is not a member of a clusterset: " + problem
}

// leftOnRequest returns the problem of a cluster that left under identity because a user requested
// it.
func leftOnRequest(identity mcs.Identity) string {
	return notMember(fmt.Sprintf("a user requested that it leaves clusterset %s as %s: to join again, run kubectl mcs join, or delete key %s of ConfigMap %s",
		identity.ClusterSetID, identity.ClusterID, names.LeaveKey(identity.ClusterSetID, identity.ClusterID), IdentitiesName))
}

// follow makes the cluster a member under the identity of d.
func (m *Membership) follow(ctx context.Context, stored storedIdentities, d decision) {
	s := m.State().Session
	state := &State{Session: s, IdentityProblem: d.problem}
	switch {
	case (s == nil || s.hasEnded()) && m.next.runsAs(d.identity):
		m.promoteNext(ctx, s)
		return
	case s == nil || s.hasEnded():
		m.dropNext(ctx)
		started, err := m.startSession(ctx, d.identity)
		if err != nil {
			m.setState(ctx, &State{Problem: err.Error()})
			return
		}
		state.Session = started
	case s.Identity == d.identity:
		if m.next != nil {
			s.publications.next.Store(nil)
			m.dropNext(ctx)
		}
		if d.problem == "" && m.departing != "" { // the identity changed while no controller ran
			state.Next, state.IdentityProblem = d.identity, m.departing
		}
	default:
		pending := m.changeIdentity(ctx, stored, s, d.identity)
		if pending == "" {
			return
		}
		state.Next, state.IdentityProblem = d.identity, pending
	}
	m.setState(ctx, state)
	m.storeIdentity(ctx, stored, state.Session)
}

// startSession starts a session.
func (m *Membership) startSession(ctx context.Context, identity mcs.Identity) (*Session, error) {
	if !m.takeBack(identity) {
		return nil, fmt.Errorf("joining clusterset %s as %s: the cluster still leaves it", identity.ClusterSetID, identity.ClusterID)
	}
	m.forgetLeftovers(identity)
	if err := m.identities.Add(ctx, identity); err != nil {
		// This matters only if the identity changes while no controller runs.
		m.logOnce(ctx, err, "Failed to store this cluster's identity")
	}
	reg, err := m.newRegistry(ctx, identity)
	if err != nil {
		return nil, fmt.Errorf("starting the registry: %w", err)
	}
	// Run may withdraw the exports that are not published before it. No reconcile publishes in this
	// registry yet, so that none of these exports replaces a later one.
	if err := m.publishAll(ctx, identity, reg); err != nil {
		return nil, fmt.Errorf("publishing all exports: %w", err)
	}
	leaving, takeBack := context.WithCancel(ctx)
	ctx, end := context.WithCancelCause(registry.WithLeaveContext(ctx, leaving))
	s := &Session{
		Identity: identity, publications: &publications{Registry: reg, pace: newSourcePace(m.requeueAfter)}, Started: time.Now(), end: end, takeBack: takeBack,
		ended: make(chan struct{}),
	}
	s.Registry = s.publications
	if own, known := m.Properties(); known {
		reg.SetProperties(own)
	}
	go func() {
		defer close(s.ended)
		defer takeBack()
		notify := func(key mcs.Key) {
			if !s.publications.postpones(ctx, key) {
				m.requeue(key)
			}
		}
		if s.err = reg.Run(ctx, notify); s.err != nil && !errors.Is(context.Cause(ctx), registry.ErrLeave) {
			m.log.Error(s.err, "Registry stopped", "cluster", identity.ClusterID)
		}
	}()
	return s, nil
}

// storeIdentity updates the stored identity of s.
func (m *Membership) storeIdentity(ctx context.Context, stored storedIdentities, s *Session) {
	var errs []error
	if !stored.contains(s.Identity) && m.identities.Namespace != "" {
		errs = append(errs, m.identities.Add(ctx, s.Identity))
	}
	if stored.isLeaving(s.Identity) {
		errs = append(errs, m.identities.clearLeaving(ctx, s.Identity))
	}
	member, ok := ownMember(ctx, s)
	if ok && s.memberSince.IsZero() {
		s.memberSince = time.Now()
	}
	if ok && m.identities.Namespace != "" && stored.joined(s.Identity).IsZero() {
		if member.Joined.IsZero() {
			member.Joined = time.Now()
		}
		errs = append(errs, m.identities.setJoined(ctx, s.Identity, member.Joined))
	}
	if err := errors.Join(errs...); err != nil {
		m.logOnce(ctx, err, "Failed to store this cluster's identity, retrying")
	}
}

// ownMember returns this cluster as a member, if the registry has it.
func ownMember(ctx context.Context, s *Session) (registry.Member, bool) {
	members, err := s.Registry.Members(ctx)
	i := slices.IndexFunc(members, func(m registry.Member) bool { return m.ClusterID == s.Identity.ClusterID && m.UID == s.Identity.UID })
	if err != nil || i < 0 {
		return registry.Member{}, false
	}
	return members[i], true
}

// departSessions ends all sessions for good.
func (m *Membership) departSessions(ctx context.Context) {
	m.dropNext(ctx)
	s := m.State().Session
	switch {
	case s == nil:
	case s.hasEnded():
		m.depart(ctx, s.Identity, nil)
	default:
		m.depart(ctx, s.Identity, s)
	}
}

// departStored leaves under the identities that a previous process had: at once if leaving was
// requested or has begun, otherwise when all exports are confirmed under the current identity.
// Without a session, no exports replace the previous ones, so it waits.
func (m *Membership) departStored(ctx context.Context, stored storedIdentities) {
	state := m.State()
	m.departing = ""
	for _, identity := range stored.Identities {
		current := state.Session != nil && identity == state.Session.Identity || m.next != nil && identity == m.next.Identity
		switch {
		case current || m.departures[identity] != nil:
		case stored.shouldLeave(identity), stored.isLeaving(identity):
			m.depart(ctx, identity, nil)
		case state.Session != nil && m.next == nil:
			if pending := m.describeUnconfirmed(ctx, identity, state.Session); pending != "" {
				m.departing = describeChange(identity, state.Session.Identity) + pending
				m.reportLate(state.Session, m.departing)
				continue
			}
			m.depart(ctx, identity, nil)
		}
	}
}

// removeLeaveRequests deletes the requests to leave under identities that the cluster has left and
// that are not configured any more.
func (m *Membership) removeLeaveRequests(ctx context.Context, stored storedIdentities, d decision) {
	if !d.known {
		return
	}
	for _, request := range stored.listWithSuffix(names.LeaveSuffix) {
		request.UID = ""
		used := slices.ContainsFunc(append(slices.Clone(stored.Identities), d.configured, m.State().Identity()), func(i mcs.Identity) bool {
			return i.ClusterID == request.ClusterID && i.ClusterSetID == request.ClusterSetID
		})
		if used {
			continue
		}
		if err := m.identities.removeRequest(ctx, names.LeaveKey(request.ClusterSetID, request.ClusterID)); err != nil {
			m.logOnce(ctx, err, "Failed to delete a completed request to leave, retrying")
		}
	}
}

// handleRequests forgets the clusters that users name, and trusts the keys that they name.
func (m *Membership) handleRequests(ctx context.Context, stored storedIdentities) {
	s := m.State().Session
	if s == nil {
		return
	}
	m.handleEach(ctx, stored, names.ForgetSuffix, func(clusterID, _ string, log logr.Logger) {
		s.Registry.Forget(clusterID)
		log.Info("Forgot a cluster because a user requested it: its imports end unless it writes to the registry again")
	})
	m.handleEach(ctx, stored, names.TrustSuffix, func(clusterID, value string, log logr.Logger) {
		key, _, _ := strings.Cut(value, " ")
		if err := registry.Trust(s.Registry, clusterID, key); err != nil {
			log.Error(err, "Ignored the request to trust a key")
			return
		}
		log.Info("Trusts a key of a cluster because a user requested it: no other one counts", "key", key)
	})
}

// handleEach handles and deletes the requests with a suffix that are about another cluster of the
// clusterset, and deletes the other ones. handle gets the value of the request.
func (m *Membership) handleEach(ctx context.Context, stored storedIdentities, suffix string, handle func(clusterID, value string, log logr.Logger)) {
	own := m.State().Session.Identity
	for _, request := range stored.listWithSuffix(suffix) {
		log := m.log.WithValues("member", request.ClusterID, "clusterSet", request.ClusterSetID)
		key := names.IdentityKey(request.ClusterSetID, request.ClusterID) + suffix
		if request.ClusterSetID == own.ClusterSetID && request.ClusterID != own.ClusterID {
			handle(request.ClusterID, stored.data[key], log)
			if err := m.requeueAll(ctx); err != nil {
				log.Error(err, "Failed to requeue all exports and imports, retrying")
				continue
			}
		} else {
			log.Info("Ignored a request of a user: it is not about another cluster of this cluster's clusterset", "request", strings.TrimPrefix(suffix, "."))
		}
		if err := m.identities.removeRequest(ctx, key); err != nil {
			log.Error(err, "Failed to delete a completed request, retrying", "request", strings.TrimPrefix(suffix, "."))
		}
	}
}

// setState changes the cluster's state, and requeues all exports and imports if the session or the
// problem differs.
func (m *Membership) setState(ctx context.Context, state *State) {
	before := m.State()
	first := m.state.Load() == nil
	if !first && *before == *state {
		return
	}
	m.state.Store(state)
	m.reportIdentityProblem(before, state)
	if !first && before.Session == state.Session && before.Problem == state.Problem {
		return
	}
	if state.Session != nil {
		m.log.Info("Joined the clusterset", "cluster", state.Session.Identity.ClusterID, "clusterSet", state.Session.Identity.ClusterSetID)
	} else {
		m.log.Info("Not a member of a clusterset: nothing is exported, imports stay as they are", "problem", state.Problem)
	}
	// The registry may have notified of keys before the session was the state.
	if err := m.RequeueAll(ctx); err != nil {
		m.log.Error(err, "Failed to requeue all exports and imports")
	}
}

// reportIdentityProblem logs the begin and the end of a problem with the identity of a session, and
// records an event.
func (m *Membership) reportIdentityProblem(before, now *State) {
	began := now.IdentityProblem != "" && (before.IdentityProblem == "" || before.Next != now.Next)
	switch {
	case began:
		m.log.Info("The cluster keeps its identity", "problem", now.IdentityProblem)
	case before.IdentityProblem != "" && now.IdentityProblem == "" && now.Session != nil:
		m.log.Info("The cluster has its configured identity", "cluster", now.Session.Identity.ClusterID, "clusterSet", now.Session.Identity.ClusterSetID)
	}
	if began && m.identities.Namespace != "" && m.events.Recorder != nil {
		m.events.Publish(kube.IdentityKept(m.identities.object(), now.IdentityProblem))
	}
}

// logOnce logs a problem with the identities, once as long as it stays the same.
func (m *Membership) logOnce(ctx context.Context, err error, message string) {
	if text := err.Error(); text != m.lastProblem && ctx.Err() == nil {
		m.lastProblem = text
		m.log.Error(err, message)
	}
}
