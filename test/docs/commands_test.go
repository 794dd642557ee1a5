package docs

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommandBlocks(t *testing.T) {
	const text = "# Page\n\n```sh\none\ntwo\n```\n\n```\nshown\n\nmore\n```\n\n## Part\n\n```sh\nthree\n```\n\nText.\n\n```\nof nothing\n```\n\n" +
		"```yaml\na: b\n```\n\n```\nof YAML\n```\n"
	want := []Block{{Line: 4, Script: "one\ntwo\n", Output: "shown\n\nmore\n"}, {Line: 17, Section: "Part", Script: "three\n"}}
	if d := cmp.Diff(want, CommandBlocks(text)); d != "" {
		t.Error(d)
	}
	if got := CommandBlocks("```sh\nfirst\n```\n"); len(got) != 1 || got[0].Line != 2 {
		t.Errorf("a page that begins with a block has %v", got)
	}
}

func TestShows(t *testing.T) {
	tests := map[string]struct {
		shown, printed, problem string
	}{
		"the same":             {"a\nb\n", "a\nb\n", ""},
		"columns":              {"NAME   AGE\nweb    5s\n", "NAME     AGE\n\nweb      1m12s\n", ""},
		"another line":         {"a\nb\n", "a\nc\n", `the page shows "b" where "c" is printed`},
		"a line too few":       {"a\n", "a\nb\n", `"b" is printed, and the page does not go on`},
		"a line too many":      {"a\nb\n", "a\n", `nothing more is printed, and the page goes on with "b"`},
		"nothing printed":      {"a\n", "", `nothing more is printed, and the page goes on with "a"`},
		"lines left out":       {"…\nb\n…\nd\n…\n", "a\nb\nd\ne\nf\n", ""},
		"left out, and gone":   {"…\nb\n", "a\nc\n", `nothing more is printed, and the page goes on with "b"`},
		"left out in a line":   {"… ok, 2 of … (+)\n", "44 ok, 2 of 3 (+)\n", ""},
		"nothing left out":     {"confirmed…\n", "confirmed\n", ""},
		"a count differs":      {"… ok, 2 of …\n", "44 ok, 1 of 3\n", `the page shows "… ok, 2 of …" where "44 ok, 1 of 3" is printed`},
		"address":              {"to 10.10.1.4:80\n", "to 10.10.0.112:80\n", ""},
		"another network":      {"to 10.10.1.4:80\n", "to 10.12.1.4:80\n", `the page shows "to 10.10.#.#:80" where "to 10.12.#.#:80" is printed`},
		"version":              {"VERSION\nv0.1.0\n", "VERSION\nv1.12.0-rc.1\n", ""},
		"not a version":        {"VERSION\nv0.1.0\n", "VERSION\n-\n", `the page shows "v#" where "-" is printed`},
		"pod, date, and an ID": {"web-846df458c4-4trv8 21/Nov/2026:11:06:46 +0000 221097628855055632fb6cb7dab71bdc\n", "web-7d6bf9c58-x2vqz 01/Dec/2027:00:00:00 +0000 00000000000000000000000000000000\n", ""},
		"another Deployment":   {"web-846df458c4-4trv8\n", "api-846df458c4-4trv8\n", `the page shows "web-pod" where "api-pod" is printed`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := Shows(tt.shown, tt.printed); err != nil {
				got = err.Error()
			}
			if got != tt.problem {
				t.Errorf("says %q, want %q", got, tt.problem)
			}
		})
	}
}
