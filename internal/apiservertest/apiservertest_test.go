package apiservertest

import (
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	end := &tail{}
	for _, text := range []string{strings.Repeat("a", tailBytes), "b", strings.Repeat("c", 10)} {
		if n, err := end.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("Write = %d, %v, want %d", n, err, len(text))
		}
	}
	if got, want := end.String(), strings.Repeat("a", tailBytes-11)+"b"+strings.Repeat("c", 10); got != want {
		t.Errorf("the end is %q, want %q", got, want)
	}
}
