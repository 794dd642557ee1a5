package etcd

import (
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// pageKeys is how many keys a request reads at once: with values of the 1.5 MiB that etcd
	// accepts in a request, 48 MiB.
	pageKeys = 32
	// maxPageKeys is how many keys a page has while their values are small: 100,000 keys of 1,000
	// clusters in some 410 requests. etcd needs 384 MiB for the answer if the next values are the
	// largest ones, and the client refuses it (maxAnswer).
	maxPageKeys = 8 * pageKeys
	// smallPage is the size of a page, in bytes of values, up to which the next one may have twice
	// as many keys.
	smallPage = 512 << 10
	// maxCounted is how many keys a range has at most, as far as that is possible. In each request
	// etcd counts all keys of the range, whatever the limit is (rangeKeys of etcd 3.7.3): some 100
	// ns for each. Of 100,000 keys that is 10 ms, more than it takes to read the page; of these it
	// is at most 1.6 ms.
	maxCounted = 64 * maxPageKeys
	// minRange is the number of keys that a range has at least, as far as that is possible: the
	// last page of each range is smaller than the others.
	minRange = maxCounted / 16
)

// walk reads all keys with a prefix, in pages. The pages of a part of the keys, which have a longer
// prefix, are read one after the other: so etcd counts the keys of that part in each request, and
// not all that follow. How long these prefixes are depends on how many keys the parts have.
type walk struct {
	root, end string
	// from is the first key that was not read. The first depth bytes of it are the prefix of the
	// keys that are read next.
	from  string
	depth int
	// limit is the number of keys of the next page, and read that of the part so far.
	limit, read int
}

// newWalk returns a walk through all keys with a prefix.
func newWalk(root string) *walk {
	return &walk{root: root, end: clientv3.GetPrefixRangeEnd(root), from: root, depth: len(root), limit: pageKeys}
}

// IsOver reports whether all keys were read.
func (w *walk) IsOver() bool { return w.from >= w.end }

// Next returns the range of the next page and the number of its keys.
func (w *walk) Next() (from, end string, limit int64) {
	return w.from, w.partEnd(), int64(w.limit)
}

// partEnd returns the end of the part that is being read.
func (w *walk) partEnd() string {
	return min(w.end, clientv3.GetPrefixRangeEnd(w.from[:min(w.depth, len(w.from))]))
}

// Read records the answer to the request of Next.
func (w *walk) Read(page *clientv3.GetResponse) {
	bytes := 0
	for _, kv := range page.Kvs {
		bytes += len(kv.Value)
	}
	w.limit = nextPage(w.limit, bytes)
	w.read += len(page.Kvs)
	if page.More && len(page.Kvs) > 0 {
		first, last := page.Kvs[0].Key, page.Kvs[len(page.Kvs)-1].Key
		w.from = string(last) + "\x00"
		if page.Count-int64(len(page.Kvs)) > maxCounted {
			w.depth, w.read = max(w.depth+1, commonPrefix(first, last)), 0
		}
		return
	}
	w.from = w.partEnd()
	if w.depth = min(w.depth, len(w.from)); w.read < minRange {
		w.depth = max(len(w.root), w.depth-1)
	}
	w.read = 0
}

// commonPrefix returns the length of the common prefix of two keys.
func commonPrefix(a, b []byte) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// Refused records that the client has refused an answer because of its size. It reports whether a
// smaller page may be accepted.
func (w *walk) Refused() (isSmaller bool) {
	isSmaller = w.limit > pageKeys
	w.limit = pageKeys
	return isSmaller
}

// nextPage returns how many keys the next page has, after one of limit keys with values of so many
// bytes.
func nextPage(limit, bytes int) int {
	switch {
	case bytes <= smallPage:
		return min(2*limit, maxPageKeys)
	case bytes > 2*smallPage:
		return pageKeys
	}
	return limit
}
