package state

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/model"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// claimWorld is a small world of processes that claim one cluster ID: two processes of one cluster,
// or two clusters, and a third party that writes under the ID. A poll takes one second, and other
// times are a few seconds, in the order of those of production.
type claimWorld struct {
	name string
	// clusters are the clusters of the two processes: 0 or 1.
	clusters [2]int
	kinds    []claimMoveKind
}

type claimMoveKind int

const (
	// tick is a second: both processes read, and write what is due. tickBack is tick with the
	// second process first.
	tick claimMoveKind = iota
	tickBack
	// start has a process begin, end has it end; quit has its cluster leave.
	start
	end
	quit
	// late has the next read of a process show the record before the last one; cut has its reads
	// and writes fail, and heal ends that.
	late
	cut
	heal
	// keep makes a backup of the record, and replay writes it again; remove removes the record,
	// forge writes one with another key, and forgeFarewell a farewell with it.
	keep
	replay
	remove
	forge
	forgeFarewell
)

var claimMoveTexts = map[claimMoveKind]string{
	tick: "a second passes", tickBack: "a second passes, %d is first", start: "process %d begins", end: "process %d ends", quit: "the cluster of process %d leaves",
	late: "the next read of %d is late", cut: "process %d is cut off", heal: "process %d is connected again", keep: "a backup is made", replay: "the backup is written again",
	remove: "the record is removed", forge: "a record is forged", forgeFarewell: "a farewell is forged",
}

// ofProcess are the kinds about one process.
var ofProcess = []claimMoveKind{start, end, quit, late, cut, heal}

type claimMove struct {
	kind    claimMoveKind
	process int
}

func (m claimMove) String() string {
	if text := claimMoveTexts[m.kind]; strings.Contains(text, "%d") {
		return fmt.Sprintf(text, m.process+1)
	}
	return claimMoveTexts[m.kind]
}

// claimer is a process in a claimWorld.
type claimer struct {
	claim
	isRunning, isCut, isLate bool
	ours                     format.Member
	wroteAt, auditedAt       time.Time
	isAnnounced, isCopyDue   bool
}

// claimState is a state of a claimWorld.
type claimState struct {
	world     *claimWorld
	now       time.Time
	processes [2]claimer
	// number is that of the last process that has begun.
	number int
	// shown is the record in the store, before the one before it, backup a copy, and proof the copy
	// in the own catalog, where no third party writes; nil is none.
	shown, before, backup, proof *format.Member
	// joined is set for clusters that are members under the ID, owner is the key that they have
	// pinned for it.
	joined [2]bool
	owner  [2]trust.Key
}

// auditInterval is the time between two reads of the own catalog by the process that has the ID:
// StaleAfter, as in production.
const auditInterval = 8 * time.Second

// claimUIDs are the UIDs of the clusters, and of the third party.
var claimUIDs = []string{"uid-1", "uid-2", "forger"}

// claimConfigs are the configurations of the clusters.
var claimConfigs = func() (configs [2]Config) {
	for cluster := range configs {
		cfg := testConfig()
		cfg.Identity.UID, cfg.Signer = claimUIDs[cluster], claimSigners[cluster]
		cfg.HeartbeatInterval, cfg.PollInterval, cfg.StaleAfter = 2*time.Second, time.Second, 8*time.Second
		cfg.Intervals.Settle, cfg.Intervals.Audit = time.Second, auditInterval
		configs[cluster] = cfg
	}
	return configs
}()

var claimSigners = []*trust.Signer{signerOf("uid-1"), signerOf("uid-2"), signerOf("forger")}

func (w *claimWorld) start() *claimState {
	return &claimState{world: w, now: claimBegan}
}

func (s *claimState) Moves(yield func(claimMove)) {
	for _, kind := range s.world.kinds {
		yield(claimMove{kind, 0})
		if slices.Contains(ofProcess, kind) {
			yield(claimMove{kind, 1})
		}
	}
}

func (s *claimState) Clone() *claimState {
	out := *s
	return &out
}

func (s *claimState) Do(m claimMove) bool {
	p := &s.processes[m.process]
	switch m.kind {
	case tick, tickBack:
		if !s.processes[0].isRunning && !s.processes[1].isRunning {
			return false
		}
		s.second(m.kind == tickBack)
	case start:
		if p.isRunning {
			return false
		}
		s.begin(m.process)
	case end, quit:
		if !p.isRunning || m.kind == quit && (p.state != Held || p.isCut) {
			return false
		}
		if p.isRunning = false; m.kind == quit {
			p.ours.Farewell = true
			s.write(p)
			s.proof, s.joined[s.world.clusters[m.process]] = nil, false
		}
	case late:
		if !p.isRunning || p.isLate || s.before == nil {
			return false
		}
		p.isLate = true
	case cut, heal:
		if !p.isRunning || p.isCut == (m.kind == cut) {
			return false
		}
		p.isCut = m.kind == cut
	default:
		return s.doThird(m.kind)
	}
	return true
}

// doThird is Do for the third party.
func (s *claimState) doThird(kind claimMoveKind) bool {
	if s.shown == nil {
		return false
	}
	switch kind {
	case keep:
		if s.backup != nil && s.backup.IsSameWrite(*s.shown) {
			return false
		}
		s.backup = s.shown
	case replay:
		if s.backup == nil || s.backup.IsSameWrite(*s.shown) {
			return false
		}
		s.put(s.backup)
	case remove:
		s.put(nil)
	case forge, forgeFarewell:
		forged := *s.shown
		forged.UID, forged.Key, forged.Process, forged.Farewell = claimUIDs[2], claimSigners[2].Key(), "0-forged", kind == forgeFarewell
		forged.Heartbeat++
		s.put(&forged)
	}
	return true
}

func (s *claimState) put(record *format.Member) { s.before, s.shown = s.shown, record }

// begin has a process begin.
func (s *claimState) begin(i int) {
	s.number++
	cluster := s.world.clusters[i]
	cfg := claimConfigs[cluster]
	cfg.Process = fmt.Sprintf("%d-x", s.number)
	p := claimer{claim: newClaim(cfg), isRunning: true}
	p.joined = s.joined[cluster]
	owner := s.owner[cluster]
	p.isEarlierOwner = func(key trust.Key) bool { return key == owner && owner != trust.Key{} }
	s.processes[i] = p
}

// second lets a second pass.
func (s *claimState) second(isBack bool) {
	s.now = s.now.Add(time.Second)
	order := []int{0, 1}
	if isBack {
		order = []int{1, 0}
	}
	for _, i := range order {
		if p := &s.processes[i]; p.isRunning && !p.isCut {
			s.read(p, s.world.clusters[i])
			s.writeDue(p, s.world.clusters[i])
		}
	}
}

// read has a process read the record, and the copy in the catalog if the record is another one's.
func (s *claimState) read(p *claimer, cluster int) {
	shown := s.shown
	if p.isLate {
		shown, p.isLate = s.before, false
	}
	if p.state == Observing && shown != nil && !p.isOurs(*shown) || p.free(s.now, shown) {
		p.observeProof(s.now, s.proof)
	}
	before := p.state
	if before == Observing {
		s.prepare(p, shown)
	}
	write := p.observe(s.now, shown, p.ours)
	if before != Observing && shown != nil && p.isOurs(*shown) {
		p.ours.Heartbeat = max(p.ours.Heartbeat, shown.Heartbeat)
	}
	isDisplaced := p.state == Held && (shown == nil || !p.isMine(*shown)) && s.now.Sub(p.wroteAt) > time.Second
	p.isAnnounced = p.isAnnounced || isDisplaced || write && (!p.joined || p.state != Held)
	if isAuditDue := s.now.Sub(p.auditedAt) >= auditInterval; p.state != Observing && (isAuditDue || isDisplaced) {
		isCopyLost := s.proof == nil || !p.isMine(*s.proof)
		p.auditedAt, p.isCopyDue, p.isAnnounced = s.now, p.isCopyDue || isCopyLost, p.isAnnounced || isCopyLost
	}
	if p.state == Acquiring && before == Observing {
		p.isCopyDue = true
		if r := p.taken; r.UID != "" && !p.isOurs(r) && !p.joined && !p.isUnproven(s.now) {
			s.owner[cluster] = r.Key
			p.isEarlierOwner = func(key trust.Key) bool { return key == r.Key }
		}
	}
	s.joined[cluster] = s.joined[cluster] || p.joined
}

// prepare makes the record with which a process claims the ID in place of another one.
func (s *claimState) prepare(p *claimer, shown *format.Member) {
	joined, beat := s.now, p.ours.Heartbeat
	for _, before := range []*format.Member{shown, s.proof} {
		if before == nil {
			continue
		}
		beat = max(beat, before.Heartbeat)
		if p.isOurs(*before) && !before.Farewell {
			joined = before.Joined
		}
	}
	cfgUID := claimUIDs[slices.IndexFunc(claimSigners, func(signer *trust.Signer) bool { return signer.Key() == p.keys[0] })]
	p.ours = format.Member{ClusterID: "cls1", ClusterSetID: "set1", UID: cfgUID, Key: p.keys[0], Process: p.process, Joined: joined, Heartbeat: beat}
	p.ours.Pages[0] = "digest"
}

// writeDue writes the record if that is due.
func (s *claimState) writeDue(p *claimer, cluster int) {
	interval := 2 * time.Second
	if p.isYoung() {
		interval = claimConfigs[cluster].YoungHeartbeatInterval()
	}
	if p.state != Observing && (p.isAnnounced || s.now.Sub(p.wroteAt) >= interval) {
		s.write(p)
	}
}

func (s *claimState) write(p *claimer) {
	p.ours.Heartbeat = max(p.ours.Heartbeat+1, s.now.UnixMilli())
	record := p.ours
	if s.put(&record); p.isCopyDue {
		s.proof = &record
	}
	p.wroteAt, p.isAnnounced, p.isCopyDue = s.now, false, false
}

// Check checks that no forged record displaces a member.
func (s *claimState) Check(before *claimState, _ claimMove) string {
	for i := range s.processes {
		p, was := &s.processes[i], &before.processes[i]
		if was.isRunning && p.isRunning && was.state == Held && was.joined && p.state == Observing && p.rival.UID == claimUIDs[2] {
			return fmt.Sprintf("a forged record has displaced process %d, a member (promise 3)", i+1)
		}
	}
	return ""
}

// Converge lets all faults end: one process has the ID, and the other one reports it.
func (s *claimState) Converge() string {
	for i := range s.processes {
		s.processes[i].isCut, s.processes[i].isLate = false, false
	}
	if !s.processes[0].isRunning && !s.processes[1].isRunning {
		return ""
	}
	const patience, quiet = 60, 20
	for n := range patience + quiet {
		s.second(n%2 == 1)
		if differs := s.differs(); n >= patience && differs != "" {
			return "it does not converge: " + differs
		}
	}
	return ""
}

// differs returns why not one process has the ID, and the other one reports it; "" if so. Two
// clusters that were members under the ID both keep it, and both report the other one's record as
// refused: the other clusters believe the one whose key they know.
func (s *claimState) differs() string {
	var holders []int
	for i := range s.processes {
		switch p := &s.processes[i]; {
		case !p.isRunning:
		case p.state == Held:
			holders = append(holders, i)
		case p.refused() == "":
			return fmt.Sprintf("process %d does not have the ID, and reports none that has it", i+1)
		}
	}
	areMembers := len(holders) == 2 && s.world.clusters[0] != s.world.clusters[1] && s.processes[0].joined && s.processes[1].joined
	if len(holders) != 1 && !areMembers {
		return fmt.Sprintf("processes %v have the ID", holders)
	}
	return ""
}

func (s *claimState) Picture() string {
	var parts []string
	for i := range s.processes {
		if p := &s.processes[i]; p.isRunning {
			parts = append(parts, fmt.Sprintf("%d: %s", i+1, [...]string{"Observing", "Acquiring", "Held"}[p.state]))
		}
	}
	if s.shown != nil {
		parts = append(parts, fmt.Sprintf("record of %s, process %s, farewell %t", s.shown.UID, s.shown.Process, s.shown.Farewell))
	}
	return strings.Join(parts, ", ")
}

// claimForm collects the times and numbers of a state, and replaces them by their ranks.
type claimForm struct {
	now   time.Time
	ranks [3][]int64
	isSet bool
	out   []byte
}

func (f *claimForm) rank(of int, value int64) {
	if !f.isSet {
		f.ranks[of] = append(f.ranks[of], value)
		return
	}
	at, _ := slices.BinarySearch(f.ranks[of], value)
	f.out = append(f.out, byte(at))
}

// age appends how long ago a time is: more than a few seconds are alike.
func (f *claimForm) age(t time.Time) {
	const most = 20
	age := byte(0xff)
	if !t.IsZero() {
		age = byte(min(most, f.now.Sub(t)/time.Second))
	}
	f.out = append(f.out, age)
}

func (f *claimForm) record(r *format.Member) {
	if r == nil || r.UID == "" {
		f.out = append(f.out, 0xfe)
		return
	}
	number, _, _ := strings.Cut(r.Process, "-")
	n, _ := strconv.ParseInt(number, 10, 64)
	f.out = append(f.out, byte(slices.Index(claimUIDs, r.UID)))
	f.flags(r.Farewell)
	f.rank(0, r.Heartbeat)
	f.rank(1, n)
	f.rank(2, r.Joined.UnixMilli())
}

func (f *claimForm) flags(conditions ...bool) {
	for _, is := range conditions {
		b := byte(0)
		if is {
			b = 1
		}
		f.out = append(f.out, b)
	}
}

// Form implements model.Position.
func (s *claimState) Form() []byte {
	f := &claimForm{now: s.now}
	s.append(f)
	for i := range f.ranks {
		slices.Sort(f.ranks[i])
		f.ranks[i] = slices.Compact(f.ranks[i])
	}
	f.isSet, f.out = true, nil
	s.append(f)
	return f.out
}

func (s *claimState) append(f *claimForm) {
	f.rank(0, s.now.UnixMilli())
	for _, r := range []*format.Member{s.shown, s.before, s.backup, s.proof} {
		f.record(r)
	}
	f.flags(s.joined[0], s.joined[1], s.owner[0] != trust.Key{}, s.owner[1] != trust.Key{})
	for i := range s.processes {
		p := &s.processes[i]
		f.flags(p.isRunning)
		if !p.isRunning {
			continue
		}
		f.flags(p.isCut, p.isLate, p.isAnnounced, p.isCopyDue, p.joined, p.isFirst, p.hasHeld, p.rivalled)
		f.out = append(f.out, byte(p.state))
		for _, r := range []*format.Member{&p.ours, &p.rival, &p.owner, &p.other, &p.taken} {
			f.record(r)
		}
		for _, t := range []time.Time{p.wroteAt, p.auditedAt, p.claimed, p.lastRead, p.resumed, p.unrivalled, p.unprovenSince, p.changed, p.ownerAt, p.otherAt} {
			f.age(t)
		}
		number, _, _ := strings.Cut(p.late, "-")
		n, _ := strconv.ParseInt(number, 10, 64)
		f.rank(1, n)
		number, _, _ = strings.Cut(p.process, "-")
		n, _ = strconv.ParseInt(number, 10, 64)
		f.rank(1, n)
	}
}

// TestModelOfClaim explores small worlds of the claim. MODEL_STATES is the number of states of
// each.
func TestModelOfClaim(t *testing.T) {
	states := 3000
	if n, err := strconv.Atoi(os.Getenv("MODEL_STATES")); err == nil {
		states = n
	}
	life := []claimMoveKind{tick, tickBack, start, end, cut, heal}
	for _, w := range []*claimWorld{
		{name: "two processes of one cluster", kinds: append([]claimMoveKind{late}, life...)},
		{name: "two processes of one cluster, and a third party", kinds: append([]claimMoveKind{keep, replay, remove}, life...)},
		{name: "two clusters", clusters: [2]int{0, 1}, kinds: append([]claimMoveKind{late, quit}, life...)},
		{name: "two clusters, and a third party", clusters: [2]int{0, 1}, kinds: []claimMoveKind{tick, start, end, keep, replay, remove}},
		{name: "forged records", clusters: [2]int{0, 1}, kinds: []claimMoveKind{tick, start, end, quit, forge, forgeFarewell}},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := model.Search(w.start(), states, 16)
			t.Log(r)
			if r.Broken != "" {
				t.Errorf("\n%s", model.Tell(w.start(), r))
			}
		})
	}
}
