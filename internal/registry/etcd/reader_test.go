package etcd

import (
	"errors"
	"testing"
)

// TestReader_CountBehind checks that a few answers of an etcd member that lags change nothing, and
// that more of them in a row make the reader list again.
func TestReader_CountBehind(t *testing.T) {
	for name, tt := range map[string]struct {
		answers []bool // whether each is behind
		want    int    // the answer that makes the reader list again, -1 for none
	}{
		"none":                       {[]bool{false, false, false}, -1},
		"one less than the limit":    {[]bool{true, true, false, true, true, false}, -1},
		"as many as the limit":       {[]bool{true, true, true}, 2},
		"after one that was current": {[]bool{true, true, false, true, true, true}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			r, got := &reader{}, -1
			for i, behind := range tt.answers {
				if err := r.countBehind(behind); err != nil {
					if got = i; !errors.Is(err, errBehind) {
						t.Errorf("error %v, want %v", err, errBehind)
					}
					break
				}
			}
			if got != tt.want {
				t.Errorf("answer %d makes the reader list again, want %d", got, tt.want)
			}
		})
	}
}
