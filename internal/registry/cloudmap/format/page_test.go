package format

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// noise returns n bytes that look like a compressed page.
func noise(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	return data
}

var (
	theIdentity = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}
	theAuthor   = testMember().Author()
)

func split(t *testing.T, page int, generation int64, data []byte) []api.Instance {
	t.Helper()
	instances, err := SplitPage(theIdentity, theSigner, page, generation, data)
	if err != nil {
		t.Fatal(err)
	}
	return instances
}

func TestSplitAndJoin(t *testing.T) {
	longest := strings.Repeat("c", 63)
	for _, size := range []int{1, 100, 3000, 3500, 3600, 3700, 10_000, 500_000} {
		for _, clusterID := range []string{"a", longest} {
			data := noise(size)
			identity := mcs.Identity{ClusterID: clusterID, ClusterSetID: "set1", UID: "uid-1"}
			instances, err := SplitPage(identity, theSigner, 7, 1_790_000_000_000, data)
			if err != nil {
				t.Fatal(err)
			}
			for _, instance := range instances {
				checkInstance(t, instance)
			}
			shuffled := slices.Clone(instances)
			slices.Reverse(shuffled)
			author := Author{ClusterSetID: "set1", ClusterID: clusterID, UID: "uid-1", Key: theSigner.Key()}
			img, err := JoinPage(7, shuffled, Author{}, author)
			if err != nil {
				t.Fatalf("%d bytes of %s: %v", size, clusterID, err)
			}
			if !bytes.Equal(img.Data, data) || img.Parts != len(instances) || img.Generation != 1_790_000_000_000 || img.Digest != Digest(data) || img.Author != author {
				t.Errorf("%d bytes of %s came back as %d, in %d parts of generation %d", size, clusterID, len(img.Data), img.Parts, img.Generation)
			}
		}
	}
	if _, err := SplitPage(theIdentity, theSigner, 7, 1, noise(1<<20)); err == nil {
		t.Error("a page of a MiB, which no Cloud Map service has room for beside others, was split")
	}
}

var (
	idPattern    = regexp.MustCompile(`^[0-9a-zA-Z_/:.@-]{1,64}$`)
	keyPattern   = regexp.MustCompile(`^[a-zA-Z0-9!-~]{1,255}$`)
	valuePattern = regexp.MustCompile(`^([a-zA-Z0-9!-~][ \ta-zA-Z0-9!-~]*){0,1}[a-zA-Z0-9!-~]{0,1}$`)
)

// checkInstance holds an instance against Cloud Map's limits.
func checkInstance(t *testing.T, instance api.Instance) {
	t.Helper()
	total := 0
	for key, value := range instance.Attributes {
		total += len(key) + len(value)
		if !keyPattern.MatchString(key) || !valuePattern.MatchString(value) || len(value) > maxValue {
			t.Errorf("instance %s has attribute %s with %d characters, which Cloud Map refuses: %q", instance.ID, key, len(value), value)
		}
	}
	if total > maxAttributes*98/100 || len(instance.Attributes) > 30 || !idPattern.MatchString(instance.ID) {
		t.Errorf("instance %s has %d characters in %d attributes, which Cloud Map refuses", instance.ID, total, len(instance.Attributes))
	}
}

func TestJoinPage(t *testing.T) {
	data := noise(9000) // three parts
	older, newer := split(t, 7, 10, data[:8000]), split(t, 7, 11, data)
	change := func(instance api.Instance, key, value string) api.Instance {
		instance.Attributes = maps.Clone(instance.Attributes)
		instance.Attributes[key] = value
		return instance
	}
	resigned := func(author Author, signer string) []api.Instance {
		identity := mcs.Identity{ClusterID: author.ClusterID, ClusterSetID: author.ClusterSetID, UID: author.UID}
		parts, err := SplitPage(identity, signerOf(signer), 7, 11, data)
		if err != nil {
			t.Fatal(err)
		}
		return parts
	}
	tests := map[string]struct {
		instances      []api.Instance
		wantGeneration int64
		wantErr        string
	}{
		"whole":                         {instances: newer, wantGeneration: 11},
		"no parts":                      {wantErr: "no instance"},
		"of another page":               {instances: split(t, 8, 11, data), wantErr: "no instance"},
		"others' instances beside":      {instances: append([]api.Instance{{ID: "page-7-0"}, {ID: "page-07"}, {ID: "page-07-00"}, {ID: "i-1"}, {ID: "page-99-0"}}, newer...), wantGeneration: 11},
		"a part is missing":             {instances: newer[1:], wantErr: "part 0 of 3 of generation 11 is missing"},
		"being written, shorter":        {instances: []api.Instance{newer[0], newer[1], older[2]}, wantErr: "missing"},
		"being written, last one first": {instances: append(slices.Clone(split(t, 7, 10, data[:3000])), newer[1:]...), wantGeneration: 10},
		"parts too many":                {instances: append(slices.Clone(split(t, 7, 12, data[:3000])), newer[1:]...), wantGeneration: 12},
		"a changed character":           {instances: []api.Instance{newer[0], change(newer[1], "DATA0", strings.Repeat("A", maxValue)), newer[2]}, wantErr: "digest"},
		"no base64":                     {instances: []api.Instance{newer[0], change(newer[1], "DATA0", "%%%"), newer[2]}, wantErr: "decoded"},
		"no generation":                 {instances: []api.Instance{change(newer[0], AttrGeneration, "x")}, wantErr: "generation"},
		"generation too late":           {instances: []api.Instance{change(newer[0], AttrGeneration, "9007199254740993")}, wantErr: "generation"},
		"generation 0":                  {instances: []api.Instance{change(newer[0], AttrGeneration, "0")}, wantErr: "generation"},
		"no number of parts":            {instances: []api.Instance{change(newer[0], AttrParts, "x")}, wantErr: "parts"},
		"0 parts":                       {instances: []api.Instance{change(newer[0], AttrParts, "0")}, wantErr: "parts"},
		"a billion parts":               {instances: []api.Instance{change(newer[0], AttrParts, "1000000000")}, wantErr: "parts"},
		"contradicting parts":           {instances: []api.Instance{newer[0], newer[1], change(newer[2], AttrParts, "4")}, wantErr: "contradict"},
		"a part beyond the last":        {instances: append(slices.Clone(newer), api.Instance{ID: "page-07-3", Attributes: newer[2].Attributes}), wantErr: "contradict"},
		"another cluster's page":        {instances: resigned(Author{ClusterSetID: "set1", ClusterID: "cls2", UID: "uid-1"}, "uid-1"), wantErr: "generation 11 is refused"},
		"another clusterset's page":     {instances: resigned(Author{ClusterSetID: "set2", ClusterID: "cls1", UID: "uid-1"}, "uid-1"), wantErr: "is refused"},
		"another UID":                   {instances: resigned(Author{ClusterSetID: "set1", ClusterID: "cls1", UID: "uid-2"}, "uid-1"), wantErr: "is refused"},
		"another key":                   {instances: resigned(theAuthor, "attacker"), wantErr: "signature is not valid"},
		"an unsigned later generation":  {instances: append(slices.Clone(newer), change(change(split(t, 7, 12, data[:3000])[0], AttrSignature, ""), AttrParts, "1")), wantGeneration: 11},
		"no attributes":                 {instances: []api.Instance{{ID: "page-07-0"}}, wantErr: "generation"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			img, err := JoinPage(7, tc.instances, theAuthor)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("got generation %d and error %v, want an error with %q", img.Generation, err, tc.wantErr)
				}
				return
			}
			if err != nil || img.Generation != tc.wantGeneration {
				t.Errorf("got generation %d and error %v, want generation %d", img.Generation, err, tc.wantGeneration)
			}
		})
	}
}

func TestCountParts(t *testing.T) {
	instances := []api.Instance{{ID: "page-07-2"}, {ID: "page-07-0"}, {ID: "page-08-5"}, {ID: "other"}}
	for page, want := range map[int]int{7: 3, 8: 6, 9: 0} {
		if got := CountParts(page, instances); got != want {
			t.Errorf("page %d has %d parts, want %d", page, got, want)
		}
	}
}

// TestEndpointsPerInstance finds how many endpoints of one export fit one instance when their
// addresses are scattered over the pod network, which compresses worst.
func TestEndpointsPerInstance(t *testing.T) {
	fits := func(n int) bool {
		rnd := rand.New(rand.NewPCG(1, 2))
		backend := mcs.Backends{Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}}
		for _, address := range rnd.Perm(1 << 16)[:n] {
			backend.Endpoints = append(backend.Endpoints, mcs.Endpoint{
				Address: netip.AddrFrom4([4]byte{10, 10, byte(address >> 8), byte(address)}),
				Ready:   true, Serving: true, Zone: fmt.Sprintf("eu-west-1%c", 'a'+rnd.IntN(3)),
			})
		}
		exp := mcs.Export{
			Key: mcs.Key{Namespace: "demo", Name: "web"}, Cluster: "cls1", Created: time.Unix(1_790_000_000, 0), Type: mcsv1beta1.ClusterSetIP,
			Ports:      []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Backends: []mcs.Backends{backend},
		}
		data, err := record.Encode([]mcs.Export{exp.Canonical()})
		if err != nil {
			t.Fatal(err)
		}
		return len(split(t, 0, 1_790_000_000_000, data)) == 1
	}
	n := 100
	for fits(n + 50) {
		n += 50
	}
	t.Logf("one Cloud Map instance holds %d endpoints at 10.10.x.y in three zones", n)
	if n < 500 {
		t.Errorf("one instance holds %d endpoints, want at least 500", n)
	}
}

func TestPageOf_DistributesEvenly(t *testing.T) {
	counts := [PageCount]int{}
	for i := range 6400 {
		counts[PageOf(mcs.Key{Namespace: "demo", Name: fmt.Sprintf("web-%d", i)})]++
	}
	if low, high := slices.Min(counts[:]), slices.Max(counts[:]); low < 60 || high > 150 {
		t.Errorf("of 6,400 exports a page has between %d and %d, want about 100", low, high)
	}
}

func FuzzJoinPage(f *testing.F) {
	f.Add("page-07-0", "1", "1", "AAAA", "digest", "page-07-1", "2", "2", "BBBB")
	f.Fuzz(func(t *testing.T, id0, generation0, parts0, data0, digest, id1, generation1, parts1, data1 string) {
		img, err := JoinPage(7, []api.Instance{
			{ID: id0, Attributes: map[string]string{AttrGeneration: generation0, AttrParts: parts0, AttrDigest: digest, "DATA0": data0}},
			{ID: id1, Attributes: map[string]string{AttrGeneration: generation1, AttrParts: parts1, AttrDigest: digest, "DATA0": data1}},
		}, theAuthor)
		if err == nil {
			t.Errorf("a page of %d bytes was accepted that is not signed", len(img.Data))
		}
	})
}

// FuzzJoinSignedPage changes one attribute of a signed page.
func FuzzJoinSignedPage(f *testing.F) {
	parts, err := SplitPage(theIdentity, theSigner, 7, 11, noise(5000))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(0, AttrGeneration, "12")
	f.Add(1, AttrSignature, "")
	f.Add(1, "DATA0", "AAAA")
	f.Fuzz(func(t *testing.T, part int, key, value string) {
		changed := slices.Clone(parts)
		i := (part%len(parts) + len(parts)) % len(parts)
		changed[i].Attributes = maps.Clone(changed[i].Attributes)
		changed[i].Attributes[key] = value
		if img, err := JoinPage(7, changed, theAuthor); err == nil && (!bytes.Equal(img.Data, noise(5000)) || img.Generation != 11) {
			t.Errorf("%s=%q made another page valid", key, value)
		}
	})
}

// TestSplitPage_SignatureIsStable checks that a page is written and signed as other versions of the
// controller read and verify it.
func TestSplitPage_SignatureIsStable(t *testing.T) {
	parts := split(t, 7, 11, []byte("data"))
	want := map[string]string{
		AttrClusterID: "cls1", AttrPage: "07", AttrGeneration: "11", AttrPart: "0", AttrParts: "1", AttrDigest: Digest([]byte("data")),
		AttrFormat: record.Version(), "DATA0": "ZGF0YQ",
		AttrSignature: "w_KjnzogXey7523FMk0PVwDZh9kR3Z0I0F30pG2v89Zb9WV5EOYOSB_XJihUtz1XcwtJrz2PDbchoxegSZJ2BQ",
	}
	if diff := cmp.Diff(want, parts[0].Attributes); diff != "" || len(parts) != 1 || parts[0].ID != "page-07-0" {
		t.Errorf("%d parts, the first %s (-want +got):\n%s", len(parts), parts[0].ID, diff)
	}
}

func TestParsePartID(t *testing.T) {
	for id, want := range map[string]bool{
		"page-07-0": true, "page-63-0": true, "page-64-0": false, "page-07": false, "page-07-": false, "page-x-0": false, "page-07-x": false, "page--1-0": false,
		"page-07--1": false, "page-7-0": false, "page-07-00": false, "part-07-0": false, "page-07-100000": false, "": false,
	} {
		if page, part, got := ParsePartID(id); got != want || got && PartID(page, part) != id {
			t.Errorf("%q: page %d, part %d, %v; want %v", id, page, part, got, want)
		}
	}
}

func TestGroupByPage(t *testing.T) {
	ids := map[int][]string{}
	for page, instances := range GroupByPage([]api.Instance{{ID: "page-07-1"}, {ID: "record"}, {ID: "page-64-0"}, {ID: "page-08-0"}, {ID: "page-07-0"}}) {
		for _, instance := range instances {
			ids[page] = append(ids[page], instance.ID)
		}
	}
	if diff := cmp.Diff(map[int][]string{7: {"page-07-1", "page-07-0"}, 8: {"page-08-0"}}, ids); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
}

// The error of a page that cannot be read is about its newest generation, and the largest page and
// generation are valid.
func TestJoinPage_Bounds(t *testing.T) {
	instances := slices.Concat(split(t, 7, 10, noise(9000))[1:], split(t, 7, 12, noise(9000))[2:], split(t, 7, 11, noise(9000))[:2])
	for range 20 { // the generations are in a map
		if _, err := JoinPage(7, instances, theAuthor); err == nil || !strings.Contains(err.Error(), "generation 12 ") {
			t.Fatalf("error %v, want one about generation 12", err)
		}
	}
	complete := slices.Concat(split(t, 7, 10, noise(9000)), split(t, 7, 12, noise(9000)), split(t, 7, 11, noise(9000)))
	for range 20 {
		if got, err := JoinPage(7, complete, theAuthor); err != nil || got.Generation != 12 {
			t.Fatalf("generation %d, %v; want 12", got.Generation, err)
		}
	}
	largest := split(t, 63, maxGeneration, noise(MaxParts*3000))
	if got, err := JoinPage(63, largest, theAuthor); err != nil || got.Generation != maxGeneration || got.Parts != len(largest) {
		t.Errorf("generation %d in %d parts, %v", got.Generation, got.Parts, err)
	}
	if _, err := JoinPage(7, split(t, 7, 11, []byte("data"))); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("without an author: error %v", err)
	}
}

// A page has the fewest parts that hold it, also if the last part has one character.
func TestSplitPage_FillsParts(t *testing.T) {
	// the room of a part changes by one character
	for _, clusterID := range []string{"a", "ab", "abc", "abcd"} {
		identity := mcs.Identity{ClusterID: clusterID, ClusterSetID: "set1", UID: "uid-1"}
		author := Author{ClusterSetID: "set1", ClusterID: clusterID, UID: "uid-1", Key: theSigner.Key()}
		shortest := map[int]int{} // by the number of characters in the last of two parts
		for size := 3300; size < 3700; size++ {
			instances, err := SplitPage(identity, theSigner, 7, 1_790_000_000_000, noise(size))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := JoinPage(7, instances, author); err != nil || len(got.Data) != size || got.Parts != len(instances) {
				t.Fatalf("%d bytes come back as %d: %v", size, len(got.Data), err)
			}
			if len(instances) == 2 {
				shortest[len(instances[1].Attributes["DATA0"])]++
			}
		}
		if least := slices.Min(slices.Collect(maps.Keys(shortest))); least > 2 {
			t.Errorf("a second part has %d characters or more, want one or two", least)
		}
	}
}
