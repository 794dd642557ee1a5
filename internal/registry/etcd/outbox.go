package etcd

import (
	"errors"
	"sync"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// outbox compares the desired exports of this cluster with those in etcd and batches the writes. It is safe for concurrent use.
type outbox struct {
	// shown returns this cluster's export of a key as the watch has shown it (mirror.ownExport).
	shown func(mcs.Key) (exp *mcs.Export, exists bool)

	mu sync.Mutex
	// desired are the desired exports and withdrawals; a withdrawal is removed when it is complete.
	desired map[mcs.Key]desiredExport
	// accepted are the writes that etcd accepted and the watch has not shown yet.
	accepted map[mcs.Key]acceptedWrite
	// refused is why etcd refuses the desired export of a key.
	refused map[mcs.Key]error
	// queues are the keys to compare with etcd, oldest first: withdrawals and writes.
	// queued is the queue that a key is in; in the other one it does not count.
	queues map[bool][]mcs.Key
	queued map[mcs.Key]bool
}

// desiredExport is an export and its encoding, or a withdrawal when the export is nil.
type desiredExport struct {
	export *mcs.Export
	data   []byte
}

type acceptedWrite struct {
	export   *mcs.Export
	revision int64
}

func newOutbox(shown func(mcs.Key) (*mcs.Export, bool)) *outbox {
	return &outbox{
		shown: shown, desired: map[mcs.Key]desiredExport{}, accepted: map[mcs.Key]acceptedWrite{}, refused: map[mcs.Key]error{},
		queues: map[bool][]mcs.Key{}, queued: map[mcs.Key]bool{},
	}
}

// newDesiredExport encodes exp, and decodes it again as the other clusters will.
func newDesiredExport(exp mcs.Export) (desiredExport, error) {
	data, err := record.Encode([]mcs.Export{exp})
	if err != nil {
		return desiredExport{}, &registry.InvalidExportError{Key: exp.Key, Reason: err.Error()}
	}
	e := decodeExport(pair{value: data}, exp.Cluster, exp.Key)
	if e.unreadable != "" {
		return desiredExport{}, &registry.InvalidExportError{Key: exp.Key, Reason: e.unreadable}
	}
	return desiredExport{export: e.export, data: data}, nil
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
	o.enqueue(key)
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

// observeList records that a list has shown everything up to revision. If etcd was set back (rewound), the writes that it
// accepted before are dropped.
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

// current returns the export of key in etcd, as far as it is known; exists is false if there is none. The caller holds o.mu.
func (o *outbox) current(key mcs.Key) (exp *mcs.Export, exists bool) {
	if a, ok := o.accepted[key]; ok {
		return a.export, a.export != nil
	}
	return o.shown(key)
}

// isSynced reports whether etcd has the desired export of key. The caller holds o.mu.
func (o *outbox) isSynced(key mcs.Key, d desiredExport) bool {
	exp, exists := o.current(key)
	if d.export == nil {
		return !exists
	}
	return exp != nil && equalExports(exp, d.export)
}

// The limits of one transaction: etcd's defaults are 128 operations and 1.5 MiB. The largest single record is smaller, and
// half a MiB lets other clusters' requests in between.
const (
	maxOperations = 128
	maxBatchBytes = 512 << 10
)

// operation writes an export, or removes it if withdraw is set.
type operation struct {
	key      mcs.Key
	desired  desiredExport
	withdraw bool
}

// nextBatch takes the operations of the next transaction from the queues, at most limit. They are all withdrawals, which come
// first, or all exports: etcd accepts withdrawals even when its storage quota is used up.
func (o *outbox) nextBatch(limit int) []operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	if batch := o.dequeue(true, limit); len(batch) > 0 {
		return batch
	}
	return o.dequeue(false, limit)
}

// dequeue takes operations from one queue. The caller holds o.mu.
func (o *outbox) dequeue(withdraw bool, limit int) []operation {
	var batch []operation
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
		if !queued || in != withdraw {
			continue
		}
		delete(o.queued, key)
		switch {
		case o.isSynced(key, d):
			o.dropWithdrawal(key, d)
		case o.refused[key] != nil:
		default:
			bytes += len(d.data)
			batch = append(batch, operation{key: key, desired: d, withdraw: withdraw})
		}
	}
	return batch
}

// dropWithdrawal removes a withdrawal that the watch has shown. The caller holds o.mu.
func (o *outbox) dropWithdrawal(key mcs.Key, d desiredExport) {
	if _, unconfirmed := o.accepted[key]; d.export == nil && !unconfirmed {
		delete(o.desired, key)
	}
}

// recordAccepted records that etcd accepted the batch at revision. shownRevision returns the revision up to which the watch has
// shown everything: it is called with the lock, so that no observeChange comes between. A withdrawal that was not effective came
// after another process's, which the watch shows at an earlier revision.
func (o *outbox) recordAccepted(batch []operation, effective []bool, revision int64, shownRevision func() int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	shownUpTo := shownRevision()
	for i, op := range batch {
		_, exists := o.shown(op.key)
		switch {
		case effective[i] && revision > shownUpTo:
			o.accepted[op.key] = acceptedWrite{export: op.desired.export, revision: revision}
		case !effective[i] && exists:
			o.accepted[op.key] = acceptedWrite{}
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

// status returns the status of key; problem is the reason why writing or reading does not work, or nil.
func (o *outbox) status(key mcs.Key, problem error) registry.PublishStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.stateOf(key)
	if state != registry.Pending {
		return registry.PublishStatus{State: state}
	}
	return registry.PublishStatus{State: state, Err: errors.Join(o.refused[key], problem)}
}

// stateOf returns the state of key. The caller holds o.mu.
func (o *outbox) stateOf(key mcs.Key) registry.PublishState {
	d, requested := o.desired[key]
	exp, exists := o.shown(key)
	_, unconfirmed := o.accepted[key]
	switch {
	case !requested && exp != nil, d.export != nil && !unconfirmed && exp != nil && equalExports(exp, d.export):
		return registry.Exported
	case d.export == nil && !exists && !unconfirmed:
		return registry.Absent
	}
	return registry.Pending
}

// addPending adds the keys that are not yet as desired.
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

// countQueued returns how many exports and withdrawals may have to be written.
func (o *outbox) countQueued() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queued)
}
