package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestREADMEPrices checks that README.md repeats the prices of docs/cost.md, which are computed.
func TestREADMEPrices(t *testing.T) {
	prices := func(page, pattern string) string {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s has no %s", page, pattern)
		}
		return string(m[1]) + ", " + string(m[2])
	}
	want := prices("docs/cost.md", `\| 2 \| 50 \| (\$[\d.,]+) \| (\$[\d.,]+) \|`)
	got := prices("README.md", `bills (\$[\d.,]+) a month for 2 clusters that export 50 services of 10 endpoints each, or (\$[\d.,]+) `)
	if got != want {
		t.Errorf("README.md has the prices %s, docs/cost.md %s", got, want)
	}
}
