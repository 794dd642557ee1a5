package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record/recordpb"
)

var compareAddresses = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func web(name string, endpoints ...mcs.Endpoint) mcs.Export {
	exp := mcs.Export{
		Key: mcs.Key{Namespace: "demo", Name: name}, Cluster: "cls1",
		Created: time.Unix(1_790_000_000, 0), Changed: time.UnixMilli(1_790_000_000_123),
		Type:       mcsv1beta1.ClusterSetIP,
		Ports:      []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
	}
	if len(endpoints) > 0 {
		exp.Backends = []mcs.Backends{{Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}, Endpoints: endpoints}}
	}
	return exp.Canonical()
}

func headless(name string, endpoints ...mcs.Endpoint) mcs.Export {
	exp := web(name)
	exp.Type, exp.Backends = mcsv1beta1.Headless, []mcs.Backends{{Endpoints: endpoints}}
	return exp.Canonical()
}

func endpoint(address string) mcs.Endpoint {
	return mcs.Endpoint{Address: netip.MustParseAddr(address), Ready: true, Serving: true}
}

func named(address, hostname string, isReady bool) mcs.Endpoint {
	return mcs.Endpoint{Address: netip.MustParseAddr(address), Ready: isReady, Serving: isReady, Hostname: hostname}
}

func full() mcs.Export {
	timeout := int32(77)
	exp := web("full",
		mcs.Endpoint{Address: netip.MustParseAddr("10.10.0.1"), Ready: true, Serving: true, Zone: "a", Hostname: "web-0"},
		mcs.Endpoint{Address: netip.MustParseAddr("10.10.0.2"), Serving: true, Terminating: true},
		mcs.Endpoint{Address: netip.MustParseAddr("fd00::1"), Zone: "b"},
	)
	exp.Ports = append(exp.Ports, mcs.Port{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: "5353", AppProtocol: "kubernetes.io/h2c"})
	exp.Type = mcsv1beta1.Headless
	exp.SessionAffinity = corev1.ServiceAffinityClientIP
	exp.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	exp.InternalTrafficPolicy = corev1.ServiceInternalTrafficPolicyLocal
	exp.TrafficDistribution = corev1.ServiceTrafficDistributionPreferSameZone
	exp.Labels, exp.Annotations = map[string]string{"b": "2", "a": "1"}, map[string]string{"x": "ü"}
	exp.Backends = append(exp.Backends, mcs.Backends{
		Ports:     []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 9999, AppProtocol: "example.com/own"}},
		Endpoints: []mcs.Endpoint{endpoint("10.10.0.3"), named("10.10.0.3", "web-3", true), named("10.10.0.3", "web-4", false)},
	})
	return exp.Canonical()
}

func TestRoundTrip(t *testing.T) {
	tests := map[string][]mcs.Export{
		"no bytes":     nil,
		"no endpoints": {web("empty")},
		"one endpoint": {web("one", endpoint("10.0.0.1"))},
		"only IPv6":    {web("six", endpoint("fd00::1"), endpoint("fd00::2"))},
		"no ready endpoint": {web("a", mcs.Endpoint{Address: netip.MustParseAddr("10.0.0.1")},
			mcs.Endpoint{Address: netip.MustParseAddr("10.0.0.2"), Serving: true, Terminating: true})},
		"one zone": {web("a", mcs.Endpoint{Address: netip.MustParseAddr("10.0.0.1"), Ready: true, Serving: true, Zone: "a"})},
		"all endpoints with host names": {web("a", mcs.Endpoint{Address: netip.MustParseAddr("10.0.0.1"), Ready: true, Serving: true, Hostname: "web-0"},
			mcs.Endpoint{Address: netip.MustParseAddr("10.0.0.2"), Ready: true, Serving: true, Hostname: "web-1"})},
		"several host names on an address": {headless("a",
			named("10.0.0.1", "web-0", true), named("10.0.0.1", "web-1", false), named("10.0.0.1", "web-2", true),
			named("fd00::1", "web-0", true), named("fd00::1", "web-1", true))},
		"everything": {full()},
		"several":    {web("a", endpoint("10.0.0.1")), web("b"), web("c", endpoint("10.0.0.1"), endpoint("fd00::5"))},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			data := encode(t, want...)
			page, err := Decode(data, "cls1")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Page{Exports: want}, page, compareAddresses); diff != "" {
				t.Errorf("decoded page differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTimesThatJSONCannotEncode: the status endpoint shows exports as JSON, which has no times
// after the year 9999 or before the year 0.
func TestTimesThatJSONCannotEncode(t *testing.T) {
	tests := map[string]struct {
		seconds int64
		valid   bool
	}{
		"now":                  {1_790_000_000, true},
		"1970":                 {0, true},
		"end of the year 9999": {253402300799, true},
		"the year 10000":       {253402300800, false},
		"the last second":      {math.MaxInt64 / 1000, false},
		"before 1970":          {-1, false},
		"the first second":     {math.MinInt64 / 1000, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			exp, err := toExport(&recordpb.Export{Namespace: "demo", Name: "web", Created: tt.seconds, Changed: tt.seconds * 1000}, "cls1")
			if err != nil {
				t.Fatal(err)
			}
			if exp.Created.IsZero() == tt.valid || exp.Changed.IsZero() == tt.valid {
				t.Errorf("created %v, changed %v; want them: %t", exp.Created, exp.Changed, tt.valid)
			}
			if _, err := json.Marshal(exp); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSameExportsSameBytes(t *testing.T) {
	exports := []mcs.Export{full(), web("a", endpoint("10.0.0.2"), endpoint("10.0.0.1")), web("b")}
	want := encode(t, exports...)
	slices.Reverse(exports)
	slices.Reverse(exports[1].Backends[0].Endpoints)
	for range 20 {
		if !bytes.Equal(want, encode(t, exports...)) {
			t.Fatal("the same exports gave different bytes")
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := encode(t, web("a", endpoint("10.0.0.1")))
	tests := map[string]struct {
		data []byte
		want string
	}{
		"no bytes":          {nil, "no page"},
		"version 0":         {[]byte{0, 0, 1, 2}, "no page"},
		"no compression":    {[]byte{Major, Minor, 'h', 'e', 'l', 'l', 'o'}, "decompressing"},
		"cut off":           {good[:len(good)-3], "decompressing"},
		"no protobuf":       {compress([]byte{0xff, 0xff, 0xff}), "parsing"},
		"a huge page":       {compress(make([]byte, maxPageBytes+1)), "decompressing"},
		"too many exports":  {compress(bytes.Repeat([]byte{0x0a, 0x00}, maxExports+1)), "more than"},
		"half a field":      {compress([]byte{0x0a}), "parsing"},
		"a claim of length": {compress([]byte{0x0a, 0xff, 0xff, 0xff, 0x7f}), "parsing"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			page, err := Decode(tc.data, "cls1")
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got page %v and error %v, want an error with %q", page, err, tc.want)
			}
		})
	}
}

func TestVersions(t *testing.T) {
	data := encode(t, web("a", endpoint("10.0.0.1")))
	data[1] = Minor + 7
	if page, err := Decode(data, "cls1"); err != nil || len(page.Exports) != 1 {
		t.Errorf("a higher minor version gave %v, %v, want its export", page, err)
	}
	data[0] = Major + 1
	var newer *NewerError
	if _, err := Decode(data, "cls1"); !errors.As(err, &newer) || newer.Major != Major+1 || newer.Minor != Minor+7 {
		t.Errorf("a higher major version gave error %v, want a NewerError", err)
	}
}

// TestUnknownFields decodes a page of a later minor version, with unknown fields in every message.
func TestUnknownFields(t *testing.T) {
	unknown := []byte{0xfa, 0x7f, 0x03, 'n', 'e', 'w'} // field 2047, three bytes
	m := fromExport(web("a", endpoint("10.0.0.1")))
	m.ProtoReflect().SetUnknown(unknown)
	m.Ports[0].ProtoReflect().SetUnknown(unknown)
	m.Backends[0].ProtoReflect().SetUnknown(unknown)
	page, err := Decode(compress(slices.Concat(unknown, pageOf(t, m), unknown)), "cls1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Page{Exports: []mcs.Export{web("a", endpoint("10.0.0.1"))}}, page, compareAddresses); diff != "" {
		t.Errorf("decoded page differs (-want +got):\n%s", diff)
	}
}

// TestOneBadExport puts each kind of bad export between two valid ones.
func TestOneBadExport(t *testing.T) {
	change := func(f func(*recordpb.Export)) []byte {
		m := fromExport(full())
		f(m)
		return plain(t, m)
	}
	bad := mcs.Key{Namespace: "demo", Name: "full"}
	tests := map[string]struct {
		data           []byte
		wantUnnamed    bool
		wantUnreadable []mcs.Key
		wantProblem    string
	}{
		"no protobuf":           {data: []byte{0xff}, wantUnnamed: true, wantProblem: "export 1 of the page"},
		"too large":             {data: make([]byte, MaxExportBytes+1), wantUnnamed: true, wantProblem: "bytes"},
		"an invalid name":       {data: change(func(m *recordpb.Export) { m.Name = "No/Label" }), wantUnreadable: []mcs.Key{{Namespace: "demo", Name: "No/Label"}}, wantProblem: "is not a DNS label"},
		"the name of another":   {data: change(func(m *recordpb.Export) { m.Name = "a" }), wantProblem: "duplicate"},
		"an unknown type":       {data: change(func(m *recordpb.Export) { m.Type = "Mesh" }), wantUnreadable: []mcs.Key{bad}, wantProblem: "Mesh"},
		"an undecided export":   {data: plain(t, fromExport(Undecided(bad, "cls1"))), wantUnreadable: []mcs.Key{bad}},
		"half an address":       {data: change(func(m *recordpb.Export) { m.Backends[0].Ipv4 = m.Backends[0].Ipv4[:3] }), wantUnreadable: []mcs.Key{bad}, wantProblem: "multiple of 4"},
		"half an IPv6 address":  {data: change(func(m *recordpb.Export) { m.Backends[0].Ipv6 = m.Backends[0].Ipv6[:3] }), wantUnreadable: []mcs.Key{bad}, wantProblem: "multiple of 16"},
		"a short column":        {data: change(func(m *recordpb.Export) { m.Backends[0].States = []byte{1} }), wantUnreadable: []mcs.Key{bad}, wantProblem: "1 entries for 3 endpoints"},
		"a zone out of range":   {data: change(func(m *recordpb.Export) { m.Backends[0].Zones[1] = 1 << 31 }), wantUnreadable: []mcs.Key{bad}, wantProblem: "table of zones"},
		"a loopback address":    {data: plain(t, fromExport(web("full", endpoint("127.0.0.1"), endpoint("10.0.0.1")))), wantProblem: "loopback"},
		"port 0 of the service": {data: change(func(m *recordpb.Export) { m.Ports[0].Port = 0 }), wantProblem: "between 1 and 65535"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := &recordpb.Page{Exports: [][]byte{plain(t, fromExport(web("a"))), tc.data, plain(t, fromExport(web("z")))}}
			page, err := Decode(compress(plain(t, m)), "cls1")
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []mcs.Export{web("a"), web("z")} {
				if !slices.ContainsFunc(page.Exports, want.Equal) {
					t.Errorf("export %v was not read", want.Key)
				}
			}
			if page.Unnamed != tc.wantUnnamed || !slices.Equal(page.Unreadable, tc.wantUnreadable) {
				t.Errorf("unreadable are %v (unnamed: %v), want %v (unnamed: %v)", page.Unreadable, page.Unnamed, tc.wantUnreadable, tc.wantUnnamed)
			}
			if text := strings.Join(page.Problems, "\n"); !strings.Contains(text, tc.wantProblem) {
				t.Errorf("problems are %q, want one with %q", text, tc.wantProblem)
			}
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	exp := web("fat")
	exp.Annotations = map[string]string{"text": strings.Repeat("x", MaxExportBytes)}
	if err := Check(exp); err == nil {
		t.Error("an export of more than MaxExportBytes passed")
	}
	if _, err := Encode(make([]mcs.Export, maxExports+1)); err == nil {
		t.Error("a page of more than maxExports was encoded")
	}
}

// TestLimits checks an export and a page at their limits, and just above them.
func TestLimits(t *testing.T) {
	exp := web("a")
	exp.Annotations = map[string]string{"pad": ""}
	pad := func(bytes int) []byte {
		exp.Annotations["pad"] = strings.Repeat("x", bytes)
		return plain(t, fromExport(exp))
	}
	size := MaxExportBytes / 2
	size += MaxExportBytes - len(pad(size)) // the lengths of both take the same number of bytes
	if n := len(pad(size)); n != MaxExportBytes {
		t.Fatalf("the export takes %d bytes, want %d", n, MaxExportBytes)
	}
	if err := Check(exp); err != nil {
		t.Errorf("an export of %d bytes is refused: %v", MaxExportBytes, err)
	}
	if page, err := Decode(encode(t, exp), "cls1"); err != nil || page.Unnamed || len(page.Exports) != 1 {
		t.Errorf("a page with an export of %d bytes gave unnamed %v, %d exports, %v", MaxExportBytes, page.Unnamed, len(page.Exports), err)
	}
	if _, err := Encode(slices.Repeat([]mcs.Export{exp}, maxPageBytes/MaxExportBytes+1)); err == nil {
		t.Errorf("a page of more than %d bytes is accepted", maxPageBytes)
	}
	pad(size + 1)
	if err := Check(exp); err == nil {
		t.Errorf("an export of %d bytes is accepted", MaxExportBytes+1)
	}
	many := make([]mcs.Export, maxExports)
	for i := range many {
		many[i] = mcs.Export{Key: mcs.Key{Namespace: "demo", Name: fmt.Sprint(i)}}
	}
	if _, err := Encode(many); err != nil {
		t.Errorf("%d exports are refused: %v", maxExports, err)
	}
	if _, err := Encode(append(many, mcs.Export{})); err == nil {
		t.Errorf("%d exports are accepted", maxExports+1)
	}
}

// TestZoneOutsideTable decodes an endpoint whose zone is the first index outside the table of
// zones.
func TestZoneOutsideTable(t *testing.T) {
	m := fromExport(web("a", mcs.Endpoint{Address: netip.MustParseAddr("10.0.0.1"), Ready: true, Serving: true, Zone: "a"}))
	m.Backends[0].Zones[0] = uint32(len(m.Backends[0].ZoneNames))
	page, err := Decode(compress(pageOf(t, m)), "cls1")
	if err != nil || len(page.Unreadable) != 1 {
		t.Errorf("got %+v, %v, want an unreadable export", page, err)
	}
}

// TestZoneTable checks that a zone is once in the table of zones, and that endpoints without zones
// need no table.
func TestZoneTable(t *testing.T) {
	names, column := zones([]mcs.Endpoint{{Zone: "b"}, {Zone: "a"}, {Zone: "b"}, {}})
	if !slices.Equal(names, []string{"", "a", "b"}) || !slices.Equal(column, []uint32{2, 1, 2, 0}) {
		t.Errorf("got %q, %d", names, column)
	}
	if names, column := zones([]mcs.Endpoint{{}, {}}); names != nil || column != nil {
		t.Errorf("without zones: got %q, %d, want no table", names, column)
	}
}

// TestBytesPerEndpoint bounds the encoded size of one endpoint of many. Addresses scattered over
// the pod network are the worst case.
func TestBytesPerEndpoint(t *testing.T) {
	for _, n := range []int{10, 100, 500, 1000, 5000} {
		size := len(encode(t, web("big", scattered(n)...)))
		t.Logf("%5d endpoints: %6d bytes, %.2f each", n, size, float64(size)/float64(n))
		if n >= 500 && size > 4*n {
			t.Errorf("%d endpoints take %d bytes: more than their addresses alone", n, size)
		}
	}
}

// scattered returns n ready endpoints at addresses 10.10.x.y in three zones, the same ones at each
// call.
func scattered(n int) []mcs.Endpoint {
	rnd := rand.New(rand.NewPCG(1, 2))
	var endpoints []mcs.Endpoint
	for _, i := range rnd.Perm(1 << 16)[:n] {
		e := endpoint(fmt.Sprintf("10.10.%d.%d", i>>8, i&0xff))
		e.Zone = fmt.Sprintf("eu-west-1%c", 'a'+rnd.IntN(3))
		endpoints = append(endpoints, e)
	}
	return endpoints
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(f, full(), web("a")))
	f.Add([]byte{Major, Minor})
	f.Add(compress([]byte{0x0a, 0x02, 0x0a, 0x00}))
	f.Fuzz(func(t *testing.T, data []byte) {
		checkRoundTrip(t, data)
	})
}

// checkRoundTrip checks that decoded exports can be encoded again, and decode to the same exports.
func checkRoundTrip(t *testing.T, data []byte) {
	t.Helper()
	page, err := Decode(data, "cls1")
	if err != nil {
		return
	}
	again, err := Decode(encode(t, page.Exports...), "cls1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(byKey(page.Exports), again.Exports, compareAddresses); diff != "" {
		t.Errorf("second round differs:\n%s", diff)
	}
}

// FuzzExport fuzzes the message itself, which the compression hides from FuzzDecode.
func FuzzExport(f *testing.F) {
	f.Add(plain(f, fromExport(full())), plain(f, fromExport(web("a"))))
	f.Add(plain(f, fromExport(web("b", endpoint("10.0.0.1"), endpoint("fd00::1")))), []byte{0x0a})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		checkRoundTrip(t, compress(plain(t, &recordpb.Page{Exports: [][]byte{a, b}})))
	})
}

func BenchmarkEncode(b *testing.B) {
	exports := []mcs.Export{web("a", scattered(20)...), web("b", scattered(20)...), web("c", scattered(500)...)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Encode(exports); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	data := encode(b, web("a", scattered(20)...), web("b", scattered(20)...), web("c", scattered(500)...))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(data, "cls1"); err != nil {
			b.Fatal(err)
		}
	}
}

func encode(t testing.TB, exports ...mcs.Export) []byte {
	t.Helper()
	data, err := Encode(exports)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func compress(plain []byte) []byte { return encoder().EncodeAll(plain, []byte{Major, Minor}) }

func plain(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func pageOf(t testing.TB, m *recordpb.Export) []byte {
	t.Helper()
	return plain(t, &recordpb.Page{Exports: [][]byte{plain(t, m)}})
}

func byKey(exports []mcs.Export) []mcs.Export {
	sorted := slices.Clone(exports)
	slices.SortFunc(sorted, func(a, b mcs.Export) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return sorted
}
