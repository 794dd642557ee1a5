package mcs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

func TestParseRecipients(t *testing.T) {
	ids := func(list string) ClusterSelectors {
		return ClusterSelectors(`[{"propertySelector":{"matchExpressions":[{"key":"cluster.clusterset.k8s.io","operator":"In","values":[` + list + `]}]}}]`)
	}
	const prod = `[{"propertySelector":{"matchProperties":{"env.example.com":"prod"}}}]`
	for text, want := range map[string]ClusterSelectors{
		"*": "", " * ": "", "cls2": ids(`"cls2"`), "cls3, cls2,cls3": ids(`"cls2","cls3"`), prod: prod, " " + prod: prod,
	} {
		got, err := ParseRecipients(text)
		if got != want || err != nil {
			t.Errorf("ParseRecipients(%q) is %q, %v, want %q", text, got, err, want)
		}
		if again, err := ParseRecipients(string(got)); got != "" && (again != got || err != nil) {
			t.Errorf("ParseRecipients(%q) is %q, %v, want the same", got, again, err)
		}
	}
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprint("cluster-", i))
	}
	for _, text := range []string{
		"", " ", ",", "cls2,", "Cls2", "*,cls2", "[]", "[", `[{}]`, `[{"propertySelector":{}}]`, strings.Repeat("a", 64),
		`[{"propertySelector":{"matchProperties":{"env.example.com":"@SameAsImporter@"}}}]`, strings.Repeat("cluster-with-a-long-name,", 200) + "a", strings.Join(many, ","),
	} {
		if got, err := ParseRecipients(text); err == nil || got != "" || len(err.Error()) > 400 {
			t.Errorf("ParseRecipients(%q) is %q, %v, want a short error", abbreviate(text), got, err)
		}
	}
}

func TestExport_IsFor(t *testing.T) {
	for _, tt := range []struct {
		recipients string
		want       bool
	}{
		{"*", true}, {"cls1,cls2", true}, {"cls3", false},
		{`[{"propertySelector":{"matchProperties":{"env.example.com":"prod"}}}]`, true},
		{`[{"propertySelector":{"matchProperties":{"env.example.com":"dev"}}},{"propertySelector":{"matchExpressions":[{"key":"env.example.com","operator":"Exists"}]}}]`, true},
		{`[{"propertySelector":{"matchProperties":{"env.example.com":"prod","clusterset.k8s.io":"other"}}}]`, false},
		{string(noRecipients), false},
	} {
		recipients, err := ParseRecipients(tt.recipients)
		if err != nil {
			t.Fatal(err)
		}
		importer := Properties{"env.example.com": "prod"}.OfCluster("cls2", "set")
		if got := (Export{Recipients: recipients}).IsFor(importer); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.recipients, got, tt.want)
		}
	}
	if (Export{Recipients: "not JSON"}).IsFor(Properties{}.OfCluster("cls2", "set")) {
		t.Error("an export is for a cluster that nothing selects")
	}
	if e := (Export{Key: Key{Namespace: "n", Name: "web"}, Cluster: "cls1", Type: mcsv1beta1.Headless, Recipients: "not JSON"}); e.Recipients != "" {
		if _, _, err := Sanitize(e); err == nil {
			t.Error("an export with recipients that are not valid is used")
		}
	}
}

// Importers that are recipients of the same exports agree on the service and its conflicts,
// whatever their order and whatever else is exported to others: the exports that reach a cluster
// decide alone.
func TestMerge_AgreesAmongRecipients(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	agreed := 0
	for range 2000 {
		var exports []Export
		for i := range 1 + random.IntN(5) {
			e := servingPorts(fmt.Sprint("cls", i), mcsv1beta1.ClusterSetIP, []string{"http:80", "web:80", "http:8080"}[random.IntN(3)], fmt.Sprintf("10.%d.0.1", i))
			e.Created = time.Date(2024, 1, 1+random.IntN(3), 0, 0, 0, 0, time.UTC)
			e.Recipients, _ = ParseRecipients([]string{"*", "imp1,imp2", "imp1", "imp2,imp3", "imp3"}[random.IntN(5)])
			exports = append(exports, e)
		}
		reaching := func(importer string) []Export {
			list := slices.Clone(exports)
			random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			return slices.DeleteFunc(list, func(e Export) bool { return !e.IsFor(Properties{}.OfCluster(importer, "set")) })
		}
		clusters := func(list []Export) (names []string) {
			for _, e := range list {
				names = append(names, e.Cluster)
			}
			slices.Sort(names)
			return names
		}
		one, two := reaching("imp1"), reaching("imp2")
		if len(one) == 0 || !slices.Equal(clusters(one), clusters(two)) {
			continue
		}
		agreed++
		m := Merge(one)
		if d := cmp.Diff(m, Merge(two)); d != "" {
			t.Fatalf("two clusters with the same view differ: %s", d)
		}
		if !slices.Equal(m.Clusters, clusters(one)) {
			t.Fatalf("merged are %v, reaching are %v", m.Clusters, clusters(one))
		}
	}
	if agreed < 100 {
		t.Errorf("%d views were equal, which tests nothing", agreed)
	}
}

func TestExportRecipients(t *testing.T) {
	recipients, _ := ParseRecipients("cls2")
	var many []string
	for i := range 60 {
		many = append(many, fmt.Sprint("c", i))
	}
	for _, tt := range []struct {
		recipients ClusterSelectors
		clusters   []string
		want       string
	}{
		{"", nil, "False AllClusters: exported to all clusters"},
		{recipients, nil, "True NoClusters: exported to no other member of the clusterset"},
		{recipients, []string{"cls2", "cls3"}, "True SomeClusters: exported to cluster cls2, cls3"},
		{recipients, many, "True SomeClusters: exported to cluster " + strings.Join(many[:50], ", ") + " and 10 more"},
	} {
		c := ExportRecipients(tt.recipients, tt.clusters)
		if got := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
	}
}
