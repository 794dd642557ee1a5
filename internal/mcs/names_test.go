package mcs

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestDerivedName(t *testing.T) {
	// Users refer to these names in dashboards and policies: they must never change.
	for key, want := range map[Key]string{
		{Namespace: "demo", Name: "nginx-hello"}:   "imported-s7godqwwgvtgy2scvval",
		{Namespace: "default", Name: "kubernetes"}: "imported-ifobkqj5rvzjhtdftcad",
	} {
		if got := DerivedName(key); got != want {
			t.Errorf("DerivedName(%s) = %q, want %q", key, got, want)
		}
		short := want[:len("imported-")+10] // of versions before 0.1.0
		if got := ShortDerivedName(key); got != short {
			t.Errorf("ShortDerivedName(%s) = %q, want %q", key, got, short)
		}
		if got := ShortenDerivedName(want) + ShortenDerivedName(short) + ShortenDerivedName(""); got != short+short {
			t.Errorf("the short names of %q, of itself and of nothing are %q", want, got)
		}
		if !IsDerivedNameOf(want, key) || !IsDerivedNameOf(short, key) || IsDerivedNameOf(want[:len(want)-1], key) || IsDerivedNameOf("", key) {
			t.Errorf("IsDerivedNameOf(%s) accepts other names than %q and %q", key, want, short)
		}
	}
	if DerivedName(Key{"ab", "c"}) == DerivedName(Key{"a", "bc"}) {
		t.Error("namespace and name run into each other")
	}
	seen := map[string]bool{}
	for i := range 10_000 {
		name := DerivedName(Key{Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("svc-%d", i)})
		if len(validation.IsDNS1035Label(name)) > 0 {
			t.Fatalf("%q is no Service name", name)
		}
		seen[name] = true
	}
	if len(seen) != 10_000 {
		t.Errorf("%d different names of 10000", len(seen))
	}
}

func TestCutDerivedName(t *testing.T) {
	const short, long = "imported-abcdefghij", "imported-abcdefghijklmnopqrst"
	for name, want := range map[string][2]string{
		short: {short}, long: {long}, short + "-cls1-ipv4-0": {short, "-cls1-ipv4-0"}, long + "-cls1-ipv4-0": {long, "-cls1-ipv4-0"},
		short + "-headless": {short, "-headless"}, long + "-": {long, "-"},
		short + "k": {}, long + "u": {}, short[:len(short)-1]: {}, "imported-": {}, "imported": {}, "web": {}, "": {}, "x" + long: {}, short + ".cls1": {},
	} {
		derived, rest, ok := CutDerivedName(name)
		if derived != want[0] || rest != want[1] || ok != (want[0] != "") {
			t.Errorf("CutDerivedName(%q) = %q, %q, %t, want %q", name, derived, rest, ok, want)
		}
		if got := IsDerivedName(name); got != (name == short || name == long) {
			t.Errorf("IsDerivedName(%q) = %t", name, got)
		}
	}
}

func TestValidateClusterID(t *testing.T) {
	for id, wantErr := range map[string]string{
		"cls1":                                 "",
		"1":                                    "",
		strings.Repeat("a", 63):                "",
		"5f2a0b9c-3f5e-4c1d-9d53-5d9d1d6f0a11": "",
		"":                                     "the ID is empty",
		"Cls1":                                 "not a DNS label",
		"cls1.example":                         "not a DNS label",
		"-cls1":                                "not a DNS label",
		strings.Repeat("a", 64):                "not a DNS label",
		"cls 1\n":                              "not a DNS label",
	} {
		err := ValidateClusterID(id)
		switch {
		case wantErr == "" && err != nil:
			t.Errorf("ValidateClusterID(%q) = %v", id, err)
		case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
			t.Errorf("ValidateClusterID(%q) = %v, want %q", id, err, wantErr)
		}
	}
}
