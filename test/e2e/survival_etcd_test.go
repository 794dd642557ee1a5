package e2e

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// etcdContent reads and changes etcd as root.
type etcdContent struct {
	// exports are the keys of cls1's exports before the first scenario.
	exports []string
}

// prefixOf returns the prefix of a cluster's keys.
func prefixOf(cluster string) string { return "/mcs/" + clusterset.ClusterSetID + "/" + cluster + "/" }

// newEtcdContent saves a snapshot of etcd as it is now.
func newEtcdContent(t *testing.T) *etcdContent {
	t.Helper()
	if err := suite.SnapshotEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &etcdContent{}
}

// etcdctl runs a command as root.
func etcdctl(ctx context.Context, command string) (string, error) {
	out, err := suite.Output(ctx, "etcdctl "+command)
	if err != nil {
		return out, fmt.Errorf("etcdctl %s: %w: %s", command, err, out)
	}
	return out, nil
}

// keys returns the keys below a prefix.
func (c *etcdContent) keys(ctx context.Context, prefix string) ([]string, error) {
	out, err := etcdctl(ctx, "get --prefix --keys-only "+prefix)
	return strings.Fields(out), err
}

// complete implements content.
func (c *etcdContent) complete(ctx context.Context, cluster string) error {
	keys, err := c.keys(ctx, prefixOf(cluster))
	if err != nil {
		return err
	}
	for _, want := range append(slices.Clip(c.exports), prefixOf(cluster)+"member") {
		if !slices.Contains(keys, want) {
			return fmt.Errorf("etcd has no key %s", want)
		}
	}
	return nil
}

// testEtcd has the scenarios about the content of etcd.
func (s *survival) testEtcd(t *testing.T) {
	c := s.store.(*etcdContent)
	keys, err := c.keys(t.Context(), prefixOf("cls1")+"exports/"+s.ns+"/")
	if err != nil || len(keys) != exportCount {
		t.Fatalf("etcd has %d exports of cls1: %v", len(keys), err)
	}
	c.exports = keys
	run := func(t *testing.T, command string) {
		t.Helper()
		if _, err := etcdctl(t.Context(), command); err != nil {
			t.Fatal(err)
		}
	}
	s.test(t, "root deletes the member key", allowance{}, func(t *testing.T) { run(t, "del "+prefixOf("cls1")+"member") })
	s.test(t, "root deletes all export keys", allowance{}, func(t *testing.T) { run(t, "del --prefix "+prefixOf("cls1")+"exports/") })
	s.test(t, "root deletes all keys of a cluster", allowance{}, func(t *testing.T) { run(t, "del --prefix "+prefixOf("cls1")) })
	s.test(t, "root deletes all keys", allowance{}, func(t *testing.T) { run(t, "del --prefix /mcs/") })
	for _, restore := range restores {
		s.test(t, restore.name, allowance{}, func(t *testing.T) {
			err := errors.Join(suite.StopRegistry(t.Context()), suite.RestoreEtcd(t.Context(), restore.flags), suite.StartRegistry(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	s.test(t, "etcd starts empty, and its users are created again", allowance{}, func(t *testing.T) {
		if err := errors.Join(suite.StopRegistry(t.Context()), suite.EmptyRegistry(), suite.StartRegistry(t.Context())); err != nil {
			t.Fatal(err)
		}
		for _, cluster := range []string{"cls1", "cls2"} {
			user := clusterset.ClusterSetID + "." + cluster
			run(t, "user add "+user+" --interactive=false < bin/etcd/"+cluster+".password")
			run(t, "role add "+user)
			run(t, "role grant-permission "+user+" read --prefix=true /mcs/"+clusterset.ClusterSetID+"/")
			run(t, "role grant-permission "+user+" readwrite --prefix=true "+prefixOf(cluster))
			run(t, "user grant-role "+user+" "+user)
		}
	})
	s.testForgedKeys(t, c)
	if !testing.Short() {
		s.testRename(t, c.requestsIn, func(t *testing.T) {
			run(t, "role grant-permission "+clusterset.ClusterSetID+".cls1 readwrite --prefix=true "+prefixOf(clusterset.Renamed))
		})
	}
}

// restores are the ways in which a snapshot is restored, with the flags of etcdutl. With the flags
// of the second one the revision does not go back, and all watches end: etcd recommends them if
// clients watch.
var restores = []struct{ name, flags string }{
	{"etcd is restored from a snapshot with half of the exports", ""},
	{"etcd is restored from a snapshot with half of the exports and a later revision", "--bump-revision 1000000000 --mark-compacted"},
}

// testForgedKeys has the scenarios in which another cluster writes keys of cls1. The roles of
// docs/etcd.md do not let it (TestEtcdUsers), so root does: an administrator shares one user, or
// makes a mistake.
func (s *survival) testForgedKeys(t *testing.T, c *etcdContent) {
	member := prefixOf("cls1") + "member"
	read := func(t *testing.T, key string) []byte {
		t.Helper()
		value, err := c.value(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	write := func(t *testing.T, key string, value []byte) {
		t.Helper()
		if _, err := suite.Stdout(t.Context(), string(value), "etcdctl", "put", key); err != nil {
			t.Fatal(err)
		}
	}
	s.test(t, "another cluster's keys with a forged value", allowance{}, func(t *testing.T) {
		write(t, c.exports[0], read(t, c.exports[1]))
		write(t, member, []byte("{}"))
	})
	s.test(t, "a farewell of the cluster, signed with another key, while its controllers are down", allowance{}, func(t *testing.T) {
		signer, err := trust.NewSigner(bytes.Repeat([]byte{2}, ed25519.SeedSize), nil)
		if err != nil {
			t.Fatal(err)
		}
		restart := killController(t, s.cls1) // a running controller would replace the key at once
		farewell, err := farewellOf(read(t, member), signer)
		if err != nil {
			t.Fatal(err)
		}
		write(t, member, farewell)
		var problems []string
		eventually(t, soon, func() (err error) {
			problems, err = memberProblems(t.Context(), s.cls2, "cls1")
			if err == nil && len(problems) == 0 {
				err = errors.New("cls2 shows no problem of the member cls1")
			}
			return err
		})
		t.Logf("cls2 shows for the member cls1: %q", problems)
		restart()
	})
	s.test(t, "earlier keys of the cluster are written again", allowance{}, func(t *testing.T) {
		replayed := []string{member, prefixOf("cls1") + "exports/" + s.ns + "/" + changing}
		var earlier [][]byte
		for _, key := range replayed {
			earlier = append(earlier, read(t, key))
		}
		if err := s.changePropagates(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			for i, key := range replayed {
				write(t, key, earlier[i])
			}
			time.Sleep(time.Second)
		}
	})
}

// value returns the value of a key.
func (c *etcdContent) value(ctx context.Context, key string) ([]byte, error) {
	out, err := suite.Stdout(ctx, "", "etcdctl", "get", "-w", "json", key)
	if err != nil {
		return nil, err
	}
	var response struct {
		Kvs []struct{ Value []byte }
	}
	if err := json.Unmarshal([]byte(out), &response); err != nil {
		return nil, fmt.Errorf("reading the key %s: %w", key, err)
	}
	if len(response.Kvs) != 1 {
		return nil, fmt.Errorf("etcd has no key %s", key)
	}
	return response.Kvs[0].Value, nil
}

// farewellOf returns the value of a key member as a later farewell with another signature.
func farewellOf(value []byte, signer *trust.Signer) ([]byte, error) {
	var signed map[string]any
	if err := json.Unmarshal(value, &signed); err != nil {
		return nil, err
	}
	record, ok := signed["record"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the key member has no record: %s", value)
	}
	record["farewell"] = true
	delete(record, "exports")
	content, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	uid, _ := signed["uid"].(string)
	generation := time.Now().Add(time.Hour).UnixMilli()
	return json.Marshal(map[string]any{
		"key": signer.Key().String(), "uid": uid, "generation": generation, "record": json.RawMessage(content),
		"signature": signer.Sign(trust.Statement{
			ClusterSetID: clusterset.ClusterSetID, ClusterID: "cls1", UID: uid, Kind: trust.KindMember, Generation: generation, Content: content,
		}),
	})
}

// requestsIn returns the requests of all users to etcd during a time, as etcd counts them.
func (c *etcdContent) requestsIn(t *testing.T, during time.Duration) int {
	t.Helper()
	count := func() (n int) {
		out, err := suite.Output(t.Context(), "curl -sf --cacert bin/etcd/ca.crt "+clusterset.EtcdEndpoint+"/metrics | grep ^grpc_server_started_total")
		if err != nil {
			t.Fatalf("reading the metrics of etcd: %v: %s", err, out)
		}
		for line := range strings.Lines(out) {
			var value float64
			if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &value); err != nil {
				t.Fatalf("the metric %q: %v", line, err)
			}
			n += int(value)
		}
		return n
	}
	before := count()
	time.Sleep(during)
	return count() - before
}
