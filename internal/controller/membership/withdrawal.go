package membership

import (
	"context"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// withdrawalRetry is the pause after a try, of minutes, that failed.
const withdrawalRetry = time.Minute

// withdrawal removes this cluster's exports and member record under its previous identities from the registry.
type withdrawal struct {
	stop context.CancelFunc
	done chan struct{}
}

// withdrawPrevious starts the withdrawal of every identity that is remembered but now, which is the zero identity while there is
// none. It is done once: after that, changes of the identity go through leave.
func (m *Membership) withdrawPrevious(ctx context.Context, now mcs.Identity, uid string) {
	if m.previousKnown {
		return
	}
	past, err := m.identities.List(ctx)
	if err != nil {
		m.logOnce(err, "Failed to read the identities of previous processes, retrying")
		return
	}
	m.previousKnown = true
	for _, identity := range past {
		switch {
		case identity.UID != uid:
			// Another cluster's ConfigMap, restored here from a backup.
			if err := m.identities.Forget(ctx, identity); err != nil {
				m.log.Error(err, "Failed to forget the identity of another cluster", "cluster", identity.ClusterID)
			}
		case identity != now:
			m.withdraw(ctx, identity)
		}
	}
}

// withdraw starts to remove everything under identity in the background, with retries.
func (m *Membership) withdraw(ctx context.Context, identity mcs.Identity) {
	ctx, stop := context.WithCancel(ctx)
	w := &withdrawal{stop: stop, done: make(chan struct{})}
	m.withdrawals[identity] = w
	m.log.Info("Withdrawing the exports of a previous identity", "cluster", identity.ClusterID, "clusterSet", identity.ClusterSetID)
	go func() {
		defer close(w.done)
		defer stop()
		for {
			err := m.leaveAs(ctx, identity)
			if err == nil {
				m.log.Info("Withdrew the exports of a previous identity", "cluster", identity.ClusterID, "clusterSet", identity.ClusterSetID)
				return
			}
			m.log.Error(err, "Failed to withdraw the exports of a previous identity, retrying",
				"cluster", identity.ClusterID, "clusterSet", identity.ClusterSetID)
			select {
			case <-ctx.Done():
				return
			case <-time.After(withdrawalRetry):
			}
		}
	}()
}

// leaveAs removes what a previous process left under identity, and then the identity from the ConfigMap. A clone of this
// cluster keeps its exports.
func (m *Membership) leaveAs(ctx context.Context, identity mcs.Identity) error {
	reg, err := m.newRegistry(ctx, identity)
	if err != nil {
		return err
	}
	left, end := context.WithCancelCause(ctx)
	end(registry.ErrLeave)
	if err := reg.Run(left, func(mcs.Key) {}); err != nil {
		return err
	}
	return m.identities.Forget(ctx, identity)
}

// endWithdrawal stops the withdrawal under identity, which is the cluster's again, and waits until it has ended.
func (m *Membership) endWithdrawal(identity mcs.Identity) {
	if w := m.withdrawals[identity]; w != nil {
		w.stop()
		<-w.done
		delete(m.withdrawals, identity)
	}
}
