package install

import (
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func TestLeaveProgress(t *testing.T) {
	now := time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)
	var lines []string
	p := newProgress(func() time.Time { return now }, func(line string) { lines = append(lines, line) })
	identity := mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1"}
	member, leaving := &status.Status{Leader: true, Identity: &identity}, &status.Status{Leader: true, Leaving: []mcs.Identity{identity}}
	for second := range 12 {
		st := leaving
		if second < 6 {
			st = member
		}
		if p.hasLeft(st) {
			t.Fatalf("after %d s: it has left", second)
		}
		now = now.Add(time.Second)
	}
	if !p.hasLeft(&status.Status{Leader: true}) {
		t.Error("at the end: it has not left")
	}
	want := []string{
		"waiting for 5s: the controller has not begun to leave yet",
		"waiting for 10s: the controller withdraws the exports, and waits until the registry shows that the cluster has left",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("printed %q, want %q", lines, want)
	}
}
