package etcd

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// outbox compares the desired exports of this cluster with those in etcd and batches the writes. It
// is safe for concurrent use.
type outbox struct {
	// shown returns this cluster's export of a key as the watch has shown it (mirror.ownExport).
	shown func(mcs.Key) ownExport

	mu sync.Mutex
	// desired are the desired exports and withdrawals; a withdrawal is removed when it is complete.
	desired map[mcs.Key]desiredExport
	// accepted are the writes that etcd accepted and the watch has not shown yet.
	accepted map[mcs.Key]acceptedWrite
	// refused is the reason why etcd refuses the desired export of a key.
	refused map[mcs.Key]error
	// stated are the exports that this cluster states in its member record, with their generations,
	// and digest is their digest. An export stays in it when another user removes it from etcd.
	stated map[mcs.Key]int64
	// accounted is the generation of the latest batch that etcd has accepted: an export of an
	// earlier one that is not stated was withdrawn.
	accounted int64
	digest    belief.SetDigest
	// decided are the keys whose desired export etcd has had at some time. The exports of other
	// keys may come from a restored backup.
	decided map[mcs.Key]struct{}
	// queues are the keys to compare with etcd, oldest first: withdrawals (true) and writes. queued
	// has the queue that a key is in: the other one may have an old entry of it.
	queues map[bool][]mcs.Key
	queued map[mcs.Key]bool
	// used is how many bytes the exports of each namespace take, and counted the part of each
	// export.
	used    map[string]int
	counted map[mcs.Key]int
	// excess are the exports with which their namespace would have more than its share, with the
	// error for their users. etcd keeps their previous versions.
	excess map[mcs.Key]error
	// pace limits the writes of each namespace. pacedAt is when the next export that waits for it
	// may be written, zero if none does.
	pace    *engine.Pace[string]
	pacedAt time.Time
}

// A user with rights in one namespace must not use up the storage quota of etcd, 2 GiB by default,
// which all clusters share. A namespace may have 8 MiB of exports, as many as other clusters import
// of a whole cluster by default (config.Budgets). etcd keeps each version until it is compacted, so
// a namespace may write 64 KiB a second, 225 MiB an hour, after a burst of 16 MiB: all of its
// exports twice. A write costs a KiB more, for the member record.
const (
	namespaceBytes     = 8 << 20
	namespaceKiB       = 64
	namespaceBurstKiB  = 16 << 10
	costOfMemberRecord = 1
)

// desiredExport is an export and its encoding, or a withdrawal when the export is nil.
type desiredExport struct {
	export *mcs.Export
	data   []byte
}

type acceptedWrite struct {
	export               *mcs.Export
	revision, generation int64
}

func newOutbox(shown func(mcs.Key) ownExport) *outbox {
	return &outbox{
		shown: shown, desired: map[mcs.Key]desiredExport{}, accepted: map[mcs.Key]acceptedWrite{}, refused: map[mcs.Key]error{},
		stated: map[mcs.Key]int64{}, decided: map[mcs.Key]struct{}{},
		queues: map[bool][]mcs.Key{}, queued: map[mcs.Key]bool{},
		used: map[string]int{}, counted: map[mcs.Key]int{}, excess: map[mcs.Key]error{}, pace: engine.NewPace[string](namespaceKiB, namespaceBurstKiB),
	}
}

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

// setDesired sets the desired export of key, and reports whether it changed.
func (o *outbox) setDesired(key mcs.Key, d desiredExport) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, exists := o.desired[key]
	if exists && equalExports(before.export, d.export) {
		return false
	}
	o.desired[key] = d
	delete(o.refused, key)
	o.reserve(key, len(d.data))
	o.enqueue(key)
	return true
}

// reserve counts the desired export of key for its namespace, 0 bytes for a withdrawal, or leaves
// it out if the namespace would have more than its share. The caller holds o.mu.
func (o *outbox) reserve(key mcs.Key, bytes int) {
	before := o.counted[key]
	if bytes > before && o.used[key.Namespace]-before+bytes > namespaceBytes {
		o.excess[key] = &registry.InvalidExportError{Key: key, Reason: fmt.Sprintf(
			"the exports of its namespace may take %d bytes in etcd, and this export does not fit: export fewer or smaller services of the namespace", namespaceBytes)}
		return
	}
	delete(o.excess, key)
	o.used[key.Namespace] += bytes - before
	o.counted[key] = bytes
	if o.used[key.Namespace] == 0 {
		delete(o.used, key.Namespace)
	}
	if bytes == 0 {
		delete(o.counted, key)
	}
	if bytes < before {
		o.reserveExcess(key.Namespace)
	}
}

// reserveExcess queues the exports of a namespace that were left out and fit now. The caller holds
// o.mu.
func (o *outbox) reserveExcess(namespace string) {
	for key := range o.excess {
		if key.Namespace != namespace {
			continue
		}
		if o.reserve(key, len(o.desired[key].data)); o.excess[key] == nil {
			o.enqueue(key)
		}
	}
}

// charge records the cost of a batch that etcd accepted.
func (o *outbox) charge(now time.Time, batch []operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range batch {
		o.pace.Charge(now, op.key.Namespace, costOfMemberRecord+len(op.desired.data)>>10)
	}
}

// untilPaced returns the time until the first of the exports that the last batch left to the pace
// of their namespaces, and whether it left any.
func (o *outbox) untilPaced(now time.Time) (pause time.Duration, waits bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.pacedAt
	o.pacedAt = time.Time{} // while nothing may be written, there is no next batch to wait for
	return at.Sub(now), !at.IsZero()
}

// isPaced reports whether an export waits for the pace of its namespace. The caller holds o.mu.
func (o *outbox) isPaced(now time.Time, key mcs.Key, d desiredExport) bool {
	at := o.pace.DueAt(key.Namespace)
	if d.export == nil || !at.After(now) || o.isSynced(key, d) {
		return false
	}
	if o.pacedAt.IsZero() || at.Before(o.pacedAt) {
		o.pacedAt = at
	}
	return true
}

// enqueue queues key if etcd differs from the desired export. The caller holds o.mu.
func (o *outbox) enqueue(key mcs.Key) {
	d, exists := o.desired[key]
	withdraw := d.export == nil
	if in, queued := o.queued[key]; exists && (!queued || in != withdraw) {
		o.queued[key] = withdraw
		o.queues[withdraw] = append(o.queues[withdraw], key)
	}
}

// observeList records that a list has shown everything up to revision. If etcd was set back
// (rewound), the writes that it accepted before are dropped.
func (o *outbox) observeList(revision int64, rewound bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, a := range o.accepted {
		if rewound || revision >= a.revision {
			delete(o.accepted, key)
		}
	}
	clear(o.refused)
	for key := range o.desired {
		o.enqueue(key)
	}
}

// equalExports reports whether two exports are equal; nil is no export.
func equalExports(a, b *mcs.Export) bool {
	return a == b || a != nil && b != nil && a.Equal(*b)
}

// current returns the export of key in etcd, as far as it is known. The caller holds o.mu.
func (o *outbox) current(key mcs.Key) ownExport {
	if a, ok := o.accepted[key]; ok {
		return ownExport{exists: a.export != nil, export: a.export, generation: a.generation}
	}
	return o.shown(key)
}

// isSynced reports whether etcd has the desired export of key, in the stated generation or a later
// one: the other clusters ignore an earlier one, which a restored backup may have. The caller holds
// o.mu.
func (o *outbox) isSynced(key mcs.Key, d desiredExport) bool {
	now := o.current(key)
	if d.export == nil {
		return !now.exists
	}
	return now.export != nil && equalExports(now.export, d.export) && now.generation >= o.stated[key]
}

// setStated sets the generation of a stated export; 0 removes the export. The caller holds o.mu.
func (o *outbox) setStated(key mcs.Key, generation int64) {
	if before, ok := o.stated[key]; ok {
		o.digest = o.digest.Without(unitOf(key), before)
	}
	if generation == 0 {
		delete(o.stated, key)
		return
	}
	o.stated[key] = generation
	o.digest = o.digest.With(unitOf(key), generation)
}

// adopt states exports in etcd that a previous process of this cluster wrote, or a request of
// unknown outcome: those with a revision before the fence. Later ones are those of nextBatch, or
// another user wrote an old value again. One of a generation that this process has accounted for is
// an old value too: the ID was acquired anew between its write and its withdrawal.
func (o *outbox) adopt(fence int64, keys ...mcs.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		if _, unconfirmed := o.accepted[key]; unconfirmed {
			continue
		}
		if shown := o.shown(key); shown.generation > max(o.stated[key], o.accounted) && (fence == 0 || shown.revision <= fence) {
			o.setStated(key, shown.generation)
		}
	}
}

// prune removes stated exports that are neither desired nor in etcd: a previous process withdrew
// them.
func (o *outbox) prune() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range o.stated {
		if o.desired[key].export == nil && !o.current(key).exists {
			o.setStated(key, 0)
		}
	}
}

// hasUnwritten reports whether there is a desired export of which etcd has never had any desired
// version, and that etcd does not refuse.
func (o *outbox) hasUnwritten() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, d := range o.desired {
		if _, isDecided := o.decided[key]; d.export != nil && !isDecided && o.refused[key] == nil && o.excess[key] == nil {
			return true
		}
	}
	return false
}

// statedSet returns the set of stated exports after a batch with that generation.
func (o *outbox) statedSet(batch []operation, generation int64) *exportSet {
	o.mu.Lock()
	defer o.mu.Unlock()
	set := &exportSet{Count: len(o.stated), Digest: o.digest}
	for _, op := range batch {
		if before, ok := o.stated[op.key]; ok {
			set.Count, set.Digest = set.Count-1, set.Digest.Without(unitOf(op.key), before)
		}
		if !op.withdraw {
			set.Count, set.Digest = set.Count+1, set.Digest.With(unitOf(op.key), generation)
		}
	}
	return set
}

// The limits of one transaction: etcd's defaults are 128 operations and 1.5 MiB. The largest single
// record is smaller, and half a MiB lets other clusters' requests in between.
const (
	maxOperations = 127 // and the member record
	maxBatchBytes = 512 << 10
)

// operation writes an export, or removes it if withdraw is set.
type operation struct {
	key      mcs.Key
	desired  desiredExport
	withdraw bool
	// value is the signed export; it is set before it is written.
	value []byte
}

// nextBatch takes the operations of the next transaction from the queues, at most limit. They are
// all withdrawals, which come first, or all exports: etcd accepts withdrawals even when its storage
// quota is used up.
func (o *outbox) nextBatch(now time.Time, limit int) []operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	if batch := o.dequeue(now, true, limit); len(batch) > 0 {
		return batch
	}
	return o.dequeue(now, false, limit)
}

// dequeue takes operations from one queue. Exports that wait for the pace of their namespace stay
// in it. The caller holds o.mu.
func (o *outbox) dequeue(now time.Time, withdraw bool, limit int) []operation {
	var batch []operation
	var paced []mcs.Key
	isPaced := map[mcs.Key]bool{}
	o.pacedAt = time.Time{}
	defer func() {
		if len(paced) > 0 {
			o.queues[withdraw] = append(paced, o.queues[withdraw]...)
		}
	}()
	for bytes := 0; len(batch) < limit; {
		queue := o.queues[withdraw]
		if len(queue) == 0 {
			break
		}
		key := queue[0]
		in, queued := o.queued[key]
		d := o.desired[key]
		if len(batch) > 0 && bytes+len(d.data) > maxBatchBytes {
			break
		}
		o.queues[withdraw] = queue[1:]
		if !queued || in != withdraw || isPaced[key] {
			continue // an old entry
		}
		if o.isPaced(now, key, d) {
			paced, isPaced[key] = append(paced, key), true
			continue
		}
		delete(o.queued, key)
		switch {
		case o.isSynced(key, d):
			o.confirm(key, d)
		case o.refused[key] != nil, o.excess[key] != nil:
		default:
			bytes += len(d.data)
			batch = append(batch, operation{key: key, desired: d, withdraw: withdraw})
		}
	}
	return batch
}

// confirm records that etcd has the desired export of key, or that it is withdrawn: then the
// withdrawal is removed once the watch has shown it. The caller holds o.mu.
func (o *outbox) confirm(key mcs.Key, d desiredExport) {
	_, unconfirmed := o.accepted[key]
	if o.decided[key] = struct{}{}; d.export == nil {
		delete(o.decided, key)
	}
	switch {
	case unconfirmed:
	case d.export == nil:
		delete(o.desired, key)
		o.setStated(key, 0)
	case o.shown(key).generation > o.stated[key]:
		o.setStated(key, o.shown(key).generation)
	}
}

// recordAccepted records that etcd accepted the batch, with that generation, at revision.
// shownRevision returns the revision up to which the watch has shown everything: it is called with
// the lock, so that no observeChange comes between. A withdrawal that was not effective came after
// another process's, which the watch shows at an earlier revision.
func (o *outbox) recordAccepted(batch []operation, effective []bool, revision, generation int64, shownRevision func() int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	shownUpTo := shownRevision()
	o.accounted = max(o.accounted, generation)
	for i, op := range batch {
		switch {
		case effective[i] && revision > shownUpTo:
			o.accepted[op.key] = acceptedWrite{export: op.desired.export, revision: revision, generation: generation}
		case !effective[i] && o.shown(op.key).exists:
			o.accepted[op.key] = acceptedWrite{}
		}
		if op.withdraw {
			o.setStated(op.key, 0)
		} else {
			o.setStated(op.key, generation)
			o.decided[op.key] = struct{}{}
		}
		o.enqueue(op.key)
	}
}

// recordRefused records why etcd refuses the desired export of key.
func (o *outbox) recordRefused(key mcs.Key, reason error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refused[key] = reason
}

// requeue puts back operations that failed, or whose outcome is not known.
func (o *outbox) requeue(batch []operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range batch {
		o.enqueue(op.key)
	}
}

// observeChange records that the watch has shown a change of key at revision.
func (o *outbox) observeChange(key mcs.Key, revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a, ok := o.accepted[key]; ok && revision >= a.revision {
		delete(o.accepted, key)
	}
	o.enqueue(key)
}

// observeRevision records that the watch has shown everything up to revision. A write that etcd
// accepted before, and that was not shown, is gone: etcd was set back since.
func (o *outbox) observeRevision(revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, a := range o.accepted {
		if a.revision != 0 && a.revision <= revision {
			delete(o.accepted, key)
			o.enqueue(key)
		}
	}
}

// status returns the status of key; problem is the reason why writing or reading does not work, or
// nil.
func (o *outbox) status(key mcs.Key, problem error) registry.PublishStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.stateOf(key)
	if state != registry.Pending {
		return registry.PublishStatus{State: state}
	}
	return registry.PublishStatus{State: state, Err: errors.Join(o.refused[key], o.excess[key], problem)}
}

// stateOf returns the state of key. The caller holds o.mu.
func (o *outbox) stateOf(key mcs.Key) registry.PublishState {
	d, requested := o.desired[key]
	shown := o.shown(key)
	_, unconfirmed := o.accepted[key]
	switch {
	case !requested && shown.export != nil, d.export != nil && !unconfirmed && o.isSynced(key, d):
		return registry.Exported
	case d.export == nil && !shown.exists && !unconfirmed:
		return registry.Absent
	}
	return registry.Pending
}

// addPending adds the keys of exports and withdrawals that are pending.
func (o *outbox) addPending(keys engine.Keys) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range o.desired {
		if o.stateOf(key) == registry.Pending {
			keys.Add(key)
		}
	}
}

// addDesired adds the keys with a desired export.
func (o *outbox) addDesired(keys engine.Keys) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, d := range o.desired {
		if d.export != nil {
			keys.Add(key)
		}
	}
}

// isDesired reports whether an export of key is desired.
func (o *outbox) isDesired(key mcs.Key) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.desired[key].export != nil
}

// countQueued returns the number of exports and withdrawals that may have to be written.
func (o *outbox) countQueued() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queued)
}
