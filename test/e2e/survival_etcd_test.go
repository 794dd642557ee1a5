package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// etcdContent reads and changes etcd as root.
type etcdContent struct {
	// exports are the keys of cls1's exports while all was well.
	exports []string
}

// prefixOf returns the prefix of a cluster's keys.
func prefixOf(cluster string) string { return "/mcs/" + clusterset.ClusterSetID + "/" + cluster + "/" }

// newEtcdContent saves etcd as it is now.
func newEtcdContent(t *testing.T) *etcdContent {
	t.Helper()
	if err := errors.Join(suite.StopRegistry(t.Context()), suite.SaveRegistry(t.Context()), suite.StartRegistry(t.Context())); err != nil {
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
	s.test(t, "etcd is restored from a copy with half of the exports", allowance{}, func(t *testing.T) {
		if err := errors.Join(suite.StopRegistry(t.Context()), suite.RestoreRegistry(t.Context()), suite.StartRegistry(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
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
	s.test(t, "another cluster's keys with a forged value", allowance{}, func(t *testing.T) {
		// An administrator shares one user, or root makes a mistake: cls1's export gets the value of another.
		run(t, fmt.Sprintf("put %s -- \"$(etcdctl get --print-value-only %s)\"", c.exports[0], c.exports[1]))
		run(t, "put "+prefixOf("cls1")+"member '{}'")
	})
}
