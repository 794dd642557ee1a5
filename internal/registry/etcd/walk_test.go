package etcd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// walked is the result of a walk through keys.
type walked struct {
	keys []string
	// requests is the number of requests, counted the number of keys that etcd counts for them.
	requests, counted int
}

// walkThrough reads sorted keys as etcd answers.
func walkThrough(t *testing.T, root string, keys []string, value []byte) (result walked) {
	t.Helper()
	for w := newWalk(root); !w.IsOver(); result.requests++ {
		from, end, limit := w.Next()
		if from >= end || result.requests > 2*len(keys)+100 {
			t.Fatalf("request %d reads from %q to %q", result.requests, from, end)
		}
		first, _ := slices.BinarySearch(keys, from)
		last, _ := slices.BinarySearch(keys, end)
		page := &clientv3.GetResponse{Count: int64(last - first), More: last-first > int(limit)}
		for _, key := range keys[first:min(last, first+int(limit))] {
			page.Kvs = append(page.Kvs, &mvccpb.KeyValue{Key: []byte(key), Value: value})
			result.keys = append(result.keys, key)
		}
		result.counted += last - first
		w.Read(page)
	}
	return result
}

// clustersOf are the keys of clusters with 99 exports each.
func clustersOf(root string, ids ...string) (keys []string) {
	for _, id := range ids {
		for i := range 99 {
			keys = append(keys, fmt.Sprintf("%s%s/exports/team-%d/web-%d", root, id, i%10, i))
		}
		keys = append(keys, root+id+"/alive", root+id+"/member")
	}
	slices.Sort(keys)
	return keys
}

func TestWalk(t *testing.T) {
	const root = "/mcs/set1/"
	numbered := func(format string, n int) (ids []string) {
		for i := range n {
			ids = append(ids, fmt.Sprintf(format, i))
		}
		return ids
	}
	random := rand.New(rand.NewPCG(1, 1))
	var mixed []string
	for range 1000 {
		mixed = append(mixed, fmt.Sprintf("%c%x", 'a'+random.IntN(26), random.Uint32()))
	}
	one := strings.Repeat("x", 60)
	for name, tt := range map[string]struct {
		keys []string
		// requests and counted are the most that there may be.
		requests, counted int
	}{
		"no key":                            {nil, 1, 0},
		"one cluster":                       {clustersOf(root, "cls1"), 4, 300},
		"1,000 clusters":                    {clustersOf(root, numbered("member-%03d", 1000)...), 430, 2_500_000},
		"1,000 clusters with other numbers": {clustersOf(root, numbered("cluster-%d-eu", 1000)...), 430, 3_000_000},
		"1,000 clusters with random IDs":    {clustersOf(root, mixed...), 430, 1_500_000},
		"10,000 clusters":                   {clustersOf(root, numbered("member-%04d", 10_000)...), 4_200, 30_000_000},
		"one cluster with 100,000 keys": {func() (keys []string) {
			for i := range 100_000 {
				keys = append(keys, fmt.Sprintf("%scls1/exports/%s/%s-%05d", root, one, one, i))
			}
			return keys
		}(), 560, 3_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			got := walkThrough(t, root, tt.keys, nil)
			t.Logf("%d keys: %d requests, %d keys counted", len(tt.keys), got.requests, got.counted)
			if !slices.Equal(got.keys, tt.keys) {
				t.Errorf("%d keys are read, want all %d in order", len(got.keys), len(tt.keys))
			}
			if got.requests > tt.requests || got.counted > tt.counted {
				t.Errorf("%d requests, for which etcd counts %d keys; want %d and %d at most", got.requests, got.counted, tt.requests, tt.counted)
			}
		})
	}
}

// TestWalk_ReadsAllKeys: whatever the keys are, each is read once.
func TestWalk_ReadsAllKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	for range 100 {
		alphabet, root := []string{"a", "b/", "\xff", "\x00", "-0"}[:1+random.IntN(5)], "/r/"
		keys := map[string]bool{}
		for range random.IntN(30_000) {
			key := root
			for range 1 + random.IntN(20) {
				key += alphabet[random.IntN(len(alphabet))]
			}
			keys[key] = true
		}
		var sorted []string
		for key := range keys {
			sorted = append(sorted, key)
		}
		slices.Sort(sorted)
		value := make([]byte, random.IntN(2)*10_000)
		if got := walkThrough(t, root, sorted, value); !slices.Equal(got.keys, sorted) {
			t.Fatalf("of %d keys of %q, %d are read", len(sorted), alphabet, len(got.keys))
		}
	}
}

func TestNextPage(t *testing.T) {
	for name, tt := range map[string]struct{ limit, bytes, want int }{
		"small values":          {pageKeys, 32 << 10, 2 * pageKeys},
		"as many as there are":  {maxPageKeys, 256 << 10, maxPageKeys},
		"values of some KiB":    {2 * pageKeys, smallPage + 1, 2 * pageKeys},
		"large values":          {maxPageKeys, 10 << 20, pageKeys},
		"large values of a few": {pageKeys, 48 << 20, pageKeys},
	} {
		if got := nextPage(tt.limit, tt.bytes); got != tt.want {
			t.Errorf("%s: the next page has %d keys, want %d", name, got, tt.want)
		}
	}
}
