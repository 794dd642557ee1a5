package state

import (
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// news are the changes of the own pages since the last record. They decide which clusters are
// notified of the next one: if only endpoints have changed, those that report that they import the
// exports. The others read the record at their next poll.
type news struct {
	// isForAll is set if another change is among them.
	isForAll bool
	// endpoints are the exports with other endpoints.
	endpoints map[mcs.Key]struct{}
	// added are the times at which exports were added that no cluster may report yet.
	added map[mcs.Key]time.Time
}

// maxNewsKeys bounds the exports that are compared with the reports of all clusters: 32 of them and
// 1,000 reports take some milliseconds.
const maxNewsKeys = 32

// observe adds a write of a page: its exports before and after it. Until reportedAfter has passed,
// an importer may not have reported an export.
func (n *news) observe(now time.Time, before, after map[mcs.Key]mcs.Export, reportedAfter time.Duration) {
	if n.endpoints == nil {
		n.endpoints, n.added = map[mcs.Key]struct{}{}, map[mcs.Key]time.Time{}
	}
	maps.DeleteFunc(n.added, func(_ mcs.Key, at time.Time) bool { return now.Sub(at) >= reportedAfter })
	for key, exp := range after {
		old, isOld := before[key]
		if !isOld {
			n.added[key], n.isForAll = now, true
			continue
		}
		if old.Equal(exp) {
			continue
		}
		_, isNew := n.added[key]
		old.Backends = exp.Backends
		if isNew || !old.Equal(exp) {
			n.isForAll = true
		}
		n.endpoints[key] = struct{}{}
	}
	for key := range before {
		if _, stays := after[key]; !stays {
			n.isForAll = true
		}
	}
}

// take returns the exports of which only endpoints have changed, none if all clusters are notified,
// and begins anew.
func (n *news) take() (endpoints []mcs.Key) {
	if !n.isForAll && len(n.endpoints) <= maxNewsKeys {
		endpoints = slices.Collect(maps.Keys(n.endpoints))
	}
	n.isForAll = false
	clear(n.endpoints)
	return endpoints
}

// address decides which clusters are notified of the own record with a generation, which follows
// the one before. The caller holds s.mu.
func (s *Writes) address(before, generation int64) {
	endpoints := s.outbox.news.take()
	entries := mcs.ImportEntries(s.cfg.Identity.ClusterID, endpoints)
	for _, cluster := range s.catalogs.clusters {
		if len(endpoints) == 0 || cluster.imports().MayHave(entries) {
			cluster.news = generation
		} else if cluster.news == 0 {
			cluster.news = before
		}
	}
}
