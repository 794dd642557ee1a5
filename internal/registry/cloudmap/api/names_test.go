package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestByName: the order of a list does not decide which of several namespaces with a name counts.
func TestByName(t *testing.T) {
	all := []Namespace{
		{ID: "ns-1", Name: "a", HTTPName: "a-fm7n2lxfyexstqq5"}, {ID: "ns-3", Name: "a", HTTPName: "a"}, {ID: "ns-2", Name: "a", HTTPName: "a"},
		{ID: "ns-4", Name: "b", HTTPName: "b-fm7n2lxfyexstqq5"},
	}
	for range 2 {
		found, ambiguous := ByName(all)
		if found["a"].ID != "ns-2" || found["b"].ID != "ns-4" || len(found) != 2 {
			t.Errorf("found %v, want ns-2 and ns-4", found)
		}
		want := map[string]string{"a": "AWS Cloud Map has 3 namespaces a, ns-2 and ns-3 and ns-1: ns-2 counts"}
		if d := cmp.Diff(want, ambiguous); d != "" {
			t.Errorf("ambiguous (-want +got):\n%s", d)
		}
		slices.Reverse(all)
	}
}

// TestAdviceOnHTTPName: a denied read names the HttpName.
func TestAdviceOnHTTPName(t *testing.T) {
	if advice := deniedByRole("DiscoverInstances", "servicediscovery:DiscoverInstances"); !strings.Contains(advice, "HttpName") {
		t.Errorf("advice %q, want the HttpName", advice)
	}
}
