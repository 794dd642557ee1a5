package etcd

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/desired"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// outbox writes the desired exports of this cluster in transactions. Package desired decides which
// are due. It is safe for concurrent use.
type outbox struct {
	// shown returns this cluster's export of a key as the watch has shown it (mirror.ownExport).
	shown func(mcs.Key) ownExport

	mu    sync.Mutex
	state *desired.State
	// encoded are the desired exports as they are written.
	encoded map[mcs.Key][]byte
	// accepted are the revisions of writes that etcd accepted and the watch has not shown yet.
	accepted map[mcs.Key]int64
	// acceptedAt is the latest of these revisions, also of those that were shown.
	acceptedAt int64
	// adoptedAt is the fence with which the exports in etcd were adopted, 0 if they have to be.
	adoptedAt int64
	shares    shares
	pace      *engine.Pace[string]
}

// etcd keeps each version until it is compacted, so a namespace may write 64 KiB a second, 225 MiB
// an hour, after a burst of 16 MiB: all of its exports twice. A write costs a KiB more, for the
// member record.
const (
	namespaceKiB       = 64
	namespaceBurstKiB  = 16 << 10
	costOfMemberRecord = 1
)

// desiredExport is an export and its encoding, or a withdrawal when the export is nil.
type desiredExport struct {
	export *mcs.Export
	data   []byte
}

func newOutbox(clusterID string, shown func(mcs.Key) ownExport) *outbox {
	o := &outbox{
		shown: shown, encoded: map[mcs.Key][]byte{}, accepted: map[mcs.Key]int64{}, shares: newShares(),
		pace: engine.NewPace[string](namespaceKiB, namespaceBurstKiB),
	}
	o.state = desired.New(desired.Config{ClusterID: clusterID, UnitOf: unitOf, Pace: o.pace, Pause: func(int) time.Duration { return refusedPause }})
	return o
}

// refusedPause is the pause after which an export is written again that etcd has refused: an
// administrator may have changed its limits.
const refusedPause = 30 * time.Second

// newDesiredExport encodes exp, and decodes it again as the other clusters will.
func newDesiredExport(exp mcs.Export) (desiredExport, error) {
	data, err := record.Encode([]mcs.Export{exp})
	if err != nil {
		return desiredExport{}, &registry.InvalidExportError{Key: exp.Key, Reason: err.Error()}
	}
	decoded, _, unreadable := decodeExport(data, exp.Cluster, exp.Key)
	if unreadable != "" {
		return desiredExport{}, &registry.InvalidExportError{Key: exp.Key, Reason: unreadable}
	}
	return desiredExport{export: decoded, data: data}, nil
}

// keyOf returns the key of an export that is a unit.
func keyOf(unit belief.UnitName) mcs.Key {
	namespace, name, _ := strings.Cut(string(unit), "/")
	return mcs.Key{Namespace: namespace, Name: name}
}

// setDesired sets the desired export of key, and reports whether it changed.
func (o *outbox) setDesired(key mcs.Key, d desiredExport) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.state.Set(key, d.export) {
		return false
	}
	if o.encoded[key] = d.data; d.export == nil {
		delete(o.encoded, key)
	}
	if o.shares.reserve(key, len(d.data)) {
		o.state.Reconsider(func(other mcs.Key) bool { return other.Namespace == key.Namespace })
	}
	return true
}

// adopt adopts the exports that etcd shows, once after each claim of the ID and each head: at the
// fence, or later, the watch has shown everything that was written before. isAlone is set if no
// other process of this cluster has written since the last time. It reports whether they are
// adopted.
func (o *outbox) adopt(fence, revision int64, keys func() []mcs.Key, isAlone bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if fence == 0 || o.adoptedAt == fence {
		return fence != 0
	}
	if revision < max(fence, o.acceptedAt) {
		return false
	}
	o.adoptedAt = fence
	clear(o.accepted)
	o.state.Lose(isAlone)
	for _, key := range keys() {
		found, isTorn := o.storedIn(o.shown(key))
		o.state.Adopt(unitOf(key), found, isTorn)
	}
	o.state.AdoptRest()
	return true
}

// storedIn returns what the store has of a unit, given what etcd shows. isTorn is set if it is
// nothing that this cluster has signed.
func (o *outbox) storedIn(shown ownExport) (stored desired.Stored, isTorn bool) {
	switch {
	case !shown.exists:
		return desired.Stored{}, false
	case shown.export == nil, shown.generation == 0:
		return desired.Stored{}, true
	}
	return desired.Stored{Version: belief.Version{Generation: shown.generation}, Exports: map[mcs.Key]mcs.Export{shown.export.Key: *shown.export}}, false
}

// observeHead records that all keys of the cluster were read. If etcd was set back (rewound), it
// counts from an earlier revision.
func (o *outbox) observeHead(rewound bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.adoptedAt = 0
	if rewound {
		o.acceptedAt = 0
	}
}

// observe records that the watch has shown everything up to revision, and changes of these keys.
func (o *outbox) observe(now time.Time, keys map[mcs.Key]int64, revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range keys {
		o.compare(now, key, revision)
	}
	for key := range o.accepted {
		o.compare(now, key, revision)
	}
}

// compare compares what the watch has shown of a key up to revision with what was written last. The
// caller holds o.mu.
func (o *outbox) compare(now time.Time, key mcs.Key, revision int64) {
	if o.accepted[key] > revision {
		return
	}
	delete(o.accepted, key)
	shown, stored := o.shown(key), o.state.StoredOf(unitOf(key))
	isAsWritten := shown.exists == !stored.IsNone() && shown.generation == stored.Version.Generation
	o.state.Observe(now, unitOf(key), isAsWritten, now)
}

// isDecided reports whether each export was compared with the desired one since the process holds
// the ID: the exports in etcd may come from a restored backup.
func (o *outbox) isDecided() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state.IsDecided()
}

// namedSet returns the set of exports that the member record names after a batch.
func (o *outbox) namedSet(batch []operation) *exportSet {
	o.mu.Lock()
	defer o.mu.Unlock()
	units := make([]belief.UnitName, len(batch))
	for i := range batch {
		units[i] = unitOf(batch[i].key)
	}
	count, digest := o.state.NamedSet(units...)
	return &exportSet{Count: count, Digest: digest}
}

// The limits of one transaction: etcd's defaults are 128 operations and 1.5 MiB. The largest single
// record is smaller, and half a MiB lets other clusters' requests in between.
const (
	maxOperations = 127 // and the member record
	maxBatchBytes = 512 << 10
)

// operation writes an export, or removes it if export is nil.
type operation struct {
	key    mcs.Key
	export *mcs.Export
	data   []byte
	// value is the signed export; it is set before it is written.
	value []byte
}

// nextBatch takes the operations of the next transaction, at most limit, which has a generation.
// They are all withdrawals, which come first, or all exports: etcd accepts withdrawals even when
// its storage quota is used up.
func (o *outbox) nextBatch(now time.Time, limit int, generation int64) (batch []operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	bytes := 0
	for d := range o.state.Drafts(now) {
		key := keyOf(d.Unit)
		omitted := o.omit(key, d)
		if d.Has() {
			o.state.Keep(d, omitted)
			continue
		}
		op, err := o.operationOf(key, d)
		if err != nil {
			o.state.Refuse(now, d, nil, err)
			continue
		}
		isFull := len(batch) == limit || bytes+len(op.data) > maxBatchBytes
		if len(batch) > 0 && (isFull || (batch[0].export == nil) != (op.export == nil)) {
			break
		}
		bytes += len(op.data)
		batch = append(batch, op)
		o.state.Begin(now, d, belief.Version{Generation: generation}, omitted)
	}
	return batch
}

// operationOf returns the operation that writes a draft. The caller holds o.mu.
func (o *outbox) operationOf(key mcs.Key, d *desired.Draft) (op operation, err error) {
	op.key = key
	exp, isDesired := d.Exports[key]
	if !isDesired {
		return op, nil
	}
	op.export, op.data = &exp, o.encoded[key]
	if o.shares.excess[key] != nil { // the previous version is written again
		op.data, err = record.Encode([]mcs.Export{exp})
	}
	return op, err
}

// omit leaves an export out of its draft if its namespace would have more than its share. etcd
// keeps the previous version. The caller holds o.mu.
func (o *outbox) omit(key mcs.Key, d *desired.Draft) map[mcs.Key]error {
	excess := o.shares.excess[key]
	if excess == nil {
		return nil
	}
	d.Exports = d.Stored.Exports
	return map[mcs.Key]error{key: excess}
}

// end records the result of a batch.
func (o *outbox) end(now time.Time, batch []operation, outcome desired.Outcome, reason error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range batch {
		o.state.End(now, unitOf(op.key), outcome, reason)
	}
}

// accept records that etcd accepted the batch at revision, and its cost. shownRevision returns the
// revision up to which the watch has shown everything.
func (o *outbox) accept(now time.Time, batch []operation, revision int64, shownRevision func() int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acceptedAt = revision
	for _, op := range batch {
		o.pace.Charge(now, op.key.Namespace, costOfMemberRecord+len(op.data)>>10)
		o.state.End(now, unitOf(op.key), desired.Accepted, nil)
		o.accepted[op.key] = revision
		o.compare(now, op.key, shownRevision())
	}
}

// untilDue returns the time until the first of the exports that wait is due, and whether any does.
func (o *outbox) untilDue(now time.Time) (pause time.Duration, waits bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	again := o.state.Pending(now).Again
	return again.Sub(now), !again.IsZero()
}

// status returns the status of key; problem is the reason why writing or reading does not work, or
// nil.
func (o *outbox) status(key mcs.Key, problem error) registry.PublishStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	status := o.state.StatusOf(key, o.shownExport(key))
	if status.State == registry.Pending {
		status.Err = errors.Join(status.Err, problem)
	}
	return status
}

// shownExport returns an export as etcd shows it to the other clusters: they ignore a version that
// is earlier than the one that this cluster has written, as a restored backup may have it. The
// caller holds o.mu.
func (o *outbox) shownExport(key mcs.Key) desired.ShownExport {
	shown, named := o.shown(key), o.state.StoredOf(unitOf(key)).Version.Generation
	_, isUnconfirmed := o.accepted[key]
	switch {
	case isUnconfirmed, shown.exists && shown.generation < named:
		return desired.ShownExport{Presence: desired.Present}
	case shown.exists:
		return desired.ShownExport{Presence: desired.Present, Export: shown.export}
	}
	return desired.ShownExport{Presence: desired.Absent}
}

// addPending adds the keys of exports and withdrawals that are pending.
func (o *outbox) addPending(keys engine.Keys) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range o.state.Wanted {
		if o.state.StatusOf(key, o.shownExport(key)).State == registry.Pending {
			keys.Add(key)
		}
	}
}

// addDesired adds the keys with a desired export.
func (o *outbox) addDesired(keys engine.Keys) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, exp := range o.state.Wanted {
		if exp != nil {
			keys.Add(key)
		}
	}
}

// isDesired reports whether an export of key is desired.
func (o *outbox) isDesired(key mcs.Key) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	want, _ := o.state.WantOf(key)
	return want != nil
}

// countWaiting returns the number of exports and withdrawals that may have to be written.
func (o *outbox) countWaiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state.CountWaiting()
}
