package registry

import "github.com/go-logr/logr"

// MemberLog logs when members join, leave, become stale and recover. It is not safe for concurrent
// use.
type MemberLog struct {
	log logr.Logger
	own string
	// stale has each other member, and whether it is stale.
	stale map[string]bool
}

// NewMemberLog returns a MemberLog for cluster own, which it does not log.
func NewMemberLog(log logr.Logger, own string) *MemberLog {
	return &MemberLog{log: log, own: own, stale: map[string]bool{}}
}

// Update logs the changes since the last Update. The IDs of the members differ.
func (l *MemberLog) Update(members []Member) {
	shown := 0
	for i := range members {
		m := &members[i]
		if m.ClusterID == l.own {
			continue
		}
		shown++
		was, known := l.stale[m.ClusterID]
		l.stale[m.ClusterID] = m.Stale
		switch {
		case !known:
			l.log.Info("Member joined", "member", m.ClusterID, "version", m.Version)
		case m.Stale && !was:
			l.log.Info("Member is stale: no heartbeat for the configured time", "member", m.ClusterID, "lastSeen", m.LastSeen)
		case was && !m.Stale:
			l.log.Info("Member recovered: heartbeats arrive again", "member", m.ClusterID)
		}
	}
	if len(l.stale) == shown {
		return // none has left
	}
	present := make(map[string]bool, len(members))
	for i := range members {
		present[members[i].ClusterID] = true
	}
	for id := range l.stale {
		if !present[id] {
			delete(l.stale, id)
			l.log.Info("Member left", "member", id)
		}
	}
}
