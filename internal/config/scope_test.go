package config

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func TestNamespaceSelector(t *testing.T) {
	namespaces := map[string]labels.Set{
		"kube-system": {"kubernetes.io/metadata.name": "kube-system"},
		"default":     {"kubernetes.io/metadata.name": "default"},
		"shop":        {"kubernetes.io/metadata.name": "shop", "team": "a", "example.com/mcs": "yes"},
		"blog":        {"kubernetes.io/metadata.name": "blog", "team": "b"},
	}
	tests := []struct {
		text    string
		want    string
		wantErr string
	}{
		{text: Default().Scope.ExportNamespaces, want: "blog,default,shop"},
		{text: Default().Scope.ImportNamespaces, want: "blog,default,shop"},
		{text: "shop", want: "shop"},
		{text: " shop , kube-system", want: "kube-system,shop"},
		{text: "team", want: ""}, // a name, of no namespace
		{text: "team,kubernetes.io/metadata.name", want: "blog,shop"},
		{text: "team=a", want: "shop"},
		{text: "team in (a,b)", want: "blog,shop"},
		{text: "team!=a", want: "blog,default,kube-system"},
		{text: "!team", want: "default,kube-system"},
		{text: "example.com/mcs", want: "shop"},
		{text: "kubernetes.io/metadata.name", want: "blog,default,kube-system,shop"},
		{text: "!kubernetes.io/metadata.name", want: ""},
		{text: "", wantErr: `"kubernetes.io/metadata.name" selects all`},
		{text: "  ", wantErr: "must select namespaces"},
		{text: "team==a=b", wantErr: "must be a label selector such as"},
		{text: "a,,b", wantErr: "must be a label selector"},
		{text: "Shop,blog team", wantErr: "must be a label selector"},
		{text: strings.Repeat("a", 64), wantErr: "must be a list of namespaces"},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			selector, err := NamespaceSelector(tt.text)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for name, set := range namespaces {
				if selector.Matches(set) {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			if strings.Join(got, ",") != tt.want {
				t.Errorf("selects %v, want %s", got, tt.want)
			}
		})
	}
}

func TestServiceSelector(t *testing.T) {
	for text, want := range map[string]bool{"": false, " ": false, "mcs=yes": true, "mcs": true, "mcs=no": false, "!mcs": false} {
		selector, err := ServiceSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := selector.Matches(labels.Set{"mcs": "yes"}); got != want {
			t.Errorf("%q selects it: %t, want %t", text, got, want)
		}
	}
	if _, err := ServiceSelector("a b"); err == nil {
		t.Error(`"a b" is accepted`)
	}
}
