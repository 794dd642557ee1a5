package state

import (
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// sender is cls3, which writes an export, and sends what it writes.
type sender struct {
	t      *testing.T
	record format.Member
	parts  []api.Instance
}

// write writes the export with endpoints, and announces it.
func (s *sender) write(endpoints int) {
	s.t.Helper()
	s.record.Generation += 2
	s.record.Heartbeat++
	identity := mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: s.record.UID}
	w, err := EncodePage(identity, signerOf(s.record.UID), thePage, s.record.Generation, holding(webExport("cls3", 0, endpoints)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.record.Pages[thePage], s.parts = w.digest, w.Instances
}

// instance is the signed record.
func (s *sender) instance() api.Instance { return s.record.Instance(signerOf(s.record.UID)) }

// follows returns a state that has read two records of cls3, with an export of one endpoint.
func follows(t *testing.T) (*State, *sender) {
	t.Helper()
	s, from := New(testConfig()), &sender{t: t, record: memberOf("cls3")}
	from.write(1)
	show(s, from.record)
	s.Reads.ObservePage(time.Now(), "cls3", thePage, from.parts)
	from.record.Heartbeat++
	show(s, from.record)
	return s, from
}

// endpointsOf returns the number of endpoints that s knows of cls3, and whether its catalog has to
// be read.
func endpointsOf(t *testing.T, s *State) (count int, isReadDue bool) {
	t.Helper()
	view, err := s.Lookup(theKey, []string{"cls3"})
	if err != nil {
		t.Fatal(err)
	}
	for _, exp := range view.Exports() {
		count += exp.EndpointCount()
	}
	isReadDue = slices.ContainsFunc(staleReads(s), func(r CatalogRead) bool { return r.ClusterID == "cls3" })
	return count, isReadDue
}

// TestSent: records that a cluster sends count as if they were read. The registry may show those of
// before for a while, which is no fault.
func TestSent(t *testing.T) {
	s, from := follows(t)
	before, parts := from.record, from.parts
	from.write(3)
	changed, isWhole := s.Reads.ObserveSent(time.Now(), "cls3", from.record.Generation, from.instance(), from.parts)
	if _, isNotified := changed[theKey]; !isWhole || !isNotified {
		t.Fatalf("whole: %v, changed %v", isWhole, changed)
	}
	stays := func(what string) {
		t.Helper()
		if n, isReadDue := endpointsOf(t, s); n != 3 || isReadDue || len(s.catalogs.problems(s.catalogs.clusters["cls3"])) > 0 || !s.catalogs.live("cls3") {
			t.Errorf("%s: %d endpoints, want 3; read again: %v; problems %v", what, n, isReadDue, s.catalogs.problems(s.catalogs.clusters["cls3"]))
		}
	}
	stays("before the registry shows it")
	show(s, before)
	stays("after a late read of the record")
	s.Reads.ObservePage(time.Now(), "cls3", thePage, parts)
	stays("after a late read of the page")
	show(s, from.record)
	stays("when the registry shows it")
	if _, isWhole := s.Reads.ObserveSent(time.Now(), "cls3", from.record.Generation, from.instance(), from.parts); isWhole {
		t.Error("a copy counts")
	}
	stays("after a copy")

	show(s, before) // another member has written it again
	if problems := s.catalogs.problems(s.catalogs.clusters["cls3"]); len(problems) == 0 {
		t.Error("a record of before that is shown after a later one is not reported")
	}
}

// TestSent_Refused: what does not count when it is sent changes nothing, and the registry is read.
func TestSent_Refused(t *testing.T) {
	for name, edit := range map[string]func(s *State, from *sender) (id string, record api.Instance){
		"an earlier record": func(_ *State, from *sender) (string, api.Instance) {
			from.record.Generation, from.record.Heartbeat = 1, 1
			return "cls3", from.instance()
		},
		"with another signature": func(_ *State, from *sender) (string, api.Instance) {
			return "cls3", from.record.Instance(signerOf("uid-2"))
		},
		"with another key": func(_ *State, from *sender) (string, api.Instance) {
			from.record.UID, from.record.Key = "uid-2", signerOf("uid-2").Key()
			return "cls3", from.instance()
		},
		"a farewell": func(_ *State, from *sender) (string, api.Instance) {
			from.record.Farewell, from.record.Pages = true, format.Digests{}
			return "cls3", from.instance()
		},
		"as another generation": func(_ *State, from *sender) (string, api.Instance) { return "cls3", from.instance() },
		"of another cluster":    func(_ *State, from *sender) (string, api.Instance) { return "cls4", from.instance() },
		"of this cluster":       func(_ *State, from *sender) (string, api.Instance) { return "cls1", from.instance() },
		"no record":             func(*State, *sender) (string, api.Instance) { return "cls3", api.Instance{ID: "cls3"} },
	} {
		t.Run(name, func(t *testing.T) {
			s, from := follows(t)
			from.write(3)
			id, record := edit(s, from)
			generation := from.record.Generation
			if name == "as another generation" {
				generation++
			}
			changed, isWhole := s.Reads.ObserveSent(time.Now(), id, generation, record, from.parts)
			if n, isReadDue := endpointsOf(t, s); n != 1 || isWhole || len(changed) > 0 || isReadDue || !s.catalogs.live("cls3") {
				t.Errorf("%d endpoints, whole: %v, changed %v, read again: %v", n, isWhole, changed, isReadDue)
			}
		})
	}
	t.Run("before a second record was read", func(t *testing.T) {
		s, from := New(testConfig()), &sender{t: t, record: memberOf("cls3")}
		from.write(1)
		show(s, from.record)
		s.Reads.ObservePage(time.Now(), "cls3", thePage, from.parts)
		from.write(3)
		if _, isWhole := s.Reads.ObserveSent(time.Now(), "cls3", from.record.Generation, from.instance(), from.parts); isWhole {
			t.Error("it counts")
		}
	})
}

// TestSent_NotWhole: the record counts, and what comes with it does not. The page is read, and its
// exports stay until then.
func TestSent_NotWhole(t *testing.T) {
	for name, parts := range map[string]func(from *sender, before []api.Instance) []api.Instance{
		"no page":               func(*sender, []api.Instance) []api.Instance { return nil },
		"the page of before":    func(_ *sender, before []api.Instance) []api.Instance { return before },
		"a page that is forged": func(from *sender, _ []api.Instance) []api.Instance { return forgedParts(from) },
		"another page": func(from *sender, _ []api.Instance) []api.Instance {
			return []api.Instance{{ID: format.PartID(thePage^1, 0), Attributes: from.parts[0].Attributes}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, from := follows(t)
			before := from.parts
			from.write(3)
			_, isWhole := s.Reads.ObserveSent(time.Now(), "cls3", from.record.Generation, from.instance(), parts(from, before))
			if n, _ := endpointsOf(t, s); n != 1 || isWhole || !s.catalogs.belief.IsBehind("cls3") {
				t.Errorf("%d endpoints, want the one of before; whole: %v; behind: %v", n, isWhole, s.catalogs.belief.IsBehind("cls3"))
			}
			s.Reads.ObservePage(time.Now(), "cls3", thePage, from.parts)
			if n, _ := endpointsOf(t, s); n != 3 {
				t.Errorf("%d endpoints after the page was read, want 3", n)
			}
		})
	}
}

// forgedParts returns the page of a sender with another signature.
func forgedParts(from *sender) []api.Instance {
	forged := api.Instance{ID: from.parts[0].ID, Attributes: map[string]string{}}
	for name, value := range from.parts[0].Attributes {
		forged.Attributes[name] = value
	}
	forged.Attributes[format.AttrSignature] = "AAAA"
	return []api.Instance{forged}
}

// TestTakeUnsent: a record is sent with the pages that it announces, and that were not sent before.
func TestTakeUnsent(t *testing.T) {
	s := New(testConfig())
	s.claim.state = Held
	written := func(page int, generation int64) PageWrite {
		t.Helper()
		now, exp := time.Now(), onPageOf(page, "demo", 1)[0]
		exp.Ports[0].Port = int32(generation)
		w, err := EncodePage(cls1, signerOf(cls1.UID), page, generation, holding(exp))
		if err != nil {
			t.Fatal(err)
		}
		s.outbox.adopt(page, &storedPage{read: true})
		s.outbox.state.Set(exp.Key, &exp)
		for d := range s.outbox.state.Drafts(now) {
			s.outbox.state.Begin(now, d, belief.Version{Generation: generation, Digest: w.digest}, nil)
		}
		s.Writes.ObserveWrite(w, nil, nil)
		return w
	}
	first, replaced := written(1, 10), written(2, 10)
	second := written(2, 12)
	record := format.Member{Generation: 12}
	record.Pages[1], record.Pages[2] = first.digest, second.digest
	next := written(3, 14) // after the record was prepared
	ids := func(parts []api.Instance) (ids []string) {
		for _, part := range parts {
			ids = append(ids, part.ID+" "+part.Attributes[format.AttrDigest])
		}
		slices.Sort(ids)
		return ids
	}
	if got, want := ids(s.Writes.TakeUnsent(record)), ids(append(first.Instances, second.Instances...)); !slices.Equal(got, want) || replaced.digest == second.digest {
		t.Errorf("with the record: %v, want %v", got, want)
	}
	if got := s.Writes.TakeUnsent(record); len(got) > 0 {
		t.Errorf("with the record again: %v, want nothing", ids(got))
	}
	record.Generation, record.Pages[3] = 14, next.digest
	if got, want := ids(s.Writes.TakeUnsent(record)), ids(next.Instances); !slices.Equal(got, want) {
		t.Errorf("with the next record: %v, want %v", got, want)
	}
}
