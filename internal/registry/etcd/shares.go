package etcd

import (
	"fmt"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// namespaceBytes is how many bytes the exports of a namespace may take: as many as other clusters
// import of a whole cluster by default (config.Budgets). A user with rights in one namespace must
// not use up the storage quota of etcd, 2 GiB by default, which all clusters share.
const namespaceBytes = 8 << 20

// shares has the bytes that the desired exports of each namespace take.
type shares struct {
	used map[string]int
	// counted is the part of each export.
	counted map[mcs.Key]int
	// excess are the exports with which their namespace would have more than its share, with the
	// error for their users. wanted are the bytes that they would take.
	excess map[mcs.Key]error
	wanted map[mcs.Key]int
}

func newShares() shares {
	return shares{used: map[string]int{}, counted: map[mcs.Key]int{}, excess: map[mcs.Key]error{}, wanted: map[mcs.Key]int{}}
}

// reserve counts the desired export of key for its namespace, 0 bytes for a withdrawal, or leaves
// it out if the namespace would have more than its share. It reports whether others of the
// namespace that were left out fit now.
func (s *shares) reserve(key mcs.Key, bytes int) (hasRoom bool) {
	before := s.counted[key]
	if bytes > before && s.used[key.Namespace]-before+bytes > namespaceBytes {
		s.wanted[key] = bytes
		s.excess[key] = &registry.InvalidExportError{Key: key, Reason: fmt.Sprintf(
			"the exports of its namespace may take %d bytes in etcd, and this export does not fit: export fewer or smaller services of the namespace", namespaceBytes)}
		return false
	}
	delete(s.excess, key)
	delete(s.wanted, key)
	s.used[key.Namespace] += bytes - before
	s.counted[key] = bytes
	if s.used[key.Namespace] == 0 {
		delete(s.used, key.Namespace)
	}
	if bytes == 0 {
		delete(s.counted, key)
	}
	return bytes < before && s.reserveExcess(key.Namespace)
}

// reserveExcess counts the exports of a namespace that were left out and fit now, and reports
// whether there are any.
func (s *shares) reserveExcess(namespace string) (hasRoom bool) {
	for key := range s.excess {
		if key.Namespace != namespace {
			continue
		}
		s.reserve(key, s.wanted[key])
		hasRoom = hasRoom || s.excess[key] == nil
	}
	return hasRoom
}
