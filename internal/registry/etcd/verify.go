package etcd

import (
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

const (
	// minParallel is the number of exports from which they are verified in parallel: a verification
	// takes 50 to 200 µs.
	minParallel = 8
	// decoders is the number of exports that are decompressed or decoded at once: each takes up to
	// 24 MiB, whatever its cluster wrote.
	decoders = 2
)

// verifiedExport is the content of an export's key, verified with the key of an author.
type verifiedExport struct {
	// author is the one whose key it was verified with, whether or not that has signed it.
	author author
	// shown has no export until it is decoded.
	shown shownExport
	// offer has the cost of the export, the zero value if it cannot be used.
	offer budget.Offer
}

// isOffered reports whether the export can be used if the budgets allow it.
func (v *verifiedExport) isOffered() bool { return v.offer != budget.Offer{} }

// verify verifies the value of an export's key and counts it. Any user with write permission may
// have written it.
func (s *state) verify(p pair, a author, key mcs.Key) *verifiedExport {
	v := &verifiedExport{author: a, shown: shownExport{revision: p.revision, created: p.created}}
	data := v.open(p, key)
	switch {
	case data == nil:
	case a.clusterID == s.own:
		// own exports have no budget
		v.offer = budget.Offer{Key: key, Wanted: budget.Amounts{budget.Exports: 1}}
	default:
		s.count(v, data, key)
	}
	return v
}

// open verifies the value of an export's key, and returns its content, nil if it cannot be used.
func (v *verifiedExport) open(p pair, key mcs.Key) []byte {
	switch {
	case v.author == author{}:
		v.shown.unreadable = "the cluster has no valid member record"
		return nil
	case p.dropped:
		v.shown.unreadable = "the cluster has more bytes of exports than its budget"
		return nil
	}
	generation, data, err := openExport(p.value, v.author, key)
	if err != nil {
		v.shown.unreadable = registry.RefusedProblem("export "+key.String(), err)
		return nil
	}
	v.shown.author, v.shown.generation = v.author, generation
	return data
}

// decode decodes the export in a value that was verified.
func (s *state) decode(v *verifiedExport, value []byte) {
	_, data, found := cutHeader(value)
	if !found {
		return
	}
	s.decoding <- struct{}{}
	defer func() { <-s.decoding }()
	v.shown.export, v.shown.problems, v.shown.unreadable = decodeExport(data, v.author.clusterID, v.offer.Key)
}

// decodeExport decodes the content of an export's key, or returns why it is unreadable.
func decodeExport(data []byte, id string, key mcs.Key) (exp *mcs.Export, problems []string, unreadable string) {
	page, err := record.Decode(data, id)
	switch {
	case err != nil:
		return nil, nil, err.Error()
	case len(page.Exports) == 1 && page.Exports[0].Key == key:
		return &page.Exports[0], page.Problems, ""
	case len(page.Problems) > 0:
		return nil, nil, page.Problems[0]
	}
	return nil, nil, "it is not one export of that service"
}

// verifyExports verifies and decodes the exports among pairs without the lock, so that lookups do
// not wait: those that were not read before, or with again all. An export that turns out to have
// another author is verified again. Which exports are decoded is decided for all of a cluster
// together.
func (m *mirror) verifyExports(pairs []pair, again bool) {
	jobs := m.exportsToVerify(pairs, again)
	if len(jobs) == 0 {
		return
	}
	inParallel(len(jobs), func(i int) {
		job := jobs[i]
		job.pair.verified = m.state.verify(*job.pair, job.author, job.key)
	})
	picked := m.pick(jobs)
	inParallel(len(picked), func(i int) { m.state.decode(picked[i].verified, picked[i].value) })
}

// inParallel calls do for each number below n, on all CPUs if they are many.
func inParallel(n int, do func(i int)) {
	if n >= minParallel {
		engine.Parallel(n, do)
		return
	}
	for i := range n {
		do(i)
	}
}

// pick returns the exports that the budgets admit now.
func (m *mirror) pick(jobs []exportToVerify) (picked []*pair) {
	type offered struct {
		offers []budget.Offer
		pairs  []*pair
	}
	byAccount := map[*budget.Account]*offered{}
	fresh := map[string]*budget.Account{} // of clusters that are not known yet
	for _, job := range jobs {
		if !job.pair.verified.isOffered() {
			continue
		}
		id, account := job.author.clusterID, job.account
		if account == nil && !job.isOwn {
			if fresh[id] == nil {
				fresh[id] = m.state.ledger.Open(budget.Owner{ClusterID: id, Since: m.state.keyring.Since(id)})
			}
			account = fresh[id]
		}
		o := byAccount[account]
		if o == nil {
			o = &offered{}
			byAccount[account] = o
		}
		o.offers, o.pairs = append(o.offers, job.pair.verified.offer), append(o.pairs, job.pair)
	}
	for account, o := range byAccount {
		for i, admitted := range account.Preview(o.offers) {
			if admitted {
				picked = append(picked, o.pairs[i])
			}
		}
	}
	for _, account := range fresh {
		account.Close()
	}
	return picked
}

// exportToVerify is an export with the author that it has by the member record, and the account of
// its cluster, nil if it is not known.
type exportToVerify struct {
	pair    *pair
	author  author
	key     mcs.Key
	account *budget.Account
	isOwn   bool
}

// exportsToVerify returns the exports among pairs that were not read before, or with again all.
func (m *mirror) exportsToVerify(pairs []pair, again bool) (jobs []exportToVerify) {
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
		job := exportToVerify{pair: p, author: m.state.authorOf(id, authors[id]), key: key, isOwn: id == m.state.own}
		isRead := false
		if c := m.state.clusters[id]; c != nil {
			job.account = c.account
			isRead = !again && c.shown[key].revision == p.revision
		}
		if !isRead && (job.author != author{}) {
			jobs = append(jobs, job)
		}
	}
	return jobs
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
