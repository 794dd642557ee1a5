package etcd

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// stateTest is the state of cls1 with the keys that a test writes.
type stateTest struct {
	*state
	t        testing.TB
	keyrings *registrytest.Keyrings
	now      time.Time
	rev      int64
	// imported are the exports of cls2 that are imported.
	imported map[int]bool
	// content is what etcd has, and reads the number of times that all exports of a cluster were
	// read alone.
	content map[string]pair
	reads   int
}

func testState(t testing.TB) *state { return newStateTest(t).state }

func newStateTest(t testing.TB) *stateTest {
	s := &stateTest{t: t, keyrings: registrytest.NewKeyrings(time.Minute), now: time.Now(), imported: map[int]bool{}, content: map[string]pair{}}
	s.restart()
	return s
}

// restart replaces the state by an empty one, as a new process has it. The keyring stays.
func (s *stateTest) restart() {
	s.t.Helper()
	s.restartWith(s.keyrings.Of(s.t, cls1))
}

// restartWith is restart with another keyring.
func (s *stateTest) restartWith(keyring *trust.Keyring) {
	s.t.Helper()
	s.state = newState(stateConfig{
		layout: newLayout("/mcs", "set1"), clusterSetID: "set1", own: "cls1", name: "etcd", poll: time.Second, staleAfter: time.Minute,
		self: authorOf(s.t, cls1), keyring: keyring,
	})
}

// isDue reports whether a read has to be made some seconds after the start.
func (s *stateTest) isDue(seconds int) bool {
	s.hasDue = true
	return len(s.dueReads(s.at(seconds), 1)) > 0
}

// at returns a time some seconds after the start of the test.
func (s *stateTest) at(seconds int) time.Time { return s.now.Add(time.Duration(seconds) * time.Second) }

// member returns a member record of cls2 with a heartbeat some seconds after the start, which has
// these exports.
func (s *stateTest) member(seconds int, exports map[int]int64) pair {
	s.t.Helper()
	return pair{key: s.layout.member("cls2"), value: memberValue(s.t, cls2, s.at(seconds), setOf(exports))}
}

// export returns version n of an export of cls2.
func (s *stateTest) export(i, n int, generation int64) pair {
	s.t.Helper()
	return pair{key: s.layout.export("cls2", webKey(i)), value: exportValue(s.t, cls2, i, n, generation)}
}

func (s *stateTest) gone(i int) pair {
	return pair{key: s.layout.export("cls2", webKey(i)), deleted: true}
}

// show applies changes, as one answer of the watch has them, and returns the keys with a View that
// may have changed.
func (s *stateTest) show(pairs ...pair) engine.Keys {
	s.t.Helper()
	return s.showAt(0, pairs...)
}

// showAt is show some seconds after the start.
func (s *stateTest) showAt(seconds int, pairs ...pair) engine.Keys {
	s.t.Helper()
	changed := engine.Keys{}
	s.write(pairs)
	s.apply(s.at(seconds), pairs, changed)
	s.readDue(s.at(seconds), changed)
	return changed
}

// write makes pairs the latest content of etcd.
func (s *stateTest) write(pairs []pair) {
	s.rev++
	for i := range pairs {
		pairs[i].revision = s.rev
		if s.content[pairs[i].key] = pairs[i]; pairs[i].deleted {
			delete(s.content, pairs[i].key)
		}
	}
}

// tick lets the state review all clusters.
func (s *stateTest) tick(seconds int) engine.Keys {
	s.t.Helper()
	changed := engine.Keys{}
	s.observeHeartbeats(s.at(seconds), changed)
	s.readDue(s.at(seconds), changed)
	return changed
}

// readDue makes all reads that have to be made.
func (s *stateTest) readDue(now time.Time, changed engine.Keys) {
	s.t.Helper()
	for range 10 {
		reads := s.dueReads(now, pageKeys)
		if len(reads) == 0 {
			return
		}
		for _, due := range reads {
			s.read(now, due, changed)
		}
	}
	s.t.Error("there is always another read to make")
}

// read makes a read.
func (s *stateTest) read(now time.Time, due dueRead, changed engine.Keys) {
	if due.all {
		s.reads++
	}
	var pairs []pair
	for key, p := range s.content {
		if due.all && strings.HasPrefix(key, s.layout.cluster(due.cluster)+exportsSuffix) || slices.Contains(due.keys, key) {
			pairs = append(pairs, p)
		}
	}
	s.applyRead(now, due, pairs, changed)
}

// list replaces everything with these keys.
func (s *stateTest) list(pairs ...pair) {
	s.t.Helper()
	clear(s.content)
	s.write(pairs)
	replaceAll(s.state, s.at(0), pairs, s.rev, engine.Keys{})
	s.readDue(s.at(0), engine.Keys{})
}

// version returns the version of an export of cls2 that is read, 0 if there is none, -1 if it is
// unknown, and -2 if cls2 is unseen. The import that the version causes stays until there is none.
func (s *stateTest) version(i int) (version int) {
	s.t.Helper()
	var imported []string
	if s.imported[i] {
		imported = []string{"cls2"}
	}
	switch v := s.view(webKey(i), imported); {
	case len(v.Exports()) > 0:
		version = int(v.Exports()[0].Ports[0].Port) - 1
	case len(v.In(registry.Unknown)) > 0:
		return -1
	case len(v.In(registry.Unseen)) > 0:
		return -2
	}
	s.imported[i] = version > 0
	return version
}

func (s *stateTest) want(what string, versions ...int) {
	s.t.Helper()
	for i, want := range versions {
		if got := s.version(i); got != want {
			s.t.Errorf("%s: export %d is at version %d, want %d", what, i, got, want)
		}
	}
}

// problems returns the problems of cls2.
func (s *stateTest) problems() string {
	for _, m := range s.membersWithProblems(time.Now()) {
		if m.ClusterID == "cls2" {
			return strings.Join(m.Problems, "\n")
		}
	}
	return ""
}

func TestStateApply(t *testing.T) {
	s := newStateTest(t)
	s.list(s.member(0, map[int]int64{0: 5}), s.export(0, 1, 5))
	raw := func(id, value string) pair { return pair{key: s.layout.export(id, webKey(0)), value: []byte(value)} }
	tests := []struct {
		name        string
		pairs       []pair
		wantChanged bool
		wantVersion int
		wantProblem string
	}{
		{"the same again", []pair{s.export(0, 1, 5)}, false, 1, ""},
		{"the second record", []pair{s.member(1, map[int]int64{0: 5})}, true, 1, ""},
		{"the same content", []pair{s.export(0, 1, 7), s.member(2, map[int]int64{0: 7})}, false, 1, ""},
		{"another content", []pair{s.export(0, 2, 8), s.member(3, map[int]int64{0: 8})}, true, 2, ""},
		{"garbage keeps the last export", []pair{raw("cls2", "garbage")}, true, 2, "refused export demo/web-0"},
		{"a key of a cluster without a member record", []pair{raw("cls3", "garbage")}, true, 2, ""},
		{"an unrecognized key", []pair{{key: s.layout.cluster("cls2") + "other"}}, false, 2, `other" is ignored`},
		{"a key of no cluster", []pair{{key: "/mcs/set1/x"}}, false, 2, ""},
		{"removed by another user", []pair{s.gone(0)}, false, 2, "1 exports are missing"},
		{"withdrawn", []pair{s.member(4, nil)}, true, 0, ""},
		{"another service's export", []pair{{key: s.layout.export("cls2", webKey(0)), value: s.export(1, 1, 9).value}}, true, 0, "signature is not valid"},
	}
	for _, tt := range tests {
		if got := len(s.show(tt.pairs...)) > 0; got != tt.wantChanged {
			t.Errorf("%s: changed %v, want %v", tt.name, got, tt.wantChanged)
		}
		s.want(tt.name, tt.wantVersion)
		if lines := s.problems(); !strings.Contains(lines, tt.wantProblem) {
			t.Errorf("%s: problems %q lack %q", tt.name, lines, tt.wantProblem)
		}
	}
}

// Nothing that another user does to the keys of a cluster changes what is imported from it.
func TestStateKeepsExportsWithoutEvidence(t *testing.T) {
	member := "/mcs/set1/cls2/member"
	forged := func(s *stateTest, r func(*memberRecord)) pair {
		record := newMemberRecord(cls2, "v1").withHeartbeat(s.at(100))
		record.Generation, record.Exports = record.Heartbeat.UnixMilli(), setOf(nil)
		r(&record)
		attacker := cls2
		attacker.UID = "uid-of-the-attacker"
		value, err := signMember(registrytest.Signer(t, attacker), record)
		if err != nil {
			t.Fatal(err)
		}
		return pair{key: member, value: value}
	}
	tests := map[string]func(s *stateTest){
		"the record is deleted":             func(s *stateTest) { s.show(pair{key: member, deleted: true}) },
		"the exports are deleted":           func(s *stateTest) { s.show(s.gone(0), s.gone(1)) },
		"the record and one are deleted":    func(s *stateTest) { s.show(pair{key: member, deleted: true}, s.gone(0)) },
		"everything is deleted":             func(s *stateTest) { s.list() },
		"etcd is restored":                  func(s *stateTest) { s.list(s.member(-100, nil)) },
		"etcd is restored with old exports": func(s *stateTest) { s.list(s.member(-100, map[int]int64{0: 2}), s.export(0, 9, 2)) },
		"an old record is written again":    func(s *stateTest) { s.show(s.member(-100, nil), s.gone(0), s.gone(1)) },
		"an old export is written again":    func(s *stateTest) { s.show(s.export(0, 9, 2)) },
		"the record is garbage":             func(s *stateTest) { s.show(pair{key: member, value: []byte("garbage")}) },
		"a forged record without exports":   func(s *stateTest) { s.show(forged(s, func(*memberRecord) {}), s.gone(0), s.gone(1)) },
		"a forged farewell":                 func(s *stateTest) { s.show(forged(s, func(r *memberRecord) { r.Farewell = true })) },
		"a forged record with another UID":  func(s *stateTest) { s.show(forged(s, func(r *memberRecord) { r.UID = "uid-9" })) },
		"another cluster's record": func(s *stateTest) {
			s.show(pair{key: member, value: memberValue(t, identityOf("cls3"), s.at(100), setOf(nil))})
		},
		"a new process that has not written all exports": func(s *stateTest) {
			s.show(s.gone(0), s.gone(1), pair{key: member, value: memberValue(t, cls2, s.at(100), nil)})
		},
		"an export that is gone from a complete set": func(s *stateTest) { s.show(s.gone(1), s.member(100, map[int]int64{0: 5, 1: 6})) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStateTest(t)
			s.list(s.member(0, map[int]int64{0: 5, 1: 6}), s.export(0, 1, 5), s.export(1, 1, 6))
			change(s)
			s.want("afterwards", 1, 1)
			// The cluster writes again.
			s.show(s.member(200, map[int]int64{0: 300}), s.export(0, 2, 300), s.gone(1))
			s.want("after the next record", 2, 0)
		})
	}
}

// A restarted reader removes no export that it does not find, or that is as it was before its
// start.
func TestStateAfterRestart(t *testing.T) {
	start := func(t *testing.T) *stateTest {
		s := newStateTest(t)
		s.list(s.member(0, map[int]int64{0: 5, 1: 6}), s.export(0, 1, 5), s.export(1, 1, 6))
		s.want("imported", 1, 1)
		s.restart()
		return s
	}
	t.Run("nothing is there", func(t *testing.T) {
		s := start(t)
		s.list()
		s.want("nothing", -2, -2)
	})
	t.Run("one export is missing", func(t *testing.T) {
		s := start(t)
		s.list(s.member(0, map[int]int64{0: 5, 1: 6}), s.export(0, 1, 5))
		s.want("one", -1, -1, 0)
		s.show(s.export(1, 2, 7), s.member(1, map[int]int64{0: 5, 1: 7}))
		s.want("both again", 1, 2, 0)
	})
	t.Run("an old export is written again", func(t *testing.T) {
		s := start(t)
		s.list(s.member(1, map[int]int64{0: 5, 1: 6}), s.export(0, 9, 4), s.export(1, 1, 6))
		s.want("the record names another one", -1, -1)
		s.show(s.export(0, 1, 5), s.member(2, map[int]int64{0: 5, 1: 6}))
		s.want("as before", 1, 1)
	})
	t.Run("an old export is written again while the cluster starts", func(t *testing.T) {
		s := start(t)
		s.list(pair{key: s.layout.member("cls2"), value: memberValue(t, cls2, s.at(1), nil)}, s.export(0, 9, 4), s.export(1, 1, 6))
		s.want("the record names none", -1, -1)
		s.show(s.export(0, 2, 7), s.member(2, map[int]int64{0: 7, 1: 6}))
		s.want("the cluster has written all", 2, 1)
	})
	t.Run("an older record", func(t *testing.T) {
		s := start(t)
		s.list(s.member(-1, nil))
		s.want("older", -2, -2)
	})
	t.Run("another key", func(t *testing.T) {
		s := start(t)
		other := cls2
		other.UID = "uid-of-another"
		s.list(pair{key: s.layout.member("cls2"), value: memberValue(t, other, s.at(5), setOf(nil))})
		s.want("another key", -2, -2)
		if lines := s.problems(); !strings.Contains(lines, "refused the member record: it is signed with key") {
			t.Errorf("problems %q", lines)
		}
	})
	t.Run("withdrawn meanwhile", func(t *testing.T) {
		s := start(t)
		s.list(s.member(5, map[int]int64{0: 5}), s.export(0, 1, 5))
		s.want("the first record", -1, -1)
		s.show(s.member(6, map[int]int64{0: 5}))
		s.want("withdrawn", 1, 0)
	})
}

// endedPins are the pins of a process that has ended a moment ago.
type endedPins struct{ registrytest.Pins }

func (endedPins) LoadEnd(context.Context) (time.Time, error) { return time.Now(), nil }

// TestStateAfterRestart_Ended: a process that has ended has saved all that it had read. The next
// one needs no second record, and refuses one that is earlier.
func TestStateAfterRestart_Ended(t *testing.T) {
	begin := func(t *testing.T) *stateTest {
		s := newStateTest(t)
		store := registrytest.Pins{}
		s.restartWith(store.Load(t))
		s.list(s.member(1, map[int]int64{0: 5}), s.export(0, 1, 5))
		s.want("imported", 1)
		ended, end := context.WithCancel(t.Context())
		end()
		run := func() { _ = s.keyring.Run(ended, func() error { return nil }) }
		run()
		next, err := trust.Load(t.Context(), trust.Config{ClusterSetID: "set1", StaleAfter: 2 * time.Minute, Store: endedPins{store}, Logger: logr.Discard()})
		if err != nil {
			t.Fatal(err)
		}
		s.restartWith(next)
		run()
		return s
	}
	t.Run("a later record", func(t *testing.T) {
		s := begin(t)
		s.list(s.member(2, map[int]int64{0: 7}), s.export(0, 2, 7))
		s.want("changed meanwhile", 2)
	})
	t.Run("the same record", func(t *testing.T) {
		s := begin(t)
		s.list(s.member(1, map[int]int64{0: 5}), s.export(0, 1, 5))
		s.want("as before", 1)
	})
	t.Run("an earlier record", func(t *testing.T) {
		s := begin(t)
		s.list(s.member(0, map[int]int64{0: 4}), s.export(0, 2, 4))
		s.want("set back", -2)
	})
}

// TestMirror_EndsAhead: a reader ends while it imports a version that no record names yet. The pins
// do not have all that it has read.
func TestMirror_EndsAhead(t *testing.T) {
	s := newStateTest(t)
	s.list(s.member(1, map[int]int64{0: 5}), s.export(0, 1, 5))
	(&mirror{state: s.state}).end()
	if !s.keyring.HasAll() {
		t.Error("the pins lack something, although the record names all that was read")
	}
	s.show(s.export(0, 2, s.at(5).UnixMilli()))
	s.want("read before its record", 2)
	(&mirror{state: s.state}).end()
	if s.keyring.HasAll() {
		t.Error("the pins have all, although no record names what was read")
	}
}

// TestStateAfterRestart_OldRecord kills the reader before it has saved the records that it has read
// last, and sets etcd back to an earlier state: the record that the next process reads first may be
// that of a backup. It counts when a later one follows, or when the cluster is stale.
func TestStateAfterRestart_OldRecord(t *testing.T) {
	start := func(t *testing.T) *stateTest {
		s := newStateTest(t)
		store := registrytest.Pins{}
		s.restartWith(store.Load(t))
		s.list(s.member(0, map[int]int64{0: 5}), s.export(0, 1, 5))
		ended, end := context.WithCancel(t.Context())
		end()
		_ = s.keyring.Run(ended, func() error { return nil }) // it saves once
		s.show(s.member(1, map[int]int64{0: 7, 1: 6}), s.export(0, 2, 7), s.export(1, 1, 6))
		s.want("imported", 2, 1)
		s.restartWith(store.Load(t))
		s.list(s.member(0, map[int]int64{0: 5}), s.export(0, 1, 5))
		s.want("set back", -1, -1)
		return s
	}
	t.Run("a later record", func(t *testing.T) {
		s := start(t)
		s.show(s.member(2, map[int]int64{0: 7, 1: 6}))
		s.want("the exports are not there yet", -1, -1)
		s.show(s.export(0, 2, 7), s.export(1, 1, 6))
		s.want("as before", 2, 1)
	})
	t.Run("the same exports", func(t *testing.T) {
		s := start(t)
		if changed := s.show(s.member(2, map[int]int64{0: 5})); len(changed) != 1 {
			t.Errorf("%d keys changed, want 1", len(changed))
		}
		s.want("the cluster has set them back", 1, 0)
	})
	t.Run("the cluster is stale", func(t *testing.T) {
		s := start(t)
		changed := engine.Keys{}
		for seconds := 0; s.belief.LivenessOf("cls2") != registry.Stale; seconds += 10 {
			s.want("it has no later record", -1, -1)
			s.rev++
			s.apply(s.at(seconds), []pair{{key: s.layout.member("cls1"), value: memberValue(t, cls1, s.at(seconds), nil), revision: s.rev}}, changed)
			s.observeHeartbeats(s.at(seconds), changed)
		}
		s.want("a later record would have been read", 1, 0)
		if _, ok := changed[webKey(0)]; !ok {
			t.Errorf("notified of %v", changed)
		}
	})
}

func TestStateFarewell(t *testing.T) {
	s := newStateTest(t)
	s.list(s.member(0, map[int]int64{0: 5}), s.export(0, 1, 5))
	last := newMemberRecord(cls2, "v1").withHeartbeat(s.at(5))
	last.Generation, last.Farewell = last.Heartbeat.UnixMilli(), true
	farewell := pair{key: s.layout.member("cls2"), value: sign(t, cls2, last)}
	if changed := s.show(farewell, s.gone(0)); len(changed) != 1 {
		t.Errorf("%d keys changed, want 1", len(changed))
	}
	s.want("after the farewell", 0)
	if len(s.members()) != 0 {
		t.Errorf("members %v, want none", s.members())
	}
	s.show(s.export(0, 1, 5), s.member(0, map[int]int64{0: 5}))
	s.want("after its old keys were written again", 0)
	s.restart()
	s.list(farewell)
	s.want("a restarted reader", 0)
	s.restart()
	s.list()
	s.want("after the farewell was removed", 0)
	s.show(s.member(10, map[int]int64{0: s.at(10).UnixMilli()}), s.export(0, 3, s.at(10).UnixMilli()))
	s.want("after it joined again", 3)
}

// TestStateOldExportAtReturn: another user removes the farewell of a cluster, and writes an old
// export of it again. When the cluster returns it has not withdrawn that one, but it ended with the
// farewell.
func TestStateOldExportAtReturn(t *testing.T) {
	s := newStateTest(t)
	s.list(s.member(0, map[int]int64{0: 4}), s.export(0, 1, 4))
	last := newMemberRecord(cls2, "v1").withHeartbeat(s.at(10))
	last.Generation, last.Farewell = last.Heartbeat.UnixMilli(), true
	s.show(pair{key: s.layout.member("cls2"), value: sign(t, cls2, last)}, s.gone(0))
	s.show(pair{key: s.layout.member("cls2"), deleted: true})
	s.show(s.export(0, 1, 4))
	returned := newMemberRecord(cls2, "v1").withHeartbeat(s.at(20))
	returned.Generation = returned.Heartbeat.UnixMilli()
	s.show(pair{key: s.layout.member("cls2"), value: sign(t, cls2, returned)})
	s.show(s.export(1, 1, returned.Generation+1), s.export(0, 1, 4))
	if n := s.version(0); n > 0 {
		t.Errorf("the old export is at version %d, want none", n)
	}
	s.want("after the return", -1, 1)
}

// TestStateReturnIsSavedFirst kills the reader while a cluster returns that had left or was
// forgotten: the next process must not take the imports that were made since for those of before.
func TestStateReturnIsSavedFirst(t *testing.T) {
	for name, pin := range map[string]trust.Pin{"left": {Left: true}, "forgotten": {Forgotten: true}, "left, and another record once it is saved": {Left: true}} {
		t.Run(name, func(t *testing.T) {
			s := newStateTest(t)
			pin.Key, pin.UID = authorOf(t, cls2).key, cls2.UID
			pin.Last = map[string]trust.Time{"etcd": {Heartbeat: s.at(-60).UnixMilli()}}
			store := registrytest.Pins{"cls2": pin}
			s.restartWith(store.Load(t))
			s.show(s.member(0, map[int]int64{0: 1}), s.export(0, 1, 1))
			s.want("not saved", -1)

			ended, end := context.WithCancel(t.Context())
			end()
			_ = s.keyring.Run(ended, func() error { return nil }) // it saves once
			changed := engine.Keys{}
			if strings.Contains(name, "another record") {
				changed = s.show(s.member(1, map[int]int64{0: 1}))
			}
			maps.Copy(changed, s.tick(1))
			if _, ok := changed[webKey(0)]; !ok {
				t.Errorf("saved: notified of %v", changed)
			}
			s.want("saved", 1)

			s.restartWith(store.Load(t))
			s.show()
			s.want("after a restart, without a record", -2)
		})
	}
}

// A cluster that moved to another registry leaves its records in this one. What it exports now is
// not known here.
func TestStateMovedCluster(t *testing.T) {
	s := newStateTest(t)
	s.list(s.member(0, map[int]int64{0: 5}), s.export(0, 1, 5))
	s.show(s.member(1, map[int]int64{0: 5}))
	s.want("before", 1, 0)
	s.imported[1] = true
	s.keyring.Observe(trust.Record{
		Registry: "cloudmap", ClusterID: "cls2", UID: cls2.UID, Key: authorOf(t, cls2).key, At: trust.Time{Heartbeat: s.at(10).UnixMilli()},
	})
	s.want("after it moved", 1, -2)
	s.show(s.member(20, map[int]int64{0: 5}))
	s.want("after it moved back", 1, 0)
}

func TestStateForget(t *testing.T) {
	s := newStateTest(t)
	record, web := s.member(0, map[int]int64{0: 5}), s.export(0, 1, 5)
	s.list(record, web)
	forget := func() {
		s.forget(s.at(0), "cls2", engine.Keys{})
	}
	forget()
	s.want("forgotten", 0)
	s.show(record)
	s.want("the same record again", 0)
	if len(s.members()) != 0 {
		t.Errorf("members %v, want none", s.members())
	}
	s.restart()
	s.list(record, web)
	s.want("after a restart", 0)
	s.show(s.member(1, map[int]int64{0: 5}))
	s.want("after a later record", 1)
	forget()
	s.show(s.member(2, map[int]int64{0: 5}))
	s.want("after Forget and a later record", 1)
	s.restart()
	s.list()
	s.want("unseen", -2)
	forget()
	s.want("forgotten without a record", 0)
}

// A cluster that was built anew under its ID replaces the previous one when that has been silent
// for long enough, and at once if its new key is signed with the previous one.
func TestStateNewKey(t *testing.T) {
	rebuilt := cls2
	rebuilt.UID = "uid-of-the-new-one"
	values := func(s *stateTest, seconds int) (pair, pair) {
		generation := s.at(seconds).UnixMilli()
		return pair{key: s.layout.member("cls2"), value: memberValue(t, rebuilt, s.at(seconds), setOf(map[int]int64{1: generation}))},
			pair{key: s.layout.export("cls2", webKey(1)), value: exportValue(t, rebuilt, 1, 7, generation)}
	}
	s := newStateTest(t)
	s.keyrings = registrytest.NewKeyrings(0) // the keyring's own clock
	s.restart()
	s.list(s.member(-600, map[int]int64{0: 5}), s.export(0, 1, 5))
	s.show(s.member(0, map[int]int64{0: 5}))
	member, web := values(s, 1)
	s.show(member, web, s.gone(0))
	s.want("while the previous one may be live", 1, 0)
	if s.isDue(0) {
		t.Error("a read is due for a key that is refused")
	}
	// Its own heartbeats go on, those of the previous one have ended.
	for i := range 20 {
		at := s.at(10 * i)
		s.rev++
		s.apply(at, []pair{{key: s.layout.member("cls1"), value: memberValue(t, cls1, at, nil), revision: s.rev}}, engine.Keys{})
		s.observeHeartbeats(at, engine.Keys{})
	}
	member, web = values(s, -500) // its clock is behind that of the previous one
	web.revision = s.rev
	s.content[web.key] = web // it was refused
	delete(s.content, s.layout.export("cls2", webKey(0)))
	s.showAt(200, member)
	s.tick(211)
	s.want("after the previous one was silent", 0, 7)
}

// After a rotation of its key, the exports that a cluster has signed with the previous key stay as
// they are until it signs them with the new one, in the order of conflicts too, and no problem is
// reported. Nothing else that the previous key has signed counts.
func TestStateRotatedKey(t *testing.T) {
	signer := registrytest.RotatedSigner(t, cls2)
	member := func(s *stateTest, seconds int, exports *exportSet) pair {
		r := newMemberRecord(cls2, "v1").withHeartbeat(s.at(seconds))
		r.Generation, r.Exports = r.Heartbeat.UnixMilli(), exports
		value, err := signMember(signer, r)
		if err != nil {
			t.Fatal(err)
		}
		return pair{key: s.layout.member("cls2"), value: value}
	}
	export := func(s *stateTest, i, n int, generation int64) pair {
		d, err := newDesiredExport(webExport("cls2", i, n))
		if err != nil {
			t.Fatal(err)
		}
		a := authorOf(t, cls2)
		return pair{key: s.layout.export("cls2", webKey(i)), value: signExport(signer, a, webKey(i), generation, d.data)}
	}
	setUp := func() *stateTest {
		s := newStateTest(t)
		web := s.export(0, 1, 5)
		web.created = 7
		s.list(s.member(-1, map[int]int64{0: 5, 1: 6}), web, s.export(1, 1, 6))
		s.show(s.member(0, map[int]int64{0: 5, 1: 6}))
		return s
	}
	check := func(s *stateTest, what, problem string) {
		t.Helper()
		s.want(what, 1, 1)
		if got := s.view(webKey(0), nil).Order["cls2"]; got != 7 {
			t.Errorf("%s: position %d, want 7", what, got)
		}
		found := slices.DeleteFunc(strings.Split(s.problems(), "\n"), func(line string) bool {
			// the exports of this test have neither
			return strings.Contains(line, "its lease expired") || strings.Contains(line, "no creation time")
		})
		if got := strings.Join(found, "\n"); got != problem {
			t.Errorf("%s: problems %q, want %q", what, got, problem)
		}
		if s.reads > 0 {
			t.Errorf("%s: all exports were read again, while the cluster signs them again", what)
		}
	}
	t.Run("in the watch", func(t *testing.T) {
		s := setUp()
		if changed := s.show(member(s, 1, nil)); len(changed) > 0 {
			t.Errorf("%d keys changed, want none", len(changed))
		}
		check(s, "with the new key", "")
		again := s.at(2).UnixMilli()
		s.show(export(s, 0, 2, again))
		s.want("after one was signed with the new key", 2, 1)
		s.show(s.gone(1), member(s, 2, setOf(map[int]int64{0: again})))
		s.want("after the other one was withdrawn", 2, 0)
	})
	t.Run("in a list", func(*testing.T) {
		s := setUp()
		web, db := s.export(0, 1, 5), s.export(1, 1, 6)
		web.revision, web.created, db.revision = s.rev-1, 7, s.rev-1
		next := member(s, 1, nil)
		next.revision = s.rev + 1
		replaceAll(s.state, s.at(1), []pair{next, web, db}, s.rev+1, engine.Keys{})
		check(s, "with the new key", "")
	})
	t.Run("an old export is written again afterwards", func(*testing.T) {
		s := setUp()
		s.show(member(s, 1, nil))
		again := s.export(1, 9, 6)
		s.show(again)
		check(s, "replayed", "refused export "+webKey(1).String()+": its signature is not valid")
	})
	t.Run("an old export was written again before", func(*testing.T) {
		s := setUp()
		s.show(s.export(1, 9, 2))
		s.show(member(s, 1, nil))
		check(s, "replayed", "")
	})
}

// A list after a gap in the watch changes exactly the keys that were added, changed or withdrawn
// meanwhile.
func TestStateReplace(t *testing.T) {
	s := newStateTest(t)
	now := time.Now()
	list := []pair{
		s.export(0, 1, 2), s.export(1, 1, 3), s.export(2, 1, 4), s.member(0, map[int]int64{0: 2, 1: 3, 2: 4}),
		{key: s.layout.alive("cls2"), value: []byte("uid-2"), lease: 7},
	}
	for i := range list {
		list[i].revision = int64(i + 1)
	}
	replaceAll(s.state, now, list, 10, engine.Keys{})
	second := s.member(1, map[int]int64{0: 2, 1: 3, 2: 4})
	second.revision = 11
	s.apply(now, []pair{second}, engine.Keys{})
	changed := engine.Keys{}
	next := []pair{list[0], s.export(1, 2, 12), s.export(3, 1, 13), s.member(2, map[int]int64{0: 2, 1: 12, 3: 13})}
	for i := range next[1:] {
		next[i+1].revision = int64(12 + i)
	}
	if replaceAll(s.state, now, next, 20, changed) {
		t.Error("a later revision counts as a rewind")
	}
	for i, want := range []bool{false, true, true, true} {
		if _, got := changed[webKey(i)]; got != want {
			t.Errorf("key %d is changed: %v, want %v", i, got, want)
		}
	}
	if s.clusters["cls2"].alive.revision != 0 {
		t.Error("a key that is not in the list is still shown")
	}
	// A restored backup: the same revisions may mean something else.
	restored := s.export(0, 5, s.at(3).UnixMilli())
	restored.revision = 1
	changed = engine.Keys{}
	if !replaceAll(s.state, now, []pair{restored}, 8, changed) {
		t.Error("an earlier revision does not count as a rewind")
	}
	if _, ok := changed[webKey(0)]; !ok {
		t.Error("another export at the same revision is no change after a rewind")
	}
	s.want("after the rewind", 5, 2, 0, 1)
}

func TestStateHeartbeats(t *testing.T) {
	s := newStateTest(t)
	now := s.now
	s.list(s.member(0, map[int]int64{0: 4}), s.export(0, 1, 4))
	s.observeHeartbeats(now, engine.Keys{})
	lookup := func() registry.View { return s.view(webKey(0), nil) }
	if v := lookup(); len(v.WithLiveness(registry.Undecided)) != 1 || len(v.WithLiveness(registry.Stale)) != 0 {
		t.Errorf("at the start: liveness unknown of %v, stale %v, want cls2 unknown", v.WithLiveness(registry.Undecided), v.WithLiveness(registry.Stale))
	}
	s.show(s.member(0, map[int]int64{0: 4}))
	s.observeHeartbeats(now, engine.Keys{})
	if v := lookup(); !slices.Equal(v.WithLiveness(registry.Undecided), []string{"cls2"}) {
		t.Errorf("after the same record was written again: liveness unknown of %v, want cls2", v.WithLiveness(registry.Undecided))
	}
	changed := s.show(s.member(1, map[int]int64{0: 4}))
	s.observeHeartbeats(now.Add(time.Second), changed)
	if v := lookup(); len(v.WithLiveness(registry.Undecided))+len(v.WithLiveness(registry.Stale)) != 0 || len(changed) != 1 {
		t.Errorf("after a heartbeat: liveness unknown of %v, stale %v, %d keys changed", v.WithLiveness(registry.Undecided), v.WithLiveness(registry.Stale), len(changed))
	}
	// The own heartbeats advance, those of the other cluster have ended.
	changed = engine.Keys{}
	for i := range 20 {
		at := now.Add(time.Duration(i) * 10 * time.Second)
		s.rev++
		s.apply(at, []pair{{key: s.layout.member("cls1"), value: memberValue(t, cls1, at, nil), revision: s.rev}}, changed)
		s.observeHeartbeats(at, changed)
	}
	if v := lookup(); len(v.WithLiveness(registry.Stale)) != 1 || len(changed) != 1 || !s.membersWithProblems(time.Now())[1].Stale {
		t.Errorf("after two minutes without a heartbeat: stale %v, %d keys changed", v.WithLiveness(registry.Stale), len(changed))
	}
}

// The order of the exports is that in which etcd created their keys. Neither updates change it, nor
// does another user who deletes a key, or writes a value that is not signed.
func TestState_OrdersExportsByCreation(t *testing.T) {
	s := newStateTest(t)
	order := func() int64 { return s.view(webKey(0), nil).Order["cls2"] }
	first := s.export(0, 1, 5)
	first.created = 7
	s.show(s.member(0, map[int]int64{0: 5}), first)
	if got := order(); got != 7 {
		t.Errorf("position %d, want 7", got)
	}
	second := s.export(0, 2, 6)
	second.created = 7
	s.show(second, s.member(1, map[int]int64{0: 6}))
	if got := order(); got != 7 {
		t.Errorf("position %d after an update, want 7", got)
	}
	s.show(pair{key: second.key, value: []byte("garbage"), created: 3})
	if got := order(); got != 7 {
		t.Errorf("position %d after a value that is not signed, want 7", got)
	}
	s.show(s.gone(0))
	if v := s.view(webKey(0), nil); v.Order["cls2"] != 7 || len(v.Exports()) != 1 {
		t.Errorf("order %v without a key, want 7", v.Order)
	}
}

// TestState_FindsGaps: the watch has skipped the exports of a record. They are read once for each
// set of exports that differs.
func TestState_FindsGaps(t *testing.T) {
	s := newStateTest(t)
	exports := map[int]int64{0: 4}
	s.list(s.member(0, exports), s.export(0, 1, 4))
	steps := []struct {
		what    string
		seconds int
		exports map[int]int64
		isDue   bool
	}{
		{"nothing is missing", 0, map[int]int64{0: 4}, false},
		{"an export is missing", 20, map[int]int64{0: 4, 1: 21}, false},
		{"it is missing for a while", 29, map[int]int64{0: 4, 1: 21}, false},
		{"it is missing for longer", 30, map[int]int64{0: 4, 1: 21}, true},
		{"the read has shown the same", 60, map[int]int64{0: 4, 1: 21}, false},
		{"another one is missing", 90, map[int]int64{0: 4, 1: 21, 2: 90}, true},
		{"none is missing any more", 120, map[int]int64{0: 4}, false},
	}
	for _, step := range steps {
		before := s.reads
		s.showAt(step.seconds, s.member(step.seconds, step.exports))
		if s.tick(step.seconds); s.reads > before != step.isDue {
			t.Errorf("%s: all exports were read: %t, want %t", step.what, !step.isDue, step.isDue)
		}
	}
}

// TestState_FindsNewProcess: the key alive of another cluster shows a new process, one that was
// there before this process started and the renewal of its own do not.
func TestState_FindsNewProcess(t *testing.T) {
	s := newStateTest(t)
	alive := func(id string, number int64) pair {
		return pair{key: s.layout.alive(id), value: []byte(aliveValue("uid", number)), lease: 7}
	}
	s.list(alive("cls2", 1))
	for _, step := range []struct {
		what string
		p    pair
		want bool
	}{
		{"the same process", alive("cls2", 1), false},
		{"its key is gone", pair{key: s.layout.alive("cls2"), deleted: true}, false},
		{"the next process", alive("cls2", 2), true},
		{"another cluster", alive("cls3", 1), true},
		{"this cluster", alive("cls1", 3), false},
		{"a value that no controller writes", pair{key: s.layout.alive("cls3"), value: []byte("uid")}, false},
	} {
		s.hasNewProcess = false
		if s.show(step.p); s.hasNewProcess != step.want {
			t.Errorf("%s: a new process: %t, want %t", step.what, s.hasNewProcess, step.want)
		}
	}
	s.restart()
	if s.list(alive("cls2", 3)); s.hasNewProcess {
		t.Error("a process that ran before this one started counts as new")
	}
}
