package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// emptySecret returns the Secret as the manifests create it.
func emptySecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: names.SigningKeySecret}}
}

func loadKey(t *testing.T, c client.Client) *trust.Signer {
	t.Helper()
	signer, err := signingKeyIn(c, "system").load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func TestSigningKey_StaysTheSame(t *testing.T) {
	for name, c := range map[string]client.Client{
		"Secret of the manifests": fake.NewClientBuilder().WithObjects(emptySecret()).Build(),
		"no Secret":               fake.NewClientBuilder().Build(),
	} {
		t.Run(name, func(t *testing.T) {
			if first, second := loadKey(t, c).Key(), loadKey(t, c).Key(); first != second {
				t.Errorf("the key is %s, and %s after a restart", first, second)
			}
		})
	}
}

func TestSigningKey_Rotates(t *testing.T) {
	c := fake.NewClientBuilder().WithObjects(emptySecret()).Build()
	before := loadKey(t, c)
	if before.Succession("set", "cls1") != "" {
		t.Error("the first key has a previous key")
	}
	secret := emptySecret()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	secret.Data[previousKeyData] = secret.Data[signingKeyData]
	delete(secret.Data, signingKeyData)
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	after := loadKey(t, c)
	if after.Key() == before.Key() || after.Succession("set", "cls1") == "" {
		t.Errorf("the key is %s after %s, with succession %q", after.Key(), before.Key(), after.Succession("set", "cls1"))
	}
}

func TestSigningKey_ReportsProblems(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, names.SigningKeySecret, nil)
	short := emptySecret()
	short.Data = map[string][]byte{signingKeyData: []byte("short")}
	for name, tt := range map[string]struct {
		client client.Client
		want   string
	}{
		"no Secret and no permission to create one": {fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return forbidden },
		}).Build(), "Secret system/" + names.SigningKeySecret + " does not exist: apply the manifests"},
		"no permission to read": {fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return forbidden
			},
		}).Build(), "reading the signing key"},
		"another replica writes a key meanwhile": {fake.NewClientBuilder().WithObjects(emptySecret()).WithInterceptorFuncs(interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
				other := emptySecret()
				other.Data = map[string][]byte{signingKeyData: newSeed()}
				if err := c.Update(ctx, other); err != nil {
					return err
				}
				return c.Update(ctx, obj, opts...)
			},
		}).Build(), "writing the signing key"},
		"key of another length": {fake.NewClientBuilder().WithObjects(short).Build(), "must have 32 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := signingKeyIn(tt.client, "system").load(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// TestConfigMapPins runs on a real API server: whether another process has written the ConfigMap is the server's answer.
func TestConfigMapPins(t *testing.T) {
	c, _ := startKubernetes(t)
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "system"}}); err != nil {
		t.Fatal(err)
	}
	store := &configMapPins{client: c, namespace: "system", clusterSetID: "set1", log: logr.Discard()}
	if pins, err := store.LoadPins(t.Context()); err != nil || len(pins) > 0 {
		t.Fatalf("loaded %v (%v) without a ConfigMap, want none", pins, err)
	}
	key := loadKey(t, c).Key()
	pins := map[string]trust.Pin{
		"cls2": {Key: key, UID: "uid-2", Last: map[string]trust.Time{"cloudmap": {Generation: 7, Heartbeat: 9}}, Unsealed: []string{"cloudmap", "west"}, Since: time.Unix(1_800_000_000, 0).UTC()},
		"cls3": {Key: key, UID: "uid-3", Last: map[string]trust.Time{}, Left: true},
		"cls4": {Last: map[string]trust.Time{}, Forgotten: true},
	}
	other := *store
	other.clusterSetID = "set2"
	if err := other.SavePins(t.Context(), map[string]trust.Pin{"cls9": {Key: key}}); err != nil {
		t.Fatal(err)
	}
	if err := store.SavePins(t.Context(), pins); !errors.Is(err, trust.ErrChanged) {
		t.Fatalf("saved after another process had created the ConfigMap: %v", err)
	}
	if pins, err := store.LoadPins(t.Context()); err != nil || len(pins) > 0 {
		t.Fatalf("loaded %v (%v), which belong to another clusterset", pins, err)
	}
	if err := store.SavePins(t.Context(), pins); err != nil {
		t.Fatal(err)
	}
	if err := other.SavePins(t.Context(), map[string]trust.Pin{"cls9": {}}); !errors.Is(err, trust.ErrChanged) {
		t.Fatalf("saved after another process had saved: %v", err)
	}
	changed := pins["cls2"]
	changed.Left = true
	pins["cls2"] = changed
	if err := store.SavePins(t.Context(), map[string]trust.Pin{"cls2": changed, "cls4": {}}); err != nil {
		t.Fatal(err)
	}
	delete(pins, "cls4")
	got, err := store.LoadPins(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(pins, got); d != "" {
		t.Errorf("pins (-want +got):\n%s", d)
	}
	if err := c.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: names.PinsConfigMap}}); err != nil {
		t.Fatal(err)
	}
	if err := store.SavePins(t.Context(), pins); !errors.Is(err, trust.ErrChanged) {
		t.Errorf("saved some pins after the ConfigMap was deleted with the others: %v", err)
	}
}

func TestReadTrustedKeys(t *testing.T) {
	key := loadKey(t, fake.NewClientBuilder().Build()).Key()
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

// TestKeys_AreShared: all registries sign with one key and share one Keyring for each clusterset, with and without a namespace.
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
