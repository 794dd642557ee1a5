package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// drain sets the drain of the cluster, "" for none.
func (k *cluster) drain(t *testing.T, value string) {
	t.Helper()
	change(t, k, &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: aboutv1beta1.ClusterIDProperty}}, func(p *aboutv1beta1.ClusterProperty) {
		p.Annotations = map[string]string{mcs.AnnotationDrain: value}
	})
}

// drainService sets the drain of a ServiceExport.
func (k *cluster) drainService(t *testing.T, key mcs.Key, value string) {
	t.Helper()
	change(t, k, controllertest.ServiceExport(key), func(e *mcsv1beta1.ServiceExport) { e.Annotations = map[string]string{mcs.AnnotationDrain: value} })
}

// awaitDrained waits until the import has condition Drained with that status and reason, and text
// in its message.
func (k *cluster) awaitDrained(t *testing.T, key mcs.Key, want, text string) {
	t.Helper()
	eventually(t, "condition Drained of "+key.String(), func() error {
		var imp mcsv1beta1.ServiceImport
		if err := k.get(t, key, &imp); err != nil {
			return err
		}
		c := meta.FindStatusCondition(imp.Status.Conditions, mcs.ConditionDrained)
		if c == nil || string(c.Status)+" "+c.Reason != want || !strings.Contains(c.Message, text) {
			return fmt.Errorf("condition %+v, want %q with %q", c, want, text)
		}
		return nil
	})
}

// drainable runs a controller whose cluster can be drained: its ID is a ClusterProperty.
func (k *cluster) runDrainable(t *testing.T, newRegistry membership.RegistryFactory, clusterID string) {
	t.Helper()
	k.property(t, aboutv1beta1.ClusterIDProperty, clusterID)
	k.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	k.runWith(t, newRegistry, testOptions(config.Identity{}))
}

// Other clusters stop using the endpoints of a drained cluster, but not the last ones, and no
// moment is without a ready endpoint. The import, its IPs and the drained cluster's own import
// stay.
func TestDrain_OfClusterAndService(t *testing.T) {
	a, b := twoClusters(t)
	hub := memory.NewHub()
	key := newKey("drain")
	alone := mcs.Key{Namespace: key.Namespace, Name: "alone"}
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	a.runDrainable(t, hubRegistry(hub), "cls1")
	b.run(t, hub, flags("cls2"))
	a.export(t, key, 1, 4)
	a.export(t, alone, 3, 1)
	sliceB := b.export(t, key, 2, 1)
	four := []string{"10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"}
	before := b.imported(t, key, map[string][]string{"cls1": four, "cls2": {"10.2.0.1"}})
	b.imported(t, alone, map[string][]string{"cls1": {"10.3.0.1"}})
	ready := b.watchReady(t, key)

	a.drain(t, "100%")
	after := b.imported(t, key, map[string][]string{"cls1": nil, "cls2": {"10.2.0.1"}})
	if after.UID != before.UID || after.Spec.IPs[0] != before.Spec.IPs[0] {
		t.Error("the import was created again")
	}
	b.awaitDrained(t, key, "True Drained", "cls1 (endpoints not used)")
	b.eventOf(t, key, corev1.EventTypeNormal, "ClusterDrained")
	b.awaitDrained(t, alone, "True LastEndpointsKept", "cls1 (its last endpoints stay in use)")
	b.imported(t, alone, map[string][]string{"cls1": {"10.3.0.1"}})
	a.imported(t, key, map[string][]string{"cls1": four, "cls2": {"10.2.0.1"}})

	t.Log("the other cluster has no ready endpoint: those of the drained cluster return, and leave again")
	b.setReady(t, sliceB, false)
	b.imported(t, key, map[string][]string{"cls1": four, "cls2": {"10.2.0.1 not ready"}})
	b.setReady(t, sliceB, true)
	b.imported(t, key, map[string][]string{"cls1": nil, "cls2": {"10.2.0.1"}})

	t.Log("a part")
	a.drain(t, "75%")
	b.awaitDrained(t, key, "True Drained", "cls1 (75% of its endpoints not used)")
	eventually(t, "one endpoint of cls1", func() error {
		if got := b.addresses(t, key)["cls1"]; len(got) != 1 {
			return fmt.Errorf("addresses %v", got)
		}
		return nil
	})

	t.Log("forced")
	a.drain(t, "force")
	b.imported(t, alone, map[string][]string{"cls1": nil})
	a.drain(t, "")
	b.imported(t, alone, map[string][]string{"cls1": {"10.3.0.1"}})
	b.imported(t, key, map[string][]string{"cls1": four, "cls2": {"10.2.0.1"}})
	b.awaitDrained(t, key, "False NoneDrained", "")

	t.Log("one service")
	a.drainService(t, key, "100%")
	b.imported(t, key, map[string][]string{"cls1": nil, "cls2": {"10.2.0.1"}})
	a.drainService(t, key, "all")
	b.imported(t, key, map[string][]string{"cls1": four, "cls2": {"10.2.0.1"}})
	a.event(t, key, "PartlyExported")

	t.Log("a user of a namespace cannot drain the cluster by what the export carries")
	a.annotate(t, key, mcs.AnnotationDrain, "force")
	a.annotate(t, key, "example.com/seen", "true")
	eventually(t, "the annotation", func() error {
		var imp mcsv1beta1.ServiceImport
		if err := b.get(t, key, &imp); err != nil {
			return err
		}
		if _, ok := imp.Annotations[mcs.AnnotationDrain]; ok {
			t.Error("the reserved annotation was imported")
		}
		return nil
	})
	b.imported(t, alone, map[string][]string{"cls1": {"10.3.0.1"}})
	// The other cluster's last endpoint became not ready before others took its place.
	if n := ready.emptyTimes(); n > 1 {
		t.Errorf("%d times there was no ready endpoint, want one at most", n)
	}
}

// A drain reaches the importers of a registry with the default intervals, in about the time of a
// poll. The limit of 2 s is measured and not tested: machines differ.
func TestDrain_ReachesImporters(t *testing.T) {
	settings := config.Default().Registry
	overCloudMap := func(t *testing.T) membership.RegistryFactory {
		url := localCloudMap(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(200 * time.Millisecond)})
		keyrings := newKeyrings()
		return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
			client, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{Region: "ap-southeast-2", Endpoint: url})
			if err != nil {
				return nil, err
			}
			cfg := cloudMapConfig(t, keyrings, identity)
			cfg.PollInterval = settings.PollInterval
			return cloudmap.New(client, cfg)
		}
	}
	overEtcd := func(t *testing.T) membership.RegistryFactory {
		program, err := etcdtest.Program()
		if err != nil {
			t.Fatal(err)
		}
		server, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program, Dir: t.TempDir(), Args: []string{"--bcrypt-cost=4", "--unsafe-no-fsync"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Stop)
		keyrings := newKeyrings()
		return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
			user, passwordFile, err := server.AddCluster(ctx, "/mcs", identity.ClusterSetID, identity.ClusterID)
			if err != nil {
				return nil, err
			}
			client, err := etcd.NewClient(etcd.ClientConfig{Endpoints: server.Endpoints(), CAFile: server.CAFile, Username: user, PasswordFile: passwordFile})
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = client.Close() })
			return etcd.New(client, etcd.Config{
				Identity: identity, Version: "test", Prefix: "/mcs",
				PollInterval: settings.PollInterval, HeartbeatInterval: settings.HeartbeatInterval, StaleAfter: settings.StaleAfter,
				Signer: registrytest.Signer(t, identity), Keyring: keyrings.Of(t, identity), Logger: ctrllog.Log,
			})
		}
	}
	for name, newRegistry := range map[string]func(*testing.T) membership.RegistryFactory{"cloudmap": overCloudMap, "etcd": overEtcd} {
		t.Run(name, func(t *testing.T) {
			a, b := twoClusters(t)
			factory := newRegistry(t)
			key := newKey("drain-" + name)
			a.namespace(t, key.Namespace)
			b.namespace(t, key.Namespace)
			a.runDrainable(t, factory, "cls1")
			b.runWith(t, factory, testOptions(flags("cls2")))
			a.export(t, key, 1, 2)
			b.export(t, key, 2, 1)
			both := map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": {"10.2.0.1"}}
			b.imported(t, key, both)
			var worst time.Duration
			for range 3 {
				began := time.Now()
				a.drain(t, "100%")
				b.imported(t, key, map[string][]string{"cls1": nil, "cls2": {"10.2.0.1"}})
				worst = max(worst, time.Since(began))
				a.drain(t, "")
				b.imported(t, key, both)
			}
			t.Logf("a drain over %s took %s at most until the endpoints had left, with a poll interval of %s", name, worst.Round(time.Millisecond), settings.PollInterval)
		})
	}
}
