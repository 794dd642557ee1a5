package state

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestLookup_OfSkippedPage: a changed page that has no exports of a namespace that is used is not
// read. A cluster is unknown for the services of a namespace that the page may have, because the
// namespace may be used since a moment ago, and known for all others. The page is read once the
// namespace is used.
func TestLookup_OfSkippedPage(t *testing.T) {
	gained, other := webKey(0), mcs.Key{}
	for i := 0; format.PageOf(other) != format.PageOf(gained); i++ {
		other = mcs.Key{Namespace: "other", Name: webKey(i).Name}
	}
	page := format.PageOf(gained)
	used := []string{"demo-2"}
	cfg := testConfig()
	cfg.UsedNamespaces = func() ([]string, bool) { return used, true }
	s := New(cfg)
	r := memberOf("cls2")
	reads := func(what string, want int) {
		t.Helper()
		r.Heartbeat++
		show(s, r)
		pages := 0
		for _, read := range staleReads(s) {
			pages += len(read.Pages)
		}
		if pages != want {
			t.Errorf("%s: %d pages are read, want %d", what, pages, want)
		}
	}
	reads("no page", 0)
	r.Pages[page], r.Namespaces[page] = "AAAAAAAAAAB", format.NamespacesOf(map[mcs.Key]mcs.Export{gained: {Key: gained}})
	reads("another namespace", 0)
	for key, want := range map[mcs.Key]int{gained: 1, other: 0} {
		if view, err := s.Lookup(key, nil); err != nil || len(view.In(registry.Unknown)) != want {
			t.Errorf("%v: unknown clusters %q, %v; want %d", key, view.In(registry.Unknown), err, want)
		}
	}
	used = []string{gained.Namespace, "demo-2"}
	reads("the namespace is used", 1)
	used = []string{"demo-2"}
	reads("it is not used any more", 0)
	r.Namespaces[page], r.Pages[page] = "", "AAAAAAAAAAC"
	reads("the record names no namespaces", 1)
}

// TestAddress checks which clusters are notified of a change: those that report to import a service
// with other endpoints, and all of any other change.
func TestAddress(t *testing.T) {
	now := time.Now()
	web, more := webExport("cls1", 0, 2), webExport("cls1", 0, 3)
	old := webExport("cls1", 1, 2)
	labelled := web
	labelled.Labels = map[string]string{"a": "b"}
	pageOf := func(exports ...mcs.Export) map[mcs.Key]mcs.Export {
		page := map[mcs.Key]mcs.Export{}
		for _, exp := range exports {
			page[exp.Key] = exp
		}
		return page
	}
	many, manyMore := map[mcs.Key]mcs.Export{}, map[mcs.Key]mcs.Export{}
	for i := range maxNewsKeys + 1 {
		few, changed := webExport("cls1", i, 1), webExport("cls1", i, 2)
		many[few.Key], manyMore[few.Key] = few, changed
	}
	reports := map[string]mcs.ImportReport{
		"importer":   mcs.NewImportReport(map[string][]mcs.Key{"cls1": {web.Key}}, nil),
		"of another": mcs.NewImportReport(map[string][]mcs.Key{"cls9": {web.Key}, "cls1": {old.Key}}, nil),
		"of many":    mcs.ManyImports,
		"silent":     "",
	}
	const before, after = 5, 6
	for name, tt := range map[string]struct {
		pages [][2]map[mcs.Key]mcs.Export
		age   time.Duration // since the export was added by this process; 0 is that it was not
		all   bool
	}{
		"endpoints change":                              {pages: [][2]map[mcs.Key]mcs.Export{{pageOf(web, old), pageOf(more, old)}}},
		"labels change":                                 {pages: [][2]map[mcs.Key]mcs.Export{{pageOf(web), pageOf(labelled)}}, all: true},
		"an export begins":                              {pages: [][2]map[mcs.Key]mcs.Export{{pageOf(old), pageOf(web, old)}}, all: true},
		"an export ends":                                {pages: [][2]map[mcs.Key]mcs.Export{{pageOf(web, old), pageOf(old)}}, all: true},
		"endpoints change, and an export begins":        {pages: [][2]map[mcs.Key]mcs.Export{{pageOf(web), pageOf(more)}, {nil, pageOf(old)}}, all: true},
		"endpoints of many exports":                     {pages: [][2]map[mcs.Key]mcs.Export{{many, manyMore}}, all: true},
		"no export changes":                             {pages: [][2]map[mcs.Key]mcs.Export{{pageOf(web), pageOf(web)}}, all: true},
		"endpoints of an export that was added now":     {pages: [][2]map[mcs.Key]mcs.Export{{pageOf(web), pageOf(more)}}, age: time.Second, all: true},
		"endpoints of an export that was added earlier": {pages: [][2]map[mcs.Key]mcs.Export{{pageOf(web), pageOf(more)}}, age: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testConfig())
			for id, report := range reports {
				s.catalogs.cluster(now, id).record = &format.Member{ClusterID: id, Imports: report}
			}
			if tt.age > 0 {
				s.outbox.news.observe(now.Add(-tt.age), nil, pageOf(web), time.Minute)
				s.outbox.news.take()
			}
			for _, page := range tt.pages {
				s.outbox.news.observe(now, page[0], page[1], time.Minute)
			}
			s.Writes.address(before, after)
			for id := range reports {
				want := int64(after)
				if !tt.all && id == "of another" {
					want = before
				}
				if got := s.catalogs.clusters[id].news; got != want {
					t.Errorf("cluster %q is notified of generation %d, want %d", id, got, want)
				}
			}
		})
	}
}
