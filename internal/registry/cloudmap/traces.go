package cloudmap

import (
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// traces records the steps that exports take in this registry. The nil *traces does nothing.
type traces struct {
	trace *tracing.Cluster

	mu sync.Mutex
	// unannounced are the exports of pages that were written and that no record announces yet.
	unannounced []mcs.Export
	// members is the time of the last read of the members, reads has the last reads of catalogs
	// since then, by cluster.
	members span
	reads   map[string]catalogTimes
}

// span is a time from began until ended.
type span struct{ began, ended time.Time }

// catalogTimes are the times of the last request for a catalog, and of the notification that
// announced a change in it, zero if none did. received is when the cluster has sent pages in place
// of that, zero if they were read.
type catalogTimes struct {
	announced time.Time
	request   span
	received  time.Time
}

func newTraces(trace *tracing.Cluster) *traces {
	if trace == nil {
		return nil
	}
	return &traces{trace: trace, reads: map[string]catalogTimes{}}
}

// encoded records that pages were encoded since began.
func (t *traces) encoded(writes []state.PageWrite, began time.Time) {
	if t == nil {
		return
	}
	now := time.Now()
	for _, w := range writes {
		for _, exp := range w.Changes() {
			t.trace.Record(tracing.EncodePage, exp, began, now)
		}
	}
}

// pageWritten records that a page was written since began. It must be called before a record can
// announce the page.
func (t *traces) pageWritten(w state.PageWrite, began time.Time, err error) {
	if t == nil || err != nil {
		return
	}
	changes, now := w.Changes(), time.Now()
	for _, exp := range changes {
		t.trace.Record(tracing.WritePage, exp, began, now)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.unannounced) < maxUnannounced { // while the record cannot be written
		t.unannounced = append(t.unannounced, changes...)
	}
}

// maxUnannounced bounds the exports that are kept until a record announces them.
const maxUnannounced = 1000

// recordWritten records that the own record was written since began.
func (t *traces) recordWritten(began time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	changes, now := t.unannounced, time.Now()
	t.unannounced = nil
	t.mu.Unlock()
	for _, exp := range changes {
		t.trace.Record(tracing.WriteRecord, exp, began, now)
	}
}

// membersRead records that the members were read since began.
func (t *traces) membersRead(began time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.members = span{began, time.Now()}
	clear(t.reads)
}

// catalogRead records that the catalog of a cluster, or a page of it, was read since began.
func (t *traces) catalogRead(id string, p *peers, began time.Time) {
	if t == nil {
		return
	}
	times := catalogTimes{announced: p.announced(id), request: span{began, time.Now()}}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads[id] = times
}

// pagesReceived records that pages have arrived that a cluster has sent. It must be called before
// they are decoded.
func (t *traces) pagesReceived(id string, at time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads[id] = catalogTimes{received: at}
}

// decoded records that a read has changed an export of another cluster, or pages that it has sent.
func (t *traces) decoded(exp mcs.Export) {
	t.mu.Lock()
	members, times := t.members, t.reads[exp.Cluster]
	t.mu.Unlock()
	if !times.received.IsZero() {
		t.trace.Record(tracing.ReceivePage, exp, times.received, time.Now())
		return
	}
	if !times.announced.IsZero() {
		t.trace.Record(tracing.AwaitRead, exp, times.announced, members.began)
	}
	t.trace.Record(tracing.ReadMembers, exp, members.began, members.ended)
	t.trace.Record(tracing.ReadPage, exp, times.request.began, times.request.ended)
	t.trace.Record(tracing.Decode, exp, times.request.ended, time.Now())
}
