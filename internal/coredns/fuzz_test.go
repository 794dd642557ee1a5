package coredns

import (
	"strings"
	"testing"

	"github.com/coredns/caddy/caddyfile"
	"github.com/google/go-cmp/cmp"
)

func addSamples(f *testing.F) {
	f.Helper()
	for _, src := range samples(f) {
		f.Add(src)
	}
	for _, odd := range []string{
		"", "\ufeff.:53 {\n}", "a#b c\n{\n}", "\"a\"b \"c\nd\" {\n\"e\\\"f\\g\" \"unclosed", "a\rb\r\n{\r\n}\r\n",
		".:53 {\nkubernetes cluster.local {\n}\n}", ".\nkubernetes cluster.local#x y {\n}\n",
		"(s) {\nkubernetes \"cluster.local\"x\n}\n.:53 {\nimport s\n}", "a,\nb {\nkubernetes a\n}", "\xff\xfe {\n}",
		"cluster.local, a.b {\nkubernetes {\nmulticluster\n}\n}", ".:53 {\nkubernetes cluster.local\n{\n}\n}",
	} {
		f.Add(odd)
	}
}

// FuzzLexLikeCoreDNS checks that lex returns the words of CoreDNS's own lexer, on the same lines,
// with correct offsets.
func FuzzLexLikeCoreDNS(f *testing.F) {
	addSamples(f)
	f.Fuzz(func(t *testing.T, src string) {
		type word struct {
			Text string
			Line int
		}
		var want, got []word
		for d := caddyfile.NewDispenser("Corefile", strings.NewReader(src)); d.Next(); {
			want = append(want, word{d.Val(), d.Line()})
		}
		end := 0
		for _, tok := range lex(src) {
			got = append(got, word{tok.text, tok.line})
			if tok.start < end || tok.end <= tok.start {
				t.Errorf("%q has offsets %d-%d, after %d", tok.text, tok.start, tok.end, end)
			}
			end = tok.end
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("words (-CoreDNS +ours):\n%s", diff)
		}
	})
}

// FuzzEnableIsUndone checks that CoreDNS's own parser accepts an enabled Corefile, that enabling
// again changes nothing, and that Disable restores the original byte for byte.
func FuzzEnableIsUndone(f *testing.F) {
	addSamples(f)
	f.Fuzz(func(t *testing.T, src string) {
		before, err := Inspect(src, "")
		if err != nil {
			return
		}
		enabled, err := Enable(src, "")
		if err != nil {
			return
		}
		if again, err := Enable(enabled, ""); err != nil || again != enabled {
			t.Errorf("enabling twice: %v\n%s", err, cmp.Diff(enabled, again))
		}
		if before.State != Disabled {
			return
		}
		if restored, err := Disable(enabled, ""); err != nil || restored != src {
			t.Errorf("not undone: %v\n%s", err, cmp.Diff(src, restored))
		}
		if !strings.Contains(src, "import") && parses(src) && !parses(enabled) {
			t.Errorf("CoreDNS's parser no longer accepts it:\n%s", enabled)
		}
	})
}

func parses(src string) bool {
	_, err := caddyfile.Parse("Corefile", strings.NewReader(src), nil)
	return err == nil
}
