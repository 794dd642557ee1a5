package cloudmap

import (
	"encoding/base64"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

func TestCatalogNames(t *testing.T) {
	for service, want := range map[int]string{0: "catalog.cls1", 1: "catalog.cls1.1", 35: "catalog.cls1.z"} {
		if got := catalogName("cls1", service); got != want {
			t.Errorf("service %d is named %s, want %s", service, got, want)
		}
	}
	for service := range maxServices {
		id, number, ok := parseCatalogName(catalogName("cls1", service))
		if id != "cls1" || number != service || !ok {
			t.Errorf("the name of service %d is read as %s, %d, %v", service, id, number, ok)
		}
	}
	for _, name := range []string{"", "members", "catalog.", "catalog.Cls1", "catalog.cls1.", "catalog.cls1.0", "catalog.cls1.Z", "catalog.cls1.10", "catalog.cls1.1.1", "catalog.cls1.-"} {
		if id, service, ok := parseCatalogName(name); ok {
			t.Errorf("%q is read as service %d of %q, want nobody's", name, service, id)
		}
	}
}

func TestServicesOfPages(t *testing.T) {
	var s services
	if got := s.String(); got != "" {
		t.Errorf("all pages in the first service are %q, want nothing", got)
	}
	for page := range s {
		s[page] = uint8(page % maxServices)
	}
	if got, err := parseServices(s.String()); err != nil || got != s {
		t.Errorf("read as %v, %v; want %v", got, err, s)
	}
	zeros := strings.Repeat("0", pageCount-1)
	for _, bad := range []string{"0", zeros, zeros + "00", zeros + "A", zeros + "+", zeros + "é", strings.Repeat(" ", pageCount)} {
		if _, err := parseServices(bad); err == nil || !strings.Contains(err.Error(), attrServices) {
			t.Errorf("%q: error %v, want one that names the attribute", bad, err)
		}
	}
}

// TestPlacement has pages grow and shrink at random, with what they leave behind removed sooner or later: no service is ever given
// more than it has room for, and a page is in the first one that had room when it was written.
func TestPlacement(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		o := newOutbox("cls1")
		for range 3000 {
			p := &o.pages[rnd.IntN(pageCount)]
			parts := 1 + rnd.IntN(maxParts)
			if rnd.IntN(4) > 0 {
				parts = 1 + rnd.IntN(8)
			}
			l := o.load()
			l.remove(p.stored)
			to := l.place(p.stored, p.service, parts)
			for service := range to {
				if l[service]+max(parts, int(p.stored[service])) <= serviceRoom {
					t.Fatalf("seed %d: a page of %d parts goes to service %d, and there is room in %d", seed, parts, to, service)
				}
			}
			p.service, p.parts = to, parts
			p.stored.atLeast(to, parts)
			if rnd.IntN(3) > 0 { // otherwise it is written again before the rest is removed
				p.stored = copies{}
				p.stored.atLeast(to, parts)
			}
			if got := o.load()[to]; got > serviceRoom {
				t.Fatalf("seed %d: service %d has %d instances, want %d at most", seed, to, got, serviceRoom)
			}
		}
	}
}

// TestPlacementOfEverything has all pages at their largest, and the same again with the old copies still there.
func TestPlacementOfEverything(t *testing.T) {
	o := newOutbox("cls1")
	for round := range 2 {
		for i := range o.pages {
			p := &o.pages[i]
			l := o.load()
			l.remove(p.stored)
			p.service = l.place(p.stored, p.service, maxParts)
			p.stored.atLeast(p.service, maxParts)
			if got := o.load()[p.service]; got > serviceRoom {
				t.Fatalf("round %d: service %d has %d instances", round, p.service, got)
			}
		}
	}
	if want := (maxServices - 1) * (serviceRoom - maxParts + 1); want < pageCount*maxParts {
		t.Errorf("%d services may be full with %d instances, fewer than the %d of a catalog", maxServices, want, pageCount*maxParts)
	}
}

// TestNoRoomAnywhere is a page that fits nowhere: it stays where it is.
func TestNoRoomAnywhere(t *testing.T) {
	var l load
	for service := range l {
		l[service] = serviceRoom
	}
	if got := l.place(copies{}, 7, 1); got != 7 {
		t.Errorf("it goes to service %d, want where it is", got)
	}
}

// TestMovedPage is a page that moves: it stays where it was until the registry shows it where it is.
func TestMovedPage(t *testing.T) {
	exp := webExport("cls1", 0, 1)
	page := pageOf(exp.Key)
	now := time.UnixMilli(1000)
	o := newOutbox("cls1")
	for i := range o.pages {
		o.adopt(i, &pageState{read: true})
	}
	other := (page + 1) % pageCount
	o.adopt(page, shownPage())
	o.pages[other].stored[0] = serviceRoom // there is no room for one more beside it
	o.pages[page].stored = copies{}
	o.pages[page].parts, o.pages[page].digest = 0, ""
	o.ask(exp.Key, &exp)
	writes, _ := o.batch(now, now)
	if len(writes) != 1 || writes[0].service != 1 || writes[0].before != 0 {
		t.Fatalf("writes %+v, want one of new parts in service 1", writes)
	}
	o.pages[page].stored[0] = 1
	o.written(now, writes[0], nil)
	o.pages[other] = ownPage{want: o.pages[other].want, adopted: true}
	if got := o.excess(); len(got) != 0 {
		t.Errorf("excess %v before the page is shown, want none", got)
	}
	shown := &catalog{hasRecord: true}
	for i := range shown.pages {
		shown.pages[i].read = true
	}
	shown.pages[page] = pageState{read: true, digest: writes[0].digest, service: 1, exports: writes[0].exports}
	shown.record.pages[page] = writes[0].digest
	o.confirm(now, shown, time.Minute)
	if got := o.excess(); len(got) != 0 {
		t.Errorf("excess %v while the record announces the page elsewhere, want none", got)
	}
	if got := o.publication(exp.Key, shown); got.State != registry.Pending {
		t.Errorf("announced elsewhere it is %v, want pending", got.State)
	}
	shown.record.services[page] = 1
	o.confirm(now, shown, time.Minute)
	want := []excessParts{{page: page, service: 0, from: 0, to: 1}}
	if diff := cmp.Diff(want, o.excess(), cmp.AllowUnexported(excessParts{})); diff != "" {
		t.Errorf("excess once the page is shown differs (-want +got):\n%s", diff)
	}
	if o.vacant(0) || o.vacant(1) {
		t.Error("a service that has something of the page is taken for vacant")
	}
	o.trimmed(want[0])
	if !o.vacant(0) || o.vacant(1) {
		t.Error("without its old copy the first service has nothing, and the second has the page")
	}
}

// TestMovedForReaders is a page that moves, as others see it.
func TestMovedForReaders(t *testing.T) {
	s := newStory(t)
	from := func(service int, instances []api.Instance) {
		s.catalogs.page(s.now, "cls2", service, thePage, instances, keySet{})
	}
	s.publish(100, thePage, web(1))
	s.members(s.record)
	s.read()
	old := s.pages[thePage]
	s.publish(101, thePage, web(2))
	s.record.services[thePage] = 1
	s.members(s.record)
	s.wanted("a page that has moved", thePage)
	order, found := s.catalogs.clusters["cls2"].record.byServices([]int{thePage})
	if !slices.Equal(order, []int{1}) || !slices.Equal(found[1], []int{thePage}) {
		t.Errorf("it is read from %v, want service 1", found)
	}
	from(1, old)
	s.expect("the old copy", theKey, "•")
	from(1, nil)
	s.expect("not there yet", theKey, "•")
	from(1, s.pages[thePage])
	s.expect("there", theKey, "••")
	s.wanted("there")

	// The same content elsewhere has to be read there, and until then stays.
	s.record.generation++
	s.record.services[thePage] = 0
	s.members(s.record)
	s.wanted("the same content elsewhere", thePage)
	s.expect("the same content elsewhere", theKey, "••")
	from(0, s.pages[thePage])
	s.wanted("read elsewhere")
}

// TestAuditOfSeveralServices has copies of a page in two services, as a controller that ended while the page moved leaves them.
func TestAuditOfSeveralServices(t *testing.T) {
	part := func(s *story, generation int64, endpoints int) []api.Instance {
		s.write(generation, thePage, registry.Published(webExport("cls1", 0, endpoints)))
		return s.pages[thePage]
	}
	digest := func(instances []api.Instance) string { return instances[0].Attributes[attrDigest] }
	tests := map[string]struct {
		announced  int64 // of the record
		at         uint8
		generation [2]int64
		want       int // the service that counts
	}{
		"written and not announced":          {announced: 100, at: 0, generation: [2]int64{100, 101}, want: 1},
		"announced, the old one still there": {announced: 101, at: 1, generation: [2]int64{100, 101}, want: 1},
		"an attempt that was given up":       {announced: 101, at: 0, generation: [2]int64{100, 101}, want: 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			stored := map[int][]api.Instance{0: part(s, tc.generation[0], 1), 1: part(s, tc.generation[1], 2)}
			r := memberRecord{clusterID: "cls1", clusterSetID: "set1", uid: "uid-1", joined: s.now, generation: tc.announced}
			r.pages[thePage], r.services[thePage] = digest(stored[int(tc.at)]), tc.at
			s.catalogs.members(s.now, []api.Instance{r.instance()}, keySet{})
			s.catalogs.audit(s.now, stored, keySet{})
			p := &s.catalogs.own().pages[thePage]
			if !p.read || p.service != tc.want || p.digest != digest(stored[tc.want]) || p.stored != (copies{1, 1}) {
				t.Errorf("read %v from service %d, with %v parts in the store; want from %d, and a part in each", p.read, p.service, p.stored[:2], tc.want)
			}
		})
	}
}

// bulky is an export that needs some 14 instances, with n endpoints. It has nearly all the 64 KiB of annotations that an export may
// have.
func bulky(i, n int) mcs.Export {
	exp := webExport("cls1", i, n)
	exp.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(48_000 + i))}
	return exp
}

// bulkyExports are as many bulky exports as need some 1,200 instances.
const bulkyExports = 90

// TestCatalogOfSeveralServices is a catalog that a service has no room for: it converges, survives the restart of who writes and of
// who reads it, shrinks and grows again, and leaves nothing behind.
func TestCatalogOfSeveralServices(t *testing.T) {
	warmUp(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 5000})
		admin, _ := w.client("admin")
		catalogs := func() map[string]int {
			in, err := admin.ListNamespaces(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all, err := admin.ListServices(t.Context(), in["mcs.set1"])
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]int{}
			for _, s := range catalogsIn(all)["cls1"] {
				listed, err := admin.ListInstances(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				found[s.Name] = len(listed)
			}
			return found
		}
		exports := func(export func(i int) mcs.Export) (list []mcs.Export) {
			for i := range bulkyExports {
				list = append(list, export(i))
			}
			return list
		}
		large := exports(func(i int) mcs.Export { return bulky(i, 1) })
		seen := func(reg *Registry, list []mcs.Export) func() bool {
			return func() bool {
				return !slices.ContainsFunc(list, func(exp mcs.Export) bool { return !sees(t, reg, exp)() })
			}
		}
		spread := func(what string) {
			t.Helper()
			found, total := catalogs(), 0
			for name, n := range found {
				total += n
				if n > serviceRoom {
					t.Errorf("%s: %s has %d instances", what, name, n)
				}
			}
			if len(found) != 2 || total <= api.MaxDiscovered {
				t.Errorf("%s: instances by service are %v, want more than %d in two", what, found, api.MaxDiscovered)
			}
		}
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		for _, exp := range large {
			publish(t, exporter.Registry, exp)
		}
		w.until(5*time.Minute, "everything is seen", seen(importer.Registry, large))
		w.until(time.Minute, "everything is confirmed", func() bool {
			return !slices.ContainsFunc(large, func(exp mcs.Export) bool { return !isExported(t, exporter.Registry, exp.Key)() })
		})
		spread("at first")

		// Who writes restarts, and is asked for one export only: the others stay.
		exporter.kill()
		again := w.begin(cls1, nil)
		changed := bulky(bulkyExports-1, 2)
		publish(t, again.Registry, changed)
		expected := append(slices.Clone(large[:bulkyExports-1]), changed)
		w.until(2*time.Minute, "a change after a restart is seen", seen(importer.Registry, expected))
		spread("after a restart")
		importer.kill()
		importer = w.begin(cls2, nil)
		w.until(time.Minute, "who starts reads everything", seen(importer.Registry, expected))

		// Twice: what the large ones were takes room when the small ones are written first, and a page moves only when it is written.
		for _, endpoints := range []int{3, 4} {
			small := exports(func(i int) mcs.Export { return webExport("cls1", i, endpoints) })
			for _, exp := range small {
				publish(t, again.Registry, exp)
			}
			w.until(time.Minute, "the small exports are seen", seen(importer.Registry, small))
			time.Sleep(time.Minute)
		}
		w.until(5*time.Minute, "the second service is gone", func() bool {
			found := catalogs()
			return len(found) == 1 && found["catalog.cls1"] <= pageCount
		})
		for _, exp := range large {
			publish(t, again.Registry, exp)
		}
		w.until(5*time.Minute, "they grow again", seen(importer.Registry, large))
		spread("grown again")

		if err := again.end(registry.ErrLeave); err != nil {
			t.Errorf("leaving: %v", err)
		}
		w.until(time.Minute, "who left is gone", func() bool {
			view := look(t, importer.Registry, large[0].Key)
			return len(view.Exports) == 0 && len(view.Unknown) == 0
		})
		if found := catalogs(); len(found) != 0 {
			t.Errorf("after leaving there is %v", found)
		}
		importer.kill()
	})
}

// TestRefusedPageHasItsOwnTime is a page that AWS goes on to refuse: the others are not held up by it, and it is not tried all the time.
func TestRefusedPageHasItsOwnTime(t *testing.T) {
	warmUp(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 3})
		w.plan(1, cloudmaplocal.FaultRule{
			Operations: []string{"RegisterInstance"}, Instance: partID(pageOf(webKey(0)), 0), Kind: cloudmaplocal.FaultError, Code: "ResourceLimitExceeded",
		})
		refused := func() int {
			_, hits := w.server.Faults()
			return hits[0]
		}
		exporter := w.begin(cls1, nil)
		publish(t, exporter.Registry, webExport("cls1", 0, 1))
		w.until(time.Minute, "the page is refused", func() bool {
			return look(t, exporter.Registry, webKey(0)).Local.Err != nil && refused() > 0
		})
		time.Sleep(5 * time.Minute)
		if n := refused(); n > 60 {
			t.Errorf("it was tried %d times in five minutes, want about twice a minute once it has failed for long", n)
		}
		for i := range 20 {
			exp := webExport("cls1", 8, i+1)
			publish(t, exporter.Registry, exp)
			w.until(3*time.Second, "another page is written and shown", isExported(t, exporter.Registry, exp.Key))
		}
		exporter.kill()
	})
}
