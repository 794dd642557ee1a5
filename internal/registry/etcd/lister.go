package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// lister reads all keys with a prefix. It adapts to how busy etcd is, also from one list to the
// next. The zero value has made no request. It is not safe for concurrent use.
type lister struct{ pace pace }

// getPage reads a page of keys from from to end, at most limit, as of a revision; 0 is the present
// one.
type getPage func(ctx context.Context, from, end string, limit, revision int64) (*clientv3.GetResponse, error)

// pageAttempts are the attempts to read a page after the first one of a list. Where many
// controllers start at once, etcd does not answer some requests in time: a list that began again
// each time would not end.
const pageAttempts = 3

// List calls read with each page of the keys with a prefix, and returns the revision that they are
// of.
func (l *lister) List(ctx context.Context, prefix string, get getPage, read func(page *clientv3.GetResponse)) (revision int64, err error) {
	err = walkPages(prefix, read, func(from, end string, limit int64) (*clientv3.GetResponse, error) {
		page, err := l.readPage(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return get(ctx, from, end, limit, revision)
		}, revision == 0)
		if err == nil && revision == 0 {
			revision = page.Header.Revision
		}
		return page, err
	})
	if err != nil {
		return 0, err
	}
	return revision, nil
}

// walkPages calls read with each page of the keys with a prefix.
func walkPages(prefix string, read func(page *clientv3.GetResponse), get func(from, end string, limit int64) (*clientv3.GetResponse, error)) error {
	for w := newWalk(prefix); !w.IsOver(); {
		page, err := get(w.Next())
		if isTooLong(err) && w.Refused() {
			continue
		}
		if err != nil {
			return fmt.Errorf("listing %s: %w", prefix, err)
		}
		read(page)
		w.Read(page)
	}
	return nil
}

// readPage reads a page. The first one of a list is read once: after it the caller connects again.
func (l *lister) readPage(ctx context.Context, get func(context.Context) (*clientv3.GetResponse, error), isFirst bool) (*clientv3.GetResponse, error) {
	for attempt := 1; ; attempt++ {
		engine.Sleep(ctx, l.pace.jittered())
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, l.pace.timeLimit())
		page, err := get(limited)
		cancel()
		switch took := time.Since(began); {
		case err == nil:
			l.pace.observe(took)
		case isUnanswered(err) && took >= requestTimeout:
			l.pace.observeSilence()
		}
		if !isUnanswered(err) || ctx.Err() != nil || isFirst || attempt == pageAttempts {
			return page, err
		}
	}
}

// pace spreads the requests of lists over time while etcd is busy. 1,000 controllers that start at
// once would have as many pages in progress, each of which would take longer than a request may
// take, and heartbeats would wait for all of them. With pauses that are longer the longer a page
// takes, few are in progress at a time. The zero value makes no pauses.
type pace struct {
	// pause is the time before the next page, limit how long it may take; 0 is requestTimeout.
	pause, limit time.Duration
}

const (
	// slowPage is how long etcd takes for a page when it is busy. Alone it takes some milliseconds.
	slowPage = 250 * time.Millisecond
	// minPause is the shortest pause, and maxPause the longest one: 1,000 controllers that pause
	// for so long make 100 requests a second.
	minPause = 10 * time.Millisecond
	maxPause = 10 * time.Second
	// maxTimeLimit is the longest time limit of a page. A first page, for which etcd counts all
	// keys, takes some 10 ms of a processor with 1,000 clusters: 10 s if all of them ask for it at
	// once.
	maxTimeLimit = 60 * time.Second
)

// observe adapts the pace to a page that took so long.
func (p *pace) observe(took time.Duration) {
	switch {
	case took >= slowPage:
		p.pause = min(maxPause, max(2*p.pause, took))
	case took >= slowPage/4:
		p.pause /= 2
	default:
		p.pause /= 4
	}
	if p.pause < minPause {
		p.pause = 0
	}
	p.limit = min(maxTimeLimit, max(requestTimeout, 3*took))
}

// observeSilence adapts the pace to a page that etcd did not answer in time.
func (p *pace) observeSilence() {
	limit := p.timeLimit()
	p.pause, p.limit = min(maxPause, max(2*p.pause, limit)), min(maxTimeLimit, 3*limit)
}

// timeLimit returns how long the next page may take.
func (p *pace) timeLimit() time.Duration { return max(requestTimeout, p.limit) }

// jittered returns the time to wait before the next page: the pause or up to half of it more or
// less, because all controllers have begun at the same time.
func (p *pace) jittered() time.Duration {
	if p.pause == 0 {
		return 0
	}
	return p.pause/2 + rand.N(p.pause)
}
