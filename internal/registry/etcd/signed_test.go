package etcd

import (
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// authorOf returns the author of a cluster's values.
func authorOf(t testing.TB, identity mcs.Identity) author {
	t.Helper()
	return author{
		clusterSetID: identity.ClusterSetID, clusterID: identity.ClusterID, uid: identity.UID, key: registrytest.Signer(t, identity).Key(),
	}
}

// identityOf returns the identity of a cluster of set1.
func identityOf(id string) mcs.Identity {
	return mcs.Identity{ClusterID: id, ClusterSetID: "set1", UID: "uid-" + strings.TrimPrefix(id, "cls")}
}

// memberValue returns the value of the key member of a cluster, with a heartbeat at the given time.
// exports may be nil.
func memberValue(t testing.TB, identity mcs.Identity, at time.Time, exports *exportSet) []byte {
	t.Helper()
	r := newMemberRecord(identity, "v1").withHeartbeat(at)
	r.Generation, r.Exports = r.Heartbeat.UnixMilli(), exports
	return sign(t, identity, r)
}

func sign(t testing.TB, identity mcs.Identity, r memberRecord) []byte {
	t.Helper()
	value, err := signMember(registrytest.Signer(t, identity), r)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// exportValue returns the value of the key of export i, in version n.
func exportValue(t testing.TB, identity mcs.Identity, i, n int, generation int64) []byte {
	t.Helper()
	d, err := newDesiredExport(webExport(identity.ClusterID, i, n))
	if err != nil {
		t.Fatal(err)
	}
	return signExport(registrytest.Signer(t, identity), authorOf(t, identity), webKey(i), generation, d.data)
}

// setOf returns a set of exports with these generations by number.
func setOf(generations map[int]int64) *exportSet {
	set := &exportSet{Count: len(generations)}
	for i, generation := range generations {
		set.Digest = set.Digest.With(unitOf(webKey(i)), generation)
	}
	return set
}

func TestOpenExport_RefusesForgedValues(t *testing.T) {
	value := exportValue(t, cls1, 0, 1, 7)
	generation, data, err := openExport(value, authorOf(t, cls1), webKey(0))
	if err != nil || generation != 7 || len(data) == 0 {
		t.Fatalf("generation %d with %d bytes, error %v", generation, len(data), err)
	}
	other := cls1
	other.UID = "uid-of-another"
	tests := map[string]struct {
		value  string
		author author
		key    mcs.Key
	}{
		"no signature":           {string(data), authorOf(t, cls1), webKey(0)},
		"an empty value":         {"", authorOf(t, cls1), webKey(0)},
		"a signature alone":      {string(value[:90]), authorOf(t, cls1), webKey(0)},
		"another service's":      {string(value), authorOf(t, cls1), webKey(1)},
		"another cluster's key":  {string(value), authorOf(t, cls2), webKey(0)},
		"another UID":            {string(value), authorOf(t, other), webKey(0)},
		"another generation":     {"8" + string(value[1:]), authorOf(t, cls1), webKey(0)},
		"a changed content":      {string(value) + "x", authorOf(t, cls1), webKey(0)},
		"a generation of zero":   {"0" + string(value[1:]), authorOf(t, cls1), webKey(0)},
		"a negative generation":  {"-" + string(value), authorOf(t, cls1), webKey(0)},
		"a very long first line": {strings.Repeat("1", 300) + string(value), authorOf(t, cls1), webKey(0)},
	}
	for name, tt := range tests {
		if _, _, err := openExport([]byte(tt.value), tt.author, tt.key); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzOpenExport(f *testing.F) {
	value := exportValue(f, cls1, 0, 1, 7)
	a := authorOf(f, cls1)
	f.Add(value)
	f.Add([]byte("1 x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, _, err := openExport(data, a, webKey(0)); err == nil && string(data) != string(value) {
			t.Errorf("accepted %q", data)
		}
	})
}

// memberPair returns the key member of a cluster of set1.
func memberPair(t testing.TB, l layout, identity mcs.Identity, revision int64, at time.Time) pair {
	t.Helper()
	return pair{key: l.member(identity.ClusterID), value: memberValue(t, identity, at, nil), revision: revision}
}
