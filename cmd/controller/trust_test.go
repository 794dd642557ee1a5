package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/kubestore"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

func TestReadTrustedKeys(t *testing.T) {
	key := newKey(t)
	for name, tt := range map[string]struct {
		text    string
		want    map[string]trust.Key
		wantErr string
	}{
		"YAML":            {text: "---\n# production\ncls1: \"" + key.String() + "\"\n\ncls2: " + key.String() + " # new\n", want: map[string]trust.Key{"cls1": key, "cls2": key}},
		"lines":           {text: "cls1 " + key.String(), want: map[string]trust.Key{"cls1": key}},
		"no cluster":      {want: map[string]trust.Key{}},
		"no key":          {text: "\ncls1", wantErr: "line 2: want the ID of a cluster and its public key"},
		"invalid ID":      {text: "A.b: " + key.String(), wantErr: "line 1: "},
		"invalid key":     {text: "cls1: abc", wantErr: `line 1: "abc" is not a public key`},
		"a cluster twice": {text: "cls1: " + key.String() + "\ncls1: " + key.String(), wantErr: "line 2: cluster cls1 is listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := readTrustedKeys(path)
			if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Fatalf("error %v, want %q", err, tt.wantErr)
			}
			if d := cmp.Diff(tt.want, got); err == nil && d != "" {
				t.Errorf("keys (-want +got):\n%s", d)
			}
		})
	}
}

// TestKeys_AreShared: all registries sign with one key and share one Keyring for each clusterset,
// with and without a namespace.
func TestKeys_AreShared(t *testing.T) {
	for name, deps := range map[string]dependencies{
		"in a cluster":         {kube: fake.NewClientBuilder().Build(), namespace: "system", log: logr.Discard()},
		"outside of a cluster": {log: logr.Discard()},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := newKeys(config.Default(), deps)
			if err != nil {
				t.Fatal(err)
			}
			first, err := k.ownKey(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			second, err := k.ownKey(t.Context())
			if err != nil || first != second {
				t.Errorf("two signers (%v)", err)
			}
			ringOf := func(clusterSet string) *trust.Keyring {
				ring, err := k.keyring(t.Context(), clusterSet)
				if err != nil {
					t.Fatal(err)
				}
				return ring
			}
			if ring := ringOf("set1"); ring != ringOf("set1") || ring == ringOf("set2") {
				t.Error("the registries of a clusterset do not share a Keyring of their own")
			}
		})
	}
	cluster := dependencies{kube: fake.NewClientBuilder().Build(), namespace: "system", log: logr.Discard()}
	var processes []trust.Key
	for range 2 {
		k, err := newKeys(config.Default(), cluster)
		if err != nil {
			t.Fatal(err)
		}
		signer, err := k.ownKey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		processes = append(processes, signer.Key())
	}
	if processes[0] != processes[1] {
		t.Errorf("two processes of a cluster have the keys %v", processes)
	}
	options := config.Default()
	options.Membership.TrustedKeys = "/does/not/exist"
	if _, err := newKeys(options, dependencies{}); err == nil || !strings.Contains(err.Error(), "--trusted-keys=/does/not/exist") {
		t.Errorf("error %v for a missing file", err)
	}
}

// newKey returns a public key.
func newKey(t *testing.T) trust.Key {
	t.Helper()
	signer, err := trust.NewSigner(kubestore.NewSeed(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return signer.Key()
}
