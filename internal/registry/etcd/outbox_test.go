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
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/desired"
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

func operationFor(t interface{ Fatal(...any) }, i, n int) operation {
	d := desiredFor(t, i, n)
	return operation{key: webKey(i), export: d.export, data: d.data}
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

func newFakeStore() *fakeStore {
	return &fakeStore{revision: 10, stored: map[mcs.Key]ownExport{}, shown: map[mcs.Key]ownExport{}}
}

// set stores an export with the revision as its generation, nil to remove it.
func (s *fakeStore) set(key mcs.Key, exp *mcs.Export) {
	if exp == nil && !s.stored[key].exists {
		return
	}
	s.stored[key] = ownExport{exists: exp != nil, export: exp, revision: s.revision}
	if exp != nil {
		s.stored[key] = ownExport{exists: true, export: exp, revision: s.revision, generation: s.revision}
	}
	s.events = append(s.events, event{key, s.stored[key]})
}

// keys returns the keys that the watch has shown.
func (s *fakeStore) keys() (keys []mcs.Key) {
	for key, shown := range s.shown {
		if shown.exists {
			keys = append(keys, key)
		}
	}
	return keys
}

// outbox returns an outbox that has adopted what the store shows.
func (s *fakeStore) outbox() *outbox {
	o := newOutbox("cls1", func(key mcs.Key) ownExport { return s.shown[key] })
	s.revision++
	s.shownRevision = s.revision
	o.adopt(s.revision, s.revision, s.keys, false)
	return o
}

// show shows the changes of the next transaction.
func (s *fakeStore) show(o *outbox) {
	changed := map[mcs.Key]int64{}
	for s.shownRevision = s.events[0].exp.revision; len(s.events) > 0 && s.events[0].exp.revision == s.shownRevision; s.events = s.events[1:] {
		e := s.events[0]
		s.shown[e.key], changed[e.key] = e.exp, e.exp.revision
	}
	o.observe(time.Now(), changed, s.shownRevision)
}

// write writes the next batch, and reports whether there was one.
func (s *fakeStore) write(o *outbox, most int, whileWriting func()) bool {
	batch := o.nextBatch(time.Now(), most, s.revision+1)
	if len(batch) == 0 {
		return false
	}
	s.revision++
	for _, op := range batch {
		s.set(op.key, op.export)
	}
	whileWriting()
	o.accept(time.Now(), batch, s.revision, func() int64 { return s.shownRevision })
	return true
}

// commit writes the next batch, which is accepted and not shown.
func (s *fakeStore) commit(o *outbox, now time.Time) []operation {
	s.revision++
	batch := o.nextBatch(now, maxOperations, s.revision)
	o.accept(now, batch, s.revision, func() int64 { return 0 })
	return batch
}

// TestOutboxConverges writes, drops answers and deletes exports at random, and claims the ID anew.
// In the end the store must have the desired exports.
func TestOutboxConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newFakeStore()
		o := s.outbox()
		showAll := func() {
			for len(s.events) > 0 {
				s.show(o)
			}
			s.shownRevision = s.revision
			o.observe(time.Now(), nil, s.shownRevision)
		}
		want := map[mcs.Key]*mcs.Export{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, 3).Draw(t, "key")
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0:
				w := desiredFor(t, i, rapid.IntRange(1, 3).Draw(t, "port"))
				want[webKey(i)] = w.export
				o.setDesired(webKey(i), w)
			case 1:
				want[webKey(i)] = nil
				o.setDesired(webKey(i), desiredExport{})
			case 2:
				s.write(o, rapid.IntRange(1, 3).Draw(t, "most"), func() {
					// The watch may show a change before the answer arrives.
					for range rapid.IntRange(0, 3).Draw(t, "shown before the answer") {
						if len(s.events) > 0 {
							s.show(o)
						}
					}
				})
			case 3:
				if len(s.events) > 0 {
					s.show(o)
				}
			case 4: // another user removes it
				s.revision++
				s.set(webKey(i), nil)
			case 5: // another user writes an old version, which a previous process has signed
				s.revision++
				old := rapid.IntRange(1, 3).Draw(t, "port")
				exp := webExport("cls1", i, old)
				s.set(webKey(i), &exp)
				s.stored[webKey(i)] = ownExport{exists: true, export: &exp, revision: s.revision, generation: int64(old)}
				s.events[len(s.events)-1].exp = s.stored[webKey(i)]
			case 6: // a refused transaction
				o.end(time.Now(), o.nextBatch(time.Now(), 2, s.revision+1), desired.Untried, nil)
			case 7: // the ID is claimed anew, or all keys are listed
				s.revision++
				showAll()
				o.observeHead(false)
				o.adopt(s.revision, s.revision, s.keys, true)
			}
		}
		for rounds := 0; ; rounds++ {
			showAll()
			if !s.write(o, maxOperations, func() {}) && len(s.events) == 0 {
				break
			}
			if rounds > 20 {
				t.Fatal("the outbox does not stop writing")
			}
		}
		var stated belief.SetDigest
		count := 0
		for i := range 4 {
			key := webKey(i)
			exp := want[key]
			if !equalExports(s.stored[key].export, exp) {
				t.Errorf("%v is stored as %v, want %v", key, s.stored[key], exp)
			}
			wantState := registry.Absent
			if exp != nil {
				stated, count, wantState = stated.With(unitOf(key), s.stored[key].generation), count+1, registry.Exported
			}
			if got := o.status(key, nil).State; got != wantState {
				t.Errorf("status of %v is %v, want %v", key, got, wantState)
			}
		}
		for key, exp := range o.state.Wanted {
			if exp == nil {
				t.Errorf("the withdrawal of %v is not dropped", key)
			}
		}
		if set := o.namedSet(nil); set.Digest != stated || set.Count != count {
			t.Errorf("the stated exports are %v, which are not the %d in the store", set, count)
		}
		if !o.isDecided() {
			t.Error("not every export was compared")
		}
	})
}

// equalExports reports whether two exports are equal; nil is no export.
func equalExports(a, b *mcs.Export) bool {
	return a == b || a != nil && b != nil && a.Equal(*b)
}

func TestOutboxBatches(t *testing.T) {
	s := newFakeStore()
	there := webExport("cls1", 500, 1)
	s.shown[there.Key] = ownExport{exists: true, export: &there, revision: 1, generation: 1}
	o := s.outbox()
	next := func() []operation { return o.nextBatch(time.Now(), maxOperations, 9) }
	o.setDesired(there.Key, desiredFor(t, 500, 1))
	for i := range maxOperations + 10 {
		o.setDesired(webKey(i), desiredFor(t, i, 1))
	}
	o.setDesired(webKey(0), desiredExport{}) // withdrawn before it was written
	if first := next(); len(first) != maxOperations || first[0].key != webKey(1) {
		t.Errorf("first batch has %d operations and begins with %v", len(first), first[0].key)
	}
	o.setDesired(there.Key, desiredExport{})
	if batch := next(); len(batch) != 1 || batch[0].export != nil {
		t.Errorf("the batch does not have the withdrawal alone: %v", batch)
	}
	if batch := next(); len(batch) != 9 || batch[0].export == nil {
		t.Errorf("the last batch has %d operations, want 9 exports", len(batch))
	}
	o = newFakeStore().outbox()
	for i := range 2 {
		big := desiredFor(t, i, 1)
		big.data = make([]byte, maxBatchBytes*2/3)
		o.setDesired(webKey(i), big)
	}
	if batch := next(); len(batch) != 1 {
		t.Errorf("a batch has %d large records, want 1", len(batch))
	}
}

func TestOutboxRefused(t *testing.T) {
	o, now := newFakeStore().outbox(), time.Now()
	o.setDesired(webKey(1), desiredFor(t, 1, 1))
	o.end(now, o.nextBatch(now, 1, 9), desired.Unfit, errTooLarge)
	if again := o.nextBatch(now, 1, 10); len(again) != 0 {
		t.Error("a refused export is written again at once")
	}
	if p := o.status(webKey(1), nil); p.State != registry.Pending || !errors.Is(p.Err, errTooLarge) {
		t.Errorf("status %+v, want Pending with the reason", p)
	}
	if pause, waits := o.untilDue(now); !waits || pause != refusedPause {
		t.Errorf("it is written again after %v, want %v", pause, refusedPause)
	}
	if !o.isDecided() {
		t.Error("the record waits for an export that etcd refuses")
	}
	o.setDesired(webKey(1), desiredFor(t, 1, 2))
	if again := o.nextBatch(now, 1, 11); len(again) != 1 {
		t.Error("the changed export is not written")
	}
}

// TestIsDecided_ComparesContent has a process find an export that a restored backup holds. It does
// not state the exports as its own before the desired one was written: readers would take the
// earlier one for the latest.
func TestIsDecided_ComparesContent(t *testing.T) {
	earlier := webExport("cls1", 0, 1)
	key := earlier.Key
	s := newFakeStore()
	s.shown[key] = ownExport{exists: true, export: &earlier, revision: 1, generation: 1}
	o := s.outbox()
	o.setDesired(key, desiredFor(t, 0, 2))
	if o.isDecided() {
		t.Error("all is decided, though etcd has an earlier export")
	}
	if !s.write(o, maxOperations, func() {}) {
		t.Fatal("no operation, want one")
	}
	if !o.isDecided() {
		t.Error("the desired export is not decided, though etcd has accepted it")
	}
	o.setDesired(key, desiredFor(t, 0, 3))
	if !o.isDecided() {
		t.Error("a later change counts as not decided: exports that change all the time would never be stated")
	}
}

// TestOutbox_AdoptsNoReplay: another user writes an export again that this process has withdrawn,
// and the process acquires its ID anew before it has withdrawn that one too. The record must not
// state it: readers would take it for an export of this cluster.
func TestOutbox_AdoptsNoReplay(t *testing.T) {
	s, replayed := newFakeStore(), webExport("cls1", 0, 1)
	s.shown[replayed.Key] = ownExport{exists: true, export: &replayed, revision: 1, generation: 1}
	s.stored[replayed.Key] = s.shown[replayed.Key]
	o := s.outbox()
	check := func(want int, when string) {
		t.Helper()
		if set := o.namedSet(nil); set.Count != want {
			t.Errorf("%d exports are stated %s, want %d", set.Count, when, want)
		}
	}
	check(1, "of the previous process")
	s.write(o, maxOperations, func() {}) // it was not published: it is withdrawn
	for len(s.events) > 0 {
		s.show(o)
	}
	check(0, "after it was withdrawn")
	again := func(generation int64) {
		s.revision++
		s.shown[replayed.Key] = ownExport{exists: true, export: &replayed, revision: s.revision, generation: generation}
		s.stored[replayed.Key] = s.shown[replayed.Key]
		s.revision++
		o.adopt(s.revision, s.revision, s.keys, true)
	}
	again(1)
	check(0, "after another user has written an old one again")
	if batch := o.nextBatch(time.Now(), maxOperations, s.revision+1); len(batch) != 1 || batch[0].export != nil {
		t.Errorf("the old one is not removed: %v", batch)
	} else {
		o.end(time.Now(), batch, desired.Untried, nil)
	}
	again(s.revision) // a request of unknown outcome has written it
	check(1, "after this process has written one")
}

// TestOutbox_RemovesForeign: another user writes an export that this cluster does not have. It is
// removed, and the record never states it.
func TestOutbox_RemovesForeign(t *testing.T) {
	for name, generation := range map[string]int64{"not signed": 0, "a replay": 1} {
		t.Run(name, func(t *testing.T) {
			s, foreign := newFakeStore(), webExport("cls1", 0, 1)
			o := s.outbox()
			s.revision++
			s.set(foreign.Key, &foreign)
			s.events[0].exp.generation = generation
			s.show(o)
			if set := o.namedSet(nil); set.Count != 0 {
				t.Error("the record states it")
			}
			if !s.write(o, maxOperations, func() {}) || s.stored[foreign.Key].exists {
				t.Error("it is not removed")
			}
		})
	}
}

// largeExport returns the desired export of key with a number of bytes.
func largeExport(key mcs.Key, bytes, version int) desiredExport {
	return desiredExport{export: &mcs.Export{Key: key, Cluster: "cls1", Ports: []mcs.Port{{Port: int32(version)}}}, data: make([]byte, bytes)}
}

// TestOutbox_LimitsNamespace: exports with which a namespace would have more than its share wait
// for room. Those of other namespaces do not.
func TestOutbox_LimitsNamespace(t *testing.T) {
	s, now := newFakeStore(), time.Now()
	o := s.outbox()
	key := func(i int) mcs.Key { return mcs.Key{Namespace: "tenant", Name: fmt.Sprint("large-", i)} }
	const size = 1 << 20
	for i := range namespaceBytes/size + 2 {
		o.setDesired(key(i), largeExport(key(i), size, 1))
	}
	o.setDesired(webKey(1), largeExport(webKey(1), size, 1))
	written := func() (keys []mcs.Key) {
		for batch := s.commit(o, now); len(batch) > 0; batch = s.commit(o, now) {
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
	if o.shares.used["tenant"] > namespaceBytes || len(o.shares.excess)+len(o.shares.wanted) > 0 {
		t.Errorf("%d bytes are used, %v waits", o.shares.used["tenant"], o.shares.excess)
	}
}

// TestOutbox_PacesNamespaces: a namespace that changes large exports again and again is written at
// the pace of a namespace, and another one at once.
func TestOutbox_PacesNamespaces(t *testing.T) {
	s, now := newFakeStore(), time.Now()
	o := s.outbox()
	key := func(i int) mcs.Key { return mcs.Key{Namespace: "tenant", Name: fmt.Sprint("large-", i)} }
	const size, seconds = 256 << 10, 600
	written := 0
	for n := range seconds {
		for i := range 4 {
			o.setDesired(key(i), desiredExport{})
			o.setDesired(key(i), largeExport(key(i), size, n))
		}
		neighbour := desiredFor(t, 1, 1+n)
		o.setDesired(webKey(1), neighbour)
		isWritten := false
		for batch := s.commit(o, now); len(batch) > 0; batch = s.commit(o, now) {
			for _, op := range batch {
				if op.key == webKey(1) {
					isWritten = true
				} else {
					written += len(op.data)
				}
			}
		}
		if !isWritten {
			t.Fatal("the neighbour waits")
		}
		if pause, waits := o.untilDue(now); waits && (pause <= 0 || pause > 10*time.Second) {
			t.Fatalf("the next export is due in %v", pause)
		}
		now = now.Add(time.Second)
	}
	if want := namespaceBurstKiB<<10 + seconds*namespaceKiB<<10; written < want*9/10 || written > want+4*size {
		t.Errorf("%d bytes are written in %d s, want some %d", written, seconds, want)
	}
}
