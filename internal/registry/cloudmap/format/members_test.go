package format

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// signerOf returns the signer of the cluster with a UID.
func signerOf(uid string) *trust.Signer {
	seed := make([]byte, 32)
	copy(seed, uid)
	signer, err := trust.NewSigner(seed, nil)
	if err != nil {
		panic(err)
	}
	return signer
}

// theSigner signs the records of testMember, theRotatedSigner has another key and that of theSigner
// before it.
var (
	theSigner           = signerOf("uid-1")
	theRotatedSigner, _ = trust.NewSigner([]byte("another seed of thirty-two bytes"), append([]byte("uid-1"), make([]byte, 27)...))
)

func testMember() Member {
	r := Member{
		ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Version: "1.2.3", Key: theSigner.Key(), Process: "1790000000000-ABC",
		Joined:     time.Date(2026, 11, 20, 10, 0, 0, 123e6, time.UTC),
		Generation: 1_790_000_000_000, Heartbeat: 42,
	}
	r.Pages[0], r.Pages[63] = Digest([]byte("a")), Digest([]byte("b"))
	return r
}

// largestReport returns a report that has no room for another import.
func largestReport() mcs.ImportReport {
	var keys []mcs.Key
	for i := range 250 {
		keys = append(keys, mcs.Key{Namespace: "demo", Name: fmt.Sprint("web-", i)})
	}
	return mcs.NewImportReport(map[string][]mcs.Key{"cls2": keys}, nil)
}

// notifyKey is a public key for peer notifications.
var notifyKey = strings.Repeat("A", 43)

func TestMemberRoundTrip(t *testing.T) {
	full := testMember()
	full.ClusterID, full.ClusterSetID = strings.Repeat("c", 63), strings.Repeat("s", 63)
	full.UID, full.Version = "0a1b2c3d-0000-1111-2222-333344445555", "v1.2.3-rc.1+0123456789abcdef"
	for i := range full.Pages {
		full.Pages[i], full.Namespaces[i] = Digest([]byte{byte(i)}), NamespacesOf(exportsIn(namespaceNames(maxCodes)...))
	}
	full.Contact = peernotify.Contact{Address: netip.MustParseAddrPort("[2001:db8:1234:5678:9abc:def0:1234:5678]:65535"), Key: notifyKey}
	full.Key, full.Process, full.Farewell = theRotatedSigner.Key(), NewProcess(time.Now(), "ABCDEFGHIJKLMNOPQRSTUVWXYZ"), true
	full.Succession = theRotatedSigner.Succession(full.ClusterSetID, full.ClusterID)
	full.Properties = mcs.Properties{"note.example.com": strings.Repeat("x", 970)}.Encode()
	full.Imports = largestReport()
	none := testMember()
	none.Pages = Digests{}
	for name, want := range map[string]Member{"two pages": testMember(), "no pages": none, "all pages, long names": full} {
		t.Run(name, func(t *testing.T) {
			signer := theSigner
			if want.Succession != "" {
				signer = theRotatedSigner
			}
			checkInstance(t, want.Instance(signer))
			got, err := ParseMember(want.Instance(signer), want.ClusterSetID)
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
		"same write":                       {a: record("u", 2, 2), b: record("u", 2, 2), wantSame: true},
		"later generation":                 {a: record("u", 3, 2), b: record("u", 2, 2), wantLater: true},
		"later heartbeat":                  {a: record("u", 2, 3), b: record("u", 2, 2), wantLater: true},
		"later heartbeat, earlier pages":   {a: record("u", 1, 3), b: record("u", 2, 2), wantLater: true},
		"older generation":                 {a: record("u", 1, 2), b: record("u", 2, 2)},
		"older heartbeat":                  {a: record("u", 2, 1), b: record("u", 2, 2)},
		"later generation, same heartbeat": {a: record("u", 3, 2), b: record("u", 2, 2), wantLater: true},
		"another cluster":                  {a: record("v", 2, 2), b: record("u", 2, 2)},
		"another process":                  {a: Member{Process: "1-a"}, b: Member{Process: "1-b"}},
		"another key":                      {a: Member{Key: theSigner.Key()}, b: Member{}},
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

func TestIsEarlierProcess(t *testing.T) {
	now := time.Now()
	first, second := NewProcess(now, "Z"), NewProcess(now.Add(time.Millisecond), "A")
	if !IsEarlierProcess(first, second) || IsEarlierProcess(second, first) || IsEarlierProcess(first, first) {
		t.Errorf("of %s and %s, the first one is not the earlier one", first, second)
	}
	if IsEarlierProcess("9-a", "10-a") == IsEarlierProcess("10-a", "9-a") || !IsEarlierProcess("9-a", "10-a") || !IsEarlierProcess("1-a", "1-b") {
		t.Error("processes are not ordered by number, then by text")
	}
}

// TestCopy: the copy of a record is as valid as the record.
func TestCopy(t *testing.T) {
	want := testMember()
	copied := CopyOf(want.Instance(theSigner))
	checkInstance(t, copied)
	if copied.Attributes[AttrPage] != CopyID || copied.ID != CopyID {
		t.Errorf("the copy is %+v", copied)
	}
	got, err := FindCopy([]api.Instance{{ID: "page-00-0"}, copied}, "cls1", "set1")
	if err != nil || got == nil || *got != want {
		t.Errorf("the copy is read as %+v, %v", got, err)
	}
	if got, err := FindCopy([]api.Instance{{ID: "page-00-0"}}, "cls1", "set1"); got != nil || err != nil {
		t.Errorf("without a copy: %+v, %v", got, err)
	}
	if _, err := FindCopy([]api.Instance{copied}, "cls2", "set1"); err == nil {
		t.Error("the copy is valid in the catalog of another cluster")
	}
	copied.Attributes[AttrPages] = ""
	if _, err := FindCopy([]api.Instance{copied}, "cls1", "set1"); err == nil {
		t.Error("a changed copy is valid")
	}
}

// TestParseMember_VerifiesEveryAttribute: no attribute can be added, changed or removed.
func TestParseMember_VerifiesEveryAttribute(t *testing.T) {
	signed := testMember().Instance(theSigner)
	change := func(f func(map[string]string)) error {
		attrs := maps.Clone(signed.Attributes)
		f(attrs)
		_, err := ParseMember(api.Instance{ID: "cls1", Attributes: attrs}, "set1")
		return err
	}
	for key, value := range signed.Attributes {
		if change(func(attrs map[string]string) { delete(attrs, key) }) == nil {
			t.Errorf("a record without %s is valid", key)
		}
		if change(func(attrs map[string]string) { attrs[key] = value + "x" }) == nil {
			t.Errorf("a record with another %s is valid", key)
		}
	}
	if change(func(attrs map[string]string) { attrs["NEW"] = "" }) == nil {
		t.Error("a record with one attribute more is valid")
	}
	if change(func(attrs map[string]string) { attrs["AB"], attrs[AttrFarewell] = "", "true" }) == nil {
		t.Error("a farewell can be added")
	}
}

func TestParseMember_RejectsInvalid(t *testing.T) {
	tests := map[string]struct{ key, value, want string }{
		"ID of another cluster":       {AttrClusterID, "cls2", "in the record of"},
		"an invalid cluster ID":       {AttrClusterID, "Not a label", "CLUSTER_ID"},
		"another clusterset":          {AttrClusterSetID, "set2", "signature"},
		"no UID":                      {AttrUID, "", "UID"},
		"an invalid time":             {AttrJoined, "yesterday", "not a time"},
		"no generation":               {AttrGeneration, "", "not a generation"},
		"a generation above 2^53":     {AttrGeneration, "9007199254740993", "not a generation"},
		"an invalid heartbeat":        {AttrHeartbeat, "1e9", "not a number"},
		"a negative heartbeat":        {AttrHeartbeat, "-1", "not a number"},
		"a heartbeat in year 10000":   {AttrHeartbeat, "253402300800000", "not a number"},
		"a UID of 129 bytes":          {AttrUID, strings.Repeat("x", 129), "more than 128 bytes"},
		"a version of 129 bytes":      {AttrVersion, strings.Repeat("x", 129), "more than 128 bytes"},
		"a UID of control characters": {AttrUID, "\x01\x02", "printable"},
		"a version with escapes":      {AttrVersion, "v1\x1b[2J", "printable"},
		"a process that is not ASCII": {AttrProcess, "\u2028", "printable"},
		"a process of 129 bytes":      {AttrProcess, strings.Repeat("x", 129), "more than 128 bytes"},
		"an invalid format":           {AttrFormat, "one", "not a version"},
		"a page number out of range":  {AttrPages, "64.AAAAAAAAAAA", "list of digests"},
		"a negative page number":      {AttrPages, "-1.AAAAAAAAAAA", "list of digests"},
		"no page number":              {AttrPages, "x.AAAAAAAAAAA", "list of digests"},
		"a duplicate page":            {AttrPages, "01.AAAAAAAAAAA,01.AAAAAAAAAAA", "list of digests"},
		"an invalid digest":           {AttrPages, "01.AAAA AAAAAA", "list of digests"},
		"a list without entries":      {AttrPages, ",", "list of digests"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			instance := testMember().Instance(theSigner)
			instance.Attributes[tc.key] = tc.value
			if _, err := ParseMember(instance, "set1"); err == nil {
				t.Error("a record that was changed after it was signed is valid")
			}
			instance = Sign(instance, theSigner)
			if _, err := ParseMember(instance, "set1"); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
	later := testMember().Instance(theSigner)
	later.Attributes[AttrFormat] = "2.3"
	later = Sign(later, theSigner)
	var newer *record.NewerError
	if _, err := ParseMember(later, "set1"); !errors.As(err, &newer) || newer.Major != 2 || newer.Minor != 3 {
		t.Errorf("a record of format 2.3: error %v, want a NewerError of that format", err)
	}
	later.Attributes[AttrFormat], later.Attributes["NEW_IN_1_9"] = "1.9", "x"
	later = Sign(later, theSigner)
	if _, err := ParseMember(later, "set1"); err != nil {
		t.Errorf("a record of format 1.9: %v", err)
	}
}

// TestParseMember_IgnoresInvalidContact: a record with an invalid contact is used without the
// contact.
func TestParseMember_IgnoresInvalidContact(t *testing.T) {
	for _, value := range []string{"nowhere", "224.0.0.1:53 " + notifyKey, "10.0.0.1:8479", "10.0.0.1:8479 short"} {
		instance := testMember().Instance(theSigner)
		instance.Attributes[AttrNotify] = value
		instance = Sign(instance, theSigner)
		r, err := ParseMember(instance, "set1")
		if err != nil || r.Contact.Address.IsValid() || !strings.Contains(r.ContactProblem, AttrNotify) || r.Heartbeat != 42 {
			t.Errorf("%q: record %+v, error %v; want one without a contact, and why", value, r, err)
		}
	}
}

func FuzzParseMember(f *testing.F) {
	f.Add("00.AAAAAAAAAAA", "AABB", "1", "1.0", "10.0.0.1:8479 AAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("", "", "1", "1.2", "")
	f.Fuzz(func(t *testing.T, pages, namespaces, number, format, contact string) {
		instance := testMember().Instance(theSigner)
		instance.Attributes[AttrPages], instance.Attributes[AttrGeneration], instance.Attributes[AttrFormat] = pages, number, format
		instance.Attributes[AttrNotify], instance.Attributes[AttrNamespaces] = contact, namespaces
		if _, err := ParseMember(instance, "set1"); err == nil && !maps.Equal(instance.Attributes, testMember().Instance(theSigner).Attributes) {
			t.Error("a record that was changed after it was signed is valid")
		}
		instance = Sign(instance, theSigner)
		r, err := ParseMember(instance, "set1")
		if err != nil {
			return
		}
		again, err := ParseMember(api.Instance{ID: "cls1", Attributes: r.Instance(theSigner).Attributes}, "set1")
		again.ContactProblem = r.ContactProblem // an invalid contact is not written again
		if err != nil || again != r {
			t.Errorf("second round gave %+v, %v, want %+v", again, err, r)
		}
	})
}

// TestMember_SignatureIsStable checks that a record is signed as other versions of the controller
// verify it. It changes with the version of the format only.
func TestMember_SignatureIsStable(t *testing.T) {
	const want = "zBt67KHrcGvJVMicv3DNUYEsaa0BmIVcq8S78qtkRF2Yz7o7pjJjUkT_IakqxUsFmJNIyBUV11Pkthw3f17KBA"
	if got := testMember().Instance(theSigner).Attributes[AttrSignature]; got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
}

// TestParseMember_IgnoresInvalidProperties checks that a record with ClusterProperties that cannot
// be used counts without them, and has a problem.
func TestParseMember_IgnoresInvalidProperties(t *testing.T) {
	valid := mcs.Properties{"region.example.com": "eu-central-1"}.Encode()
	for value, want := range map[string]string{"": "", valid: valid, "%": ""} {
		r := testMember()
		r.Properties = value
		got, err := ParseMember(r.Instance(theSigner), "set1")
		if err != nil {
			t.Fatal(err)
		}
		if hasProblem := len(got.Problems()) > 0; got.Properties != want || hasProblem != (want != value) {
			t.Errorf("%q is read as %q with problems %q, want %q", value, got.Properties, got.Problems(), want)
		}
	}
}

// TestParseMember_IgnoresInvalidReport checks that a record with a report of imports that cannot be
// used counts without it.
func TestParseMember_IgnoresInvalidReport(t *testing.T) {
	valid := largestReport()
	for value, want := range map[mcs.ImportReport]mcs.ImportReport{"": "", valid: valid, mcs.ManyImports: mcs.ManyImports, "%": "", valid + "AAAA": ""} {
		r := testMember()
		r.Imports = value
		got, err := ParseMember(r.Instance(theSigner), "set1")
		if err != nil {
			t.Fatal(err)
		}
		if got.Imports != want || len(got.Problems()) > 0 {
			t.Errorf("%q is read as %q with problems %q, want %q", value, got.Imports, got.Problems(), want)
		}
	}
}

func TestMember_IsOf(t *testing.T) {
	for identity, want := range map[mcs.Identity]bool{
		{ClusterID: "cls1", UID: "uid-1"}: true, {ClusterID: "cls1", UID: "uid-2"}: false, {ClusterID: "cls2", UID: "uid-1"}: false,
	} {
		if got := testMember().IsOf(identity); got != want {
			t.Errorf("the record of %v: %v, want %v", identity, got, want)
		}
	}
}

// The cluster that joined first keeps the cluster ID, and of two that joined at once, both take the
// same for the first one.
func TestMember_HasOlderClaimThan(t *testing.T) {
	early, late := time.UnixMilli(1000), time.UnixMilli(2000)
	for name, tc := range map[string]struct {
		a, b Member
		want bool
	}{
		"joined earlier":         {Member{Joined: early, UID: "b"}, Member{Joined: late, UID: "a"}, true},
		"joined later":           {Member{Joined: late, UID: "a"}, Member{Joined: early, UID: "b"}, false},
		"joined at once":         {Member{Joined: early, UID: "a"}, Member{Joined: early.UTC(), UID: "b"}, true},
		"joined at once, higher": {Member{Joined: early, UID: "b"}, Member{Joined: early.UTC(), UID: "a"}, false},
		"the same cluster":       {Member{Joined: early, UID: "a"}, Member{Joined: early, UID: "a"}, false},
	} {
		if got := tc.a.HasOlderClaimThan(tc.b); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// A heartbeat grows with every write, also if the clock was set back.
func TestMember_NextHeartbeat(t *testing.T) {
	for name, tc := range map[string]struct {
		m    Member
		now  int64
		want int64
	}{
		"clock":                  {Member{Heartbeat: 10, Generation: 5}, 20, 20},
		"clock at the heartbeat": {Member{Heartbeat: 20, Generation: 5}, 20, 21},
		"clock set back":         {Member{Heartbeat: 30, Generation: 5}, 20, 31},
		"later generation":       {Member{Heartbeat: 10, Generation: 40}, 20, 40},
	} {
		if got := tc.m.NextHeartbeat(time.UnixMilli(tc.now)); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	if !(Member{}).HeartbeatTime().IsZero() {
		t.Error("without a record there is a time of the heartbeat")
	}
	if got := (Member{Heartbeat: 1}).HeartbeatTime(); !got.Equal(time.UnixMilli(1)) {
		t.Errorf("heartbeat 1 is at %v", got)
	}
}

// Any cluster may write an instance with the cluster's ID: an invalid one is none.
func TestFindMember(t *testing.T) {
	identity := mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1"}
	valid, other := testMember().Instance(theSigner), testMember()
	other.ClusterID = "cls2"
	forged := api.Instance{ID: "cls1", Attributes: maps.Clone(valid.Attributes)}
	forged.Attributes[AttrPages] = ""
	for name, tc := range map[string]struct {
		instances []api.Instance
		want      bool
	}{
		"no records":                  {nil, false},
		"the record of another":       {[]api.Instance{other.Instance(theSigner)}, false},
		"the record after another":    {[]api.Instance{other.Instance(theSigner), valid}, true},
		"an invalid record":           {[]api.Instance{forged}, false},
		"a record that has its ID":    {[]api.Instance{{ID: "cls1", Attributes: other.Instance(theSigner).Attributes}}, false},
		"the record and one that has": {[]api.Instance{{ID: "cls1"}, valid}, true},
	} {
		found := FindMember(tc.instances, identity)
		if (found != nil) != tc.want || found != nil && *found != testMember() {
			t.Errorf("%s: %+v, want a record: %t", name, found, tc.want)
		}
	}
}

// Bounds of numbers and texts are valid.
func TestParseMember_AcceptsBounds(t *testing.T) {
	for key, values := range map[string][]string{
		AttrGeneration: {"0", "9007199254740992"}, AttrHeartbeat: {"0", "253402300799999"}, AttrPages: {"", "00.AAAAAAAAAAA", "63.AAAAAAAAAAA,00.AAAAAAAAAAB"},
		AttrUID: {strings.Repeat("x", 128)}, AttrVersion: {"", strings.Repeat("x", 128)}, AttrProcess: {"", strings.Repeat("x", 128)},
		AttrFormat: {"0.0", "1.0", "1.999"},
	} {
		for _, value := range values {
			instance := testMember().Instance(theSigner)
			instance.Attributes[key] = value
			if _, err := ParseMember(Sign(instance, theSigner), "set1"); err != nil {
				t.Errorf("%s %q: %v", key, value, err)
			}
		}
	}
}

func TestParseCatalogName(t *testing.T) {
	for name, want := range map[string]string{CatalogName("cls1"): "cls1", "catalog.": "", "catalog.Not a label": "", "cls1": "", "members": "", "catalog.a.b": ""} {
		if got, ok := ParseCatalogName(name); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %t; want %q", name, got, ok, want)
		}
	}
	if ControlNamespace("set1") != "mcs.set1" || CatalogName("cls1") != "catalog.cls1" {
		t.Errorf("names %q and %q", ControlNamespace("set1"), CatalogName("cls1"))
	}
}
