package etcd

import (
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// minParallel is the number of exports from which they are verified in parallel: a verification takes 50 to 200 µs.
const minParallel = 8

// verifiedExport is the content of an export's key, verified with the key of an author.
type verifiedExport struct {
	author author
	shown  shownExport
}

// decode returns the content of an export's key, verified with the key of a.
func (p pair) decode(a author, key mcs.Key) shownExport {
	if p.verified != nil && p.verified.author == a {
		return p.verified.shown
	}
	return decodeShown(p, a, key)
}

// verifyExports verifies the exports among pairs on all CPUs, without the lock, so that lookups do not wait: those that were not read
// before, or with again all. An export that turns out to have another author is verified again.
func (m *mirror) verifyExports(pairs []pair, again bool) {
	jobs := m.exportsToVerify(pairs, again)
	if len(jobs) < minParallel {
		return
	}
	engine.Parallel(len(jobs), func(i int) {
		job := jobs[i]
		job.pair.verified = &verifiedExport{author: job.author, shown: decodeShown(*job.pair, job.author, job.key)}
	})
}

// exportToVerify is an export with the author that it has by the member record.
type exportToVerify struct {
	pair   *pair
	author author
	key    mcs.Key
}

// exportsToVerify returns the exports among pairs that were not read before, or with again all.
func (m *mirror) exportsToVerify(pairs []pair, again bool) (jobs []exportToVerify) {
	if len(pairs) < minParallel {
		return nil
	}
	layout := m.state.layout
	authors := authorsIn(pairs, layout, m.state.clusterSetID)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range pairs {
		p := &pairs[i]
		id := layout.clusterOf(p.key)
		key, isExport := layout.exportKey(id, p.key)
		if !isExport || p.deleted {
			continue
		}
		a, isRead := m.state.authorOf(id, authors[id]), false
		if c := m.state.clusters[id]; c != nil && !again {
			isRead = c.author == a && c.shown[key].revision == p.revision
		}
		if !isRead && (a != author{}) {
			jobs = append(jobs, exportToVerify{pair: p, author: a, key: key})
		}
	}
	return jobs
}

// authorOf returns the author of a cluster's exports, if presented is that of the member record that is read with them, the zero value if
// none is.
func (s *state) authorOf(id string, presented author) author {
	c := s.clusters[id]
	switch {
	case s.isSelf(id):
		return s.self
	case presented == author{} && c != nil:
		return c.author
	}
	return presented
}

// authorsIn returns the authors of the member records among pairs, by cluster.
func authorsIn(pairs []pair, l layout, clusterSetID string) map[string]author {
	authors := map[string]author{}
	for _, p := range pairs {
		id := l.clusterOf(p.key)
		if id == "" || p.deleted || p.key != l.member(id) {
			continue
		}
		if _, a, err := openMember(p.value, clusterSetID, id); err == nil {
			authors[id] = a
		}
	}
	return authors
}
