package etcd

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

func webKey(i int) mcs.Key { return mcs.Key{Namespace: "demo", Name: fmt.Sprintf("web-%d", i)} }

// webExport returns version n of an export, which determines its port.
func webExport(clusterID string, i, n int) mcs.Export {
	return mcs.Export{
		Key: webKey(i), Cluster: clusterID, Type: mcsv1beta1.ClusterSetIP,
		Ports:           []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: int32(1 + n), TargetPort: "8080"}},
		SessionAffinity: corev1.ServiceAffinityNone,
		IPFamilies:      []corev1.IPFamily{corev1.IPv4Protocol},
	}
}

func desiredFor(t interface{ Fatal(...any) }, i, n int) desiredExport {
	w, err := newDesiredExport(webExport("cls1", i, n))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestNewDesiredExportRefusesInvalid(t *testing.T) {
	var invalid *registry.InvalidExportError
	exp := webExport("cls1", 0, 1)
	exp.Type = "Nonsense"
	if _, err := newDesiredExport(exp); !errors.As(err, &invalid) {
		t.Errorf("an invalid export: error %v, want an InvalidExportError", err)
	}
}

// fakeStore is etcd for an outbox: the stored exports, and the revision up to which the watch has
// shown them.
type fakeStore struct {
	revision, shownRevision int64
	stored, shown           map[mcs.Key]ownExport
	// events are the changes that the watch has not shown yet.
	events []event
}

type event struct {
	key mcs.Key
	exp ownExport
}

// set stores an export with the revision as its generation, nil to remove it.
func (s *fakeStore) set(key mcs.Key, exp *mcs.Export) (effect bool) {
	if exp == nil && !s.stored[key].exists {
		return false
	}
	s.stored[key] = ownExport{exists: exp != nil, export: exp, revision: s.revision, generation: s.revision}
	s.events = append(s.events, event{key, s.stored[key]})
	return true
}

// TestOutboxConverges writes, drops answers and deletes exports at random. In the end the store
// must have the desired exports.
func TestOutboxConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &fakeStore{stored: map[mcs.Key]ownExport{}, shown: map[mcs.Key]ownExport{}}
		o := newOutbox(func(key mcs.Key) ownExport { return s.shown[key] })
		// The watch shows the changes of one transaction together.
		show := func() {
			for s.shownRevision = s.events[0].exp.revision; len(s.events) > 0 && s.events[0].exp.revision == s.shownRevision; s.events = s.events[1:] {
				e := s.events[0]
				s.shown[e.key] = e.exp
				o.observeChange(e.key, e.exp.revision)
			}
		}
		write := func(most int) (wrote bool) {
			batch := o.nextBatch(time.Now(), most)
			if len(batch) == 0 {
				return false
			}
			s.revision++
			effect := make([]bool, len(batch))
			for i, op := range batch {
				effect[i] = s.set(op.key, op.desired.export)
			}
			// The watch may show a change before the answer arrives.
			for range rapid.IntRange(0, 3).Draw(t, "shown before the answer") {
				if len(s.events) > 0 {
					show()
				}
			}
			o.recordAccepted(batch, effect, s.revision, s.revision, func() int64 { return s.shownRevision })
			return true
		}
		want := map[mcs.Key]*mcs.Export{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, 3).Draw(t, "key")
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				w := desiredFor(t, i, rapid.IntRange(1, 3).Draw(t, "port"))
				want[webKey(i)] = w.export
				o.setDesired(webKey(i), w)
			case 1:
				want[webKey(i)] = nil
				o.setDesired(webKey(i), desiredExport{})
			case 2:
				write(rapid.IntRange(1, 3).Draw(t, "most"))
			case 3:
				if len(s.events) > 0 {
					show()
				}
			case 4: // another user removes it
				s.revision++
				s.set(webKey(i), nil)
			case 5: // a refused transaction
				o.requeue(o.nextBatch(time.Now(), 2))
			}
		}
		for rounds := 0; ; rounds++ {
			for len(s.events) > 0 {
				show()
			}
			if !write(maxOperations) && len(s.events) == 0 {
				break
			}
			if rounds > 20 {
				t.Fatal("the outbox does not stop writing")
			}
		}
		var stated belief.SetDigest
		for key, exp := range want {
			if !equalExports(s.stored[key].export, exp) {
				t.Errorf("%v is stored as %v, want %v", key, s.stored[key], exp)
			}
			if exp != nil {
				stated = stated.With(unitOf(key), s.stored[key].generation)
			}
			wantState := registry.Exported
			if exp == nil {
				wantState = registry.Absent
			}
			if got := o.status(key, nil).State; got != wantState {
				t.Errorf("status of %v is %v, want %v", key, got, wantState)
			}
		}
		for key, w := range o.desired {
			if w.export == nil {
				t.Errorf("the withdrawal of %v is not dropped", key)
			}
		}
		if o.digest != stated || o.statedSet(nil, 0).Digest != stated {
			t.Errorf("the stated exports are %v, which are not those in the store", o.stated)
		}
	})
}

func TestOutboxBatches(t *testing.T) {
	none := func(mcs.Key) ownExport { return ownExport{} }
	there := func(mcs.Key) ownExport { return ownExport{exists: true, export: &mcs.Export{}} }
	o := newOutbox(none)
	for i := range maxOperations + 10 {
		o.setDesired(webKey(i), desiredFor(t, i, 1))
	}
	o.setDesired(webKey(0), desiredExport{}) // withdrawn before it was written
	if first := o.nextBatch(time.Now(), maxOperations); len(first) != maxOperations || first[0].key != webKey(1) {
		t.Errorf("first batch has %d operations and begins with %v", len(first), first[0].key)
	}
	o.shown = there
	o.setDesired(webKey(500), desiredExport{})
	if batch := o.nextBatch(time.Now(), maxOperations); len(batch) != 1 || !batch[0].withdraw {
		t.Errorf("the batch does not have the withdrawal alone: %v", batch)
	}
	if batch := o.nextBatch(time.Now(), maxOperations); len(batch) != 9 || batch[0].withdraw {
		t.Errorf("the last batch has %d operations, want 9 exports", len(batch))
	}
	big := desiredExport{export: &mcs.Export{}, data: make([]byte, maxBatchBytes*2/3)}
	o = newOutbox(none)
	o.setDesired(webKey(1), big)
	o.setDesired(webKey(2), big)
	if batch := o.nextBatch(time.Now(), maxOperations); len(batch) != 1 {
		t.Errorf("a batch has %d large records, want 1", len(batch))
	}
}

func TestOutboxRefused(t *testing.T) {
	o := newOutbox(func(mcs.Key) ownExport { return ownExport{} })
	o.setDesired(webKey(1), desiredFor(t, 1, 1))
	batch := o.nextBatch(time.Now(), 1)
	o.recordRefused(batch[0].key, errTooLarge)
	o.requeue(batch)
	if again := o.nextBatch(time.Now(), 1); len(again) != 0 {
		t.Error("a refused export is written again")
	}
	if p := o.status(webKey(1), nil); p.State != registry.Pending || !errors.Is(p.Err, errTooLarge) {
		t.Errorf("status %+v, want Pending with the reason", p)
	}
	o.setDesired(webKey(1), desiredFor(t, 1, 2))
	if again := o.nextBatch(time.Now(), 1); len(again) != 1 {
		t.Error("the changed export is not written")
	}
}

// TestHasUnwritten_ComparesContent has a process find an export that a restored backup holds. It
// does not state the exports as its own before the desired one was written: readers would take the
// earlier one for the latest.
func TestHasUnwritten_ComparesContent(t *testing.T) {
	earlier, desired := webExport("cls1", 0, 1), desiredFor(t, 0, 2)
	key := earlier.Key
	shown := ownExport{exists: true, export: &earlier, revision: 1, generation: 1}
	o := newOutbox(func(mcs.Key) ownExport { return shown })
	o.adopt(0, key)
	o.setDesired(key, desired)
	if !o.hasUnwritten() {
		t.Error("nothing is unwritten, though etcd has an earlier export")
	}
	batch := o.nextBatch(time.Now(), maxOperations)
	if len(batch) != 1 {
		t.Fatalf("%d operations, want 1", len(batch))
	}
	o.recordAccepted(batch, []bool{true}, 2, 2, func() int64 { return 1 })
	if o.hasUnwritten() {
		t.Error("the desired export is unwritten, though etcd has accepted it")
	}
	o.setDesired(key, desiredFor(t, 0, 3))
	if o.hasUnwritten() {
		t.Error("a later change counts as unwritten: exports that change all the time would never be stated")
	}
}

// TestOutbox_AdoptsNoReplay: another user writes an export again that this process has withdrawn,
// and the process acquires its ID anew before it has withdrawn that one too. The record must not
// state it: readers would take it for an export of this cluster.
func TestOutbox_AdoptsNoReplay(t *testing.T) {
	replayed := webExport("cls1", 0, 1)
	shown := ownExport{exists: true, export: &replayed, revision: 1, generation: 1}
	o := newOutbox(func(mcs.Key) ownExport { return shown })
	o.adopt(1, replayed.Key)
	if set := o.statedSet(nil, 0); set.Count != 1 {
		t.Errorf("%d exports are stated, want that of the previous process", set.Count)
	}
	o.setDesired(replayed.Key, desiredExport{})
	o.recordAccepted(o.nextBatch(time.Now(), maxOperations), []bool{true}, 3, 3, func() int64 { return 3 })
	shown.revision = 4 // it is there again
	o.adopt(5, replayed.Key)
	if set := o.statedSet(nil, 0); set.Count != 0 {
		t.Errorf("%d exports are stated after another user has written an old one again", set.Count)
	}
	shown.revision, shown.generation = 6, 6 // a request of unknown outcome has written it
	o.adopt(7, replayed.Key)
	if set := o.statedSet(nil, 0); set.Count != 1 {
		t.Errorf("%d exports are stated after this process has written one", set.Count)
	}
}

// largeExport returns the desired export of key with a number of bytes.
func largeExport(key mcs.Key, bytes, version int) desiredExport {
	return desiredExport{export: &mcs.Export{Key: key, Ports: []mcs.Port{{Port: int32(version)}}}, data: make([]byte, bytes)}
}

// TestOutbox_LimitsNamespace: exports with which a namespace would have more than its share wait
// for room. Those of other namespaces do not.
func TestOutbox_LimitsNamespace(t *testing.T) {
	o, now := newOutbox(func(mcs.Key) ownExport { return ownExport{} }), time.Now()
	key := func(i int) mcs.Key { return mcs.Key{Namespace: "tenant", Name: fmt.Sprint("large-", i)} }
	const size = 1 << 20
	for i := range namespaceBytes/size + 2 {
		o.setDesired(key(i), largeExport(key(i), size, 1))
	}
	o.setDesired(webKey(1), largeExport(webKey(1), size, 1))
	written := func() (keys []mcs.Key) {
		for batch := o.nextBatch(now, maxOperations); len(batch) > 0; batch = o.nextBatch(now, maxOperations) {
			for _, op := range batch {
				keys = append(keys, op.key)
			}
		}
		return keys
	}
	if keys := written(); len(keys) != namespaceBytes/size+1 || !slices.Contains(keys, webKey(1)) {
		t.Errorf("%d exports are written, want the share of the namespace and that of the neighbour: %v", len(keys), keys)
	}
	for i := range 2 {
		var invalid *registry.InvalidExportError
		if waiting := key(namespaceBytes/size + i); !errors.As(o.status(waiting, nil).Err, &invalid) {
			t.Errorf("the status of %s has no reason", waiting)
		}
	}
	// it is smaller now, and the neighbour of its own namespace grows
	o.setDesired(key(8), largeExport(key(8), size/2, 2))
	o.setDesired(key(0), largeExport(key(0), size/2, 2))
	if keys := written(); len(keys) != 2 || !slices.Contains(keys, key(8)) {
		t.Errorf("written when there is room: %v", keys)
	}
	o.setDesired(key(1), desiredExport{})
	if keys := written(); !slices.Contains(keys, key(9)) {
		t.Errorf("written after a withdrawal: %v", keys)
	}
	if o.used["tenant"] > namespaceBytes || len(o.excess) > 0 {
		t.Errorf("%d bytes are used, %v waits", o.used["tenant"], o.excess)
	}
}

// TestOutbox_PacesNamespaces: a namespace that changes large exports again and again is written at
// the pace of a namespace, and another one at once.
func TestOutbox_PacesNamespaces(t *testing.T) {
	o, now := newOutbox(func(mcs.Key) ownExport { return ownExport{} }), time.Now()
	key := func(i int) mcs.Key { return mcs.Key{Namespace: "tenant", Name: fmt.Sprint("large-", i)} }
	const size, seconds = 256 << 10, 600
	written := 0
	for n := range seconds {
		for i := range 4 {
			o.setDesired(key(i), desiredExport{}) // flapping leaves old entries in the queues
			o.setDesired(key(i), largeExport(key(i), size, n))
		}
		neighbour := desiredFor(t, 1, 1+n)
		o.setDesired(webKey(1), neighbour)
		isWritten := false
		for batch := o.nextBatch(now, maxOperations); len(batch) > 0; batch = o.nextBatch(now, maxOperations) {
			o.charge(now, batch)
			for _, op := range batch {
				if op.key == webKey(1) {
					isWritten = true
				} else {
					written += len(op.desired.data)
				}
			}
		}
		if !isWritten {
			t.Fatal("the neighbour waits")
		}
		if pause, waits := o.untilPaced(now); waits && (pause <= 0 || pause > 10*time.Second) {
			t.Fatalf("the next export is due in %v", pause)
		}
		now = now.Add(time.Second)
	}
	if want := namespaceBurstKiB<<10 + seconds*namespaceKiB<<10; written < want*9/10 || written > want+4*size {
		t.Errorf("%d bytes are written in %d s, want some %d", written, seconds, want)
	}
	if n := len(o.queues[false]); n > 10 {
		t.Errorf("the queue has %d entries", n)
	}
}
