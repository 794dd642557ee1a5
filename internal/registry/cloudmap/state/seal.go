package state

import (
	"fmt"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// seal is what the tags of another cluster's catalog prove of a key in it that was refused. With
// the tag catalog-of only the cluster in it can have written the key.
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

// isOf reports whether the tags, which were read within a time, name a cluster.
func (s *seal) isOf(id string, now time.Time, within time.Duration) bool {
	return !s.readAt.IsZero() && s.err == nil && s.owner == id && now.Sub(s.readAt) < within
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

// presented returns a record's key with what proves it.
func (c *catalogs) presented(now time.Time, id string, r format.Member) trust.Presented {
	p := trust.Presented{Registry: c.registry, ClusterID: id, Key: r.Key, Succession: r.Succession}
	if cluster := c.clusters[id]; cluster != nil {
		p.Unproven = cluster.seal.unproven(id)
		p.Proven = cluster.seal.isOf(id, now, c.staleAfter) && c.liveness.IsStale(id)
	}
	return p
}

// areTagsDue reports whether the tags of a cluster's catalog have to be read.
func (c *catalogs) areTagsDue(now time.Time, id string) bool {
	cluster := c.clusters[id]
	return cluster != nil && cluster.seal.refused != trust.Key{} && !now.Before(cluster.seal.dueAt)
}

// tagsRead observes a read of the tags of a cluster's catalog. The next read of the catalog counts
// by it: what was read before may have been written before the tag was set.
func (c *catalogs) tagsRead(now time.Time, id, owner string, err error) {
	cluster := c.clusters[id]
	if cluster == nil {
		return // forgotten since the read began
	}
	cluster.seal.dueAt, cluster.seal.readAt = now.Add(c.staleAfter/CopyReads), now
	cluster.seal.owner, cluster.seal.err = owner, err
	if err == nil && owner != id && cluster.seal.refused != (trust.Key{}) {
		c.keyring.ObserveUnsealed(c.registry, id)
	}
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
