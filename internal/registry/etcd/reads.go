package etcd

import (
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// request makes the next read have an export, although its key has not changed.
func (c *cluster) request(key mcs.Key) {
	if c.unread == nil {
		c.unread = map[mcs.Key]struct{}{}
	}
	c.unread[key] = struct{}{}
	if e, isShown := c.shown[key]; isShown {
		e.revision = 0
		c.shown[key] = e
	}
}

// readAgain makes the next read apply all exports although they have not changed.
func (c *cluster) readAgain() {
	for key, e := range c.shown {
		e.revision = 0
		c.shown[key] = e
	}
}

// want requests reads of the exports of a key that were ignored, and reports whether there are any.
func (s *state) want(key mcs.Key) (found bool) {
	for _, c := range s.clusters {
		if e := c.shown[key]; e.ignored && e.revision != 0 {
			c.request(key)
			s.hasDue, found = true, true
		}
	}
	return found
}

// dueRead is a read of exports of a cluster: these keys, or all of the cluster.
type dueRead struct {
	cluster string
	all     bool
	keys    []string
}

// maxDueReads is how many clusters are read at once. A request takes seconds where many controllers
// start at once, and the reads of a cluster are several.
const maxDueReads = 16

// dueReads returns the reads that have to be made next: of all exports of up to maxDueReads
// clusters, or of up to limit keys of one.
func (s *state) dueReads(now time.Time, limit int) (reads []dueRead) {
	if !s.hasDue {
		return nil
	}
	for id, c := range s.clusters {
		if c.isUnread && len(reads) < maxDueReads {
			reads = append(reads, dueRead{cluster: id, all: true})
		}
	}
	if len(reads) > 0 {
		return reads
	}
	if r, ok := s.dueRead(now, limit); ok {
		return []dueRead{r}
	}
	s.hasDue = false
	return nil
}

// dueRead returns the next read that has to be made besides those of unread clusters, with up to
// limit keys; ok is false if there is none.
func (s *state) dueRead(now time.Time, limit int) (r dueRead, ok bool) {
	for id, c := range s.clusters {
		r = dueRead{cluster: id}
		for key := range c.unread {
			if r.keys = append(r.keys, s.layout.export(id, key)); len(r.keys) == limit {
				break
			}
		}
		if len(r.keys) > 0 {
			return r, true
		}
	}
	if s.touched != nil {
		return dueRead{}, false // the list has the others
	}
	for _, of := range s.belief.Due(now).ReadUnits {
		if c := s.clusters[of.Cluster]; c != nil {
			return s.readOf(c, of.Units, limit), true
		}
	}
	return dueRead{}, false
}

// readOf returns the read of units of a cluster: all without any, and if they are many.
func (s *state) readOf(c *cluster, units []belief.UnitName, limit int) dueRead {
	if len(units) == 0 || len(units) > limit {
		return dueRead{cluster: c.id, all: true}
	}
	r := dueRead{cluster: c.id}
	for _, name := range units {
		namespace, service, _ := strings.Cut(string(name), "/")
		key := mcs.Key{Namespace: namespace, Name: service}
		c.request(key)
		r.keys = append(r.keys, s.layout.export(c.id, key))
	}
	return r
}
