package mcs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// keysIn returns a number of services of a namespace.
func keysIn(namespace string, n int) []Key {
	keys := make([]Key, n)
	for i := range keys {
		keys[i] = Key{Namespace: namespace, Name: fmt.Sprint("web-", i)}
	}
	return keys
}

// keysOfNamespaces returns one service in each of a number of namespaces.
func keysOfNamespaces(n int) []Key {
	keys := make([]Key, n)
	for i := range keys {
		keys[i] = Key{Namespace: fmt.Sprint("shop-", i), Name: "web"}
	}
	return keys
}

func TestImportReport(t *testing.T) {
	web := Key{Namespace: "shop", Name: "web"}
	const imported, namespace, notImported, notReported = "imported", "namespace", "not imported", "not reported"
	for name, tt := range map[string]struct {
		imports map[string][]Key
		// want are the entries of the report about services of cls1.
		want map[Key]string
	}{
		"nothing imported": {nil, map[Key]string{web: notImported}},
		"a service": {map[string][]Key{"cls1": {web}}, map[Key]string{
			web: imported, {Namespace: "shop", Name: "db"}: notImported, {Namespace: "other", Name: "web"}: notImported,
		}},
		"the service of another cluster": {map[string][]Key{"cls2": {web}}, map[Key]string{web: notImported}},
		"as many services as fit": {map[string][]Key{"cls1": keysIn("shop", 249), "cls2": {web}}, map[Key]string{
			{Namespace: "shop", Name: "web-0"}: imported, {Namespace: "shop", Name: "web-248"}: imported, web: notImported,
		}},
		"more services than fit, in namespaces of two clusters": {
			map[string][]Key{"cls1": append(keysIn("shop", 200), keysIn("bank", 30)...), "cls2": keysIn("shop", 100)},
			map[Key]string{{Namespace: "shop", Name: "web-0"}: namespace, {Namespace: "bank", Name: "web-0"}: imported, {Namespace: "bank", Name: "web"}: notImported},
		},
		"as many namespaces as fit":    {map[string][]Key{"cls1": append(keysOfNamespaces(249), keysIn("shop", 300)...)}, map[Key]string{web: namespace, {Namespace: "shop-7", Name: "web"}: imported}},
		"more namespaces than fit":     {map[string][]Key{"cls1": keysOfNamespaces(251)}, map[Key]string{{Namespace: "shop-7", Name: "web"}: notReported}},
		"a service that appears twice": {map[string][]Key{"cls1": {web, web}}, map[Key]string{web: imported}},
	} {
		t.Run(name, func(t *testing.T) {
			report := NewImportReport(tt.imports, nil)
			if again, err := ParseImportReport(string(report)); err != nil || again != report {
				t.Fatalf("%q is read as %q, error %v", report, again, err)
			}
			for key, want := range tt.want {
				got := notImported
				switch i := FindImporters("cls1", key, map[string]ImportReport{"cls3": report}); {
				case len(i.Importing) > 0:
					got = imported
				case len(i.ImportingNamespace) > 0:
					got = namespace
				case len(i.NotReporting) > 0:
					got = notReported
				}
				if got != want {
					t.Errorf("%s is %s, want %s", key, got, want)
				}
			}
		})
	}
}

// TestImportReport_OverBudget: an exporting cluster finds which of its exports are over the budgets
// of another one, or that some are if they are many. That changes nothing about the imports.
func TestImportReport_OverBudget(t *testing.T) {
	web, db := Key{Namespace: "shop", Name: "web"}, Key{Namespace: "shop", Name: "db"}
	const over, some, within = "over", "some", "within"
	ofAll := func(clusters int) map[string]OverBudget {
		out := map[string]OverBudget{}
		for i := range clusters {
			out[fmt.Sprint("cls", i)] = OverBudget{Keys: []Key{web, db}}
		}
		return out
	}
	for name, tt := range map[string]struct {
		overBudget map[string]OverBudget
		want       map[Key]string
	}{
		"nothing":                      {map[string]OverBudget{"cls1": {}}, map[Key]string{web: within}},
		"a service":                    {map[string]OverBudget{"cls1": {Keys: []Key{web}}}, map[Key]string{web: over, db: within}},
		"of another cluster":           {map[string]OverBudget{"cls2": {Keys: []Key{web}}}, map[Key]string{web: within}},
		"others whose keys are hidden": {map[string]OverBudget{"cls1": {Keys: []Key{web}, HasOthers: true}}, map[Key]string{web: over, db: some}},
		"as many as fit":               {map[string]OverBudget{"cls1": {Keys: keysIn("shop", maxOverBudget)}}, map[Key]string{{Namespace: "shop", Name: "web-49"}: over, web: within}},
		"more services than fit":       {map[string]OverBudget{"cls1": {Keys: keysIn("shop", maxOverBudget+1)}}, map[Key]string{{Namespace: "shop", Name: "web-0"}: some, web: some}},
		"more clusters than fit":       {ofAll(maxOverBudget + 1), map[Key]string{web: some}},
	} {
		t.Run(name, func(t *testing.T) {
			report := NewImportReport(map[string][]Key{"cls1": keysIn("bank", 300), "cls3": {web}}, tt.overBudget)
			if again, err := ParseImportReport(string(report)); err != nil || again != report {
				t.Fatalf("%q is read as %q, error %v", report, again, err)
			}
			for key, want := range tt.want {
				i, got := FindImporters("cls1", key, map[string]ImportReport{"cls9": report}), within
				switch {
				case len(i.OverBudget) > 0:
					got = over
				case len(i.SomeOverBudget) > 0:
					got = some
				}
				if got != want || len(i.Importing)+len(i.ImportingNamespace)+len(i.NotReporting) > 0 {
					t.Errorf("%s is %s, want %s and not imported: %+v", key, got, want, i)
				}
			}
			if i := FindImporters("cls3", web, map[string]ImportReport{"cls9": report}); len(i.Importing) != 1 {
				t.Errorf("the import from cls3 is not reported: %+v", i)
			}
			if i := FindImporters("cls1", Key{Namespace: "bank", Name: "web-1"}, map[string]ImportReport{"cls9": report}); len(i.ImportingNamespace) != 1 {
				t.Errorf("the imports of the namespace are not reported: %+v", i)
			}
		})
	}
}

// A record is written with each heartbeat: the report of the same imports must not change.
func TestNewImportReport_HasOneOrder(t *testing.T) {
	keys := append(keysIn("bank", 150), keysIn("shop", 150)...)
	want := NewImportReport(map[string][]Key{"cls1": keys, "cls2": keys}, nil)
	for range 10 {
		slices.Reverse(keys)
		if got := NewImportReport(map[string][]Key{"cls2": keys, "cls1": keys}, nil); got != want {
			t.Fatalf("%q, then %q", want, got)
		}
	}
}

func TestParseImportReport_RefusesOthers(t *testing.T) {
	for name, text := range map[string]string{
		"a later version":        "2AAAA",
		"a part of an entry":     "1AAAABB",
		"another alphabet":       "1AAA+",
		"padding":                "1AAA=",
		"a line break":           "1\n000",
		"not sorted":             "1BBBBAAAA",
		"an entry twice":         "1AAAAAAAA",
		"too many entries":       "1" + strings.Repeat("AAAA", maxEntries+1),
		"a byte that is no text": "1AAA\xff",
	} {
		if report, err := ParseImportReport(text); err == nil || report != "" {
			t.Errorf("%s: read as %q without an error", name, report)
		}
	}
}

func FuzzParseImportReport(f *testing.F) {
	f.Add(string(NewImportReport(map[string][]Key{"cls1": keysIn("shop", 3)}, nil)), "cls1", "shop", "web-1")
	f.Add(string(NewImportReport(nil, nil)), "cls1", "shop", "web")
	f.Add(string(ManyImports), "cls1", "shop", "web")
	f.Fuzz(func(t *testing.T, text, exporter, namespace, name string) {
		report, err := ParseImportReport(text)
		if err != nil {
			if report != "" {
				t.Fatalf("%q is read as %q, with error %v", text, report, err)
			}
			return
		}
		if string(report) != text || len(text) > maxImportReportBytes || strings.ContainsFunc(text, func(r rune) bool { return r > '~' || r <= ' ' }) {
			t.Fatalf("%q is read as %q", text, report)
		}
		i := FindImporters(exporter, Key{Namespace: namespace, Name: name}, map[string]ImportReport{"cls3": report})
		if n := len(i.Importing) + len(i.ImportingNamespace) + len(i.NotReporting); n > 1 {
			t.Fatalf("%q reports %+v", text, i)
		}
	})
}

func TestFindImporters(t *testing.T) {
	web := Key{Namespace: "shop", Name: "web"}
	reports := map[string]ImportReport{
		"cls9": NewImportReport(map[string][]Key{"cls1": {web}}, nil),
		"cls2": NewImportReport(map[string][]Key{"cls1": {web}}, nil),
		"cls3": NewImportReport(nil, nil),
		"cls4": NewImportReport(map[string][]Key{"cls1": keysIn("shop", 300)}, nil),
		"cls5": "",
		"cls6": ManyImports,
	}
	want := Importers{
		Recipients: []string{"cls2", "cls3", "cls4", "cls5", "cls6", "cls9"}, Importing: []string{"cls2", "cls9"},
		ImportingNamespace: []string{"cls4"}, NotReporting: []string{"cls5", "cls6"},
	}
	got := FindImporters("cls1", web, reports)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("importers (-want +got):\n%s", diff)
	}
	if !got.IsSame(want) {
		t.Error("equal importers are not the same")
	}
	for cluster, report := range map[string]ImportReport{"cls2": "", "cls3": NewImportReport(map[string][]Key{"cls1": {web}}, nil), "cls4": NewImportReport(nil, nil), "cls0": ""} {
		before := reports[cluster]
		_, isKnown := reports[cluster]
		reports[cluster] = report
		if FindImporters("cls1", web, reports).IsSame(want) {
			t.Errorf("the importers are the same with report %q of %s", report, cluster)
		}
		if reports[cluster] = before; !isKnown {
			delete(reports, cluster)
		}
	}
}

func TestExportImported(t *testing.T) {
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprint("c", i)
	}
	for _, tt := range []struct {
		importers Importers
		want      string
	}{
		{Importers{}, "False NotImported: imported by no other cluster"},
		{Importers{Recipients: []string{"cls2"}}, "False NotImported: no other cluster has reported that it imports the service: one does if it has the namespace and imports into it, " +
			"and reports that within 40 seconds; kubectl mcs diagnose with its context shows the reason"},
		{Importers{Importing: []string{"cls2", "cls3"}}, "True Imported: imported by cls2, cls3"},
		{Importers{Importing: many}, "True Imported: imported by " + strings.Join(many[:16], ", ") + " and 4 more"},
		{
			Importers{Importing: []string{"cls2"}, ImportingNamespace: []string{"cls3"}, NotReporting: []string{"cls4", "cls5"}},
			"True Imported: imported by cls2; imported from the namespace by cls3, without a report of the services; not reported by cls4, cls5",
		},
		{Importers{NotReporting: []string{"cls4"}}, "Unknown NotReported: not reported by cls4"},
		{
			Importers{ImportingNamespace: []string{"cls4"}},
			"Unknown NotReported: imported from the namespace by cls4, without a report of the services",
		},
		{
			Importers{OverBudget: []string{"cls3"}},
			"False OverBudget: over the budgets of cls3, where an earlier version or none is imported: kubectl mcs check there names the budget",
		},
		{
			Importers{Importing: []string{"cls2", "cls3"}, OverBudget: []string{"cls3"}},
			"True Imported: imported by cls2, cls3; over the budgets of cls3, where an earlier version or none is imported: kubectl mcs check there names the budget",
		},
		{
			Importers{SomeOverBudget: []string{"cls3"}},
			"Unknown NotReported: over the budgets of cls3 are some exports of this cluster, without a report of which",
		},
	} {
		c := ExportImported(tt.importers)
		if got := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
	}
}
