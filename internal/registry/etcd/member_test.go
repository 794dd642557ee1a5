package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

var cls1 = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}

func TestMemberRecord(t *testing.T) {
	now := time.Date(2026, 11, 21, 9, 0, 0, 123456789, time.UTC)
	want := newMemberRecord(cls1, "v1").withHeartbeat(now)
	want.Generation, want.Exports = 7, setOf(map[int]int64{0: 3, 1: 7})
	value := sign(t, cls1, want)
	m, a, err := openMember(value, "set1", "cls1")
	if err != nil || a != authorOf(t, cls1) {
		t.Fatalf("author %+v, error %v", a, err)
	}
	got, err := decodeMember(m, "set1", "cls1")
	if err != nil || !equalSets(got.Exports, want.Exports) {
		t.Errorf("decoded exports %+v (%v), want %+v", got.Exports, err, want.Exports)
	}
	got.Exports = want.Exports
	if got != want {
		t.Errorf("decoded %+v, want %+v", got, want)
	}
	data := string(m.Record)
	tests := []struct{ name, data, uid, wantErr string }{
		{"garbage", "garbage", "uid-1", "parsing"},
		{"another cluster's", strings.Replace(data, "cls1", "cls2", 1), "uid-1", `it names cluster "cls2"`},
		{"another clusterset's", strings.Replace(data, "set1", "set2", 1), "uid-1", `it names clusterset "set2"`},
		{"no UID", data, "", "no uid"},
		{"no format", strings.Replace(data, record.Version(), "", 1), "uid-1", "is no version"},
		{"a digest that is too short", strings.Replace(data, `"digest":"`, `"digest":"AA`, 1), "uid-1", "digest"},
		{"long-winded", strings.Replace(data, `"v1"`, `"`+strings.Repeat("v", 200)+`"`, 1), "uid-1", "more than 128 bytes"},
		{"escapes", strings.Replace(data, `"v1"`, `"\u001b[2J"`, 1), "uid-1", "printable"},
	}
	for _, tt := range tests {
		if _, err := decodeMember(signedMember{UID: tt.uid, Record: []byte(tt.data)}, "set1", "cls1"); err == nil || !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.wantErr)
		}
	}
	var newer *record.NewerError
	later, err := decodeMember(signedMember{UID: "uid-1", Record: []byte(strings.Replace(data, record.Version(), "99.0", 1))}, "set1", "cls1")
	if !errors.As(err, &newer) || !later.Heartbeat.Equal(want.Heartbeat) || later.Exports != nil {
		t.Errorf("a record of a later format: %+v, error %v, want its time and a NewerError", later, err)
	}
	// Additions of a later minor version may be ignored.
	if _, err := decodeMember(signedMember{UID: "uid-1", Record: []byte(strings.Replace(data, "{", `{"more": 1,`, 1))}, "set1", "cls1"); err != nil {
		t.Errorf("a record with a further field: %v", err)
	}
}

// A record that has everything at its largest is read, and one with a report of imports that cannot
// be used counts without it.
func TestMemberRecord_Imports(t *testing.T) {
	var keys []mcs.Key
	for i := range 250 {
		keys = append(keys, mcs.Key{Namespace: "demo", Name: fmt.Sprint("web-", i)})
	}
	largest := mcs.NewImportReport(map[string][]mcs.Key{"cls2": keys}, nil)
	identity := mcs.Identity{ClusterID: strings.Repeat("c", 63), ClusterSetID: strings.Repeat("s", 63), UID: "0a1b2c3d-0000-1111-2222-333344445555"}
	for report, want := range map[mcs.ImportReport]mcs.ImportReport{largest: largest, "": "", mcs.ManyImports: mcs.ManyImports, largest + "AAAA": "", "%": ""} {
		r := newMemberRecord(identity, "v1.2.3-rc.1+0123456789abcdef").withHeartbeat(time.Now())
		r.Generation, r.Exports = time.Now().UnixMilli(), setOf(map[int]int64{0: 3})
		r.Exports.Count = 100_000
		// Each quotation mark of the value has two characters in the properties, and four in the
		// record.
		r.Properties, r.Imports = mcs.Properties{"a": strings.Repeat(`"`, 490)}.Encode(), report
		value, err := signMember(registrytest.RotatedSigner(t, identity), r)
		if err != nil {
			t.Fatal(err)
		}
		m, _, err := openMember(value, identity.ClusterSetID, identity.ClusterID)
		if err != nil {
			t.Fatalf("report %q: %v", report, err)
		}
		got, err := decodeMember(m, identity.ClusterSetID, identity.ClusterID)
		if err != nil || got.Imports != want || got.Properties != r.Properties {
			t.Errorf("%q is read as %q with error %v, want %q", report, got.Imports, err, want)
		}
	}
}

func TestOpenMember_RefusesForgedValues(t *testing.T) {
	value := string(memberValue(t, cls1, time.Now(), setOf(map[int]int64{0: 1})))
	unsigned, err := json.Marshal(newMemberRecord(cls1, "v1"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ value, clusterSetID, clusterID string }{
		"another cluster's prefix": {value, "set1", "cls2"},
		"another clusterset":       {value, "set2", "cls1"},
		"another UID":              {strings.Replace(value, "uid-1", "uid-9", 1), "set1", "cls1"},
		"another generation":       {strings.Replace(value, `"generation":1`, `"generation":2`, 1), "set1", "cls1"},
		"another record":           {strings.Replace(value, `"v1"`, `"v2"`, 1), "set1", "cls1"},
		"another key": {strings.Replace(value, registrytest.Signer(t, cls1).Key().String(), registrytest.Signer(t, cls2).Key().String(), 1),
			"set1", "cls1"},
		"no signature": {string(unsigned), "set1", "cls1"},
		"garbage":      {"garbage", "set1", "cls1"},
		"huge":         {strings.Repeat(" ", maxMemberBytes) + value, "set1", "cls1"},
	}
	for name, tt := range tests {
		if _, _, err := openMember([]byte(tt.value), tt.clusterSetID, tt.clusterID); err == nil {
			t.Errorf("%s: no error", name)
		}
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
	f.Add(memberValue(f, cls1, time.Now(), setOf(map[int]int64{0: 1})))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, _, err := openMember(data, "set1", "cls1")
		if err != nil {
			return
		}
		r, err := decodeMember(m, "set1", "cls1")
		if err == nil && (r.ClusterID != "cls1" || r.UID == "" || record.CheckText("version", r.Version) != nil) {
			t.Errorf("accepted %+v", r)
		}
	})
}
