package state

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// CopyReads is the number of reads of a catalog's record, or tags, within the time until a cluster
// is stale.
const CopyReads = 4

// seal is what the tags of a cluster's catalog say: with the tag catalog-of only the cluster in it
// can write there. They are read when the catalog shows a key that was refused, which they may
// prove, and seldom otherwise, for users.
type seal struct {
	// refused is the key that the catalog shows, and that is not the cluster's; zero without one.
	refused trust.Key
	// dueAt is the time from which the tags may be read again: at most CopyReads times within the
	// time until a cluster is stale.
	dueAt time.Time
	// readAt is the time of the last read, zero if there was none; owner is the tag catalog-of, ""
	// without one, and err the reason why the read failed.
	readAt time.Time
	owner  string
	err    error
}

// at returns the seal of a cluster's catalog by tags that were read within a time.
func (s *seal) at(id string, now time.Time, within time.Duration) belief.Seal {
	switch {
	case s.readAt.IsZero(), s.err != nil, now.Sub(s.readAt) >= within:
		return belief.SealUnknown
	case s.owner == id:
		return belief.Sealed
	}
	return belief.Unsealed
}

// refusedKey returns the key that was refused, "" without one.
func (s *seal) refusedKey() string {
	if s.refused == (trust.Key{}) {
		return ""
	}
	return s.refused.String()
}

// shown returns the state for users.
func (s *seal) shown(id string) registry.Seal {
	switch {
	case s.readAt.IsZero():
		return registry.SealUnknown
	case s.err != nil:
		return registry.SealUnreadable
	case s.owner == id:
		return registry.Sealed
	}
	return registry.Unsealed
}

// unproven returns the reason why the catalog does not prove its key, "" if it does once the
// previous key is silent.
func (s *seal) unproven(id string) string {
	switch {
	case s.readAt.IsZero():
		return "its catalog does not prove this key"
	case s.err != nil:
		return fmt.Sprintf("the tags of its catalog, which may prove this key, cannot be read (%v)", s.err)
	case s.owner != id:
		return fmt.Sprintf("its catalog lacks the tag %s=%s, so that any member may have written this key", api.TagCatalogOf, id)
	}
	return ""
}

// areTagsDue reports whether the tags of a cluster's catalog have to be read.
func (c *catalogs) areTagsDue(now time.Time, id string) bool {
	cluster := c.clusters[id]
	return cluster != nil && cluster.seal.refused != trust.Key{} && !now.Before(cluster.seal.dueAt)
}

// sealOf returns the seal of a cluster's catalog, nil if the cluster is not known.
func (c *catalogs) sealOf(id string) *seal {
	if id == c.identity.ClusterID {
		return &c.own.seal
	}
	if cluster := c.clusters[id]; cluster != nil {
		return &cluster.seal
	}
	return nil
}

// tagsRead observes a read of the tags of a cluster's catalog. The next read of the catalog counts
// by it: what was read before may have been written before the tag was set.
func (c *catalogs) tagsRead(now time.Time, id, owner string, err error) {
	s := c.sealOf(id)
	if s == nil {
		return // forgotten since the read began
	}
	before := s.shown(id)
	s.readAt, s.owner, s.err = now, owner, err
	switch shown := s.shown(id); {
	case shown != registry.Sealed && s.refused == trust.Key{}:
		c.unsealedAt = now
	case shown == registry.Sealed && before != registry.Sealed && before != registry.SealUnknown:
		c.sealedAt = now
	}
	if s.refused != (trust.Key{}) {
		s.dueAt = now.Add(c.staleAfter / CopyReads)
	}
}

// The intervals between reads of the tags that are for users alone. Only an administrator changes
// the tag of a sealed catalog. Of those that are not sealed, or could not be read, one is read in
// an interval, however many they are; when one of them has become sealed, so may the others.
const (
	sealedInterval   = 24 * time.Hour
	unsealedInterval = 10 * time.Minute
)

// tagsAfterStart is the time after the first read of the members before which no tags are read for
// users: the requests of the start come first, and heartbeats show the clusters by then.
const tagsAfterStart = 15 * time.Second

// TagsPause returns the shortest time between two reads of tags for users in one of n clusters: all
// of them together make ten a second, a fifth of the assumed quota (docs/cost.md).
func TagsPause(n int) time.Duration { return time.Duration(n) * 100 * time.Millisecond }

// ListPause returns the shortest time between two lists of the services for that purpose in one of
// n clusters: all of them together make one request in two seconds, a quarter of the assumed quota.
// A request shows a hundred services, of which two are no catalogs.
func ListPause(n int) time.Duration { return time.Duration(n*((n+2+99)/100)) * 2 * time.Second }

// tagsDueAt returns the time from which the tags of a cluster have to be read for users.
func (c *catalogs) tagsDueAt(id string, s seal) time.Time {
	switch s.shown(id) {
	case registry.SealUnknown:
		return time.Time{}
	case registry.Sealed:
		return s.readAt.Add(sealedInterval)
	case registry.Unsealed, registry.SealUnreadable:
	}
	if s.readAt.Before(c.sealedAt) {
		return time.Time{}
	}
	return c.unsealedAt.Add(unsealedInterval)
}

// seals yields the seals of the members' catalogs, with the IDs of the clusters.
func (c *catalogs) seals(yield func(id string, s *seal) bool) {
	if c.own.hasRecord && !yield(c.identity.ClusterID, &c.own.seal) {
		return
	}
	for id, cluster := range c.clusters {
		if cluster.record != nil && !yield(id, &cluster.seal) {
			return
		}
	}
}

// tagsPerPoll is the number of catalogs whose tags are read for users at a poll. Polls may be
// further apart than TagsPause, and a poll must not take long: a notification waits for its end.
const tagsPerPoll = 5

// tagsForUsers returns the cluster whose tags have to be read for users, the one whose last read is
// the longest ago, with the number of clusters; "" if none is due. Clusters that start together
// spread their first lists.
func (c *catalogs) tagsForUsers(now time.Time) (id string, clusters int) {
	if !c.synced || now.Before(c.nextTags) {
		return "", 0
	}
	var last time.Time
	for candidate, s := range c.seals {
		clusters++
		if !c.tagsDueAt(candidate, *s).After(now) && (id == "" || s.readAt.Before(last) || s.readAt.Equal(last) && candidate < id) {
			id, last = candidate, s.readAt
		}
	}
	if c.nextTags.IsZero() {
		c.nextTags = now.Add(tagsAfterStart + rand.N(max(ListPause(clusters), 1)))
		return "", 0
	}
	pause := TagsPause(clusters)
	if earliest := now.Add(-(tagsPerPoll - 1) * pause); c.nextTags.Before(earliest) {
		c.nextTags = earliest
	}
	c.nextTags = c.nextTags.Add(pause)
	return id, clusters
}

// TagsForUsers returns the cluster whose tags have to be read for users, with the number of
// clusters; "" if none is due.
func (s *Reads) TagsForUsers(now time.Time) (id string, clusters int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalogs.tagsForUsers(now)
}

// AreTagsDue reports whether the tags of a cluster's catalog have to be read.
func (s *Reads) AreTagsDue(now time.Time, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalogs.areTagsDue(now, id)
}

// ObserveTags records a read of the tags of a cluster's catalog: the value of catalog-of, ""
// without one, or an error.
func (s *Reads) ObserveTags(now time.Time, id, owner string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalogs.tagsRead(now, id, owner, err)
}
