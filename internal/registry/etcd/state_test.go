package etcd

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

func testState() *state { return newState(newLayout("/mcs", "set1"), "set1", "cls1", time.Minute) }

func memberPair(t testing.TB, l layout, id string, revision int64, beat time.Time) pair {
	t.Helper()
	identity := cls1
	identity.ClusterID = id
	data, err := newMemberRecord(identity, "v1").withHeartbeat(beat).encode()
	if err != nil {
		t.Fatal(err)
	}
	return pair{key: l.member(id), value: data, revision: revision}
}

func exportPair(t testing.TB, l layout, id string, i, n int, revision int64) pair {
	t.Helper()
	w, err := newDesiredExport(webExport(id, i, n))
	if err != nil {
		t.Fatal(err)
	}
	return pair{key: l.export(id, webKey(i)), value: w.data, revision: revision}
}

func (s *state) changed(t testing.TB, p pair) bool {
	t.Helper()
	changed := engine.Keys{}
	s.apply(time.Now(), p, changed)
	return len(changed) > 0
}

func TestStateApply(t *testing.T) {
	s := testState()
	now := time.Now()
	s.replace(now, []pair{exportPair(t, s.layout, "cls2", 0, 1, 5)}, 6, engine.Keys{})
	tests := []struct {
		name        string
		pair        pair
		wantChanged bool
		wantExports int
		wantUnknown []string
		wantProblem string
	}{
		{"the same again", exportPair(t, s.layout, "cls2", 0, 1, 5), false, 1, nil, ""},
		{"the same content", exportPair(t, s.layout, "cls2", 0, 1, 7), false, 1, nil, ""},
		{"another content", exportPair(t, s.layout, "cls2", 0, 2, 8), true, 1, nil, ""},
		{"garbage keeps the last export", pair{key: s.layout.export("cls2", webKey(0)), value: []byte("garbage"), revision: 9}, true, 1, nil, "cannot be used"},
		{"another cluster's garbage is unknown", pair{key: s.layout.export("cls3", webKey(0)), value: []byte{0xff, 0}, revision: 10}, true, 1, []string{"cls3"}, ""},
		{"another service's export", pair{key: s.layout.export("cls4", webKey(0)), value: exportPair(t, s.layout, "cls4", 1, 1, 0).value, revision: 11}, true, 1, []string{"cls3", "cls4"}, ""},
		{"an unrecognized key", pair{key: s.layout.cluster("cls2") + "other", revision: 12}, false, 1, []string{"cls3", "cls4"}, `other" is ignored`},
		{"gone is gone", pair{key: s.layout.export("cls3", webKey(0)), revision: 13, deleted: true}, true, 1, []string{"cls4"}, ""},
		{"a key of no cluster", pair{key: "/mcs/set1/x", revision: 14}, false, 1, []string{"cls4"}, ""},
		{"withdrawn", pair{key: s.layout.export("cls2", webKey(0)), revision: 15, deleted: true}, true, 0, []string{"cls4"}, ""},
	}
	for _, tt := range tests {
		if got := s.changed(t, tt.pair); got != tt.wantChanged {
			t.Errorf("%s: changed %v, want %v", tt.name, got, tt.wantChanged)
		}
		v := s.view(webKey(0))
		if len(v.Exports) != tt.wantExports || !slices.Equal(v.Unknown, tt.wantUnknown) {
			t.Errorf("%s: %d exports and unknown %v, want %d and %v", tt.name, len(v.Exports), v.Unknown, tt.wantExports, tt.wantUnknown)
		}
		if lines := strings.Join(s.clusters["cls2"].problems(), "\n"); !strings.Contains(lines, tt.wantProblem) {
			t.Errorf("%s: problems %q lack %q", tt.name, lines, tt.wantProblem)
		}
	}
}

// A list after a gap in the watch changes exactly the keys that were added, changed or removed meanwhile.
func TestStateReplace(t *testing.T) {
	s := testState()
	now := time.Now()
	list := []pair{
		exportPair(t, s.layout, "cls2", 0, 1, 2), exportPair(t, s.layout, "cls2", 1, 1, 3), exportPair(t, s.layout, "cls2", 2, 1, 4),
		memberPair(t, s.layout, "cls2", 5, now), {key: s.layout.alive("cls2"), value: []byte("uid-1"), revision: 5, lease: 7},
	}
	s.replace(now, list, 10, engine.Keys{})
	changed := engine.Keys{}
	if s.replace(now, []pair{list[0], exportPair(t, s.layout, "cls2", 1, 2, 12), exportPair(t, s.layout, "cls3", 3, 1, 13)}, 20, changed) {
		t.Error("a later revision counts as a rewind")
	}
	for i, want := range []bool{false, true, true, true} {
		if _, got := changed[webKey(i)]; got != want {
			t.Errorf("key %d is changed: %v, want %v", i, got, want)
		}
	}
	if s.clusters["cls2"].member.revision != 0 || s.aliveOf("cls2").revision != 0 {
		t.Error("keys that are not in the list are still known")
	}
	// A restored backup: the same revisions may mean something else.
	changed = engine.Keys{}
	if !s.replace(now, []pair{exportPair(t, s.layout, "cls2", 0, 5, 2)}, 8, changed) {
		t.Error("an earlier revision does not count as a rewind")
	}
	if _, ok := changed[webKey(0)]; !ok {
		t.Error("another export at the same revision is no change after a rewind")
	}
	s.replace(now, nil, 9, changed)
	if len(s.clusters) != 0 {
		t.Errorf("clusters without a key are still known: %v", s.keys())
	}
}

func TestStateHeartbeats(t *testing.T) {
	s := testState()
	now := time.Now()
	s.replace(now, []pair{memberPair(t, s.layout, "cls2", 5, now), exportPair(t, s.layout, "cls2", 0, 1, 4)}, 10, engine.Keys{})
	s.observeHeartbeats(now, engine.Keys{})
	if v := s.view(webKey(0)); len(v.LivenessUnknown) != 1 || len(v.Stale) != 0 {
		t.Errorf("at the start: liveness unknown of %v, stale %v, want cls2 unknown", v.LivenessUnknown, v.Stale)
	}
	changed := engine.Keys{}
	s.apply(now, memberPair(t, s.layout, "cls2", 11, now.Add(time.Second)), changed)
	s.observeHeartbeats(now.Add(time.Second), changed)
	if v := s.view(webKey(0)); len(v.LivenessUnknown)+len(v.Stale) != 0 || len(changed) != 1 {
		t.Errorf("after a heartbeat: liveness unknown of %v, stale %v, %d keys changed", v.LivenessUnknown, v.Stale, len(changed))
	}
	// The own heartbeats advance, those of the other cluster have ended.
	changed = engine.Keys{}
	for i := range 20 {
		at := now.Add(time.Duration(i) * 10 * time.Second)
		s.apply(at, memberPair(t, s.layout, "cls1", int64(20+i), at), changed)
		s.observeHeartbeats(at, changed)
	}
	if v := s.view(webKey(0)); len(v.Stale) != 1 || len(changed) != 1 || !s.membersWithProblems()[1].Stale {
		t.Errorf("after two minutes without a heartbeat: stale %v, %d keys changed", v.Stale, len(changed))
	}
}
