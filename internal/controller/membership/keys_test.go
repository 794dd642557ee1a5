package membership

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestKeyWatch: each change of a key is reported once, and a refusal once an hour, whatever other
// members write meanwhile.
func TestKeyWatch(t *testing.T) {
	var w keyWatch
	began := time.Now()
	refused := registry.RefusedProblem("the member record", errors.New("another key"))
	steps := []struct {
		after       time.Duration
		members     []registry.Member
		changes     int
		wantRefusal string
	}{
		{members: []registry.Member{{ClusterID: "cls1", Key: "own"}, {ClusterID: "cls2", Key: "a"}, {ClusterID: "legacy"}}},
		{after: time.Second, members: []registry.Member{{ClusterID: "cls1", Key: "other"}, {ClusterID: "cls2", Key: "b"}, {ClusterID: "legacy", Key: "first"}}, changes: 1},
		{after: 2 * time.Second, members: []registry.Member{{ClusterID: "cls2", Key: "b", Problems: []string{"page 1", refused}}}, wantRefusal: "records of 1 clusters are refused: cls2: refused"},
		{after: 3 * time.Second, members: []registry.Member{{ClusterID: "cls2", Key: "b"}}},
		{after: 4 * time.Second, members: []registry.Member{{ClusterID: "cls2", Key: "b", Problems: []string{refused}}}},
		{after: 5 * time.Second, members: []registry.Member{{ClusterID: "cls1", Problems: []string{refused}}}},
		{after: 2 * time.Minute, members: []registry.Member{{ClusterID: "cls1", Problems: []string{refused}}}, wantRefusal: "cls1: refused"},
		{after: 2 * time.Hour, members: []registry.Member{{ClusterID: "cls2", Problems: []string{refused}}}, wantRefusal: "cls2: refused"},
		{after: 3 * time.Hour}, // cls2 has left, or was forgotten
		{after: 4 * time.Hour, members: []registry.Member{{ClusterID: "cls2", Key: "c"}, {ClusterID: "cls3", Key: "a"}}, changes: 1},
		{after: 5 * time.Hour, members: []registry.Member{{ClusterID: "cls3", Key: "a"}}},
		{after: 6 * time.Hour, members: []registry.Member{{ClusterID: "cls2", Key: "c"}}},
	}
	for i, step := range steps {
		changes, refusal := w.observe(began.Add(step.after), "cls1", step.members)
		if len(changes) != step.changes || (refusal == "") != (step.wantRefusal == "") || !strings.Contains(refusal, step.wantRefusal) {
			t.Errorf("step %d: changes %q, refusal %q; want %d and %q", i, changes, refusal, step.changes, step.wantRefusal)
		}
	}
}

// TestKeyWatchIsBounded: a member that invents clusters without end causes one event a minute, and
// the memory of an hour.
func TestKeyWatchIsBounded(t *testing.T) {
	var w keyWatch
	events := 0
	began := time.Now()
	const seconds = 3 * 3600
	for second := 0; second < seconds; second += 5 {
		invented := registry.Member{ClusterID: fmt.Sprint("junk-", second), Key: "key", Problems: []string{registry.RefusedProblem("the member record", errors.New("no signature"))}}
		if _, refusal := w.observe(began.Add(time.Duration(second)*time.Second), "cls1", []registry.Member{invented}); refusal != "" {
			events++
		}
	}
	if events > seconds/60+1 || len(w.reported) > 3600/60+1 || len(w.keys) > maxGone+1 {
		t.Errorf("%d events, %d clusters in memory, %d keys", events, len(w.reported), len(w.keys))
	}
}
