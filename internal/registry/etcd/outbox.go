package etcd

import (
	"errors"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// outbox is what this cluster was asked to have in etcd, and how far that is.
type outbox struct {
	// shown is what the watch has of our own export of a key (state.shown).
	shown func(mcs.Key) (exp *mcs.Export, there bool)
	// want is what was asked for; a withdrawal is forgotten when it is carried out.
	want map[mcs.Key]wish
	// written is what etcd accepted and the watch has not shown yet.
	written map[mcs.Key]written
	// refused is why etcd will not take a key as it is.
	refused map[mcs.Key]error
	// queues are the keys that may differ from what is wanted, the longest waiting first, those to be withdrawn apart.
	// queued says in which a key is; in the other it does not count.
	queues map[bool][]mcs.Key
	queued map[mcs.Key]bool
}

// wish is an export and its encoding, or a withdrawal when the export is nil.
type wish struct {
	export *mcs.Export
	data   []byte
}

type written struct {
	export   *mcs.Export
	revision int64
}

func newOutbox(shown func(mcs.Key) (*mcs.Export, bool)) *outbox {
	return &outbox{
		shown: shown, want: map[mcs.Key]wish{}, written: map[mcs.Key]written{}, refused: map[mcs.Key]error{},
		queues: map[bool][]mcs.Key{}, queued: map[mcs.Key]bool{},
	}
}

// newWish makes of exp what the others will read of it.
func newWish(exp mcs.Export) (wish, error) {
	data, err := record.Encode([]mcs.Export{exp})
	if err != nil {
		return wish{}, &registry.InvalidExportError{Key: exp.Key, Reason: err.Error()}
	}
	e := decodeExport(pair{value: data}, exp.Cluster, exp.Key)
	if e.trouble != "" {
		return wish{}, &registry.InvalidExportError{Key: exp.Key, Reason: e.trouble}
	}
	return wish{export: e.export, data: data}, nil
}

// ask notes what is wanted of key, and says whether that is news.
func (o *outbox) ask(key mcs.Key, w wish) bool {
	have, asked := o.want[key]
	if asked && same(have.export, w.export) {
		return false
	}
	o.want[key] = w
	delete(o.refused, key)
	o.recheck(key)
	return true
}

// recheck has key compared with what is wanted.
func (o *outbox) recheck(key mcs.Key) {
	w, asked := o.want[key]
	withdraw := w.export == nil
	if in, queued := o.queued[key]; asked && (!queued || in != withdraw) {
		o.queued[key] = withdraw
		o.queues[withdraw] = append(o.queues[withdraw], key)
	}
}

// relisted notes that a list has shown everything up to revision; rewound forgets what was written before etcd was set back.
func (o *outbox) relisted(revision int64, rewound bool) {
	for key, w := range o.written {
		if rewound || revision >= w.revision {
			delete(o.written, key)
		}
	}
	clear(o.refused)
	for key := range o.want {
		o.recheck(key)
	}
}

// same says whether two exports, of which nil is none, are the same.
func same(a, b *mcs.Export) bool {
	return a == b || a != nil && b != nil && a.Equal(*b)
}

// current is what etcd has of key, as far as is known; there is false when it has nothing.
func (o *outbox) current(key mcs.Key) (exp *mcs.Export, there bool) {
	if w, ok := o.written[key]; ok {
		return w.export, w.export != nil
	}
	return o.shown(key)
}

// done says whether etcd has of key what is wanted.
func (o *outbox) done(key mcs.Key, w wish) bool {
	exp, there := o.current(key)
	if w.export == nil {
		return !there
	}
	return exp != nil && same(exp, w.export)
}

// What one transaction may hold: etcd's default limits are 128 operations and 1.5 MiB. The largest single record stays
// below them, and half of a MiB leaves others room between ours.
const (
	maxOperations = 128
	maxBatchBytes = 512 << 10
)

// operation is one write: of value, or a removal when withdraw is set.
type operation struct {
	key      mcs.Key
	wish     wish
	withdraw bool
}

// next takes the operations of the next transaction out of the queues, at most so many. They are all withdrawals, which come
// first, or all exports: etcd goes on accepting the former when its storage quota is used up.
func (o *outbox) next(most int) []operation {
	if batch := o.take(true, most); len(batch) > 0 {
		return batch
	}
	return o.take(false, most)
}

func (o *outbox) take(withdraw bool, most int) []operation {
	var batch []operation
	for bytes := 0; len(batch) < most; {
		queue := o.queues[withdraw]
		if len(queue) == 0 {
			break
		}
		key := queue[0]
		in, queued := o.queued[key]
		w := o.want[key]
		if len(batch) > 0 && bytes+len(w.data) > maxBatchBytes {
			break
		}
		o.queues[withdraw] = queue[1:]
		if !queued || in != withdraw {
			continue
		}
		delete(o.queued, key)
		switch {
		case o.done(key, w):
			o.settle(key, w)
		case o.refused[key] != nil:
		default:
			bytes += len(w.data)
			batch = append(batch, operation{key: key, wish: w, withdraw: withdraw})
		}
	}
	return batch
}

// settle forgets a withdrawal that is carried out and shown.
func (o *outbox) settle(key mcs.Key, w wish) {
	if _, unshown := o.written[key]; w.export == nil && !unshown {
		delete(o.want, key)
	}
}

// accepted notes that etcd took the operations at revision; everything up to shownRevision was seen already. A withdrawal
// without effect was overtaken by somebody else's, which the watch shows at an earlier revision.
func (o *outbox) accepted(batch []operation, effect []bool, revision, shownRevision int64) {
	for i, op := range batch {
		_, there := o.shown(op.key)
		switch {
		case effect[i] && revision > shownRevision:
			o.written[op.key] = written{export: op.wish.export, revision: revision}
		case !effect[i] && there:
			o.written[op.key] = written{}
		}
		o.recheck(op.key)
	}
}

// failed puts operations back whose outcome is not known, or that had none.
func (o *outbox) failed(batch []operation) {
	for _, op := range batch {
		o.recheck(op.key)
	}
}

// refuse notes that etcd will not take the key as it is.
func (o *outbox) refuse(key mcs.Key, reason error) { o.refused[key] = reason }

// seen notes that the watch has shown the changes up to revision, key's among them.
func (o *outbox) seen(key mcs.Key, revision int64) {
	if w, ok := o.written[key]; ok && revision >= w.revision {
		delete(o.written, key)
	}
	o.recheck(key)
}

// publication says where key stands; problem is why writing or reading does not work.
func (o *outbox) publication(key mcs.Key, problem error) registry.PublishStatus {
	w, asked := o.want[key]
	exp, there := o.shown(key)
	_, unshown := o.written[key]
	switch {
	case !asked && exp != nil, w.export != nil && !unshown && exp != nil && same(exp, w.export):
		return registry.PublishStatus{State: registry.Exported}
	case w.export == nil && !there && !unshown:
		return registry.PublishStatus{State: registry.Absent}
	}
	return registry.PublishStatus{State: registry.Pending, Err: errors.Join(o.refused[key], problem)}
}

// unfinished adds the keys that are not yet as they were asked to be.
func (o *outbox) unfinished(keys keySet) {
	for key := range o.want {
		if o.publication(key, nil).State == registry.Pending {
			keys[key] = struct{}{}
		}
	}
}
