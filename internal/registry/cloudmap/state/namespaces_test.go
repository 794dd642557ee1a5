package state

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestNeedsRead_SkipsUnusedNamespaces checks that a changed page is read if it has or had exports
// of a namespace that is used, or may have, and not otherwise.
func TestNeedsRead_SkipsUnusedNamespaces(t *testing.T) {
	of := func(namespace string) format.Namespaces {
		key := mcs.Key{Namespace: namespace, Name: "web"}
		return format.NamespacesOf(map[mcs.Key]mcs.Export{key: {Key: key}})
	}
	key := mcs.Key{Namespace: "shop", Name: "web"}
	const page = 3
	nothing := pageState{read: true, digest: "before"}
	for name, tt := range map[string]struct {
		before    pageState
		announced format.Namespaces
		used      []string
		isAll     bool
		want      bool
	}{
		"a namespace that is used":                {before: nothing, announced: of("shop"), used: []string{"demo", "shop"}, want: true},
		"another namespace":                       {before: nothing, announced: of("team-1"), used: []string{"demo", "shop"}},
		"all namespaces are used":                 {before: nothing, announced: of("team-1"), isAll: true, want: true},
		"the record does not name them":           {before: nothing, used: []string{"demo"}, want: true},
		"never read":                              {before: pageState{}, announced: of("team-1"), used: []string{"demo"}, want: true},
		"it had an export that is used":           {before: pageState{read: true, digest: "before", exports: map[mcs.Key]mcs.Export{key: {Key: key}}}, announced: of("team-1"), used: []string{"demo"}, want: true},
		"it had an export that could not be used": {before: pageState{read: true, digest: "before", unreadable: map[mcs.Key]bool{key: true}}, announced: of("team-1"), used: []string{"demo"}, want: true},
		"it had exports without a name":           {before: pageState{read: true, digest: "before", unnamed: true}, announced: of("team-1"), used: []string{"demo"}, want: true},
		"it had an export over budget":            {before: pageState{read: true, digest: "before", excess: 1}, announced: of("team-1"), used: []string{"demo"}, want: true},
		"it had an export that was ignored":       {before: pageState{read: true, digest: "before", ignored: map[mcs.Key]bool{key: true}}, announced: of("team-1"), used: []string{"demo"}},
		"an ignored export is used now":           {before: pageState{read: true, digest: "before", ignored: map[mcs.Key]bool{key: true}, isWanted: true}, announced: of("team-1"), used: []string{"demo"}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testConfig())
			c := s.catalogs.cluster("cls2")
			c.hasRecord, c.record = true, format.Member{ClusterID: "cls2", Pages: format.Digests{page: "after"}, Namespaces: format.PageNamespaces{page: tt.announced}}
			c.setPage(page, tt.before)
			if !tt.isAll {
				s.catalogs.setUsed(format.SelectNamespaces(tt.used))
			}
			if got := c.needsRead(time.Now(), page); got != tt.want {
				t.Errorf("the page is read: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestLookup_OfSkippedPage checks that a cluster is unknown for the services of a namespace that a
// skipped page may have, because the namespace may be used since a moment ago, and known for all
// others; and that the page is read once the namespace is used.
func TestLookup_OfSkippedPage(t *testing.T) {
	gained, other := webKey(0), mcs.Key{}
	for i := 0; format.PageOf(other) != format.PageOf(gained); i++ {
		other = mcs.Key{Namespace: "other", Name: webKey(i).Name}
	}
	page := format.PageOf(gained)
	var used []string
	cfg := testConfig()
	cfg.UsedNamespaces = func() ([]string, bool) { return used, true }
	s := New(cfg)
	c := s.catalogs.cluster("cls2")
	c.hasRecord, c.record = true, format.Member{ClusterID: "cls2"}
	c.record.Pages[page], c.record.Namespaces[page] = "after", format.NamespacesOf(map[mcs.Key]mcs.Export{gained: {Key: gained}})
	c.setPage(page, pageState{read: true, digest: "before"})
	s.Reads.ObserveMembers(nil, nil)
	if reads := s.Reads.StaleReads(time.Now()); len(reads) != 1 || len(reads[0].Pages) > 0 {
		t.Errorf("reads %+v, want the copy of the record alone", reads)
	}
	for key, want := range map[mcs.Key]int{gained: 1, other: 0} {
		if view, err := s.Lookup(key, nil); err != nil || len(view.In(registry.Unknown)) != want {
			t.Errorf("%v: unknown clusters %q, %v; want %d", key, view.In(registry.Unknown), err, want)
		}
	}
	used = []string{gained.Namespace}
	s.Reads.ObserveMembers(nil, nil)
	if reads := s.Reads.StaleReads(time.Now()); len(reads) != 1 || len(reads[0].Pages) != 1 {
		t.Errorf("reads %+v, want the page", reads)
	}
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
				c := s.catalogs.cluster(id)
				c.hasRecord, c.record = true, format.Member{ClusterID: id, Imports: report}
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
