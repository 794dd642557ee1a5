package mcs

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKeyFilter_Allows(t *testing.T) {
	keys := []string{"team", "tier", "app.kubernetes.io/name", "example.com/team", "example.com/tier", "istio.io/global", "EXAMPLE.com/team"}
	for text, want := range map[string]string{
		DefaultMetadataKeys:        "team tier app.kubernetes.io/name",
		NoMetadataKeys:             "",
		"*":                        "team tier",
		"*/*":                      "app.kubernetes.io/name example.com/team example.com/tier istio.io/global EXAMPLE.com/team",
		"*,*/*":                    strings.Join(keys, " "),
		"te*, example.com/tier":    "team example.com/tier",
		"*/team":                   "example.com/team EXAMPLE.com/team",
		"example.com/*,istio.io/g": "example.com/team example.com/tier",
	} {
		f, err := ParseKeyFilter(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !f.allows(k) })
		if d := cmp.Diff(strings.Fields(want), append([]string{}, got...)); d != "" {
			t.Errorf("%q (-want +got):\n%s", text, d)
		}
	}
	for _, text := range []string{"", ",", "a,", "/a", "a/", "a/b/c", "*.example.com/a", "te*m", "a b", "example.com/a b", "none,team*x", "**"} {
		if _, err := ParseKeyFilter(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestKeyFilter_ApplyKeepsConflicts(t *testing.T) {
	exports := []Export{
		{Cluster: "cls1", Labels: map[string]string{"team": "a", "istio.io/global": "true"}, Annotations: map[string]string{"istio.io/global": "x"}},
		{Cluster: "cls2", Labels: map[string]string{"team": "a", "istio.io/global": "false"}},
	}
	m := Merge(exports)
	conflicts, before := slices.Clone(m.Conflicts), maps.Clone(exports[0].Labels)
	f, err := ParseKeyFilter(DefaultMetadataKeys)
	if err != nil {
		t.Fatal(err)
	}
	removed := f.Apply(&m)
	if !slices.Equal(removed, []string{"istio.io/global"}) || !maps.Equal(m.Labels, map[string]string{"team": "a"}) || len(m.Annotations) > 0 {
		t.Errorf("removed %v, left labels %v and annotations %v", removed, m.Labels, m.Annotations)
	}
	if len(conflicts) == 0 || !slices.Equal(m.Conflicts, conflicts) || !maps.Equal(exports[0].Labels, before) {
		t.Errorf("conflicts %v, exported labels %v; want them as before", m.Conflicts, exports[0].Labels)
	}
}

func TestKeyFilter_ZeroAllowsEverything(t *testing.T) {
	m := Merged{Labels: map[string]string{"example.com/a": "b"}}
	if removed := (KeyFilter{}).Apply(&m); len(removed) > 0 || len(m.Labels) != 1 {
		t.Errorf("removed %v", removed)
	}
}
