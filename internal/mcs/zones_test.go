package mcs

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseZones(t *testing.T) {
	for text, want := range map[string]struct{ formatted, err string }{
		"eu-central-1b=euc1-az3,eu-central-1a=euc1-az2": {"eu-central-1a=euc1-az2,eu-central-1b=euc1-az3", ""},
		" eu-central-1a = euc1-az2 , zone-b ":           {"eu-central-1a=euc1-az2,zone-b", ""},
		"us-west-2-lax-1a=usw2-lax1-az1":                {"us-west-2-lax-1a=usw2-lax1-az1", ""},
		"":                                              {"", "must be the name of a zone and its ID"},
		"a=1,":                                          {"", "must be the name of a zone and its ID"},
		"a=":                                            {"", "must be the name of a zone and its ID"},
		"=euc1-az2":                                     {"", "must be the name of a zone and its ID"},
		"a=b=c":                                         {"", "must be the name of a zone and its ID"},
		"a b":                                           {"", "must be the name of a zone and its ID"},
		"a=" + strings.Repeat("x", 64):                  {"", "must be the name of a zone and its ID"},
		"eu-central-1a=euc1-az2,eu-central-1a=euc1-az3":       {"", "zone eu-central-1a must be listed once"},
		"eu-central-1a=euc1-az2\x00,eu-central-1b=\xffuc1-az": {"", "must be the name of a zone and its ID"},
	} {
		zones, err := ParseZones(text)
		if (want.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want.err) || zones.String() != want.formatted {
			t.Errorf("%q: %q, %v; want %q, %q", text, zones, err, want.formatted, want.err)
		}
	}
}

// withZones sets the zones of the endpoints of an export, one each.
func withZones(zones ...string) func(*Export) {
	return func(e *Export) {
		e.Backends[0].Endpoints = nil
		for i, zone := range zones {
			ep := readyEndpoint("10.10.0." + string(rune('1'+i)))
			ep.Zone = zone
			e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, ep)
		}
	}
}

// zonesOf returns the zones of the endpoints of an export.
func zonesOf(e Export) string {
	var out []string
	for _, b := range e.Backends {
		for _, ep := range b.Endpoints {
			out = append(out, ep.Zone)
		}
	}
	return strings.Join(out, " ")
}

func TestNameZones(t *testing.T) {
	for name, tt := range map[string]struct{ own, other, zones, want string }{
		"one account":                              {"a=1,b=2", "a=1,b=2", "a b", "a b"},
		"two accounts":                             {"a=1,b=2", "a=2,b=1", "a b", "b a"},
		"two accounts, in a circle":                {"a=1,b=2,c=3", "a=2,b=3,c=1", "a b c", "b c a"},
		"no node here in the zone":                 {"a=1", "a=1,b=2", "a b", "a 2"},
		"a zone of the same name is another one":   {"a=1", "a=2", "a", "2"},
		"an endpoint without a zone":               {"a=1", "a=2", " a", " 2"},
		"a zone that the exporter does not list":   {"a=1", "a=2", "c a", "c 2"},
		"no IDs here":                              {"a,b", "a=2,b=1", "a b", "a b"},
		"no zones here":                            {"", "a=2,b=1", "a b", "a b"},
		"no IDs there":                             {"a=1,b=2", "a,b", "a b", "a b"},
		"no zones there":                           {"a=1,b=2", "", "a b", "a b"},
		"an ID is missing there":                   {"a=1,b=2", "a,b=1", "a b", "a a"},
		"an ID is missing here":                    {"a,b=1", "a=2,b=1", "a b", "a b"},
		"an ID is missing here, another name fits": {"a,b=2", "a=2", "a", "b"},
		"several names of one zone":                {"b=1,a=1", "a=1,b=1,c=1", "a b c", "a b a"},
		"a text that is not valid":                 {"a=1,a=1", "a=2", "a", "a"},
		"names outside of AWS":                     {"a=1", "rack-1,rack-2", "rack-1 a", "rack-1 a"},
	} {
		t.Run(name, func(t *testing.T) {
			local, remote := webExport("cls1", 0, withZones(strings.Split(tt.zones, " ")...)), webExport("cls2", 0, withZones(strings.Split(tt.zones, " ")...))
			properties := map[string]Properties{"cls1": {PropertyZones: tt.own}, "cls2": {PropertyZones: tt.other}}
			got := NameZones([]Export{local, remote}, "cls1", properties)
			if zonesOf(got[1]) != tt.want || zonesOf(got[0]) != tt.zones {
				t.Errorf("zones %q, want %q; those of this cluster are %q", zonesOf(got[1]), tt.want, zonesOf(got[0]))
			}
			if zonesOf(remote) != tt.zones {
				t.Errorf("the export of the registry has zones %q", zonesOf(remote))
			}
		})
	}
	t.Run("properties are not known", func(t *testing.T) {
		remote := webExport("cls2", 0, withZones("a"))
		for _, properties := range []map[string]Properties{nil, {"cls1": {PropertyZones: "a=1"}}, {"cls2": {PropertyZones: "a=1"}}} {
			if got := NameZones([]Export{remote}, "cls1", properties); zonesOf(got[0]) != "a" {
				t.Errorf("zones %q", zonesOf(got[0]))
			}
		}
	})
}

// drawZones draws the zones of a cluster: some names, in any order, some with IDs.
func drawZones(t *rapid.T, label string) Zones {
	zones := Zones{}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.ID).Draw(t, label) {
		zones[name] = rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(t, "ID")
	}
	return zones
}

// With all IDs known, two zones have one name exactly if they are one zone. Without, names stay.
// The order of exports and zones makes no difference.
func TestNameZones_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		own, other := drawZones(t, "own"), drawZones(t, "other")
		properties := map[string]Properties{"cls1": {PropertyZones: own.String()}, "cls2": {PropertyZones: other.String()}, "cls3": {PropertyZones: drawZones(t, "third").String()}}
		names := []string{"a", "b", "c", "d", "e", ""}
		exports := []Export{webExport("cls1", 0, withZones(names...)), webExport("cls2", 1, withZones(names...)), webExport("cls3", 2, withZones(names...))}
		got := NameZones(exports, "cls1", properties)
		knows := slices.ContainsFunc([]string{"a", "b", "c", "d"}, func(name string) bool { return own[name] != "" })
		for i, name := range names {
			zone := got[1].Backends[0].Endpoints[i].Zone
			id := other[name]
			switch {
			case id == "" || !knows:
				if zone != name {
					t.Fatalf("zone %q without an ID is %q", name, zone)
				}
			case own[zone] == id, zone == id:
			case zone == name && own[name] == "": // unknown here
			default:
				t.Fatalf("zone %s with ID %s is %q, whose ID here is %q: own %s, other %s", name, id, zone, own[zone], own, other)
			}
		}
		order := rapid.Permutation([]int{0, 1, 2}).Draw(t, "order")
		var permuted []Export
		for _, i := range order {
			permuted = append(permuted, exports[i])
		}
		again := NameZones(permuted, "cls1", properties)
		for k, i := range order {
			if zonesOf(again[k]) != zonesOf(got[i]) {
				t.Fatalf("%s in another order: %q, not %q", exports[i].Cluster, zonesOf(again[k]), zonesOf(got[i]))
			}
		}
	})
}

// Zones take the place of nothing that a user has written, and networks not that of zones.
func TestProperties_PublishableZones(t *testing.T) {
	zones := strings.Repeat("x", 300)
	for name, tt := range map[string]struct {
		properties Properties
		want       string
	}{
		"room for all": {Properties{PropertyZones: zones, PropertyNetworks: zones, "a.example.com": "x"}, ""},
		"no room":      {Properties{PropertyZones: zones, PropertyNetworks: zones, "zz.example.com": strings.Repeat("x", 900)}, PropertyZones + " " + PropertyNetworks},
		"room for one": {Properties{PropertyZones: zones, PropertyNetworks: zones, "zz.example.com": strings.Repeat("x", 500)}, PropertyNetworks},
	} {
		if _, omitted := tt.properties.Publishable(); strings.Join(omitted, " ") != tt.want {
			t.Errorf("%s: omitted %v, want %s", name, omitted, tt.want)
		}
	}
}

func TestUnknownZones(t *testing.T) {
	for name, tt := range map[string]struct {
		zones map[string]Zones
		want  []UnknownZone
	}{
		"none":                    {nil, nil},
		"IDs everywhere":          {map[string]Zones{"cls1": {"a": "1"}, "cls2": {"a": "2", "b": "3"}}, nil},
		"no IDs":                  {map[string]Zones{"cls1": {"a": ""}, "cls2": {"a": ""}}, nil},
		"names that differ":       {map[string]Zones{"cls1": {"a": "1"}, "cls2": {"rack-1": ""}}, nil},
		"no ID in one":            {map[string]Zones{"cls1": {"a": "1"}, "cls2": {"a": ""}}, []UnknownZone{{Name: "a", IDs: []string{"1"}, Clusters: []string{"cls2"}}}},
		"two IDs, none in others": {map[string]Zones{"cls4": {"a": ""}, "cls1": {"a": "2"}, "cls2": {"a": "1"}, "cls5": {"a": "1"}, "cls3": {"a": ""}}, []UnknownZone{{Name: "a", IDs: []string{"1", "2"}, Clusters: []string{"cls3", "cls4"}}}},
		"two names":               {map[string]Zones{"cls1": {"b": "1", "a": ""}, "cls2": {"b": "", "a": "2"}}, []UnknownZone{{"a", []string{"2"}, []string{"cls1"}}, {"b", []string{"1"}, []string{"cls2"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, UnknownZones(tt.zones)); d != "" {
				t.Error(d)
			}
		})
	}
}

func FuzzParseZones(f *testing.F) {
	f.Add("eu-central-1a=euc1-az2,zone-b")
	f.Fuzz(func(t *testing.T, text string) {
		zones, err := ParseZones(text)
		if err != nil {
			return
		}
		again, err := ParseZones(zones.String())
		if d := cmp.Diff(zones, again); err != nil || d != "" {
			t.Errorf("%q: %v\n%s", text, err, d)
		}
	})
}
