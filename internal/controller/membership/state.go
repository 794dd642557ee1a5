package membership

import (
	"context"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// State is either a session, if the cluster is a member, or the problem that prevents it, for users. With neither it is
// pending, and everything is requeued when it is known.
type State struct {
	Session *Session
	Problem string
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

	end context.CancelCauseFunc
	// ended is closed when the registry's Run has returned err.
	ended chan struct{}
	err   error
}

// waitFor waits until the session has ended or, if it is not nil, timeout fires, and reports whether the session has ended.
func (s *Session) waitFor(ctx context.Context, timeout <-chan time.Time) bool {
	select {
	case <-s.ended:
	case <-ctx.Done():
	case <-timeout:
	}
	return s.hasEnded()
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
