package mcs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func prefixes(text string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range strings.Fields(text) {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestFormatNetworks(t *testing.T) {
	for name, tt := range map[string]struct{ networks, want string }{
		"none":                    {"", ""},
		"one of each family":      {"fd00:10:10::/64 10.10.0.0/24", "10.10.0.0/24,fd00:10:10::/64"},
		"neighbours":              {"10.10.0.0/24 10.10.1.0/24 10.10.2.0/24 10.10.3.0/24", "10.10.0.0/22"},
		"neighbours of two sizes": {"10.10.0.0/24 10.10.1.0/24 10.10.2.0/23", "10.10.0.0/22"},
		"no neighbours":           {"10.10.1.0/24 10.10.2.0/24", "10.10.1.0/24,10.10.2.0/24"},
		"one in another":          {"10.10.0.0/16 10.10.7.0/24 10.10.0.0/16", "10.10.0.0/16"},
		"a gap is joined if there are too many": {"10.10.0.0/24 10.10.2.0/24 10.20.0.0/24 10.30.0.0/24 10.40.0.0/24 10.50.0.0/24 10.60.0.0/24",
			"10.10.0.0/22,10.20.0.0/24,10.30.0.0/24,10.40.0.0/24,10.50.0.0/24,10.60.0.0/24"},
		"too many, too far apart": {"10.0.0.0/24 20.0.0.0/24 40.0.0.0/24 80.0.0.0/24 100.0.0.0/24 130.0.0.0/24 200.0.0.0/24 fd00::/64", "fd00::/64"},
		"too large":               {"0.0.0.0/0 fd00::/64", "fd00::/64"},
		"addresses of a node":     {"10.10.0.7/24", "10.10.0.0/24"},
		"an IPv4 network as IPv6": {"::ffff:10.10.0.0/120", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := FormatNetworks(prefixes(tt.networks)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestParseNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"10.10.0.0/16":               "",
		"10.10.0.0/16, fd00:10::/48": "",
		"":                           "must be a network such as",
		"10.10.0.0":                  "must be a network such as",
		"10.10.0.1/16":               "must be a network such as",
		"::ffff:10.10.0.0/112":       "must be a network such as",
		"0.0.0.0/0":                  "at least 8 bits",
		"fc00::/7":                   "at least 32 bits",
		strings.Repeat("10.0.0.0/8,", 6) + "10.0.0.0/8": "more than 6 networks",
	} {
		networks, err := ParseNetworks(text)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", text, networks, err, want)
		}
	}
}

// TestFormatNetworksLosesNothing: each address of the networks is in the announced ones, which are
// valid, and few networks are announced exactly.
func TestFormatNetworksLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []netip.Prefix
		for range rapid.IntRange(0, 20).Draw(t, "networks") {
			address := netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 3).Draw(t, "b")), byte(rapid.IntRange(0, 7).Draw(t, "c")), 0})
			list = append(list, netip.PrefixFrom(address, rapid.IntRange(16, 28).Draw(t, "bits")).Masked())
		}
		text := FormatNetworks(list)
		if len(list) == 0 {
			return
		}
		networks, err := ParseNetworks(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, n := range list {
			if !contains(networks, n.Addr()) {
				t.Fatalf("%s is not in %s", n, text)
			}
		}
		if exact := joinExactly(list); len(exact) <= maxNetworks {
			if d := cmp.Diff(exact, networks, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
				t.Fatalf("%v: (-want +got)\n%s", list, d)
			}
			for c := range 8 {
				for b := range 4 {
					a := netip.AddrFrom4([4]byte{10, byte(b), byte(c), 1})
					if contains(networks, a) != contains(list, a) {
						t.Fatalf("%s is in %v: %t, in %s: %t", a, list, contains(list, a), text, contains(networks, a))
					}
				}
			}
		}
	})
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	for _, n := range list {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

func TestOverlappingNetworks(t *testing.T) {
	for name, tt := range map[string]struct {
		networks map[string][]netip.Prefix
		want     []NetworkOverlap
	}{
		"none": {map[string][]netip.Prefix{"cls1": prefixes("10.1.0.0/16 fd00:1::/48"), "cls2": prefixes("10.2.0.0/16 fd00:2::/48"), "cls3": nil}, nil},
		"one in another": {
			map[string][]netip.Prefix{"cls1": prefixes("10.1.0.0/16"), "cls2": prefixes("10.1.7.0/24")},
			[]NetworkOverlap{{[2]string{"cls1", "cls2"}, netip.MustParsePrefix("10.1.7.0/24")}},
		},
		"one cluster claims everything": {
			map[string][]netip.Prefix{"cls1": prefixes("10.1.0.0/16"), "cls2": prefixes("10.2.0.0/16"), "all": prefixes("10.0.0.0/8")},
			[]NetworkOverlap{{[2]string{"all", "cls1"}, netip.MustParsePrefix("10.1.0.0/16")}, {[2]string{"all", "cls2"}, netip.MustParsePrefix("10.2.0.0/16")}},
		},
		"the networks of one cluster": {map[string][]netip.Prefix{"cls1": prefixes("10.1.0.0/16 10.1.7.0/24")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, OverlappingNetworks(tt.networks), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func FuzzParseNetworks(f *testing.F) {
	f.Add("10.10.0.0/16,fd00:10::/48")
	f.Fuzz(func(t *testing.T, text string) {
		networks, err := ParseNetworks(text)
		if err != nil {
			return
		}
		again, err := ParseNetworks(FormatNetworks(networks))
		if err != nil || len(again) > len(networks) {
			t.Errorf("%q: formatted and parsed again it is %v, %v", text, again, err)
		}
	})
}
