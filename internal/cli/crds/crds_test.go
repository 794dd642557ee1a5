package crds

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		a, b Release
		want int
	}{
		{Release{"v0.5.2", "0"}, Release{"v0.5.2", "0"}, 0},
		{Release{"v0.5.2", "1"}, Release{"v0.5.2", "0"}, 1},
		{Release{"v0.5.2", "9"}, Release{"v0.5.2", "10"}, -1},
		{Release{"v0.10.0", "0"}, Release{"v0.9.0", "0"}, 1},
		{Release{"v0.3.0", "4"}, Release{"v0.5.2", "0"}, -1},
		{Release{}, Release{"v0.5.2", "0"}, 0},
		{Release{"main", "3"}, Release{"v0.5.2", "0"}, 0},
	} {
		if got := Compare(tt.a, tt.b); got != tt.want {
			t.Errorf("Compare(%s, %s) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestOlderThan(t *testing.T) {
	installed := Installed{
		"serviceimports.multicluster.x-k8s.io": {"v0.3.0", "4"},
		"serviceexports.multicluster.x-k8s.io": {"v0.4.0", "1"},
	}
	if diff := cmp.Diff([]string{"serviceexports v0.4.0 revision 1", "serviceimports v0.3.0 revision 4"}, installed.OlderThan(Release{"v0.5.2", "0"})); diff != "" {
		t.Error(diff)
	}
	if got := installed.OlderThan(Release{"v0.3.0", "4"}); got != nil {
		t.Errorf("older than the oldest: %v", got)
	}
}

func TestBundled(t *testing.T) {
	if r := Bundled(); r.release == "" || r.revision == "" {
		t.Errorf("the bundled CRDs have release %+v", r)
	}
}
