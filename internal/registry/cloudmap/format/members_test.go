package format

import (
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

func testMember() Member {
	r := Member{
		ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Version: "1.2.3",
		Joined:     time.Date(2026, 11, 20, 10, 0, 0, 123e6, time.UTC),
		Generation: 1_790_000_000_000, Heartbeat: 42,
	}
	r.Pages[0], r.Pages[63] = Digest([]byte("a")), Digest([]byte("b"))
	return r
}

func TestMemberRoundTrip(t *testing.T) {
	full := testMember()
	full.ClusterID, full.ClusterSetID = strings.Repeat("c", 63), strings.Repeat("s", 63)
	full.UID, full.Version = "0a1b2c3d-0000-1111-2222-333344445555", "v1.2.3-rc.1+0123456789abcdef"
	for i := range full.Pages {
		full.Pages[i] = Digest([]byte{byte(i)})
	}
	full.Contact = peernotify.Contact{Address: netip.MustParseAddrPort("[2001:db8:1234:5678:9abc:def0:1234:5678]:65535"), Token: peernotify.NewToken()}
	none := testMember()
	none.Pages = Digests{}
	for name, want := range map[string]Member{"two pages": testMember(), "no pages": none, "all pages, long names": full} {
		t.Run(name, func(t *testing.T) {
			checkInstance(t, want.Instance())
			got, err := ParseMember(want.Instance(), want.ClusterSetID)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(Member{}), cmpopts.EquateComparable(peernotify.Contact{})); diff != "" {
				t.Errorf("record differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMemberOrder(t *testing.T) {
	record := func(uid string, generation, heartbeat int64) Member {
		return Member{UID: uid, Generation: generation, Heartbeat: heartbeat}
	}
	tests := map[string]struct {
		a, b                Member
		wantLater, wantSame bool
	}{
		"same write":       {a: record("u", 2, 2), b: record("u", 2, 2), wantSame: true},
		"later generation": {a: record("u", 3, 1), b: record("u", 2, 2), wantLater: true},
		"later heartbeat":  {a: record("u", 2, 3), b: record("u", 2, 2), wantLater: true},
		"older generation": {a: record("u", 1, 3), b: record("u", 2, 2)},
		"older heartbeat":  {a: record("u", 2, 1), b: record("u", 2, 2)},
		"another cluster":  {a: record("v", 2, 2), b: record("u", 2, 2)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.a.IsLaterThan(tc.b); got != tc.wantLater {
				t.Errorf("IsLaterThan is %t, want %t", got, tc.wantLater)
			}
			if got := tc.a.IsSameWrite(tc.b); got != tc.wantSame {
				t.Errorf("IsSameWrite is %t, want %t", got, tc.wantSame)
			}
		})
	}
}

func TestParseMember_RejectsInvalid(t *testing.T) {
	tests := map[string]struct{ key, value, want string }{
		"ID of another cluster":      {AttrClusterID, "cls2", "in the record of"},
		"an invalid cluster ID":      {AttrClusterID, "Not a label", "CLUSTER_ID"},
		"another clusterset":         {AttrClusterSetID, "set2", "set2"},
		"no UID":                     {AttrUID, "", "UID"},
		"an invalid time":            {AttrJoined, "yesterday", "not a time"},
		"no generation":              {AttrGeneration, "", "not a generation"},
		"a generation above 2^53":    {AttrGeneration, "9007199254740993", "not a generation"},
		"an invalid heartbeat":       {AttrHeartbeat, "1e9", "not a number"},
		"an invalid format":          {AttrFormat, "one", "not a version"},
		"a page number out of range": {AttrPages, "64.AAAAAAAAAAA", "list of digests"},
		"a duplicate page":           {AttrPages, "01.AAAAAAAAAAA,01.AAAAAAAAAAA", "list of digests"},
		"an invalid digest":          {AttrPages, "01.AAAA AAAAAA", "list of digests"},
		"a list without entries":     {AttrPages, ",", "list of digests"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			instance := testMember().Instance()
			instance.Attributes = maps.Clone(instance.Attributes)
			instance.Attributes[tc.key] = tc.value
			if _, err := ParseMember(instance, "set1"); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
	later := testMember().Instance()
	later.Attributes[AttrFormat] = "2.0"
	var newer *record.NewerError
	if _, err := ParseMember(later, "set1"); !errors.As(err, &newer) {
		t.Errorf("a record of format 2.0: error %v, want a NewerError", err)
	}
	later.Attributes[AttrFormat], later.Attributes["NEW_IN_1_9"] = "1.9", "x"
	if _, err := ParseMember(later, "set1"); err != nil {
		t.Errorf("a record of format 1.9: %v", err)
	}
}

// TestParseMember_IgnoresInvalidContact: a record with an invalid contact is used without the contact.
func TestParseMember_IgnoresInvalidContact(t *testing.T) {
	for _, value := range []string{"nowhere", "224.0.0.1:53 " + peernotify.NewToken(), "10.0.0.1:8479", "10.0.0.1:8479 short"} {
		instance := testMember().Instance()
		instance.Attributes[AttrNotify] = value
		r, err := ParseMember(instance, "set1")
		if err != nil || r.Contact.Address.IsValid() || !strings.Contains(r.ContactProblem, AttrNotify) || r.Heartbeat != 42 {
			t.Errorf("%q: record %+v, error %v; want one without a contact, and why", value, r, err)
		}
	}
}

func FuzzParseMember(f *testing.F) {
	f.Add("00.AAAAAAAAAAA", "1", "1.0", "10.0.0.1:8479 AAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("", "1", "1.2", "")
	f.Fuzz(func(t *testing.T, pages, number, format, contact string) {
		instance := testMember().Instance()
		instance.Attributes[AttrPages], instance.Attributes[AttrGeneration], instance.Attributes[AttrFormat] = pages, number, format
		instance.Attributes[AttrNotify] = contact
		r, err := ParseMember(instance, "set1")
		if err != nil {
			return
		}
		again, err := ParseMember(api.Instance{ID: "cls1", Attributes: r.Instance().Attributes}, "set1")
		again.ContactProblem = r.ContactProblem // an invalid contact is not written again
		if err != nil || again != r {
			t.Errorf("second round gave %+v, %v, want %+v", again, err, r)
		}
	})
}
