package model

import (
	"fmt"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// view is an export of a cluster as the reader shows it.
type view struct {
	registry.ClusterView
	generation int16
}

// viewOf returns the view of an export of a cluster.
func (s *state) viewOf(i, u, k int) (v view) {
	var imported []string
	if s.members[i].imports[u][k].generation != 0 {
		imported = []string{clusterID(i)}
	}
	return s.viewAs(i, u, k, imported)
}

// viewAs is viewOf for given imports.
func (s *state) viewAs(i, u, k int, imported []string) (v view) {
	v.ClusterView = s.reader.View(keyOf(u, k), imported...).Clusters[clusterID(i)]
	if v.Export != nil {
		v.generation = int16(v.Export.Created.Unix()) //nolint:gosec // clocks of a world are small
	}
	return v
}

// Check implements Position. It updates the imports by the views.
func (s *state) Check(before *state, move Move) string {
	for i := range s.world.Clusters {
		for u := range s.world.Units {
			for k := range s.world.KeysPerUnit {
				if broken := s.checkKey(before, move, i, u, k); broken != "" {
					return fmt.Sprintf("%s of %s: %s", keyOf(u, k), clusterID(i), broken)
				}
			}
		}
		m := &s.members[i]
		switch s.reader.StateOf(clusterID(i)) {
		case belief.First, belief.Current:
			m.isForgotten = false
			m.wasKilled = m.wasKilled && s.reader.LivenessOf(clusterID(i)) != registry.Live
		case belief.Left:
			m.wasKilled = false
		case belief.NotRead, belief.Saving:
		}
	}
	return ""
}

// checkKey is check for one export.
func (s *state) checkKey(before *state, move Move, i, u, k int) string {
	now, was := s.viewOf(i, u, k), before.viewOf(i, u, k)
	if broken := s.checkNotified(move, i, keyOf(u, k), was, now); broken != "" {
		return broken
	}
	m := &s.members[i]
	imp := &m.imports[u][k]
	switch now.State {
	case registry.Exports:
		return s.checkExport(m, imp, i, u, k, now)
	case registry.None:
		if imp.generation == 0 {
			return ""
		}
		isCut := m.wasKilled && s.reader.LivenessOf(clusterID(i)) == registry.Stale
		if m.absent[u][k] <= imp.at && !m.isForgotten && !isCut {
			return "the import has ended without evidence (promise 1)"
		}
		if !m.hasMore && !m.isForgotten {
			return "a process that has read one record has ended the import (promise 1)"
		}
		imp.generation = 0
		imp.at = int16(s.known(i).Last.Heartbeat) //nolint:gosec // clocks of a world are small
	case registry.Unknown, registry.Unseen, registry.Ignored: // the import stays
	}
	return ""
}

// checkNotified checks that a change of a view is notified, and that a move about one cluster
// changes no view of another one.
func (s *state) checkNotified(move Move, i int, key mcs.Key, was, now view) string {
	if move.Kind == Kill || move.Kind == Restart {
		return "" // a process that starts looks all keys up
	}
	wasExported := was.State == registry.Exports || now.State == registry.Exports
	isSame := was.equal(now) || !wasExported && was.State == now.State
	isNotified := s.notified[key] || !wasExported && s.decided[clusterID(i)]
	switch {
	case isSame:
		return ""
	case int(move.Cluster) != i && move.Kind.selected() != onlyOnce:
		return "a move about another cluster has changed it (promise 2)"
	case !isNotified:
		return fmt.Sprintf("its change from %v to %v is not notified", was.text(), now.text())
	}
	return ""
}

// equal reports whether a controller sees the same in both views.
func (v view) equal(o view) bool {
	return v.State == o.State && v.generation == o.generation && v.Liveness == o.Liveness
}

// checkExport checks an export that is imported.
func (s *state) checkExport(m *member, imp *imported, i, u, k int, now view) string {
	at := slices.IndexFunc(m.versions, func(v version) bool {
		return int(v.unit) == u && v.generation == now.generation && v.keys&(1<<k) != 0
	})
	if at < 0 {
		return "an export is imported that the cluster has not signed (promise 1)"
	}
	isOld := imp.generation != now.generation && m.versions[at].named < imp.at
	if isOld && !s.mayShowEarlier(i, now) {
		return fmt.Sprintf("an earlier version is imported again (promise 1): %d, after evidence of %d", now.generation, imp.at)
	}
	evidence := now.generation
	if imp.generation == now.generation {
		evidence = imp.at
	}
	beat := s.reader.RecordOf(clusterID(i)).At.Heartbeat
	for _, r := range m.records {
		if int64(r.beat) == beat && r.names[u] == now.generation && !r.leavesOpen(u) {
			evidence = r.beat
		}
	}
	*imp = imported{generation: now.generation, at: evidence}
	return ""
}

// mayShowEarlier reports whether the reader was killed and may have read an earlier record since
// than before: until the next heartbeat. If there is none, it counts when the cluster is stale.
func (s *state) mayShowEarlier(i int, now view) bool {
	return s.members[i].wasKilled && (s.reader.StateOf(clusterID(i)) != belief.Current || now.Liveness == registry.Stale)
}

// text returns the view as a word.
func (v view) text() string {
	if v.State == registry.Exports {
		return fmt.Sprintf("export of %d, %v", v.generation, v.Liveness)
	}
	return v.State.String()
}

const (
	// rounds is the number of reads within which all converges: those until an old key is stale,
	// and some more.
	rounds = 30
	pause  = 15 * time.Second
)

// Converge implements Position.
func (s *state) Converge() string {
	s.isUsed = s.isUsed || s.world.Skips
	if s.world.Skips {
		s.use()
	}
	for i := range s.world.Clusters {
		if err := s.recover(i); err != nil {
			return err.Error()
		}
	}
	differs := ""
	for range rounds {
		s.round()
		if differs = s.differs(); differs == "" {
			break
		}
	}
	if differs != "" {
		return "it does not converge: " + differs
	}
	s.round() // liveness and the pauses of reads end
	s.round()
	s.notified, s.decided, s.reported = map[mcs.Key]bool{}, map[string]bool{}, 0
	s.round()
	if len(s.notified)+len(s.decided)+s.reported > 0 {
		return fmt.Sprintf("it is not quiet: %d keys and %d clusters are notified, %d problems reported", len(s.notified), len(s.decided), s.reported)
	}
	return s.differs()
}

// recover starts a cluster again. Without a seal, or a record of the pinned key, only an
// administrator can say that a cluster that was built anew is the same one.
func (s *state) recover(i int) error {
	m := &s.members[i]
	m.isDown = false
	isUnprovable := !s.world.Sealed || s.known(i).Last == trust.Time{}
	if isUnprovable && !m.succeeds && m.key == nextKey {
		return s.keyring.Trust(clusterID(i), public(i, nextKey))
	}
	return nil
}

// round lets each cluster write its record, and the reader read all that it wants.
func (s *state) round() {
	s.now = s.now.Add(pause)
	for i := range s.world.Clusters {
		m := &s.members[i]
		if !m.hasLeft && (m.joined || m.units != [maxUnits]page{}) {
			m.announce(s.world)
		}
		s.showRecord(i, m.shared)
	}
	s.step(belief.Tick{Heartbeat: true})
	for range 3 {
		actions := s.reader.Due(s.now)
		for i := range s.world.Clusters {
			s.obey(i, actions)
		}
	}
}

// obey carries out the reads and saves of a cluster.
func (s *state) obey(i int, actions belief.Actions) {
	id := clusterID(i)
	if slices.Contains(actions.ReadProofs, id) {
		s.showProof(i)
	}
	s.savePin(&s.members[i], i)
	if s.world.AsSet {
		s.showAll(i)
		return
	}
	for _, of := range actions.ReadUnits {
		if of.Cluster != id {
			continue
		}
		for u := range s.world.Units {
			if of.Units == nil || slices.Contains(of.Units, unitName(u)) {
				s.step(belief.UnitsRead{Cluster: id, Units: []belief.Unit{s.readUnit(i, u, s.members[i].pages[u])}})
			}
		}
	}
}

// differs returns the first export that is not imported as its cluster exports it, "" if all are.
func (s *state) differs() string {
	for i := range s.world.Clusters {
		m := &s.members[i]
		for u := range s.world.Units {
			for k := range s.world.KeysPerUnit {
				v := s.viewOf(i, u, k)
				wanted := m.units[u].keys&(1<<k) != 0
				isSame := v.State == registry.None
				if wanted {
					isSame = v.State == registry.Exports && v.generation == m.units[u].generation && v.Liveness == registry.Live
				}
				// After a farewell that the store does not show any more, imports stay.
				isLast := m.shared.farewell && m.shared.key != otherKey && m.shared.beat == m.absent[u][k]
				isOpen := m.hasLeft && !isLast
				if !isSame && !isOpen {
					return fmt.Sprintf("%s of %s is %s", keyOf(u, k), clusterID(i), v.text())
				}
			}
		}
	}
	return ""
}
