package membership

import (
	"context"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// State is either a session, if the cluster is a member, or the problem that prevents it, for
// users. With neither it is pending, and everything is requeued when it is known.
type State struct {
	Session *Session
	Problem string
	// IdentityProblem is the reason why the session does not have the identity of the
	// ClusterProperties or flags, for users: they are missing or not valid, or the cluster changes
	// its identity and its exports are not confirmed under the next one yet.
	IdentityProblem string
	// Next is the identity that the cluster will have then, zero otherwise. After a restart,
	// Session has it already.
	Next mcs.Identity
}

// IsPending reports whether the state is not known yet.
func (s *State) IsPending() bool { return s.Session == nil && s.Problem == "" }

// Identity returns the identity of the session, or the zero identity.
func (s *State) Identity() mcs.Identity {
	if s.Session == nil {
		return mcs.Identity{}
	}
	return s.Session.Identity
}

// Session is this cluster's membership under one identity.
type Session struct {
	Identity mcs.Identity
	Registry registry.Registry
	Started  time.Time

	// publications is Registry.
	publications *publications
	// memberSince is the time at which the registry was first seen to have this cluster as a
	// member, and confirmedSince when all exports were confirmed; zero before. Only reconcile uses
	// them.
	memberSince, confirmedSince time.Time
	// isLate is set when the change to this identity has been reported as late. Only reconcile uses
	// it.
	isLate bool

	end context.CancelCauseFunc
	// takeBack ends the attempt to leave, after end with registry.ErrLeave.
	takeBack context.CancelFunc
	// ended is closed when the registry's Run has returned err.
	ended chan struct{}
	err   error
}

// runsAs reports whether s, which may be nil, is a running session of identity.
func (s *Session) runsAs(identity mcs.Identity) bool {
	return s != nil && s.Identity == identity && !s.hasEnded()
}

func (s *Session) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}
