package registry_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func TestMemberLog(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	l := registry.NewMemberLog(log, "cls1")
	own, other := registry.Member{ClusterID: "cls1"}, registry.Member{ClusterID: "cls2"}
	stale := other
	stale.Stale = true
	for _, tt := range []struct {
		members []registry.Member
		want    string
	}{
		{[]registry.Member{own}, ""},
		{[]registry.Member{own, other}, "Member joined"},
		{[]registry.Member{own, other}, ""},
		{[]registry.Member{own, stale}, "Member is stale"},
		{[]registry.Member{own, stale}, ""},
		{[]registry.Member{own, other}, "Member recovered"},
		{[]registry.Member{own}, "Member left"},
		{nil, ""},
	} {
		lines = nil
		l.Update(tt.members)
		if tt.want == "" && len(lines) > 0 || tt.want != "" && !slices.ContainsFunc(lines, func(s string) bool { return strings.Contains(s, tt.want) && strings.Contains(s, "cls2") }) {
			t.Errorf("members %v: logged %q, want %q", tt.members, lines, tt.want)
		}
	}
}

// BenchmarkMemberLog updates the log of members that stay as they are, as each read of the registry
// does.
func BenchmarkMemberLog(b *testing.B) {
	for _, count := range []int{10, 100, 300, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", count), func(b *testing.B) {
			members := make([]registry.Member, count)
			for i := range members {
				members[i].ClusterID = fmt.Sprint("cls-", i)
			}
			l := registry.NewMemberLog(logr.Discard(), "cls-0")
			b.ReportAllocs()
			for b.Loop() {
				l.Update(members)
			}
		})
	}
}
