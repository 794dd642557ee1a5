package mcs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// The example of story 1 of KEP-5939.
const storyOne = `[
  {"propertySelector": {"matchExpressions": [{"key": "cluster.clusterset.k8s.io", "operator": "In", "values": ["@SameAsImporter@"]}]}},
  {"propertySelector": {"matchProperties": {"region.topology.k8s.io": "@SameAsImporter@"}}},
  {"propertySelector": {"matchProperties": {"continent.topology.k8s.io": "@SameAsImporter@"}}}
]`

func TestParseClusterSelectors(t *testing.T) {
	one := `{"propertySelector":{"matchProperties":{"a.example.com":"1"}}}`
	tests := []struct {
		name, text string
		want       ClusterSelectors
		wantErr    string
	}{
		{name: "nothing"},
		{name: "white space", text: " \n"},
		{name: "an empty list", text: "[]"},
		{name: "null", text: "null"},
		{
			name: "story 1 of the KEP", text: storyOne,
			want: `[{"propertySelector":{"matchExpressions":[{"key":"cluster.clusterset.k8s.io","operator":"In","values":["@SameAsImporter@"]}]}},` +
				`{"propertySelector":{"matchProperties":{"region.topology.k8s.io":"@SameAsImporter@"}}},` +
				`{"propertySelector":{"matchProperties":{"continent.topology.k8s.io":"@SameAsImporter@"}}}]`,
		},
		{
			name: "the order of properties does not matter",
			text: `[{"propertySelector":{"matchProperties":{"b":"2","a":"1"}}}]`, want: `[{"propertySelector":{"matchProperties":{"a":"1","b":"2"}}}]`,
		},
		{name: "a value that is no label value", text: `[{"propertySelector":{"matchProperties":{"a":"ü / x"}}}]`, want: `[{"propertySelector":{"matchProperties":{"a":"ü / x"}}}]`},
		{name: "16 selectors", text: "[" + strings.Repeat(one+",", 15) + one + "]", want: ClusterSelectors("[" + strings.Repeat(one+",", 15) + one + "]")},
		{name: "17 selectors", text: "[" + strings.Repeat(one+",", 16) + one + "]", wantErr: "17 selectors, more than 16"},
		{name: "no JSON", text: "{", wantErr: "parsing the list"},
		{name: "no list", text: one, wantErr: "parsing the list"},
		{name: "text after the list", text: "[] []", wantErr: "parsing the list"},
		{name: "no criterion", text: "[{}]", wantErr: "selector 1: propertySelector is empty"},
		{name: "an empty selector", text: "[" + one + `,{"propertySelector":{}}]`, wantErr: "selector 2: propertySelector is empty"},
		{name: "an unknown criterion", text: `[{"propertySelector":{"matchProperties":{"a":"1"}},"cel":"true"}]`, wantErr: "unknown field"},
		{name: "the field of an older text of the KEP", text: `[{"propertySelector":{"matchLabels":{"a":"1"}}}]`, wantErr: "unknown field"},
		{name: "a field in another case", text: `[{"PropertySelector":{"matchProperties":{"a":"1"}}}]`, wantErr: "unknown field"},
		{name: "a duplicate field", text: `[{"propertySelector":{"matchProperties":{"a":"1","a":"2"}}}]`, wantErr: "duplicate field"},
		{name: "a key that no ClusterProperty can have", text: `[{"propertySelector":{"matchProperties":{"topology.kubernetes.io/region":"x"}}}]`, wantErr: "not the name of a ClusterProperty"},
		{name: "an unknown operator", text: `[{"propertySelector":{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}}]`, wantErr: `operator "Gt" of "a"`},
		{name: "In without values", text: `[{"propertySelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}]`, wantErr: "needs values"},
		{name: "Exists with values", text: `[{"propertySelector":{"matchExpressions":[{"key":"a","operator":"Exists","values":["1"]}]}}]`, wantErr: "has no values"},
		{name: "too long", text: `[{"propertySelector":{"matchProperties":{"a":"` + strings.Repeat("x", maxClusterSelectorBytes) + `"}}}]`, wantErr: "more than 2048"},
		{name: "much too long", text: strings.Repeat(" ", maxAnnotationBytes+1), wantErr: "more than 4096"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseClusterSelectors(tt.text)
			if got != tt.want || (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%s, %v; want %s, %q", got, err, tt.want, tt.wantErr)
			}
		})
	}
}

// The result for any text of another cluster is bounded, valid, and its own canonical form.
func FuzzParseClusterSelectors(f *testing.F) {
	f.Add(storyOne)
	f.Add(`[{"propertySelector":{"matchExpressions":[{"key":"a","operator":"NotIn","values":["@SameAsImporter@",""]}]}}]`)
	f.Add(`[{"propertySelector":null}]`)
	f.Add("\xff")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseClusterSelectors(text)
		if err != nil {
			if got != "" {
				t.Fatalf("%q with error %v", got, err)
			}
			return
		}
		again, err := ParseClusterSelectors(string(got))
		if err != nil || again != got {
			t.Fatalf("%q is parsed as %q, %v", got, again, err)
		}
		if len(got) > maxClusterSelectorBytes || len(got.List()) > maxClusterSelectors {
			t.Fatalf("%d bytes, %d selectors", len(got), len(got.List()))
		}
		tiers := got.Tiers(Properties{"a": "1"}, map[string]Properties{"cls1": {"a": "1"}, "cls2": nil})
		if len(tiers) != len(got.List()) || !cmp.Equal(DecodeTiers(EncodeTiers(tiers)), tiers) {
			t.Fatalf("tiers %+v of %q", tiers, got)
		}
	})
}

func FuzzDecodeProperties(f *testing.F) {
	f.Add(Properties{PropertyRegion: "eu", "note.example.com": "ünïcode 🌍 <x>"}.Encode())
	f.Add("{}")
	f.Add("null")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := DecodeProperties(text)
		if err != nil {
			return
		}
		published, _ := p.Publishable()
		encoded := published.Encode()
		again, err := DecodeProperties(encoded)
		if err != nil || !cmp.Equal(published, again) {
			t.Fatalf("%q is decoded as %v, %v", encoded, again, err)
		}
		if len(encoded) > maxPropertyBytes || strings.ContainsFunc(encoded, func(r rune) bool { return r > '~' || r < ' ' }) {
			t.Fatalf("%q has %d bytes, or characters that are not printable ASCII", encoded, len(encoded))
		}
	})
}

func TestClusterSelectors_Tiers(t *testing.T) {
	clusters := map[string]Properties{
		"cls1": {"region.topology.k8s.io": "eu-west-1", "gpu": "high"},
		"cls2": {"region.topology.k8s.io": "eu-west-1"},
		"cls3": {"region.topology.k8s.io": "us-east-1", "gpu": "low"},
		"cls4": nil,
	}
	for id, p := range clusters {
		clusters[id] = p.OfCluster(id, "set")
	}
	selector := func(properties string, expressions ...string) string {
		return `{"propertySelector":{"matchProperties":` + properties + `,"matchExpressions":[` + strings.Join(expressions, ",") + `]}}`
	}
	expression := func(key, operator string, values ...string) string {
		list, _ := json.Marshal(values)
		return fmt.Sprintf(`{"key":%q,"operator":%q,"values":%s}`, key, operator, list)
	}
	tests := []struct {
		name, importer, selector string
		want                     string
	}{
		{"the own cluster", "cls2", selector(`{"cluster.clusterset.k8s.io":"@SameAsImporter@"}`), "cls2"},
		{"an importer that does not export", "cls9", selector(`{"cluster.clusterset.k8s.io":"@SameAsImporter@"}`), ""},
		{"the same Region", "cls1", selector(`{"region.topology.k8s.io":"@SameAsImporter@"}`), "cls1 cls2"},
		{"an importer without a Region", "cls4", selector(`{"region.topology.k8s.io":"@SameAsImporter@"}`), ""},
		{"another Region", "cls1", selector(`{}`, expression("region.topology.k8s.io", "NotIn", "@SameAsImporter@")), "cls3 cls4"},
		{"not the Region of an importer without one", "cls4", selector(`{}`, expression("region.topology.k8s.io", "NotIn", "@SameAsImporter@")), ""},
		{"the same Region or a named one", "cls3", selector(`{}`, expression("region.topology.k8s.io", "In", "eu-west-1", "@SameAsImporter@")), "cls1 cls2 cls3"},
		{"a value", "cls4", selector(`{"gpu":"high"}`), "cls1"},
		{"exists", "cls4", selector(`{}`, expression("gpu", "Exists")), "cls1 cls3"},
		{"does not exist", "cls4", selector(`{}`, expression("gpu", "DoesNotExist")), "cls2 cls4"},
		{"all requirements", "cls1", selector(`{"region.topology.k8s.io":"@SameAsImporter@"}`, expression("gpu", "Exists")), "cls1"},
		{"the clusterset", "cls1", selector(`{"clusterset.k8s.io":"set"}`), "cls1 cls2 cls3 cls4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parsed, err := ParseClusterSelectors("[" + tt.selector + "]")
			if err != nil {
				t.Fatal(err)
			}
			importer := clusters[tt.importer]
			if importer == nil {
				importer = Properties{}.OfCluster(tt.importer, "set")
			}
			tiers := parsed.Tiers(importer, clusters)
			if got := strings.Join(tiers[0].Clusters, " "); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestSelectionRequest_Decide(t *testing.T) {
	cluster, _ := PreferSameCluster.Selectors()
	region, _ := PreferSameRegion.Selectors()
	list := map[string]string{AnnotationClusterSelectors: string(region)}
	preference := func(p ClusterPreference) map[string]string {
		return map[string]string{AnnotationClusterPreference: string(p)}
	}
	tests := []struct {
		name    string
		request SelectionRequest
		want    Selection
		wantErr string
	}{
		{"nothing", SelectionRequest{}, Selection{}, ""},
		{"the cluster", SelectionRequest{Default: PreferSameCluster}, Selection{Selectors: cluster}, ""},
		{"the namespace overrides the cluster", SelectionRequest{Default: PreferSameCluster, Namespace: preference(PreferSameRegion)}, Selection{Selectors: region}, ""},
		{"the namespace takes it back", SelectionRequest{Default: PreferSameCluster, Namespace: preference(PreferNoCluster)}, Selection{}, ""},
		{"the export overrides the namespace", SelectionRequest{Namespace: preference(PreferSameRegion), Export: preference(PreferSameCluster)}, Selection{Selectors: cluster, IsOwn: true}, ""},
		{"the list overrides the short form", SelectionRequest{Export: preference(PreferSameCluster), Exported: list}, Selection{Selectors: region, IsOwn: true}, ""},
		{"an empty list takes it back", SelectionRequest{Default: PreferSameRegion, Exported: map[string]string{AnnotationClusterSelectors: "[]"}}, Selection{IsOwn: true}, ""},
		{"a minimum", SelectionRequest{Exported: map[string]string{AnnotationMinimumReady: "20%"}, Default: PreferSameCluster}, Selection{Selectors: cluster, MinimumReady: 20}, ""},
		{"a minimum without selectors", SelectionRequest{Exported: map[string]string{AnnotationMinimumReady: "20%"}}, Selection{}, ""},
		{"a minimum that is no percentage", SelectionRequest{Exported: map[string]string{AnnotationMinimumReady: "20"}, Default: PreferSameCluster}, Selection{IsOwn: true}, "not a percentage"},
		{"a list that is not valid", SelectionRequest{Exported: map[string]string{AnnotationClusterSelectors: "[{}]"}, Default: PreferSameRegion}, Selection{IsOwn: true}, "propertySelector is empty"},
		{"a preference of the export that is not valid", SelectionRequest{Export: preference("Near"), Default: PreferSameRegion}, Selection{IsOwn: true}, `"Near" is none of`},
		{"a preference of the namespace that is not valid", SelectionRequest{Namespace: preference("Near"), Default: PreferSameRegion}, Selection{}, "of the namespace"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.request.Decide()
			if got != tt.want || (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%+v, %v; want %+v, %q", got, err, tt.want, tt.wantErr)
			}
		})
	}
}

func TestMerge_ClusterSelectors(t *testing.T) {
	cluster, _ := PreferSameCluster.Selectors()
	export := func(id string, selectors ClusterSelectors, minimum int32) Export {
		e := servingPorts(id, mcsv1beta1.ClusterSetIP, "http:80", "10.0.0.1")
		e.ClusterSelectors, e.MinimumReady = selectors, minimum
		return e
	}
	m := Merge([]Export{export("cls1", cluster, 20), export("cls2", cluster, 20)})
	if m.ClusterSelectors != cluster || m.MinimumReady != 20 || len(m.Conflicts) != 0 {
		t.Errorf("exports that agree: %+v", m)
	}
	for name, other := range map[string]Export{"without": export("cls2", "", 0), "another minimum": export("cls2", cluster, 0)} {
		m := Merge([]Export{other, export("cls1", cluster, 20)})
		if m.ClusterSelectors != cluster || m.MinimumReady != 20 || len(m.Conflicts) != 1 || m.Conflicts[0].Reason != ReasonClusterSelectorsConflict {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func TestSanitize_ClusterSelectors(t *testing.T) {
	cluster, _ := PreferSameCluster.Selectors()
	tests := []struct {
		name      string
		kind      mcsv1beta1.ServiceImportType
		selectors ClusterSelectors
		minimum   int32
		want      ClusterSelectors
		wantLine  string
	}{
		{"valid", mcsv1beta1.ClusterSetIP, cluster, 20, cluster, ""},
		{"not canonical", mcsv1beta1.ClusterSetIP, " " + cluster, 0, cluster, ""},
		{"not valid", mcsv1beta1.ClusterSetIP, "[{}]", 20, "", "clusterSelectors left out"},
		{"an impossible minimum", mcsv1beta1.ClusterSetIP, cluster, 101, cluster, "not between 0 and 100"},
		{"headless", mcsv1beta1.Headless, cluster, 20, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := servingPorts("cls1", tt.kind, "http:80", "10.0.0.1")
			e.ClusterSelectors, e.MinimumReady = tt.selectors, tt.minimum
			got, lines, err := Sanitize(e)
			if err != nil || got.ClusterSelectors != tt.want || !strings.Contains(strings.Join(lines, "\n"), tt.wantLine) || tt.want == "" && got.MinimumReady != 0 {
				t.Errorf("%q, %d %%, %v, %v", got.ClusterSelectors, got.MinimumReady, lines, err)
			}
		})
	}
}

func TestProperties_Publishable(t *testing.T) {
	p := Properties{"cluster.clusterset.k8s.io": "cls9", "clusterset.k8s.io": "other", "Not_a_name": "x", "bad-value": "\xff", PropertyZone: "a", PropertyRegion: "eu"}
	for i := range 100 {
		p[fmt.Sprintf("a%02d.example.com", i)] = "0123456789"
	}
	got, omitted := p.Publishable()
	if len(got.Encode()) > maxPropertyBytes || len(got.Encode()) < maxPropertyBytes-100 {
		t.Errorf("%d bytes", len(got.Encode()))
	}
	if got[PropertyRegion] != "eu" || got[PropertyZone] != "a" || got["a00.example.com"] == "" {
		t.Errorf("region, zone or the first property is missing: %v", got)
	}
	for _, name := range []string{"Not_a_name", "bad-value", "a99.example.com"} {
		if !slices.Contains(omitted, name) {
			t.Errorf("%s is not reported as omitted", name)
		}
	}
	if len(got)+len(omitted)+2 != len(p) {
		t.Errorf("%d published, %d omitted of %d with two that identify the cluster", len(got), len(omitted), len(p))
	}
	of := got.OfCluster("cls1", "set")
	if of["cluster.clusterset.k8s.io"] != "cls1" || of["clusterset.k8s.io"] != "set" {
		t.Errorf("the identity is %v", of)
	}
	if _, err := DecodeProperties(of.Encode()); err == nil {
		t.Error("a record may have properties that identify a cluster")
	}
}

func TestDecodedProperties(t *testing.T) {
	var d DecodedProperties
	for _, tc := range []struct {
		text string
		want Properties
	}{
		{"", nil}, {`{"a":"1"}`, Properties{"a": "1"}}, {`{"a":"1"}`, Properties{"a": "1"}}, {`{"a":"2"}`, Properties{"a": "2"}}, {"{", nil}, {"", nil},
	} {
		if got := d.Decode(tc.text); !maps.Equal(got, tc.want) {
			t.Errorf("Decode(%q) = %v, want %v", tc.text, got, tc.want)
		}
	}
	d.Decode(`{"a":"3"}`)
	if n := testing.AllocsPerRun(10, func() { d.Decode(`{"a":"3"}`) }); n > 0 {
		t.Errorf("decoding the same text again allocates %v times", n)
	}
}
