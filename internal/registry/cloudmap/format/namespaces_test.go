package format

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// exportsIn returns an export in each of the namespaces.
func exportsIn(namespaces ...string) map[mcs.Key]mcs.Export {
	exports := map[mcs.Key]mcs.Export{}
	for _, namespace := range namespaces {
		key := mcs.Key{Namespace: namespace, Name: "web"}
		exports[key] = mcs.Export{Key: key}
	}
	return exports
}

// namespaceNames returns the names of n namespaces.
func namespaceNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("team-", i))
	}
	return names
}

// TestNamespaces checks that a page has its namespaces and hardly any others, and that nothing is
// said of a page with too many.
func TestNamespaces(t *testing.T) {
	page := NamespacesOf(exportsIn("demo", "shop"))
	for _, namespace := range []string{"demo", "shop"} {
		if !page.Has(NamespaceCode(namespace)) {
			t.Errorf("%q has not namespace %s", page, namespace)
		}
	}
	others := 0
	for _, namespace := range namespaceNames(4096) {
		if page.Has(NamespaceCode(namespace)) {
			others++
		}
	}
	if others > 10 {
		t.Errorf("%q has %d of 4,096 other namespaces, want about 2", page, others)
	}
	if got := NamespacesOf(exportsIn(namespaceNames(maxCodes)...)); len(got) != maxCodes*codeLength {
		t.Errorf("%d namespaces are %q", maxCodes, got)
	}
	if got := NamespacesOf(exportsIn(namespaceNames(2 * maxCodes)...)); got != "" {
		t.Errorf("too many namespaces are %q, want nothing", got)
	}
}

// TestParseNamespaces checks that a list which does not fit the announced pages says nothing of
// them.
func TestParseNamespaces(t *testing.T) {
	pages := Digests{3: Digest([]byte("a")), 7: Digest([]byte("b"))}
	both := PageNamespaces{3: NamespacesOf(exportsIn("demo")), 7: NamespacesOf(exportsIn("demo", "shop"))}
	second := PageNamespaces{7: both[7]}
	for name, tt := range map[string]struct {
		list string
		want PageNamespaces
	}{
		"none":                 {"", PageNamespaces{}},
		"both pages":           {encodeNamespaces(pages, both), both},
		"the first is unknown": {encodeNamespaces(pages, second), second},
		"too few":              {string(both[3]), PageNamespaces{}},
		"too many":             {encodeNamespaces(pages, both) + ",", PageNamespaces{}},
		"half a code":          {string(both[3]) + ",A", PageNamespaces{}},
		"no code":              {string(both[3]) + ",A*", PageNamespaces{}},
		"not sorted":           {string(both[3]) + ",BBAA", PageNamespaces{}},
		"twice":                {string(both[3]) + ",AAAA", PageNamespaces{}},
		"more than a page has": {string(both[3]) + "," + strings.Repeat("A", 2*maxCodes+2), PageNamespaces{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := testMember()
			r.Pages, r.Namespaces = pages, PageNamespaces{}
			instance := r.Instance(theSigner)
			if tt.list != "" {
				instance.Attributes[AttrNamespaces] = tt.list
			}
			got, err := ParseMember(Sign(instance, theSigner), "set1")
			if err != nil || got.Namespaces != tt.want {
				t.Errorf("%q is read as %q, %v; want %q", tt.list, got.Namespaces, err, tt.want)
			}
		})
	}
	if got := encodeNamespaces(pages, PageNamespaces{}); got != "" {
		t.Errorf("nothing is known of the pages, and the record has %q", got)
	}
}
