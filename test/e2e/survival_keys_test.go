package e2e

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// publicKey returns the public key of a cluster's Secret, which the log of its controller shows.
func publicKey(ctx context.Context, c cluster) (string, error) {
	var secret corev1.Secret
	if err := c.Get(ctx, client.ObjectKey{Namespace: system, Name: names.SigningKeySecret}, &secret); err != nil {
		return "", err
	}
	signer, err := trust.NewSigner(secret.Data["key"], secret.Data["previous"])
	if err != nil {
		return "", fmt.Errorf("%s: %w", c.name, err)
	}
	logs, err := suite.Kubectl(ctx, c.name, "-n", system, "logs", "-l", "app.kubernetes.io/component=manager", "--tail=-1")
	if key := signer.Key().String(); err == nil && !strings.Contains(logs, key) {
		err = fmt.Errorf("the logs of the controllers of %s do not show the public key %s", c.name, key)
	}
	return signer.Key().String(), err
}

// pinnedKeys returns the stored pins of a cluster.
func pinnedKeys(ctx context.Context, c cluster) (string, error) {
	var pins corev1.ConfigMap
	if err := c.Get(ctx, client.ObjectKey{Namespace: system, Name: names.PinsConfigMap}, &pins); err != nil {
		return "", err
	}
	return fmt.Sprint(pins.Data, pins.BinaryData), nil
}

// testKeys has the scenarios in which cls1 gets another signing key.
func (s *survival) testKeys(t *testing.T) {
	restart := func(t *testing.T) {
		t.Helper()
		kubectl(t, s.cls1, "-n", system, "rollout", "restart", manager)
		kubectl(t, s.cls1, "-n", system, "rollout", "status", manager, "--timeout=90s")
	}
	// isPinned waits until cls1 has another key than before, and cls2 remembers it.
	isPinned := func(t *testing.T, before string, within time.Duration) {
		t.Helper()
		eventually(t, within, func() error {
			key, err := publicKey(t.Context(), s.cls1)
			if err != nil {
				return err
			}
			if key == before {
				return fmt.Errorf("cls1 still has the key %s", before)
			}
			pins, err := pinnedKeys(t.Context(), s.cls2)
			if err == nil && !strings.Contains(pins, key) {
				err = fmt.Errorf("cls2 does not have the new key of cls1: %s", pins)
			}
			return err
		})
	}
	s.test(t, "the signing key is rotated", allowance{}, func(t *testing.T) {
		before, err := publicKey(t.Context(), s.cls1)
		if err != nil {
			t.Fatal(err)
		}
		problems := s.followProblems(t)
		runSection(t, "docs/reliability.md", "Signed records")
		kubectl(t, s.cls1, "-n", system, "rollout", "status", manager, "--timeout=90s")
		isPinned(t, before, started)
		if found := problems(); len(found) > 0 {
			t.Errorf("cls2 showed problems of the member cls1: %q", found)
		}
	})
	s.test(t, "the signing key is lost", allowance{}, func(t *testing.T) {
		before, err := publicKey(t.Context(), s.cls1)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		kubectl(t, s.cls1, "-n", system, "patch", "secret", names.SigningKeySecret, "--type=json", `-p=[{"op": "remove", "path": "/data"}]`)
		restart(t)
		if suite.Registry == clusterset.CloudMap { // its catalog does not have the tag catalog-of
			eventually(t, recovery, func() error {
				problems, err := memberProblems(t.Context(), s.cls2, "cls1")
				if err == nil && !strings.Contains(strings.Join(problems, "; "), "kubectl mcs trust cls1") {
					err = fmt.Errorf("cls2 shows the problems %q of the member cls1, want that an administrator has to trust its key", problems)
				}
				return err
			})
			if out, err := plugin(t.Context(), 0, "trust cls1 --yes --context cls1,cls2"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		isPinned(t, before, 2*recovery)
		t.Logf("cls2 has the new key %s after the loss of the previous one", round(time.Since(began)))
	})
}

// followProblems records the problems that cls2 shows for the member cls1 until the returned
// function is called.
func (s *survival) followProblems(t *testing.T) (stop func() []string) {
	ctx, cancel := context.WithCancel(t.Context())
	var found []string
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			problems, err := memberProblems(ctx, s.cls2, "cls1")
			if err == nil {
				found = append(found, problems...)
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	return func() []string { cancel(); running.Wait(); slices.Sort(found); return slices.Compact(found) }
}

// testTrustedKeysOnly makes cls2 trust cls1 only, while a third cluster joins: cls1 imports its
// service, and cls2 does not.
func (s *survival) testTrustedKeysOnly(t *testing.T) {
	const third, name, configMap = "cls3", "from-cls3", "trusted-keys"
	trusted := func(t *testing.T, key string) {
		t.Helper()
		apply(t, s.cls2, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: %s}, data: {keys: \"cls1: %s\\n\"}}", configMap, system, key))
	}
	s.test(t, "--trusted-keys-only with one listed cluster", allowance{}, func(t *testing.T) {
		key, err := publicKey(t.Context(), s.cls1)
		if err != nil {
			t.Fatal(err)
		}
		trusted(t, key)
		mount(t, s.cls2, configMap, "/etc/trusted")
		addArgs(t, s.cls2, "--trusted-keys=/etc/trusted/keys", "--trusted-keys-only")
		leave := s.joinAs(t, third, name)
		defer func() {
			leave()
			eventually(t, started, func() error { return noImport(t.Context(), s.cls1, s.ns, name) })
		}()
		eventually(t, started, func() error { return exporters(t.Context(), s.cls1, s.ns, name, third) })
		eventually(t, soon, func() error {
			problems, err := memberProblems(t.Context(), s.cls2, third)
			if err == nil && !strings.Contains(strings.Join(problems, "; "), "--trusted-keys does not list this cluster") {
				err = fmt.Errorf("cls2 shows the problems %q of the member %s", problems, third)
			}
			return err
		})
		always(t, settle, func() error { return noImport(t.Context(), s.cls2, s.ns, name) })
		if err := s.changePropagates(t.Context()); err != nil {
			t.Error(err)
		}
		var imports mcsv1beta1.ServiceImportList
		if err := s.cls2.List(t.Context(), &imports, client.InNamespace(s.ns)); err != nil || len(imports.Items) != exportCount {
			t.Errorf("cls2 has %d imports: %v", len(imports.Items), err)
		}
	})
	s.test(t, "--trusted-keys lists another key of a cluster", allowance{}, func(t *testing.T) {
		key, err := publicKey(t.Context(), s.cls1)
		if err != nil {
			t.Fatal(err)
		}
		trusted(t, trust.Key{1}.String())
		mount(t, s.cls2, configMap, "/etc/trusted")
		addArgs(t, s.cls2, "--trusted-keys=/etc/trusted/keys")
		eventually(t, started, func() error {
			problems, err := memberProblems(t.Context(), s.cls2, "cls1")
			if err == nil && !strings.Contains(strings.Join(problems, "; "), "but --trusted-keys lists key") {
				err = fmt.Errorf("cls2 shows the problems %q of the member cls1", problems)
			}
			return err
		})
		time.Sleep(settle)
		trusted(t, key)
		// a new pod reads the new ConfigMap
		kubectl(t, s.cls2, "-n", system, "rollout", "restart", manager)
		kubectl(t, s.cls2, "-n", system, "rollout", "status", manager, "--timeout=90s")
	})
}

// mount mounts a ConfigMap in a cluster's controller until the test ends.
func mount(t *testing.T, c cluster, configMap, path string) {
	t.Helper()
	d := &appsv1.Deployment{}
	d.Namespace, d.Name = system, strings.TrimPrefix(manager, "deployment/")
	change(t, c, d, func(d *appsv1.Deployment) {
		spec := &d.Spec.Template.Spec
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: configMap, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}},
		}})
		spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: configMap, MountPath: path, ReadOnly: true})
	})
	t.Cleanup(func() {
		err := clusterset.Eventually(context.Background(), soon, func() error {
			if err := c.Get(context.Background(), client.ObjectKeyFromObject(d), d); err != nil {
				return err
			}
			spec := &d.Spec.Template.Spec
			spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == configMap })
			mounts := &spec.Containers[0].VolumeMounts
			*mounts = slices.DeleteFunc(*mounts, func(v corev1.VolumeMount) bool { return v.Name == configMap })
			return c.Update(context.Background(), d)
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// joinAs joins the clusterset as another cluster, in this process, with the rights of an
// administrator, and exports a service. leave makes it leave.
func (s *survival) joinAs(t *testing.T, id, name string) (leave func()) {
	t.Helper()
	settings := config.Default().Registry
	seed := bytes.Repeat([]byte{3}, ed25519.SeedSize)
	signer, err := trust.NewSigner(seed, nil)
	if err != nil {
		t.Fatal(err)
	}
	keyring, err := trust.Load(t.Context(), trust.Config{ClusterSetID: clusterset.ClusterSetID, StaleAfter: settings.StaleAfter, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := cloudmap.New(cloudMapAs(t, "AKIDLOCAL", "local"), cloudmap.Config{
		Identity: mcs.Identity{ClusterID: id, ClusterSetID: clusterset.ClusterSetID, UID: "uid-of-" + id},
		Version:  "e2e", InstancesPerNamespace: config.Default().AWS.InstancesPerNamespace, Signer: signer, Keyring: keyring, Logger: logr.Discard(),
		PollInterval: settings.PollInterval, PollIntervalWithNotifications: settings.PollIntervalWithNotifications,
		HeartbeatInterval: settings.HeartbeatInterval, StaleAfter: settings.StaleAfter,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- reg.Run(ctx, func(mcs.Key) {}) }()
	exp := mcs.Export{
		Key: mcs.Key{Namespace: s.ns, Name: name}, Cluster: id, Created: time.Now(), Type: mcsv1beta1.ClusterSetIP, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "80"}},
	}
	if err := reg.Publish(t.Context(), exp); err != nil {
		t.Fatal(err)
	}
	return func() {
		cancel(registry.ErrLeave)
		if err := <-done; err != nil {
			t.Errorf("%s does not leave: %v", id, err)
		}
	}
}
