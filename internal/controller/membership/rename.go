package membership

import (
	"cmp"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// changeIdentity moves the cluster from the session s to identity, and returns the pending step, ""
// when it is done. Meanwhile the exports are published under both identities. Without the
// permission to join as identity, the cluster keeps the previous one.
func (m *Membership) changeIdentity(ctx context.Context, stored storedIdentities, s *Session, identity mcs.Identity) string {
	if m.next != nil && m.next.Identity == identity && m.next.hasEnded() {
		m.next = nil
	}
	if m.next != nil && m.next.Identity != identity {
		s.publications.next.Store(nil)
		m.dropNext(ctx)
	}
	change := describeChange(s.Identity, identity)
	if m.next == nil {
		next, err := m.startSession(ctx, identity)
		if err != nil {
			return change + err.Error()
		}
		m.next = next
		s.publications.next.Store(next)
		if err := m.requeueAll(ctx); err != nil {
			m.logOnce(ctx, err, "Failed to requeue all exports")
		}
	}
	m.storeIdentity(ctx, stored, m.next)
	if pending := m.describeUnconfirmed(ctx, s.Identity, m.next); pending != "" {
		m.reportLate(m.next, change+pending)
		return change + pending
	}
	m.promoteNext(ctx, s)
	return ""
}

// describeChange returns the begin of the reason why a change of the identity is not complete.
func describeChange(from, to mcs.Identity) string {
	return fmt.Sprintf("the identity changes from %s of clusterset %s to %s of clusterset %s: ", from.ClusterID, from.ClusterSetID, to.ClusterID, to.ClusterSetID)
}

// promoteNext makes the next session the session, and ends the previous one, which may be nil.
func (m *Membership) promoteNext(ctx context.Context, previous *Session) {
	next := m.next
	m.next = nil
	m.setState(ctx, &State{Session: next})
	// The exports of a previous process under this identity are withdrawn now, if they are not
	// exported any more.
	for _, key := range registry.ReportOf(next.Registry).Keys {
		m.requeue(key)
	}
	if previous == nil {
		return
	}
	previous.publications.next.Store(nil)
	if !previous.hasEnded() {
		m.depart(ctx, previous.Identity, previous)
	}
}

// dropNext leaves under the identity that the cluster does not change to any more.
func (m *Membership) dropNext(ctx context.Context) {
	if m.next == nil {
		return
	}
	if m.next.hasEnded() {
		m.depart(ctx, m.next.Identity, nil)
	} else {
		m.depart(ctx, m.next.Identity, m.next)
	}
	m.next = nil
}

// lateChange is the time after which a change of the identity that goes on is reported again. Most
// take 15 to 30 s.
const lateChange = 5 * time.Minute

// reportLate logs what the change to the identity of s waits for, and records an event, once if it
// takes long.
func (m *Membership) reportLate(s *Session, pending string) {
	if s.isLate || time.Since(s.Started) < lateChange {
		return
	}
	s.isLate = true
	m.log.Info("The cluster still keeps its previous identity", "problem", pending)
	if m.identities.Namespace != "" && m.events.Recorder != nil {
		m.events.Publish(kube.IdentityKept(m.identities.object(), pending))
	}
}

// describeUnconfirmed returns why the previous identity cannot end yet, "" if it can: the cluster
// is a member under the identity of s and the registry has shown all exports for long enough that
// the other clusters have read them. An export that other clusters may import under the previous
// identity is awaited without limit, because its import would end. One that the registry has under
// neither delays this by --leave-after at most.
func (m *Membership) describeUnconfirmed(ctx context.Context, previous mcs.Identity, s *Session) string {
	if s.memberSince.IsZero() {
		text := "the cluster is not a member under it yet"
		if err := registry.ReportOf(s.Registry).Writing; err != nil {
			text += ": " + err.Error()
		}
		return text
	}
	imported, others, err := m.listUnconfirmed(ctx, previous, s)
	if err != nil {
		return err.Error()
	}
	pending := ""
	switch {
	case len(imported) > 0:
		pending = fmt.Sprintf("%d exports are not confirmed under it yet, such as %s: the other clusters import them as exports of %s, which stays a member until "+
			"then. Remove the reason, or take the change of the identity back", len(imported), imported[0], previous.ClusterID)
	case len(others) > 0 && m.leaveAfter == 0:
		pending = fmt.Sprintf("%d exports are confirmed under neither, such as %s: remove the reason, or delete their ServiceExports", len(others), others[0])
	case len(others) > 0 && time.Since(s.memberSince) < m.leaveAfter:
		pending = fmt.Sprintf("%d exports are confirmed under neither, such as %s: it changes without them at %s (--leave-after)",
			len(others), others[0], s.memberSince.Add(m.leaveAfter).UTC().Format(time.RFC3339))
	}
	if pending != "" {
		s.confirmedSince = time.Time{}
		return pending
	}
	if s.confirmedSince.IsZero() {
		s.confirmedSince = time.Now()
	}
	if time.Since(s.confirmedSince) < m.settle {
		return "all exports are confirmed under it, and the other clusters read them"
	}
	return ""
}

// unconfirmedExport is an export that the registry does not show, with the reason if it is known.
type unconfirmedExport struct {
	key    mcs.Key
	reason error
}

// String returns the key, and the reason.
func (u unconfirmedExport) String() string {
	if u.reason == nil {
		return u.key.String()
	}
	return fmt.Sprintf("%s (%v)", u.key, u.reason)
}

// listUnconfirmed returns the exports of this cluster that the registry of s does not show: those
// that other clusters may import under the previous identity, and the others.
func (m *Membership) listUnconfirmed(ctx context.Context, previous mcs.Identity, s *Session) (imported, others []unconfirmedExport, err error) {
	var exports mcsv1beta1.ServiceExportList
	if err := m.reader.List(ctx, &exports, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("listing ServiceExports: %w", err)
	}
	for i := range exports.Items {
		key := kube.KeyOf(client.ObjectKeyFromObject(&exports.Items[i]))
		view, err := s.Registry.Lookup(ctx, key, previous.ClusterID)
		if err == nil && view.Local.State == registry.Exported {
			continue
		}
		exported, isErr := m.isExported(ctx, &exports.Items[i])
		if isErr != nil {
			return nil, nil, isErr
		}
		if !exported {
			continue
		}
		u := unconfirmedExport{key, cmp.Or(err, view.Local.Err)}
		if previous.ClusterSetID == s.Identity.ClusterSetID && (err != nil || mayExport(view, previous.ClusterID)) {
			imported = append(imported, u)
		} else {
			others = append(others, u)
		}
	}
	return imported, others, nil
}

// mayExport reports whether a view of the other clusters' exports has one of a cluster, or does not
// show that it has none. The other clusters read the same.
func mayExport(view registry.View, clusterID string) bool {
	return view.Incomplete || view.Clusters[clusterID].State != registry.None
}

// isExported reports whether the service of exp is exported: the ServiceExport is valid and its
// namespace may export.
func (m *Membership) isExported(ctx context.Context, exp *mcsv1beta1.ServiceExport) (bool, error) {
	svc, err := kube.FindExported(ctx, m.reader, exp)
	if err != nil || exp.DeletionTimestamp != nil {
		return false, err
	}
	ns, _, err := kube.ReadNamespace(ctx, m.reader, exp.Namespace)
	if err != nil {
		return false, err
	}
	return m.scope.ExportDenial(ns) == "" && mcs.ExportValid(exp, svc).Status == metav1.ConditionTrue, nil
}
