package membership

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// changeIdentity moves the cluster from the session s to identity, and returns the pending step, "" when it is done. Meanwhile the exports are
// published under both identities. Without the permission to join as identity, the cluster keeps the previous one.
func (m *Membership) changeIdentity(ctx context.Context, stored storedIdentities, s *Session, identity mcs.Identity) string {
	if m.next != nil && m.next.Identity == identity && m.next.hasEnded() {
		m.next = nil
	}
	if m.next != nil && m.next.Identity != identity {
		s.publications.next.Store(nil)
		m.dropNext(ctx)
	}
	change := fmt.Sprintf("the identity changes from %s of clusterset %s to %s of clusterset %s: ",
		s.Identity.ClusterID, s.Identity.ClusterSetID, identity.ClusterID, identity.ClusterSetID)
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
	if pending := m.describeUnconfirmed(ctx, m.next); pending != "" {
		return change + pending
	}
	m.promoteNext(ctx, s)
	return ""
}

// promoteNext makes the next session the session, and ends the previous one, which may be nil.
func (m *Membership) promoteNext(ctx context.Context, previous *Session) {
	next := m.next
	m.next = nil
	m.setState(ctx, &State{Session: next})
	// The exports of a previous process under this identity are withdrawn now, if they are not exported any more.
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

// describeUnconfirmed returns why the previous identity cannot end yet, "" if it can: the cluster is a member under the identity of s and
// the registry has shown all exports for long enough that the other clusters have read them. An export that the registry does not accept
// delays this by --leave-after at most.
func (m *Membership) describeUnconfirmed(ctx context.Context, s *Session) string {
	if s.memberSince.IsZero() {
		text := "the cluster is not a member under it yet"
		if err := registry.ReportOf(s.Registry).Writing; err != nil {
			text += ": " + err.Error()
		}
		return text
	}
	unconfirmed, err := m.listUnconfirmed(ctx, s)
	if err != nil {
		return err.Error()
	}
	if len(unconfirmed) > 0 && (m.leaveAfter == 0 || time.Since(s.memberSince) < m.leaveAfter) {
		s.confirmedSince = time.Time{}
		return fmt.Sprintf("%d exports are not confirmed under it yet, such as %s", len(unconfirmed), unconfirmed[0])
	}
	if s.confirmedSince.IsZero() {
		s.confirmedSince = time.Now()
	}
	if time.Since(s.confirmedSince) < m.settle {
		return "all exports are confirmed under it, and the other clusters read them"
	}
	return ""
}

// listUnconfirmed returns the exports of this cluster that the registry of s does not show.
func (m *Membership) listUnconfirmed(ctx context.Context, s *Session) ([]mcs.Key, error) {
	var exports mcsv1beta1.ServiceExportList
	if err := m.reader.List(ctx, &exports, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing ServiceExports: %w", err)
	}
	var unconfirmed []mcs.Key
	for i := range exports.Items {
		key := kube.KeyOf(client.ObjectKeyFromObject(&exports.Items[i]))
		view, err := s.Registry.Lookup(ctx, key)
		if err == nil && view.Local.State == registry.Exported {
			continue
		}
		exported, err := m.isExported(ctx, &exports.Items[i])
		if err != nil {
			return nil, err
		}
		if exported {
			unconfirmed = append(unconfirmed, key)
		}
	}
	return unconfirmed, nil
}

// isExported reports whether the service of exp is exported: the ServiceExport is valid and its namespace may export.
func (m *Membership) isExported(ctx context.Context, exp *mcsv1beta1.ServiceExport) (bool, error) {
	var svc corev1.Service
	found, err := kube.Find(ctx, m.reader, client.ObjectKeyFromObject(exp), &svc, client.UnsafeDisableDeepCopy)
	if err != nil || !found || svc.DeletionTimestamp != nil || exp.DeletionTimestamp != nil {
		return false, err
	}
	ns, _, err := kube.ReadNamespace(ctx, m.reader, exp.Namespace)
	if err != nil {
		return false, err
	}
	return m.scope.ExportDenial(ns) == "" && mcs.ExportValid(&svc).Status == metav1.ConditionTrue, nil
}
