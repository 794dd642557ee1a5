package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

func TestMembership_FollowsIdentity(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("identity")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	b.run(t, hub, flags("cls2"))
	a.run(t, hub, config.Identity{})
	a.export(t, key, 1, 1)
	a.condition(t, key, "Ready=False Failed", "create ClusterProperty cluster.clusterset.k8s.io")
	a.event(t, key, "Failed")

	a.property(t, aboutv1beta1.ClusterIDProperty, "cls1")
	a.condition(t, key, "Ready=False Failed", "create ClusterProperty clusterset.k8s.io")
	a.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	a.condition(t, key, "Ready=True Exported", "")
	before := a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})

	change(t, a, &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: aboutv1beta1.ClusterIDProperty}},
		func(p *aboutv1beta1.ClusterProperty) { p.Spec.Value = "cls9" })
	b.imported(t, key, map[string][]string{"cls9": {"10.1.0.1"}})
	after := a.imported(t, key, map[string][]string{"cls9": {"10.1.0.1"}})
	if before.UID != after.UID {
		t.Error("the import was created again")
	}

	a.property(t, aboutv1beta1.ClusterIDProperty, "cls1")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
}

// ClusterProperties that are deleted and created again, or get an invalid value for a moment, end
// no import.
func TestMembership_KeepsExportsWithoutClusterProperties(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("kept")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	b.run(t, hub, flags("cls2"))
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls1")
	a.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	options := a.identitiesOptions(t, config.Identity{})
	a.runWith(t, hubRegistry(hub), options)
	a.export(t, key, 1, 1)
	before := b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})

	a.property(t, aboutv1beta1.ClusterSetIDProperty, "")
	a.property(t, aboutv1beta1.ClusterIDProperty, "")
	a.identityKept(t, "the cluster stays cls1 of clusterset set")
	a.property(t, aboutv1beta1.ClusterIDProperty, "not a label")
	a.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls1")

	// Another change is imported, and the import is the same.
	other := mcs.Key{Namespace: key.Namespace, Name: "other"}
	a.export(t, other, 1, 1)
	b.imported(t, other, map[string][]string{"cls1": {"10.1.0.1"}})
	if after := b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}}); after.UID != before.UID {
		t.Error("the import was created again")
	}
	a.condition(t, key, "Ready=True Exported", "")
}

// The imports from a cluster that was destroyed end when a user has it forgotten, also after a
// restart that has not seen the cluster, and begin again when it returns.
func TestMembership_ForgetsDestroyedCluster(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("forgotten")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	options := b.identitiesOptions(t, flags("cls2"))
	runB := b.runWith(t, hubRegistry(hub), options)
	runA := a.run(t, hub, flags("cls1"))
	a.export(t, key, 1, 1)
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	runA.stopAndWait(t)
	forget := func() {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: membership.IdentitiesName}}
		change(t, b, config, func(c *corev1.ConfigMap) { c.Data[names.ForgetKey("set", "cls1")] = "now" })
		b.notImported(t, key)
		b.awaitIdentities(t, "set.cls2")
	}
	forget()
	a.run(t, hub, flags("cls1"))
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})

	runB.stopAndWait(t)
	empty := memory.NewHub()
	b.runWith(t, hubRegistry(empty), options)
	b.export(t, mcs.Key{Namespace: key.Namespace, Name: "other"}, 2, 1)
	awaitExporters(t, empty, "set", "cls2")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	forget()
}

// identityKept waits for an event about the identity on the ConfigMap of the controller.
func (k *cluster) identityKept(t *testing.T, message string) {
	t.Helper()
	k.membershipEvent(t, corev1.EventTypeWarning, "IdentityKept", message)
}

// membershipEvent waits for an event on the ConfigMap of the controller.
func (k *cluster) membershipEvent(t *testing.T, kind, reason, message string) {
	t.Helper()
	eventually(t, "event "+reason, func() error {
		var list eventsv1.EventList
		if err := k.admin.List(t.Context(), &list, client.InNamespace(installNamespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Type == kind && e.Reason == reason && e.Regarding.Kind == "ConfigMap" && e.Regarding.Name == membership.IdentitiesName && strings.Contains(e.Note, message) {
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(list.Items))
	})
}

// keyRegistry is a registry that shows a further member.
type keyRegistry struct {
	registry.Registry
	member *atomic.Pointer[registry.Member]
}

func (r keyRegistry) Members(ctx context.Context) ([]registry.Member, error) {
	members, err := r.Registry.Members(ctx)
	return append(members, *r.member.Load()), err
}

// TestMembership_ReportsKeys: a refused record of another cluster is a Warning event on the
// ConfigMap of the controller, and a key that changes is a Normal one, under the shipped RBAC.
func TestMembership_ReportsKeys(t *testing.T) {
	a, _ := twoClusters(t)
	hub, shown := memory.NewHub(), &atomic.Pointer[registry.Member]{}
	shown.Store(&registry.Member{ClusterID: "cls3", UID: "uid-3", Key: "first-key", Problems: []string{registry.RefusedProblem("the member record", errors.New("no signature in a test"))}})
	a.runWith(t, func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		return keyRegistry{hub.Registry(identity), shown}, nil
	}, a.identitiesOptions(t, flags("cls1")))
	a.membershipEvent(t, corev1.EventTypeWarning, "RecordRefused", "cls3: refused the member record: no signature in a test")
	shown.Store(&registry.Member{ClusterID: "cls3", UID: "uid-3", Key: "second-key"})
	a.membershipEvent(t, corev1.EventTypeNormal, "KeyChanged", "cluster cls3 has another key: its records are signed with second-key from now on, and with first-key before")
}

// slowLeaver is a registry that leaves only when channel leave is closed, unless leaving is taken
// back.
type slowLeaver struct {
	registry.Registry
	leaving, leave chan struct{}
}

func (r slowLeaver) Run(ctx context.Context, notify func(mcs.Key)) error {
	stay, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), registry.ErrLeave) {
			close(r.leaving)
			select {
			case <-r.leave:
			case <-registry.LeaveContext(ctx).Done():
				stop(context.Canceled)
			}
		}
		stop(context.Cause(ctx))
	}()
	return r.Registry.Run(stay, notify)
}

// Withdrawing the exports of a previous identity may take long, for example while the registry is
// down. The cluster exports under its new identity meanwhile.
func TestMembership_ExportsWhilePreviousIdentityLeaves(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("late")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	b.run(t, hub, flags("cls2"))
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls1")
	a.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	late := slowLeaver{leaving: make(chan struct{}), leave: make(chan struct{})}
	first := true // only the membership's goroutine makes registries
	a.runWith(t, func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		reg := hub.Registry(identity)
		if first {
			first = false
			return slowLeaver{reg, late.leaving, late.leave}, nil
		}
		return reg, nil
	}, testOptions(config.Identity{}))
	slice := a.export(t, key, 1, 1)
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})

	id := &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: aboutv1beta1.ClusterIDProperty}}
	change(t, a, id, func(p *aboutv1beta1.ClusterProperty) { p.Spec.Value = "cls9" })
	<-late.leaving
	// An address is in use once, as that of the first of two exports of one age. A new pod is
	// exported under the new identity only.
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls9": nil})
	change(t, a, slice, func(s *discoveryv1.EndpointSlice) { s.Endpoints = controllertest.Endpoints(1, 2) })
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls9": {"10.1.0.2"}})

	// Under its first identity again, the cluster takes leaving back.
	change(t, a, id, func(p *aboutv1beta1.ClusterProperty) { p.Spec.Value = "cls1" })
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	close(late.leave)
	a.condition(t, key, "Ready=True Exported", "")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
}

// failingRegistry is a registry whose Run returns an error.
type failingRegistry struct{ registry.Registry }

func (failingRegistry) Run(context.Context, func(mcs.Key)) error { return errors.New("run failed") }

func TestMembership_RestartsFailedRegistry(t *testing.T) {
	hub := memory.NewHub()
	a, _ := twoClusters(t)
	key := newKey("restart")
	a.namespace(t, key.Namespace)
	starts := 0 // only the membership's goroutine counts
	a.runWith(t, func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		starts++
		switch starts {
		case 1:
			return nil, errors.New("no credentials in a test")
		case 2:
			return failingRegistry{hub.Registry(identity)}, nil
		}
		return hub.Registry(identity), nil
	}, testOptions(flags("cls1")))
	a.export(t, key, 1, 1)
	a.condition(t, key, "Ready=False Failed", "starting the registry: no credentials in a test")
	a.condition(t, key, "Ready=True Exported", "")
}

// The API server has no CRDs first, and then serves only v1alpha1.
func TestMembership_StartsWithoutCRDs(t *testing.T) {
	apiservertest.NeedAssets(t)
	k, err := startKubernetes("v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.env.Stop(); err != nil {
			t.Error(err)
		}
	})
	options := testOptions(config.Identity{})
	options.Serving.Probes = testprocess.FreeAddress(t)
	k.runWith(t, hubRegistry(memory.NewHub()), options)
	probe(t, options.Serving.Probes, "/healthz", http.StatusOK)
	probe(t, options.Serving.Probes, "/readyz", http.StatusServiceUnavailable)

	install := envtest.CRDInstallOptions{CRDs: keepVersion("v1alpha1", mcsCRDs()...)}
	if _, err := envtest.InstallCRDs(k.env.Config, install); err != nil {
		t.Fatal(err)
	}
	probe(t, options.Serving.Probes, "/readyz", http.StatusOK)
	key := newKey("crds")
	k.namespace(t, key.Namespace)
	k.export(t, key, 1, 1)
	k.condition(t, key, "Ready=False Failed", "install the CRD clusterproperties.about.k8s.io")

	install = envtest.CRDInstallOptions{CRDs: keepVersion("v1alpha1", aboutCRDs()...)}
	if _, err := envtest.InstallCRDs(k.env.Config, install); err != nil {
		t.Fatal(err)
	}
	k.property(t, aboutv1beta1.ClusterIDProperty, "cls1")
	k.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	k.condition(t, key, "Ready=True Exported", "")
	imp := k.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	if got := k.slicesOf(t, key)[0].OwnerReferences[0]; got.UID != imp.UID || got.APIVersion != "multicluster.x-k8s.io/v1alpha1" {
		t.Errorf("the slice's owner is %v", got)
	}
}

func TestRun_StandbyTakesOver(t *testing.T) {
	hub := memory.NewHub()
	a, _ := twoClusters(t)
	key := newKey("standby")
	a.namespace(t, key.Namespace)
	options := testOptions(flags("cls1"))
	options.Election = config.Election{Enabled: true, Namespace: installNamespace}
	first := a.runWith(t, hubRegistry(hub), options)
	holder := a.leader(t, "")
	options.Serving.Probes = testprocess.FreeAddress(t)
	a.runWith(t, hubRegistry(hub), options)
	probe(t, options.Serving.Probes, "/readyz", http.StatusOK)
	a.export(t, key, 1, 1)
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})

	first.stopAndWait(t)
	a.leader(t, holder)
	other := mcs.Key{Namespace: key.Namespace, Name: "other"}
	a.export(t, other, 1, 2)
	a.imported(t, other, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
}

// leader waits until the Lease has a holder other than before and returns it.
func (k *cluster) leader(t *testing.T, before string) string {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(k.env.Config)
	if err != nil {
		t.Fatal(err)
	}
	var lease *coordinationv1.Lease
	eventually(t, "a leader", func() error {
		lease, err = clientset.CoordinationV1().Leases(installNamespace).Get(t.Context(), leaseName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if h := lease.Spec.HolderIdentity; h == nil || *h == "" || *h == before {
			return fmt.Errorf("no new holder of the lease")
		}
		return nil
	})
	return *lease.Spec.HolderIdentity
}

// probe waits until the probe answers want.
func probe(t *testing.T, address, path string, want int) {
	t.Helper()
	eventually(t, "probe "+path, func() error {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			return fmt.Errorf("answers %s", resp.Status)
		}
		return nil
	})
}

// Without changes nothing is written, not even when everything is reconciled.
func TestRun_WritesNothingWithoutChanges(t *testing.T) {
	s := setUp(t, "steady")
	s.a.export(t, s.key, 1, 120)
	s.b.export(t, s.key, 2, 1)
	headless := mcs.Key{Namespace: s.key.Namespace, Name: "headless"}
	svc := controllertest.Service(headless)
	svc.Spec.ClusterIP = "None"
	s.a.create(t, svc)
	s.a.create(t, controllertest.EndpointSlice(headless, controllertest.Endpoints(1, 3)))
	s.a.create(t, controllertest.ServiceExport(headless))
	missing := mcs.Key{Namespace: s.key.Namespace, Name: "missing"}
	s.a.create(t, controllertest.ServiceExport(missing))
	s.a.condition(t, missing, "Valid=False NoService", "")
	s.a.event(t, missing, "NoService")
	s.a.condition(t, headless, "Ready=True Exported", "")
	s.a.eventOf(t, headless, corev1.EventTypeNormal, "Exported")
	for _, k := range []*cluster{s.a, s.b} {
		k.condition(t, s.key, "Ready=True Exported", "")
		k.eventOf(t, s.key, corev1.EventTypeNormal, "Exported")
		k.eventOf(t, s.key, corev1.EventTypeNormal, "Imported")
		k.eventOf(t, headless, corev1.EventTypeNormal, "Imported")
		eventually(t, "121 endpoints", func() error {
			if n := len(k.addresses(t, s.key)["cls1"]) + len(k.addresses(t, s.key)["cls2"]); n != 121 {
				return fmt.Errorf("%d", n)
			}
			if n := len(k.addresses(t, headless)["cls1"]); n != 3 {
				return fmt.Errorf("%d of headless", n)
			}
			var imp mcsv1beta1.ServiceImport
			if err := k.get(t, headless, &imp); err != nil {
				return err
			}
			if len(imp.Status.Conditions) == 0 {
				return errors.New("headless has no status yet")
			}
			return nil
		})
	}
	// When the marker is imported, everything before it was reconciled.
	marker := mcs.Key{Namespace: s.key.Namespace + "-marker", Name: "web"}
	s.a.namespace(t, marker.Namespace)
	s.b.namespace(t, marker.Namespace)
	slice := s.a.export(t, marker, 1, 1)
	s.b.imported(t, marker, map[string][]string{"cls1": {"10.1.0.1"}})
	s.a.imported(t, marker, map[string][]string{"cls1": {"10.1.0.1"}})
	before := []int{s.a.writes.in(s.key.Namespace), s.b.writes.in(s.key.Namespace)}

	s.runA.stopAndWait(t)
	s.runB.stopAndWait(t)
	s.a.run(t, s.hub, flags("cls1"))
	s.b.run(t, s.hub, flags("cls2"))
	for n := 2; n < 5; n++ {
		change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, n) })
		eventually(t, "the marker", func() error {
			for _, k := range []*cluster{s.a, s.b} {
				if got := len(k.addresses(t, marker)["cls1"]); got != n {
					return fmt.Errorf("%d endpoints, want %d", got, n)
				}
			}
			return nil
		})
	}
	after := []int{s.a.writes.in(s.key.Namespace), s.b.writes.in(s.key.Namespace)}
	if !slices.Equal(before, after) {
		t.Errorf("writes to namespace %s in cls1 and cls2: %v, and without changes %v", s.key.Namespace, before, after)
	}
}
