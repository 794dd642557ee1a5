package belief

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// The rules of docs/proposals/031-engine.md that decide about other clusters. The tables refer to
// them by name. The rule "evidence" is the transition to Absent and to Left, and has no function.

// Membership is the last known of a cluster as a member.
type Membership int

const (
	// Member means that the cluster has neither left nor was forgotten.
	Member Membership = iota
	// HasLeft means that it has signed a farewell.
	HasLeft
	// IsForgotten means that an administrator had it forgotten.
	IsForgotten
)

// hasEnded reports whether nothing is imported from the cluster before it returns.
func (m Membership) hasEnded() bool { return m != Member }

// Pin is what is known of a cluster across restarts.
type Pin struct {
	// Key is the key of the cluster, zero if none is known.
	Key trust.Key
	// Last is the time of the latest record of Key that was read.
	Last       trust.Time
	Membership Membership
	// Unsealed is set after the own place has shown another key while other members could write it
	// too: a seal that is set later proves nothing.
	Unsealed bool
}

// later reports whether a record with this time counts: its time is later than, or that of, the
// last one of its key. Otherwise it is a replay. The last record of a cluster that has ended does
// not count again.
func later(at trust.Time, p Pin) bool {
	return at.After(p.Last) || at == p.Last && !p.Membership.hasEnded()
}

// verdict is the result of the rule "accepted".
type verdict int

const (
	// isAccepted means that the key is the cluster's.
	isAccepted verdict = iota
	// isUnproven means that it is if the own place of the cluster has it.
	isUnproven
	// isRefused means that it is not.
	isRefused
	// hasNoRoom means that no further key is kept.
	hasNoRoom
)

// presented is a key with the facts that the rule "accepted" depends on.
type presented struct {
	key   trust.Key
	place Place
	// succeeds is set if the pinned key has signed it.
	succeeds bool
	seal     Seal
	// isStale is set if the pinned key had no heartbeat for the time of the rule "stale".
	isStale bool
	// hasRoom is set if the key of a further cluster is kept.
	hasRoom bool
}

// accepted returns whether a key is that of a cluster that is not listed: the pinned one, one that
// the pinned one has signed, or one that the own place shows, if no key is pinned. A seal makes the
// own place count although a key is pinned, when that is silent.
func accepted(p Pin, k presented) verdict {
	isFree := p.Key == trust.Key{} || p.Membership.hasEnded()
	switch {
	case p.Key == k.key, k.succeeds:
		return isAccepted
	case isFree && !k.hasRoom:
		return hasNoRoom
	case isFree && k.place == Own:
		return isAccepted
	case isFree:
		return isUnproven
	case k.isRebuilt(p):
		return isAccepted
	}
	return isRefused
}

// isRebuilt reports whether the store proves that a key follows the pinned one, which it has shown.
func (k *presented) isRebuilt(p Pin) bool {
	isProven := k.place == Own && k.seal == Sealed && !p.Unsealed
	return isProven && k.isStale && p.Last != trust.Time{}
}

// listed is the rule "accepted" where an administrator has listed keys; ok is false if that does
// not decide.
func (cfg *Config) listed(cluster string, key trust.Key) (v verdict, ok bool) {
	listed, isListed := cfg.Listed[cluster]
	switch {
	case isListed && listed == key:
		return isAccepted, true
	case isListed, cfg.ListedOnly:
		return isRefused, true
	}
	return isRefused, false
}

// isSaved reports whether the next process will know of the cluster that exports depend on: its
// key, and whether it has ended.
func isSaved(pin, saved Pin) bool { return pin.Key == saved.Key && pin.Membership == saved.Membership }

// early reports whether a unit counts that its record does not name: its cluster has signed it
// after all that the record decides, and after the version that was read before.
func early(u Unit, author trust.Key, settled int64, read Version, readKey trust.Key) bool {
	if u.Key != author || u.Version.Generation <= settled {
		return false
	}
	return readKey != author || u.Version.Generation > read.Generation
}

// addFirst returns the answer for a key in the first state: the first record of a cluster that a
// process reads may be older than one that a previous process has read. It adds exports and ends
// none.
func addFirst(answer registry.ClusterState) registry.ClusterState {
	if answer == registry.None {
		return registry.Unknown
	}
	return answer
}

const (
	// eagerReads is the number of reads that show no whole unit, or no proof, before the pauses
	// grow: a store may be eventually consistent.
	eagerReads = 3
	// maxRetry is the longest pause between two reads of a unit.
	maxRetry = 30 * time.Second
	// proofReads is the number of reads of a proof within the time until a cluster is stale.
	proofReads = 4
	// gapTime is the time after which all units are read if they are not those that the record
	// names: a cluster writes both together, and a watch may have skipped a change.
	gapTime = 10 * time.Second
)

// retry has the time of the next read, and the number of those in a row that failed.
type retry struct {
	failures int
	at       time.Time
}

// failed sets the time of the next read, at most a pause later.
func (r *retry) failed(now time.Time, poll, most time.Duration) {
	r.failures++
	const maxDoublings = 10 // keeps the shift from overflowing
	r.at = now.Add(min(most, poll<<min(max(r.failures-eagerReads, 0), maxDoublings)))
}

// isDue reports whether it is time for the next read.
func (r *retry) isDue(now time.Time) bool { return !now.Before(r.at) }
