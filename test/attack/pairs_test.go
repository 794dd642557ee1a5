package attack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// move is a part of an attack by the intruder, a member with the policies that are shipped. It runs
// until ctx ends; requests that IAM denies have no effect.
type move struct {
	name string
	// does makes the move once, and again after each pause if that is not 0.
	does  func(*siege)
	pause time.Duration
}

// moves are the parts that combinations are made of.
var moves = []move{
	{name: "retag the catalog", pause: time.Minute, does: func(s *siege) { s.retag(s.catalog(victim), api.PartCatalog) }},
	{name: "retag members", pause: time.Minute, does: func(s *siege) { s.retag(s.members(), api.PartCatalog) }},
	{name: "overwrite the record", pause: 200 * time.Millisecond, does: func(s *siege) { s.overwrite(func(*format.Member) {}) }},
	{name: "delete the record", pause: time.Second, does: func(s *siege) { s.drop(s.members(), victim) }},
	{name: "record without pages", pause: 10 * time.Second, does: func(s *siege) { s.overwrite(func(r *format.Member) { r.Pages = format.Digests{} }) }},
	{name: "farewell", pause: 10 * time.Second, does: func(s *siege) {
		s.overwrite(func(r *format.Member) { r.Pages, r.Farewell = format.Digests{}, true })
	}},
	{name: "page, copy and record", pause: 30 * time.Second, does: func(s *siege) { s.forge(false) }},
	{name: "copy of a farewell", pause: 30 * time.Second, does: func(s *siege) { s.forge(true) }},
	{name: "replay", pause: 15 * time.Second, does: func(s *siege) { s.replay() }},
	{name: "delete the pages", pause: 20 * time.Second, does: func(s *siege) { s.dropPages() }},
	{name: "older claim", pause: 10 * time.Second, does: func(s *siege) {
		s.overwrite(func(r *format.Member) { r.UID, r.Joined = "uid-of-the-intruder", r.Joined.Add(-24*time.Hour) })
	}},
	{name: "junk records", does: func(s *siege) { s.junk(200) }},
	{name: "restart the importer", pause: 4 * time.Minute, does: func(s *siege) { s.restartImporter() }},
	{name: "restart the victim", pause: 3 * time.Minute, does: func(s *siege) { s.restartVictim() }},
}

// siege is a victim, an importer and the moves against them.
type siege struct {
	*cloud
	client *api.Client
	// record and pages are those that the victim had signed when the siege began.
	record         format.Member
	instance       api.Instance
	pages          map[string]api.Instance
	membersService api.Service
	catalogService api.Service

	// turn is a lock that waits durably. A mutex would stop the virtual time, in which the victim
	// that its holder restarts ends.
	turn             chan struct{}
	exporter, reader *member
	// wished is the export that the victim wants, and genuine all that it has wanted.
	wished  mcs.Export
	genuine []mcs.Export
	beat    int64
}

// combination runs moves against one victim for some time, and checks the measure of every attack:
// only what the victim has signed is imported, its import stays, a problem is visible at the
// importer or at the victim, and when the moves end and the administrator restores the tags, a
// change of the victim arrives, and so does the end of its export.
func combination(t *testing.T, during time.Duration, chosen ...move) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		s := newSiege(c)
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for _, m := range chosen {
			running.Go(func() { s.run(ctx, m) })
		}
		changed := false
		for began := time.Now(); time.Since(began) < during; time.Sleep(250 * time.Millisecond) {
			s.check(time.Since(began))
			if !changed && time.Since(began) > during/2 {
				s.wish(webExport(victim, 3))
				changed = true
			}
		}
		until(t, time.Minute, "the importer follows, or it or the victim reports a problem", func() bool { return s.follows() || len(s.problems()) > 0 })
		end()
		running.Wait()
		s.restore()
		s.wish(webExport(victim, 4))
		until(t, 10*time.Minute, "a change of the victim arrives after the attack; problems "+strings.Join(s.problems(), "; "), s.follows)
		if err := s.exporter.Withdraw(t.Context(), webKey); err != nil {
			t.Fatal(err)
		}
		until(t, 10*time.Minute, "the export ends by the victim's word", func() bool { return s.reader.exportOf(victim, webKey) == nil })
	})
}

func newSiege(c *cloud) *siege {
	s := &siege{cloud: c, turn: make(chan struct{}, 1)}
	s.exporter, s.reader, s.wished = c.start()
	s.genuine = []mcs.Export{s.wished}
	c.infiltrate()
	s.client, s.membersService, s.catalogService = c.attacker(), c.members(), c.catalog(victim)
	s.record, s.instance, s.pages = c.recordOf(victim), c.instances(s.membersService)[victim], c.instances(s.catalogService)
	return s
}

func (s *siege) members() api.Service       { return s.membersService }
func (s *siege) catalog(string) api.Service { return s.catalogService }
func (s *siege) lock() (unlock func())      { s.turn <- struct{}{}; return func() { <-s.turn } }
func (s *siege) ctx() context.Context       { return s.t.Context() }
func (s *siege) put(to api.Service, i api.Instance) {
	_, _ = s.client.RegisterInstance(s.ctx(), to.ID, i)
}
func (s *siege) drop(from api.Service, id string) {
	_ = s.client.DeregisterInstance(s.ctx(), from.ID, id)
}
func (s *siege) retag(of api.Service, part string) {
	_ = s.tag(of.ARN, api.Tags(identityOf(intruder), part)...)
}

// run makes a move until ctx ends.
func (s *siege) run(ctx context.Context, m move) {
	for {
		m.does(s)
		if m.pause == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.pause):
		}
	}
}

// later returns the record of the victim with a time later than all others.
func (s *siege) later(edit func(*format.Member)) format.Member {
	defer s.lock()()
	s.beat += 1000
	r := s.record
	r.Generation, r.Heartbeat = r.Generation+1e6+s.beat, max(time.Now().UnixMilli(), r.Heartbeat)+1e6+s.beat
	edit(&r)
	return r
}

func (s *siege) overwrite(edit func(*format.Member)) {
	s.put(s.membersService, s.later(edit).Instance(s.signer(intruder)))
}

// forge writes a page, the copy of the record and the record, or those of a farewell, as the
// intruder.
func (s *siege) forge(farewell bool) {
	r := s.later(func(*format.Member) {})
	r.Pages, r.Farewell = format.Digests{}, farewell
	if !farewell {
		page := format.PageOf(webKey)
		data, err := record.Encode([]mcs.Export{registry.Published(forgedExport())})
		if err != nil {
			s.t.Error(err)
		}
		r.Pages[page] = format.Digest(data)
		parts, err := format.SplitPage(mcs.Identity{ClusterSetID: clusterSet, ClusterID: victim, UID: r.UID}, s.signer(intruder), page, r.Generation, data)
		if err != nil {
			s.t.Error(err)
		}
		for _, part := range parts {
			s.put(s.catalogService, part)
		}
	}
	signed := r.Instance(s.signer(intruder))
	s.put(s.catalogService, format.CopyOf(signed))
	s.put(s.membersService, signed)
}

// replay writes the record and pages that the victim had signed when the siege began.
func (s *siege) replay() {
	for _, part := range s.pages {
		s.put(s.catalogService, part)
	}
	s.put(s.membersService, s.instance)
}

func (s *siege) dropPages() {
	for id := range s.pages {
		s.drop(s.catalogService, id)
	}
}

func (s *siege) junk(n int) {
	for i := range n {
		r := format.Member{ClusterSetID: clusterSet, ClusterID: fmt.Sprint("junk-", i), UID: fmt.Sprint("uid-", i), Version: "1", Generation: 1, Joined: time.Now(), Heartbeat: time.Now().UnixMilli()}
		s.put(s.membersService, r.Instance(s.signer(intruder)))
	}
}

func (s *siege) restartImporter() {
	defer s.lock()()
	s.reader.stop(nil)
	s.reader = s.join(importer)
}

func (s *siege) restartVictim() {
	defer s.lock()()
	s.exporter.stop(nil)
	s.exporter = s.join(victim)
	s.exporter.publish(s.wished)
}

// wish makes the victim want another export.
func (s *siege) wish(exp mcs.Export) {
	defer s.lock()()
	s.wished, s.genuine = exp, append(s.genuine, exp)
	s.exporter.publish(exp)
}

// check fails the test if the importer has an export of the victim that it has not signed, or none
// although it knows of it.
func (s *siege) check(after time.Duration) {
	defer s.lock()()
	view, err := s.reader.Lookup(context.Background(), webKey, victim)
	if errors.Is(err, registry.ErrNotSynced) {
		return // imports stay as they are
	}
	i := slices.IndexFunc(view.Exports(), func(e mcs.Export) bool { return e.Cluster == victim })
	switch {
	case i < 0 && !view.Incomplete && view.Clusters[victim].State != registry.Unknown && view.Clusters[victim].State != registry.Unseen:
		s.t.Fatalf("after %v: the import has ended", after)
	case i >= 0 && !slices.ContainsFunc(s.genuine, func(e mcs.Export) bool { return view.Exports()[i].Equal(registry.Published(e)) }):
		s.t.Fatalf("after %v: the importer has an export that the victim has not signed: %+v", after, view.Exports()[i])
	}
}

// follows reports whether the importer has what the victim wants.
func (s *siege) follows() bool {
	defer s.lock()()
	return s.reader.sees(s.wished)()
}

// problems returns the problems of the victim that the importer and the victim report.
func (s *siege) problems() []string {
	defer s.lock()()
	out := slices.Concat(s.reader.problemsOf(victim), s.exporter.problemsOf(victim))
	if err := s.exporter.view(webKey).Local.Err; err != nil {
		out = append(out, err.Error())
	}
	return out
}

// restore does what an administrator does after the attack: tags are as before, and the intruder's
// records are gone.
func (s *siege) restore() {
	for service, part := range map[api.Service]string{s.catalogService: api.PartCatalog, s.membersService: api.PartMembers} {
		if err := s.tagAs(admin, service.ARN, api.Tags(identityOf(victim), part)...); err != nil {
			s.t.Fatal(err)
		}
	}
	for id := range s.instances(s.membersService) {
		if strings.HasPrefix(id, "junk-") {
			_ = s.cloud.client(admin).DeregisterInstance(s.ctx(), s.membersService.ID, id)
		}
	}
}

// TestAttack_Combinations runs pairs of moves: all of them at night, and those with which a live
// cluster was once replaced otherwise, in about 5 s.
func TestAttack_Combinations(t *testing.T) {
	silenced := []string{"retag the catalog", "retag members", "overwrite the record", "page, copy and record", "copy of a farewell"}
	for i, a := range moves {
		for _, b := range moves[i+1:] {
			if testing.Short() && (!slices.Contains(silenced, a.name) || !slices.Contains(silenced, b.name)) {
				continue
			}
			t.Run(a.name+" and "+b.name, func(t *testing.T) { combination(t, 8*time.Minute, a, b) })
		}
	}
	t.Run("a live cluster is silenced and replaced", func(t *testing.T) {
		combination(t, 12*time.Minute, moveNamed(t, "retag the catalog"), moveNamed(t, "overwrite the record"), moveNamed(t, "page, copy and record"))
	})
	t.Run("a live cluster is silenced and leaves", func(t *testing.T) {
		combination(t, 12*time.Minute, moveNamed(t, "retag the catalog"), moveNamed(t, "overwrite the record"), moveNamed(t, "copy of a farewell"))
	})
}

// TestAttack_RandomCombinations runs random moves: two sequences in CI (10 s), new ones at night.
// ATTACK_SEED repeats a sequence, and ATTACK_RUNS is the number of sequences.
func TestAttack_RandomCombinations(t *testing.T) {
	seed, runs := uint64(time.Now().UnixNano()), 20
	if testing.Short() {
		seed, runs = 1, 2
	}
	if text := os.Getenv("ATTACK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("ATTACK_RUNS")); err == nil {
		runs = n
	}
	for i := range runs {
		t.Run(fmt.Sprint("seed ", seed+uint64(i)), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed+uint64(i), 0))
			var chosen []move
			for _, n := range random.Perm(len(moves))[:2+random.IntN(4)] {
				m := moves[n]
				m.pause = time.Duration(float64(m.pause) * (0.3 + 2*random.Float64()))
				chosen = append(chosen, m)
				t.Logf("%s every %v", m.name, m.pause)
			}
			combination(t, time.Duration(5+random.IntN(15))*time.Minute, chosen...)
		})
	}
}

func moveNamed(t *testing.T, name string) move {
	t.Helper()
	i := slices.IndexFunc(moves, func(m move) bool { return m.name == name })
	if i < 0 {
		t.Fatalf("there is no move %q", name)
	}
	return moves[i]
}
