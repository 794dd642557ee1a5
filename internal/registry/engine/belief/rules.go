package belief

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// The rules of docs/proposals/031-engine.md that decide about other clusters. The tables refer to
// them by name. The rule "evidence" is the transition to Absent and to Left, and "saved" is state
// Saving; they have no functions. trust.Keyring has the rest of "accepted".

// later reports whether a record counts by its time: it is later than, or that of, the last one of
// its key. Otherwise it is a replay. The last record of a cluster that has ended does not count
// again.
func later(at, last trust.Time, hasEnded bool) bool {
	return at.After(last) || at == last && !hasEnded
}

// verdictOf is the rule "accepted": whether the key of a record is that of the cluster, with the
// reason if it is refused. A key that no other one contradicts is if the own place shows it.
func (s *State) verdictOf(c *cluster, r *Record) (v trust.Verdict, reason string) {
	v, err := s.cfg.Keyring.Check(trust.Presented{
		Registry: s.cfg.Registry, ClusterID: c.id, Key: r.Key, Succession: r.Succession, At: r.At,
		Proven: r.Place == Own && r.Seal == Sealed && s.liveness.IsStale(c.id), Unproven: r.Unproven,
	})
	switch {
	case v == trust.Unknown && r.Place == Own:
		return trust.Accepted, ""
	case err != nil:
		return v, err.Error()
	}
	return v, ""
}

// early reports whether a unit counts that its record does not name: its cluster has signed it
// after all that the record decides, and after the version that was read before.
func early(u *Unit, author Author, settled int64, read Version, readAuthor Author) bool {
	if u.Author != author || u.Version.Generation <= settled {
		return false
	}
	return readAuthor != author || u.Version.Generation > read.Generation
}

// addFirst returns the answer for a key that is imported in the first state: the first record of a
// cluster that a process reads may be older than one that a previous process has read. It adds
// exports and ends none.
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
	// maxAbsent is the longest pause between two reads of the proof of a cluster that has none, and
	// of which no record counts, as a multiple of the pause of others: any member can write records
	// of clusters that do not exist.
	maxAbsent = 16
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
func (r *retry) failed(now time.Time, cfg *Config, most time.Duration) {
	r.failures++
	pause := cfg.Eager
	if more := r.failures - eagerReads; more > 0 {
		const maxDoublings = 10 // keeps the shift from overflowing
		pause = cfg.Poll << min(more, maxDoublings)
	}
	r.at = now.Add(min(most, pause))
}

// isDue reports whether it is time for the next read.
func (r *retry) isDue(now time.Time) bool { return !now.Before(r.at) }
