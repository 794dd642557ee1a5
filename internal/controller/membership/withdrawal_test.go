package membership

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

var previous = mcs.Identity{ClusterSetID: "set", ClusterID: "previous", UID: "uid"}

// newMembership returns a membership whose ConfigMap has identity previous. Reads of the ConfigMap return readError while it is set.
func newMembership(t *testing.T, readError *error) *Membership {
	t.Helper()
	stored := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: IdentitiesName}, Data: map[string]string{"set.previous": "uid"},
	}
	c := fake.NewClientBuilder().WithObjects(stored).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if *readError != nil {
				return *readError
			}
			return c.Get(ctx, key, obj, opts...)
		},
	}).Build()
	hub := memory.NewHub()
	return &Membership{
		newRegistry: func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
			return hub.Registry(identity), nil
		},
		identities:  &Identities{Client: c, Namespace: "system"},
		log:         logr.Discard(),
		withdrawals: map[mcs.Identity]*withdrawal{},
	}
}

// checkWithdrawn fails the test unless identity previous is withdrawn and removed from the ConfigMap.
func checkWithdrawn(t *testing.T, m *Membership) {
	t.Helper()
	w := m.withdrawals[previous]
	if w == nil {
		t.Fatal("the previous identity is not withdrawn")
	}
	<-w.done
	if stored, err := m.identities.List(t.Context()); err != nil || len(stored) > 0 {
		t.Errorf("identities in the ConfigMap %v (%v), want none", stored, err)
	}
}

func TestMembership_WithdrawsPreviousIdentitiesAfterReadError(t *testing.T) {
	readError := errors.New("no answer")
	m := newMembership(t, &readError)
	current := mcs.Identity{ClusterSetID: "set", ClusterID: "current", UID: "uid"}
	m.withdrawPrevious(t.Context(), current, "uid")
	if len(m.withdrawals) > 0 {
		t.Fatal("withdrawn although the identities could not be read")
	}
	readError = nil
	m.withdrawPrevious(t.Context(), current, "uid")
	checkWithdrawn(t, m)
}

func TestMembership_WithdrawsAfterFailedLeave(t *testing.T) {
	var readError error
	m := newMembership(t, &readError)
	s := &Session{Identity: previous, ended: make(chan struct{}), err: errors.New("the registry is unreachable")}
	close(s.ended)
	m.leaving = []*Session{s}
	m.finishLeaving(t.Context())
	if len(m.leaving) > 0 {
		t.Error("the session is still leaving")
	}
	checkWithdrawn(t, m)
}
