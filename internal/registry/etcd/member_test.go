package etcd

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

var cls1 = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}

func TestMemberRecord(t *testing.T) {
	now := time.Date(2026, 11, 21, 9, 0, 0, 123456789, time.UTC)
	want := newMemberRecord(cls1, "v1").withHeartbeat(now)
	data, err := want.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeMember(data, "set1", "cls1")
	if err != nil || got != want {
		t.Errorf("decoded %+v (%v), want %+v", got, err, want)
	}
	tests := []struct{ name, data, wantErr string }{
		{"garbage", "garbage", "parsing"},
		{"another cluster's", strings.Replace(string(data), "cls1", "cls2", 1), `it names cluster "cls2"`},
		{"another clusterset's", strings.Replace(string(data), "set1", "set2", 1), `it names clusterset "set2"`},
		{"no UID", strings.Replace(string(data), "uid-1", "", 1), "no uid"},
		{"no format", strings.Replace(string(data), record.Version(), "", 1), "is no version"},
		{"huge", strings.Repeat(" ", maxMemberBytes) + string(data), "bytes"},
		{"long-winded", strings.Replace(string(data), `"v1"`, `"`+strings.Repeat("v", 200)+`"`, 1), "too long"},
	}
	for _, tt := range tests {
		if _, err := decodeMember([]byte(tt.data), "set1", "cls1"); err == nil || !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.wantErr)
		}
	}
	var newer *record.NewerError
	if _, err := decodeMember([]byte(strings.Replace(string(data), record.Version(), "99.0", 1)), "set1", "cls1"); !errors.As(err, &newer) {
		t.Errorf("a record of a later format: error %v, want a NewerError", err)
	}
	// Additions of a later minor version may be ignored.
	if _, err := decodeMember([]byte(strings.Replace(string(data), "{", `{"more": 1,`, 1)), "set1", "cls1"); err != nil {
		t.Errorf("a record with a further field: %v", err)
	}
}

func TestMemberRecordWithHeartbeat(t *testing.T) {
	at := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	first := newMemberRecord(cls1, "v1").withHeartbeat(at)
	if !first.Joined.Equal(at) || !first.Heartbeat.Equal(at) {
		t.Errorf("joined %v and heartbeat %v, want both %v", first.Joined, first.Heartbeat, at)
	}
	if back := first.withHeartbeat(at.Add(-time.Hour)); !back.Heartbeat.After(first.Heartbeat) || !back.Joined.Equal(at) {
		t.Errorf("after the clock was set back: joined %v and heartbeat %v", back.Joined, back.Heartbeat)
	}
}

func FuzzMember(f *testing.F) {
	data, err := newMemberRecord(cls1, "v1").withHeartbeat(time.Now()).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeMember(data, "set1", "cls1")
		if err == nil && (r.ClusterID != "cls1" || r.UID == "" || len(r.Version) > maxTextBytes) {
			t.Errorf("accepted %+v", r)
		}
	})
}
