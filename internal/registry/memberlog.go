package registry

import (
	"slices"

	"github.com/go-logr/logr"
)

// MemberLog logs who comes, who goes, and who lives or not. It is not safe for concurrent use.
type MemberLog struct {
	log logr.Logger
	own string
	// noted are the other clusters that the log knows of, and whether they are stale.
	noted map[string]bool
}

// NewMemberLog logs for cluster own, of which it says nothing.
func NewMemberLog(log logr.Logger, own string) *MemberLog {
	return &MemberLog{log: log, own: own, noted: map[string]bool{}}
}

// Note takes in all members as they are now.
func (l *MemberLog) Note(members []Member) {
	for _, m := range members {
		if m.ClusterID == l.own {
			continue
		}
		was, known := l.noted[m.ClusterID]
		l.noted[m.ClusterID] = m.Stale
		switch {
		case !known:
			l.log.Info("Member joined", "member", m.ClusterID, "version", m.Version)
		case m.Stale && !was:
			l.log.Info("Member is stale: it has shown no sign of life for long", "member", m.ClusterID, "lastSeen", m.LastSeen)
		case was && !m.Stale:
			l.log.Info("Member shows signs of life again", "member", m.ClusterID)
		}
	}
	for id := range l.noted {
		if !slices.ContainsFunc(members, func(m Member) bool { return m.ClusterID == id }) {
			delete(l.noted, id)
			l.log.Info("Member left", "member", id)
		}
	}
}
