package etcd

import (
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// A list is of a revision between that of the head and the one up to which the watch has shown all
// changes. What the watch has shown is later than the list.
func TestState_ListIsBeforeWatch(t *testing.T) {
	const written, seconds = 3, 1
	record := func(s *stateTest, generations map[int]int64) pair { return s.member(seconds, generations) }
	for name, tt := range map[string]struct {
		// watched is shown after the head, listed is in the list besides the record.
		watched, listed func(*stateTest) []pair
		want            []int
	}{
		"nothing was watched": {
			listed: func(s *stateTest) []pair { return []pair{s.export(0, 1, 5)} },
			want:   []int{1},
		},
		"a change was": {
			watched: func(s *stateTest) []pair { return []pair{s.export(0, 2, 7), record(s, map[int]int64{0: 7})} },
			listed:  func(s *stateTest) []pair { return []pair{s.export(0, 1, 5)} },
			want:    []int{2},
		},
		"a withdrawal was": {
			watched: func(s *stateTest) []pair { return []pair{s.gone(0), record(s, nil)} },
			listed:  func(s *stateTest) []pair { return []pair{s.export(0, 1, 5)} },
			want:    []int{0},
		},
		"a new export was": {
			watched: func(s *stateTest) []pair { return []pair{s.export(1, 1, 7), record(s, map[int]int64{0: 5, 1: 7})} },
			listed:  func(s *stateTest) []pair { return []pair{s.export(0, 1, 5)} },
			want:    []int{1, 1},
		},
		"a withdrawal was, before the list": {
			watched: func(s *stateTest) []pair { return []pair{s.gone(0), record(s, nil)} },
			want:    []int{0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStateTest(t)
			s.rev = written
			first := s.member(0, map[int]int64{0: 5})
			first.revision = written
			s.begin(s.now, head{others: []string{"cls2"}, pairs: []pair{first}, revision: written}, false, engine.Keys{})
			if s.isDue(seconds) {
				t.Error("a read is made beside the list of what the list has")
			}
			if tt.watched != nil {
				changes := tt.watched(s)
				s.touch(changes)
				s.show(changes...)
			}
			list := []pair{first}
			if tt.listed != nil {
				list = append(list, tt.listed(s)...)
			}
			for i := range list {
				list[i].revision = written
			}
			s.applyList(s.now, slices.Clone(list), engine.Keys{})
			s.want("after the list", tt.want...)
		})
	}
}

// A process that starts reads the clusters first that name other exports than those that the
// previous process has read as a whole, up to a limit.
func TestState_ReadsChangedFirst(t *testing.T) {
	// names returns the head of clusters of which some name another export than before.
	names := func(s *stateTest, clusters, changed, seconds int) head {
		h := head{revision: int64(seconds + 1)}
		for n := range clusters {
			of := benchMember(n)
			exports := map[int]int64{0: 5}
			if n < changed && seconds > 0 {
				exports[1] = 6
			}
			h.others = append(h.others, of.ClusterID)
			h.pairs = append(h.pairs, pair{key: s.layout.member(of.ClusterID), value: memberValue(s.t, of, s.at(seconds), setOf(exports)), revision: h.revision})
		}
		return h
	}
	for name, tt := range map[string]struct {
		clusters, changed int
		// isUnread is set if the previous process has not read the exports. isLate is set if the
		// clusters start too: their first record names nothing.
		isUnread, isLate bool
		want             int
	}{
		"nothing has changed":          {clusters: 3},
		"one has changed":              {clusters: 3, changed: 1, want: 1},
		"as many as are read first":    {clusters: maxFirst + 1, changed: maxFirst, want: maxFirst},
		"more":                         {clusters: maxFirst + 1, changed: maxFirst + 1, want: maxFirst},
		"it starts, too":               {clusters: 3, changed: 1, isLate: true, want: 1},
		"it is not known what changed": {clusters: 3, changed: 1, isUnread: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStateTest(t)
			before := names(s, tt.clusters, tt.changed, 0)
			s.begin(s.now, before, false, engine.Keys{})
			if !tt.isUnread {
				var list []pair
				for n := range tt.clusters {
					of := benchMember(n)
					list = append(list, pair{key: s.layout.export(of.ClusterID, webKey(0)), value: exportValue(t, of, 0, 1, 5), revision: 1})
				}
				s.applyList(s.now, append(list, before.pairs...), engine.Keys{})
			}
			s.restart()
			after := names(s, tt.clusters, tt.changed, 1)
			if tt.isLate {
				h := head{others: after.others, revision: after.revision}
				for n := range tt.clusters {
					of := benchMember(n)
					h.pairs = append(h.pairs, pair{key: s.layout.member(of.ClusterID), value: memberValue(t, of, s.now.Add(time.Millisecond), nil), revision: 1})
				}
				s.begin(s.now, h, false, engine.Keys{})
				s.apply(s.at(1), after.pairs, engine.Keys{})
			} else {
				s.begin(s.now, after, false, engine.Keys{})
			}
			first := 0
			for _, c := range s.clusters {
				if c.isUnread {
					first++
				}
			}
			if first != tt.want {
				t.Errorf("%d clusters are read first, want %d", first, tt.want)
			}
		})
	}
}

// The result of a list counts once, when the watch has shown all changes up to its revision, and
// not after the end of the watch.
func TestListing_Take(t *testing.T) {
	l := newListing()
	if _, ok := l.take(10); ok {
		t.Error("there is a result before the list")
	}
	l.set([]pair{{key: "a"}}, 5, nil, 1)
	if _, ok := l.take(4); ok {
		t.Error("the list counts before the watch has shown all changes up to its revision")
	}
	if pairs, ok := l.take(5); !ok || len(pairs) != 1 {
		t.Errorf("the list has %d keys (%t), want one", len(pairs), ok)
	}
	if _, ok := l.take(6); ok {
		t.Error("the list counts twice")
	}
	l.set([]pair{{key: "a"}}, 7, nil, 1)
	l.end()
	if _, ok := l.take(8); ok {
		t.Error("the list counts after the end of the watch")
	}
}
