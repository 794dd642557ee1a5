package build

import (
	"io"
	"testing"
)

func TestProgress(t *testing.T) {
	p := &progress{}
	if got := p.String(); got != "downloading modules" {
		t.Errorf("progress before the packages are known is %q", got)
	}
	p.expect([]string{"fmt", "example.org/a", "example.org/a/b", "example.org/main"})
	for _, part := range []string{
		"fm", "t\nexample.org/a\n", "go: downloading example.org/z v1.0.0\n",
		"# example.org/a\n", "a.go:1:1: undefined: b\n", "example.org/a\nexample.org/a/b\n", "last",
	} {
		if _, err := io.WriteString(p, part); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.String(); got != "3 of 4 packages" {
		t.Errorf("progress is %q", got)
	}
	const want = "go: downloading example.org/z v1.0.0\n# example.org/a\na.go:1:1: undefined: b\nexample.org/a\nlast"
	if got := p.output(); got != want {
		t.Errorf("the output is %q, want %q", got, want)
	}
}
