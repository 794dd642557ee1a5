package cloudmap

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

func someRecord() memberRecord {
	r := memberRecord{
		clusterID: "cls1", clusterSetID: "set1", uid: "uid-1", version: "1.2.3",
		joined:     time.Date(2026, 11, 20, 10, 0, 0, 123e6, time.UTC),
		generation: 1_790_000_000_000, heartbeat: 42,
	}
	r.pages[0], r.pages[63] = digestOf([]byte("a")), digestOf([]byte("b"))
	return r
}

func TestMemberRoundTrip(t *testing.T) {
	full := someRecord()
	full.clusterID, full.clusterSetID = strings.Repeat("c", 63), strings.Repeat("s", 63)
	full.uid, full.version = "0a1b2c3d-0000-1111-2222-333344445555", "v1.2.3-rc.1+0123456789abcdef"
	for i := range full.pages {
		full.pages[i] = digestOf([]byte{byte(i)})
	}
	full.contact = peernotify.Contact{Address: netip.MustParseAddrPort("[2001:db8:1234:5678:9abc:def0:1234:5678]:65535"), Token: peernotify.NewToken()}
	none := someRecord()
	none.pages = digests{}
	for name, want := range map[string]memberRecord{"two pages": someRecord(), "no pages": none, "all pages, long names": full} {
		t.Run(name, func(t *testing.T) {
			checkInstance(t, want.instance())
			got, err := parseMember(want.instance(), want.clusterSetID)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(memberRecord{}), cmpopts.EquateComparable(peernotify.Contact{})); diff != "" {
				t.Errorf("record differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseMemberRefuses(t *testing.T) {
	tests := map[string]struct{ key, value, want string }{
		"another cluster's":     {attrClusterID, "cls2", "in the record of"},
		"no cluster ID":         {attrClusterID, "Not a label", "CLUSTER_ID"},
		"another clusterset's":  {attrClusterSetID, "set2", "set2"},
		"no UID":                {attrUID, "", "UID"},
		"no time":               {attrJoined, "yesterday", "no time"},
		"no generation":         {attrGeneration, "", "no number"},
		"generation too late":   {attrGeneration, "9007199254740993", "no number"},
		"no heartbeat":          {attrHeartbeat, "1e9", "no number"},
		"no format":             {attrFormat, "one", "no version"},
		"a page that is none":   {attrPages, "64.AAAAAAAAAAA", "list of digests"},
		"a page twice":          {attrPages, "01.AAAAAAAAAAA,01.AAAAAAAAAAA", "list of digests"},
		"a digest that is none": {attrPages, "01.AAAA AAAAAA", "list of digests"},
		"no list":               {attrPages, ",", "list of digests"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			instance := someRecord().instance()
			instance.Attributes = maps.Clone(instance.Attributes)
			instance.Attributes[tc.key] = tc.value
			if _, err := parseMember(instance, "set1"); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
	later := someRecord().instance()
	later.Attributes[attrFormat] = "2.0"
	var newer *record.NewerError
	if _, err := parseMember(later, "set1"); !errors.As(err, &newer) {
		t.Errorf("a record of format 2.0: error %v, want a NewerError", err)
	}
	later.Attributes[attrFormat], later.Attributes["NEW_IN_1_9"] = "1.9", "x"
	if _, err := parseMember(later, "set1"); err != nil {
		t.Errorf("a record of format 1.9: %v", err)
	}
}

// TestParseMemberWithBadHints has a record that says nonsense of hints: everything else in it counts.
func TestParseMemberWithBadHints(t *testing.T) {
	for _, value := range []string{"nowhere", "224.0.0.1:53 " + peernotify.NewToken(), "10.0.0.1:8479", "10.0.0.1:8479 short"} {
		instance := someRecord().instance()
		instance.Attributes[attrNotify] = value
		r, err := parseMember(instance, "set1")
		if err != nil || r.contact.Address.IsValid() || !strings.Contains(r.notifyProblem, attrNotify) || r.heartbeat != 42 {
			t.Errorf("%q: record %+v, error %v; want one without a contact, and why", value, r, err)
		}
	}
}

func FuzzParseMember(f *testing.F) {
	f.Add("00.AAAAAAAAAAA", "1", "1.0", "10.0.0.1:8479 AAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("", "1", "1.2", "")
	f.Fuzz(func(t *testing.T, pages, number, format, contact string) {
		instance := someRecord().instance()
		instance.Attributes[attrPages], instance.Attributes[attrGeneration], instance.Attributes[attrFormat] = pages, number, format
		instance.Attributes[attrNotify] = contact
		r, err := parseMember(instance, "set1")
		if err != nil {
			return
		}
		again, err := parseMember(api.Instance{ID: "cls1", Attributes: r.instance().Attributes}, "set1")
		again.notifyProblem = r.notifyProblem // what is of no use is not written again
		if err != nil || again != r {
			t.Errorf("second round gave %+v, %v, want %+v", again, err, r)
		}
	})
}
