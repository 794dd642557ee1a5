package membership

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// departureRetry is the pause after an attempt to leave, of minutes, that failed.
const departureRetry = time.Minute

// departure removes this cluster's exports and member record under one identity from the registry,
// in the background.
type departure struct {
	// takeBack ends it as soon as possible.
	takeBack context.CancelFunc
	done     chan struct{}
}

func (d *departure) hasEnded() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// depart starts the departure under identity. s is the session of the identity that ends, nil if
// none runs in this process.
func (m *Membership) depart(ctx context.Context, identity mcs.Identity, s *Session) {
	if m.departures[identity] != nil {
		return
	}
	log := m.log.WithValues("cluster", identity.ClusterID, "clusterSet", identity.ClusterSetID)
	log.Info("Leaving the clusterset")
	m.forgetLeftovers(identity)
	ctx, takeBack := context.WithCancel(ctx)
	d := &departure{takeBack: takeBack, done: make(chan struct{})}
	m.departures[identity] = d
	leave := func() error { return m.leaveAs(ctx, identity) }
	if s != nil {
		context.AfterFunc(ctx, s.takeBack)
		s.end(registry.ErrLeave)
		leave = func() error { <-s.ended; return s.err }
	}
	go func() {
		defer m.signalChange()
		defer close(d.done)
		defer takeBack()
		err := m.noteLeftovers(identity, leave())
		for err != nil && ctx.Err() == nil {
			log.Error(err, "Failed to leave the clusterset, retrying", "retryAfter", departureRetry.String())
			select {
			case <-ctx.Done():
			case <-time.After(departureRetry):
				err = m.noteLeftovers(identity, m.leaveAs(ctx, identity))
			}
		}
		if err != nil || ctx.Err() != nil {
			return
		}
		log.Info("Left the clusterset")
		if err := m.identities.Remove(ctx, identity); err != nil {
			log.Error(err, "Failed to forget an identity; the cluster will leave under it once more")
		}
	}()
}

// noteLeftovers keeps the resources that stay after the cluster has left under identity, by the
// result of an attempt. It returns the error of one that has to be repeated.
func (m *Membership) noteLeftovers(identity mcs.Identity, err error) error {
	var left *registry.LeftoversError
	if !errors.As(err, &left) {
		return err
	}
	for _, l := range left.Left {
		m.log.Info("The cluster has left the clusterset, and a resource of the registry stays", "cluster", identity.ClusterID, "clusterSet", identity.ClusterSetID,
			"resource", l.Resource, "reason", l.Reason, "command", l.Command)
	}
	m.leftMu.Lock()
	defer m.leftMu.Unlock()
	if m.left == nil {
		m.left = map[mcs.Identity][]registry.Leftover{}
	}
	m.left[identity] = left.Left
	return nil
}

// Leftovers returns the resources of the registry that stayed when this cluster left under its
// identities, as far as this process has tried to delete them.
func (m *Membership) Leftovers() []registry.Leftover {
	m.leftMu.Lock()
	defer m.leftMu.Unlock()
	var all []registry.Leftover
	for _, left := range m.left {
		all = append(all, left...)
	}
	slices.SortFunc(all, func(a, b registry.Leftover) int { return strings.Compare(b.Resource, a.Resource) })
	return all
}

// forgetLeftovers forgets what stayed when the cluster left under identity: it is used again, or
// deleted again.
func (m *Membership) forgetLeftovers(identity mcs.Identity) {
	m.leftMu.Lock()
	defer m.leftMu.Unlock()
	delete(m.left, identity)
}

// leaveAs removes the records of a previous process under identity. A clone of this cluster keeps
// its exports.
func (m *Membership) leaveAs(ctx context.Context, identity mcs.Identity) error {
	reg, err := m.newRegistry(ctx, identity)
	if err != nil {
		return err
	}
	left, end := context.WithCancelCause(registry.WithLeaveContext(ctx, ctx))
	end(registry.ErrLeave)
	return reg.Run(left, func(mcs.Key) {})
}

// reapDepartures removes the departures that have ended.
func (m *Membership) reapDepartures() {
	for identity, d := range m.departures {
		if d.hasEnded() {
			delete(m.departures, identity)
		}
	}
}

// takeBack ends the departure under identity, which is the cluster's again, and reports whether it
// has ended. The end of a departure signals a change.
func (m *Membership) takeBack(identity mcs.Identity) bool {
	d := m.departures[identity]
	if d == nil {
		return true
	}
	d.takeBack()
	return false
}
