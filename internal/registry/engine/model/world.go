package model

import (
	"fmt"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// World is the definition of a small world: its clusters and what may happen.
type World struct {
	Name string
	// Clusters is the number of exporting clusters, Units the number of units of each, and
	// KeysPerUnit the number of exports that a unit may have.
	Clusters, Units, KeysPerUnit int
	// AsSet makes records name all units by one digest, and be written with them (etcd). Otherwise
	// they name each unit, and are written after it (Cloud Map).
	AsSet bool
	// Sealed makes the own place one that no other member can write, for all that the store shows.
	// The third party of this model writes there only by RestoreAll and DeleteAll.
	Sealed bool
	// HasOldCopies makes the copy of the record in the own place the one with which the cluster
	// joined, or has changed its key: audits write a later one.
	HasOldCopies bool
	// Moves are the kinds of moves that may happen.
	Moves []Kind
	// IsImported makes the world begin with all exports of the clusters imported, and all saved.
	IsImported bool
	// Skips makes the reader import the second key only after a move Use.
	Skips bool
}

const (
	maxClusters, maxUnits, maxKeys = 2, 2, 2
	staleAfter                     = 2 * time.Minute
	poll                           = 2 * time.Second
)

// signer is a key: 0 is none. A cluster has ownKey, nextKey after a rotation or after it was
// rebuilt, and another member has otherKey.
type signer uint8

const (
	noKey signer = iota
	ownKey
	nextKey
	otherKey
)

// record is a member record as signed, the zero value if there is none.
type record struct {
	key              signer
	succeeds         bool
	farewell         bool
	generation, beat int16
	names            [maxUnits]int16 // the generations of the named units, 0 for none
	// isWriting is set if it was written during the write of unit writing, and isSlow if it leaves
	// that unit undecided.
	isWriting, isSlow bool
	writing           uint8
}

// leavesOpen reports whether a unit was being written when a record was.
func (r *record) leavesOpen(u int) bool { return r.isWriting && int(r.writing) == u }

// page is a version of a unit as signed, the zero value if there is none. keys has a bit for each
// export.
type page struct {
	key        signer
	generation int16
	keys       uint8
}

// content is what the store has of a cluster.
type content struct {
	shared, own record
	pages       [maxUnits]page
}

// writer is an exporting cluster.
type writer struct {
	// isDown is set while no process of it runs, hasLeft after its farewell.
	isDown, hasLeft bool
	key             signer
	succeeds        bool
	clock           int16
	generation      int16
	// units are the units as it has written them last, named the generations in its record.
	units [maxUnits]page
	named [maxUnits]int16
	// last is the record that it has written last.
	last record
	// joined is set once it has written a record.
	joined bool
}

// evidence is what the clusters have signed, as far as it matters for what may be imported.
type evidence struct {
	// absent are the times of the latest records without each key. since is the time at which the
	// cluster joined last.
	absent [maxUnits][maxKeys]int16
	// records are the records that are in use somewhere. versions are the times of the latest
	// records that name each version.
	records  []record
	versions []version
}

// version is a version of a unit with the time of the latest record that names it, or of its own.
type version struct {
	unit uint8
	page
	named int16
}

// imported is an import of the reader: the generation of the version, 0 without one, and the time
// of the latest evidence that the reader had.
type imported struct{ generation, at int16 }

// member is a cluster in a world, with all about it.
type member struct {
	writer
	content
	backup   content
	isBacked bool
	evidence
	imports [maxUnits][maxKeys]imported
	disk    trust.Pin
	onDisk  bool
	// first is the time of the first record that the process of the reader was shown, and hasMore
	// is set once it was shown another one, or no other one for long.
	first   int16
	hasMore bool
	// wasKilled is set from a kill of the reader until the next heartbeat of the cluster,
	// isForgotten from Forget until a record counts again.
	wasKilled, isForgotten bool
}

// state is a state of a world.
type state struct {
	world   *World
	now     time.Time
	members [maxClusters]member
	reader  *belief.State
	keyring *trust.Keyring
	isUsed  bool
	// results of the last move
	notified map[mcs.Key]bool
	decided  map[string]bool
	reported int
}

// start returns the first state of a world.
func (w *World) start() *state {
	s := &state{world: w, now: time.Unix(1e9, 0), notified: map[mcs.Key]bool{}, decided: map[string]bool{}}
	for i := range w.Clusters {
		s.members[i].key = ownKey
	}
	s.restart(false)
	if w.IsImported {
		s.importAll()
	}
	return s
}

// importAll lets each cluster export all, and the reader import it.
func (s *state) importAll() {
	for i := range s.world.Clusters {
		for u := range s.world.Units {
			s.members[i].writeUnit(uint8(u), 1<<s.world.KeysPerUnit-1) //nolint:gosec // a world is small
		}
	}
	for s.differs() != "" {
		s.round()
		s.Check(s, Move{Kind: Kill})
	}
	s.saveAll()
}

// Clone implements Position.
func (s *state) Clone() *state {
	out := *s
	for i := range out.members {
		m := &out.members[i]
		m.versions = append(make([]version, 0, len(m.versions)+1), m.versions...)
		m.records = append(make([]record, 0, len(m.records)+1), m.records...)
	}
	out.keyring = s.keyring.Clone(out.clock)
	out.reader = s.reader.Clone(out.keyring)
	out.notified, out.decided, out.reported = map[mcs.Key]bool{}, map[string]bool{}, 0
	return &out
}

// clock is that of the keyring.
func (s *state) clock() time.Time { return s.now }

// disk is a store of pins to which the moves of a world write.
type disk struct{ trust.Store }

// restart starts a process of the reader with the pins on disk. They are complete if the previous
// one has ended, and was not killed.
func (s *state) restart(isComplete bool) bool {
	pins := map[string]trust.Pin{}
	for i := range s.world.Clusters {
		s.members[i].first = 0
		// its imports have ended
		s.members[i].hasMore = isComplete || s.members[i].disk.Left || s.members[i].disk.Forgotten
		if m := &s.members[i]; m.onDisk {
			pins[clusterID(i)] = m.disk
		}
	}
	s.keyring = trust.New(trust.Config{StaleAfter: staleAfter, Store: disk{}, Now: s.clock, Succeeds: succeeds}, pins)
	s.keyring.SetComplete(isComplete)
	s.reader = belief.New(belief.Config{
		Own: "reader", UnitOf: unitOf, Poll: poll, Eager: poll, StaleAfter: staleAfter, Keyring: s.keyring, Registry: registryName,
	})
	if s.world.Skips {
		s.use()
	}
	return true
}

// use sets the namespaces that the reader imports.
func (s *state) use() bool {
	used := []string{namespaces[0]}
	if s.isUsed {
		used = namespaces[:]
	}
	return s.step(belief.Namespaces{Used: used})
}

// step applies an event to the reader, and collects what it notifies.
func (s *state) step(e belief.Event) bool {
	actions := s.reader.Step(e, s.now)
	for _, key := range actions.Notify {
		s.notified[key] = true
	}
	for _, id := range actions.Decided {
		s.decided[id] = true
	}
	s.reported += len(actions.Reports)
	return true
}

// known returns what the reader knows of a cluster across restarts.
func (s *state) known(i int) trust.Known { return s.keyring.Of(registryName, clusterID(i)) }

// due returns the reads that the reader wants now, or after the pauses.
func (s *state) due() belief.Actions { return s.reader.Due(s.now.Add(time.Hour)) }

const registryName = "store"

var namespaces = [maxKeys]string{"a", "b"}

func clusterID(i int) string { return fmt.Sprintf("cls%d", i+1) }

func unitName(u int) belief.UnitName { return unitNames[u] }

var unitNames = [maxUnits]belief.UnitName{"0", "1"}

// keyOf returns the name of an export.
func keyOf(u, k int) mcs.Key { return mcs.Key{Namespace: namespaces[k], Name: string(unitNames[u])} }

func unitOf(key mcs.Key) belief.UnitName { return belief.UnitName(key.Name) }

// public returns the public key of a signer of a cluster.
func public(cluster int, key signer) trust.Key {
	if key == noKey {
		return trust.Key{}
	}
	return trust.Key{byte(cluster + 1), byte(key)}
}

// succeeds is the rule of successions: the signature has both keys.
func succeeds(previous, next trust.Key, _, signature string) bool {
	return signature == succession(previous, next)
}

func succession(previous, next trust.Key) string { return string(previous[:2]) + string(next[:2]) }

// exports are all exports that may be imported, by cluster, unit, key and generation: two versions
// of one are different values.
var (
	exportsMu sync.Mutex
	exports   = map[exportID]*mcs.Export{}
)

type exportID struct {
	cluster, unit, key int
	generation         int16
}

func exportOf(id exportID) *mcs.Export {
	exportsMu.Lock()
	defer exportsMu.Unlock()
	if exports[id] == nil {
		exports[id] = &mcs.Export{
			Key: keyOf(id.unit, id.key), Cluster: clusterID(id.cluster), Created: time.Unix(int64(id.generation), 0),
		}
	}
	return exports[id]
}

// timeOf returns the time of a record.
func timeOf(r record) trust.Time {
	return trust.Time{Generation: int64(r.generation), Heartbeat: int64(r.beat)}
}

// readRecord returns a record as the reader gets it.
func (s *state) readRecord(i int, r record, place belief.Place) belief.Record {
	switch m := &s.members[i]; {
	case r.key == otherKey:
	case m.first == 0:
		m.first = r.beat
	case m.first != r.beat:
		m.hasMore = true
	}
	key := public(i, r.key)
	out := belief.Record{
		Cluster: clusterID(i), Place: place, Key: key, Farewell: r.farewell,
		At: timeOf(r),
	}
	if s.world.Sealed && place == belief.Own {
		out.Seal = belief.Sealed
	}
	if r.succeeds {
		out.Succession = succession(public(i, ownKey), key)
	}
	switch {
	case r.farewell:
	case s.world.AsSet:
		var digest belief.SetDigest
		for u, generation := range r.names[:s.world.Units] {
			if generation != 0 {
				digest = digest.With(unitName(u), int64(generation))
			}
		}
		out.Manifest = belief.AsSet{Digest: digest}
	default:
		out.Manifest = s.byUnit(i, r)
	}
	return out
}

// byUnit returns the manifest of a record.
func (s *state) byUnit(i int, r record) belief.ByUnit {
	m := belief.ByUnit{Digests: map[belief.UnitName]string{}, Unwritten: map[belief.UnitName]bool{}}
	for u, generation := range r.names[:s.world.Units] {
		switch {
		case r.isSlow && r.leavesOpen(u):
			m.Unwritten[unitName(u)] = true
		case generation != 0:
			m.Digests[unitName(u)] = digest(generation)
		}
	}
	if s.world.Skips {
		versions := s.members[i].versions
		m.Codes = map[belief.UnitName][]string{}
		for u := range s.world.Units {
			m.Codes[unitName(u)] = []string{}
		}
		for _, v := range versions {
			for k, namespace := range namespaces {
				if name := unitName(int(v.unit)); v.generation == r.names[v.unit] && v.keys&(1<<k) != 0 {
					m.Codes[name] = append(m.Codes[name], namespace)
				}
			}
		}
	}
	return m
}

func digest(generation int16) string { return fmt.Sprint(generation) }

// readUnit returns a unit as the reader gets it.
func (s *state) readUnit(i, u int, p page) belief.Unit {
	out := belief.Unit{Name: unitName(u), Author: belief.Author{Key: public(i, p.key)}}
	if p.key == noKey {
		return out
	}
	out.Version = belief.Version{Generation: int64(p.generation)}
	if !s.world.AsSet {
		out.Version.Digest = digest(p.generation)
	}
	out.Content.Exports = map[mcs.Key]*mcs.Export{}
	for k := range s.world.KeysPerUnit {
		switch {
		case p.keys&(1<<k) == 0:
		case s.world.Skips && k == 1 && !s.isUsed:
			out.Content.Ignored = map[mcs.Key]bool{keyOf(u, k): true}
		default:
			out.Content.Exports[keyOf(u, k)] = exportOf(exportID{i, u, k, p.generation})
		}
	}
	return out
}
