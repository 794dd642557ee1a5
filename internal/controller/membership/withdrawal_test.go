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

// newMembership returns a membership that remembers identity previous. Reads of the ConfigMap return readError while it is set.
func newMembership(t *testing.T, readError *error) *Membership {
	t.Helper()
	remembered := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: IdentitiesName}, Data: map[string]string{"set.previous": "uid"},
	}
	c := fake.NewClientBuilder().WithObjects(remembered).WithInterceptorFuncs(interceptor.Funcs{
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

// wasWithdrawn fails the test unless identity previous is withdrawn and forgotten.
func wasWithdrawn(t *testing.T, m *Membership) {
	t.Helper()
	w := m.withdrawals[previous]
	if w == nil {
		t.Fatal("the previous identity is not withdrawn")
	}
	<-w.done
	if remembered, err := m.identities.List(t.Context()); err != nil || len(remembered) > 0 {
		t.Errorf("remembered identities %v (%v), want none", remembered, err)
	}
}

func TestPreviousIdentitiesAreWithdrawnOnceTheyCanBeRead(t *testing.T) {
	readError := errors.New("no answer")
	m := newMembership(t, &readError)
	current := mcs.Identity{ClusterSetID: "set", ClusterID: "current", UID: "uid"}
	m.withdrawPrevious(t.Context(), current, "uid")
	if len(m.withdrawals) > 0 {
		t.Fatal("withdrawn without knowing the identities")
	}
	readError = nil
	m.withdrawPrevious(t.Context(), current, "uid")
	wasWithdrawn(t, m)
}

func TestIdentityThatCouldNotLeaveIsWithdrawn(t *testing.T) {
	var readError error
	m := newMembership(t, &readError)
	s := &Session{Identity: previous, ended: make(chan struct{}), err: errors.New("the registry is unreachable")}
	close(s.ended)
	m.leaving = []*Session{s}
	m.finishLeaving(t.Context())
	if len(m.leaving) > 0 {
		t.Error("the session is still leaving")
	}
	wasWithdrawn(t, m)
}
