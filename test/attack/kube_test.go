package attack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/paths"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

var apiServer struct {
	once sync.Once
	*controllertest.Kubernetes
	err error
	// namespaces counts the namespaces of tests.
	namespaces int
}

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	code := m.Run()
	if apiServer.Kubernetes != nil {
		_ = apiServer.Env.Stop()
	}
	os.Exit(code)
}

// kubernetes is a cluster with a running controller, in a namespace of its own. Time is real.
type kubernetes struct {
	t *testing.T
	*controllertest.Kubernetes
	// hub is the registry that hostile members share with the controller, whose cluster is the
	// importer.
	hub *memory.Hub
	key mcs.Key
}

// inKubernetes starts a controller with the RBAC and the admission policy of deploy/rbac on an API
// server.
func inKubernetes(t *testing.T, edits ...func(*config.Options)) *kubernetes {
	t.Helper()
	return inKubernetesWith(t, paths.Probes{}, edits...)
}

// inKubernetesWith is inKubernetes with a network for the probes of paths.
func inKubernetesWith(t *testing.T, probes paths.Probes, edits ...func(*config.Options)) *kubernetes {
	t.Helper()
	apiservertest.NeedAssets(t)
	apiServer.once.Do(func() {
		apiServer.Kubernetes, apiServer.err = controllertest.StartKubernetes("v1beta1", nil, append(controllertest.MCSCRDs(), controllertest.AboutCRDs()...)...)
	})
	if apiServer.err != nil {
		t.Fatal(apiServer.err)
	}
	apiServer.namespaces++
	name := fmt.Sprint(strings.ToLower(strings.NewReplacer("TestAttack_", "", "/", "-", " ", "-").Replace(t.Name())), "-", apiServer.namespaces)
	k := &kubernetes{t: t, Kubernetes: apiServer.Kubernetes, hub: memory.NewHub(), key: mcs.Key{Namespace: name, Name: "web"}}
	k.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	k.cleanUp(name)
	options := config.Default()
	options.Identity = config.Identity{ClusterID: importer, ClusterSetID: clusterSet}
	options.Election.Enabled, options.Election.Namespace = false, controllertest.InstallNamespace
	options.Serving.Metrics, options.Serving.Probes, options.Serving.Status = "0", "0", "0"
	options.Registry.PathHealth = string(mcs.PathHealthOff) // the endpoints do not exist
	for _, edit := range edits {
		edit(&options)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	noResolver := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("there is no DNS server")
	}}
	setup := controller.Setup{Options: options, Probes: probes, Resolver: noResolver, Logger: logr.Discard(), NewRegistry: func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		return k.hub.Registry(identity), nil
	}}
	go func() { done <- controller.Run(ctx, k.Config, setup) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the controller failed: %v", err)
		}
	})
	return k
}

// cleanUp deletes the objects of a namespace when the test has ended.
func (k *kubernetes) cleanUp(namespace string) {
	k.t.Cleanup(func() {
		for _, obj := range []client.Object{&mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceImport{}, &corev1.Service{}, &discoveryv1.EndpointSlice{}} {
			_ = k.Admin.DeleteAllOf(context.Background(), obj, client.InNamespace(namespace))
		}
	})
}

// namespace creates a namespace, which may be that of an earlier run, and deletes its objects when
// the test has ended.
func (k *kubernetes) namespace(name string) {
	k.t.Helper()
	err := k.Admin.Create(k.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		k.t.Fatal(err)
	}
	k.cleanUp(name)
}

// neighbour creates another namespace, and returns a service in it.
func (k *kubernetes) neighbour() mcs.Key {
	k.t.Helper()
	key := mcs.Key{Namespace: k.key.Namespace + "-neighbour", Name: "web"}
	k.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	k.cleanUp(key.Namespace)
	return key
}

func (k *kubernetes) create(obj client.Object) {
	k.t.Helper()
	if err := k.Admin.Create(k.t.Context(), obj); err != nil {
		k.t.Fatal(err)
	}
}

// eventually waits until check returns no error.
func (k *kubernetes) eventually(what string, check func() error) {
	k.t.Helper()
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(25 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			k.t.Fatalf("%s: %v", what, err)
		}
	}
}

// hostile joins a cluster to the clusterset.
func (k *kubernetes) hostile(id string) *hubMember {
	m := &hubMember{k: k, id: id, reg: k.hub.Registry(identityOf(id))}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = m.reg.Run(ctx, func(mcs.Key) {}) }()
	k.t.Cleanup(func() { stop(); <-ended })
	return m
}

// hubMember is a member that publishes what it likes.
type hubMember struct {
	k   *kubernetes
	id  string
	reg registry.Registry
}

func (m *hubMember) publish(key mcs.Key, edit func(*mcs.Export), addresses ...string) {
	m.k.t.Helper()
	exp := webExport(m.id, 1)
	exp.Key, exp.Created = key, time.Now()
	exp.Backends[0].Endpoints = nil
	for _, address := range addresses {
		exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, mcs.Endpoint{Address: netip.MustParseAddr(address), Ready: true, Serving: true})
	}
	if edit != nil {
		edit(&exp)
	}
	if err := m.reg.Publish(m.k.t.Context(), exp); err != nil {
		m.k.t.Fatal(err)
	}
}

// imported waits until key is imported with these addresses.
func (k *kubernetes) imported(key mcs.Key, want ...string) *mcsv1beta1.ServiceImport {
	k.t.Helper()
	var imp mcsv1beta1.ServiceImport
	k.eventually("import of "+key.String(), func() error {
		if err := k.get(key, &imp); err != nil {
			return err
		}
		got, err := k.addresses(key)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("addresses are %v, want %v", got, want)
		}
		return err
	})
	return &imp
}

func (k *kubernetes) get(key mcs.Key, obj client.Object) error {
	return k.Admin.Get(k.t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, obj)
}

// addresses returns the addresses that are imported for key.
func (k *kubernetes) addresses(key mcs.Key) (found []string, err error) {
	var list discoveryv1.EndpointSliceList
	err = k.Admin.List(k.t.Context(), &list, client.InNamespace(key.Namespace), client.MatchingLabels{mcsv1beta1.LabelServiceName: key.Name})
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			found = append(found, endpoint.Addresses...)
		}
	}
	slices.Sort(found)
	return found, err
}

// refused waits until the import of key reports a refusal.
func (k *kubernetes) refused(key mcs.Key, reason policy.Reason) {
	k.t.Helper()
	k.eventually("refusal of "+key.String(), func() error {
		var imp mcsv1beta1.ServiceImport
		if err := k.get(key, &imp); err != nil {
			return err
		}
		c := meta.FindStatusCondition(imp.Status.Conditions, policy.ConditionRefused)
		if c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Reason, string(reason)) {
			return fmt.Errorf("condition %+v, want reason %s", c, reason)
		}
		return nil
	})
}

// export creates a Service with a slice of these addresses, and a ServiceExport.
func (k *kubernetes) export(key mcs.Key, edit func(*mcsv1beta1.ServiceExport), addresses ...string) {
	k.t.Helper()
	var endpoints []discoveryv1.Endpoint
	for _, address := range addresses {
		endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	k.create(controllertest.Service(key))
	k.create(controllertest.EndpointSlice(key, endpoints))
	exp := controllertest.ServiceExport(key)
	if edit != nil {
		edit(exp)
	}
	k.create(exp)
}

func TestAttack_NamespacesOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	text := "default: deny\nclusters: {cls1: {}, cls3: {namespaces: [elsewhere, other-*], podNetworks: [10.3.0.0/16]}}"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k := inKubernetes(t, func(o *config.Options) { o.Scope.ImportPolicy = path })
	rightful, limited, unlisted := k.hostile(victim), k.hostile(intruder), k.hostile(newcomer)
	for _, m := range []*hubMember{limited, unlisted} {
		m.publish(k.key, nil, "10.3.0.1")
	}
	rightful.publish(k.key, nil, "10.1.0.1") // control: the cluster that the policy allows
	k.imported(k.key, "10.1.0.1")
	k.refused(k.key, policy.ReasonNamespace)
}

func TestAttack_SystemNamespaces(t *testing.T) {
	k := inKubernetes(t)
	m := k.hostile(intruder)
	namespaces := []string{"default", "kube-system", "kube-public", controllertest.InstallNamespace, "openshift", "openshift-ingress", "cattle-system"}
	for _, namespace := range namespaces[4:] {
		k.namespace(namespace)
	}
	for _, namespace := range namespaces {
		m.publish(mcs.Key{Namespace: namespace, Name: "attack"}, nil, "10.3.0.1")
	}
	m.publish(k.key, nil, "10.3.0.1") // control: another namespace
	k.imported(k.key, "10.3.0.1")
	for _, namespace := range namespaces {
		var imports mcsv1beta1.ServiceImportList
		if err := k.Admin.List(t.Context(), &imports, client.InNamespace(namespace)); err != nil || len(imports.Items) > 0 {
			t.Errorf("namespace %s has %d imports, %v", namespace, len(imports.Items), err)
		}
	}
}

func TestAttack_AddressesOfTheImporter(t *testing.T) {
	k := inKubernetes(t)
	var service corev1.Service
	if err := k.get(mcs.Key{Namespace: "default", Name: "kubernetes"}, &service); err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "attacked"}}
	k.create(node)
	t.Cleanup(func() { _ = k.Admin.Delete(context.Background(), node) })
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.77.9"}}
	if err := k.Admin.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	k.hostile(intruder).publish(k.key, nil, "10.3.0.1", service.Spec.ClusterIP, "192.168.77.9")
	k.imported(k.key, "10.3.0.1")
	k.refused(k.key, policy.ReasonLocal)
}

func TestAttack_KeysOfMeshesAndLoadBalancers(t *testing.T) {
	keys := map[string]string{"team": "x", "app.kubernetes.io/part-of": "shop"}
	var foreign []string
	for _, key := range []string{
		"istio.io/global", "networking.istio.io/exportTo", "service.cilium.io/global", "kuma.io/mesh", "mirror.linkerd.io/remote-svc", "prometheus.io/scrape",
		"application-networking.k8s.aws/aws-vpc", "cloud.google.com/neg", "metallb.universe.tf/address-pool", "traefik.ingress/service.weighted",
	} {
		keys[key] = "x"
		foreign = append(foreign, key)
	}
	slices.Sort(foreign)
	// the second is the control
	for setting, isImported := range map[string]bool{config.Default().Scope.ImportMetadata: false, "*,*/*": true} {
		t.Run(fmt.Sprint("imported-", isImported), func(t *testing.T) {
			k := inKubernetes(t, func(o *config.Options) { o.Scope.ImportMetadata = setting })
			// the same holds for exports of the cluster itself
			own := mcs.Key{Namespace: k.key.Namespace, Name: "own"}
			k.export(own, func(e *mcsv1beta1.ServiceExport) { e.Spec.ExportedLabels, e.Spec.ExportedAnnotations = keys, keys }, "10.2.0.1")
			k.hostile(intruder).publish(k.key, func(e *mcs.Export) { e.Labels, e.Annotations = keys, keys }, "10.3.0.1")
			for key, address := range map[mcs.Key]string{k.key: "10.3.0.1", own: "10.2.0.1"} {
				k.checkMetadata(k.imported(key, address), foreign, isImported)
			}
		})
	}
}

// checkMetadata checks that imp has harmless keys, whether it has the foreign ones, and that no
// other object of the import has any.
func (k *kubernetes) checkMetadata(imp *mcsv1beta1.ServiceImport, foreign []string, isImported bool) {
	k.t.Helper()
	for what, pairs := range map[string]map[string]string{"label": imp.Labels, "annotation": imp.Annotations} {
		if pairs["team"] != "x" || pairs["app.kubernetes.io/part-of"] != "shop" {
			k.t.Errorf("%s: the harmless %ss are not imported: %v", imp.Name, what, pairs)
		}
		for _, key := range foreign {
			if _, ok := pairs[key]; ok != isImported {
				k.t.Errorf("%s: %s %s is imported: %t, want %t", imp.Name, what, key, ok, isImported)
			}
		}
	}
	if listed := imp.Annotations[plan.AnnotationNotImported]; (listed == strings.Join(foreign, ",")) == isImported {
		k.t.Errorf("%s lists as not imported: %q", imp.Name, listed)
	}
	key := mcs.Key{Namespace: imp.Namespace, Name: imp.Name}
	var derived corev1.Service
	k.eventually("the derived Service", func() error { return k.get(mcs.Key{Namespace: key.Namespace, Name: mcs.DerivedName(key)}, &derived) })
	var list discoveryv1.EndpointSliceList
	if err := k.Admin.List(k.t.Context(), &list, client.InNamespace(key.Namespace), client.MatchingLabels{mcsv1beta1.LabelServiceName: key.Name}); err != nil {
		k.t.Fatal(err)
	}
	objects := []client.Object{&derived}
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	for _, obj := range objects {
		for _, key := range append([]string{"team"}, foreign...) {
			if obj.GetLabels()[key]+obj.GetAnnotations()[key] != "" {
				k.t.Errorf("%T %s has the exported key %s", obj, obj.GetName(), key)
			}
		}
	}
}

func TestAttack_ServiceNetwork(t *testing.T) {
	k := inKubernetes(t) // the API server has the Service network 10.0.0.0/24
	m := k.hostile(intruder)
	for i := range 160 {
		m.publish(mcs.Key{Namespace: k.key.Namespace, Name: fmt.Sprint("svc-", i)}, nil, "10.3.0.1")
	}
	derived := func() (n int) {
		var list corev1.ServiceList
		if err := k.Admin.List(t.Context(), &list, client.InNamespace(k.key.Namespace), client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}); err != nil {
			t.Fatal(err)
		}
		for _, svc := range list.Items {
			if svc.Spec.ClusterIP != "" {
				n++
			}
		}
		return n
	}
	before, since := 0, time.Now()
	// control: the services are imported as far as they may be
	k.eventually("the attack", func() error {
		n := derived()
		if n != before {
			before, since = n, time.Now()
		}
		if n < 100 || time.Since(since) < 5*time.Second {
			return fmt.Errorf("%d derived Services", n)
		}
		return nil
	})
	for i := range 100 {
		svc := controllertest.Service(mcs.Key{Namespace: k.key.Namespace, Name: fmt.Sprint("own-", i)})
		svc.Spec.ClusterIP = ""
		k.create(svc)
	}
	if n := derived(); n > 128 {
		t.Errorf("imports have %d of the 256 IPs for Services", n)
	}
	exported := mcs.Key{Namespace: k.key.Namespace, Name: "exported"}
	k.export(exported, nil, "10.2.0.1")
	k.clusterSetIP(exported)
}

// clusterSetIP waits until the import of key has a clusterset IP, and returns it.
func (k *kubernetes) clusterSetIP(key mcs.Key) string {
	k.t.Helper()
	var imp mcsv1beta1.ServiceImport
	k.eventually("clusterset IP of "+key.String(), func() error {
		if err := k.get(key, &imp); err != nil {
			return err
		}
		if len(imp.Spec.IPs) == 0 {
			return fmt.Errorf("none: %+v", imp.Status.Conditions)
		}
		return nil
	})
	return imp.Spec.IPs[0]
}

func TestAttack_LabelledServices(t *testing.T) {
	k := inKubernetes(t) // the API server has the Service network 10.0.0.0/24
	for i := range 130 { // more than the half that imports may have
		svc := controllertest.Service(mcs.Key{Namespace: k.key.Namespace, Name: fmt.Sprint("labelled-", i)})
		svc.Spec.ClusterIP = ""
		svc.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: svc.Name}
		k.create(svc)
	}
	var list corev1.ServiceList
	if err := k.Admin.List(t.Context(), &list, client.InNamespace(k.key.Namespace), client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}); err != nil || len(list.Items) < 128 {
		t.Fatalf("%d Services, %v", len(list.Items), err) // control
	}
	neighbour := k.neighbour()
	k.hostile(victim).publish(neighbour, nil, "10.1.0.1")
	k.imported(neighbour, "10.1.0.1")
	k.clusterSetIP(neighbour)
}

func TestAttack_OlderCreationTime(t *testing.T) {
	k := inKubernetes(t)
	k.hostile(victim).publish(k.key, nil, "10.1.0.1")
	k.imported(k.key, "10.1.0.1")
	m := k.hostile(intruder)
	headless := func(e *mcs.Export) {
		e.Type, e.Created = mcsv1beta1.Headless, time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	m.publish(k.key, headless, "10.3.0.1")
	k.refused(k.key, policy.ReasonPrecedence)
	imp := k.imported(k.key, "10.1.0.1", "10.3.0.1")
	if imp.Spec.Type != mcsv1beta1.ClusterSetIP {
		t.Errorf("the import has type %s, want that of the victim", imp.Spec.Type)
	}
	// Control: where no other cluster exports, the same export decides.
	other := mcs.Key{Namespace: k.key.Namespace, Name: "other"}
	m.publish(other, headless, "10.3.0.1")
	if imp := k.imported(other, "10.3.0.1"); imp.Spec.Type != mcsv1beta1.Headless {
		t.Errorf("the other import has type %s", imp.Spec.Type)
	}
}

func TestAttack_StolenToken(t *testing.T) {
	k := inKubernetes(t)
	thief, err := client.New(k.Config, client.Options{Scheme: k.Admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	theirs := controllertest.Service(k.key)
	slice := controllertest.EndpointSlice(k.key, controllertest.Endpoints(1, 1))
	dns := controllertest.Service(mcs.Key{Namespace: "kube-system", Name: "kube-dns"})
	k.create(theirs)
	k.create(slice)
	k.create(dns)
	t.Cleanup(func() { _ = k.Admin.Delete(context.Background(), dns) })
	for _, obj := range []client.Object{theirs, slice, dns} {
		changed := obj.DeepCopyObject().(client.Object)
		changed.SetLabels(map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, plan.LabelManagedBy: plan.ManagedBy})
		for what, err := range map[string]error{
			"updating": thief.Update(t.Context(), changed), "deleting": thief.Delete(t.Context(), obj),
			"patching": thief.Patch(t.Context(), obj.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"selector":{"a":"b"}}}`))),
		} {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s %T %s: %v, want it forbidden", what, obj, obj.GetName(), err)
			}
		}
	}
	for what, obj := range map[string]client.Object{
		"a Service without the label": controllertest.Service(mcs.Key{Namespace: k.key.Namespace, Name: "new"}),
		"a Service with external IPs": &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: k.key.Namespace, Name: "external", Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}},
			Spec:       corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.1"}, Ports: []corev1.ServicePort{{Port: 80}}},
		},
	} {
		if err := thief.Create(t.Context(), obj); !apierrors.IsForbidden(err) {
			t.Errorf("creating %s: %v, want it forbidden", what, err)
		}
	}
	for what, list := range map[string]client.ObjectList{"Secrets": &corev1.SecretList{}, "Pods": &corev1.PodList{}} {
		if err := thief.List(t.Context(), list, client.InNamespace("kube-system")); !apierrors.IsForbidden(err) {
			t.Errorf("listing %s: %v, want it forbidden", what, err)
		}
	}
	// Control: the token works for objects of its own.
	own := controllertest.Service(mcs.Key{Namespace: k.key.Namespace, Name: "imported-aaaaaaaaaa"})
	own.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	if err := thief.Create(t.Context(), own); err != nil {
		t.Errorf("creating an object of its own: %v", err)
	}
}

func TestAttack_StolenTokenJoinsAnyService(t *testing.T) {
	k := inKubernetes(t)
	thief, err := client.New(k.Config, client.Options{Scheme: k.Admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, plan.LabelManagedBy: plan.ManagedBy}
	derived := mcs.DerivedName(k.key)
	slice := func(namespace, name, service string) *discoveryv1.EndpointSlice {
		s := controllertest.EndpointSlice(mcs.Key{Namespace: namespace, Name: service}, controllertest.Endpoints(3, 1))
		s.Name, s.Labels = name, maps.Clone(own)
		if service != "" {
			s.Labels[discoveryv1.LabelServiceName] = service
		}
		return s
	}
	service := func(namespace, name string) *corev1.Service {
		s := controllertest.Service(mcs.Key{Namespace: namespace, Name: name})
		s.Spec.Selector, s.Labels = nil, own
		return s
	}
	export := controllertest.ServiceExport(mcs.Key{Namespace: "kube-system", Name: "kube-dns"})
	export.Labels, export.OwnerReferences = own, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "kube-dns", UID: "1"}}
	for what, obj := range map[string]client.Object{
		"a slice of the API server":           slice("default", derived+"-cls3-ipv4-0", "kubernetes"),
		"a slice of the DNS server":           slice("kube-system", derived+"-cls3-ipv4-0", "kube-dns"),
		"a slice of another one's Service":    slice(k.key.Namespace, derived+"-cls3-ipv4-0", "web"),
		"a slice without a Service":           slice(k.key.Namespace, derived+"-cls3-ipv4-0", ""),
		"a slice with a name of Kubernetes":   slice(k.key.Namespace, "web-x7kqp", derived),
		"a slice of a name that is too long":  slice(k.key.Namespace, derived+"-cls3-ipv4-0", derived+"-headless-too"),
		"a Service of the system":             service("kube-system", "metrics-server"),
		"a Service with a name that is close": service(k.key.Namespace, derived+"a"),
		"a ServiceExport of the DNS server":   export,
		"a ConfigMap":                         &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.InstallNamespace, Name: "other"}},
	} {
		if err := thief.Create(t.Context(), obj, client.DryRunAll); !apierrors.IsForbidden(err) {
			t.Errorf("creating %s: %v, want it forbidden", what, err)
		}
	}
	// Control: the token writes derived Services and their slices, and cannot move them.
	mine := slice(k.key.Namespace, derived+"-cls3-ipv4-0", derived)
	for what, obj := range map[string]client.Object{
		"a derived Service": service(k.key.Namespace, derived), "one of an earlier version": service(k.key.Namespace, mcs.ShortDerivedName(k.key)),
		"a slice": mine, "a headless one": slice(k.key.Namespace, derived+"-cls3-ipv4-1", derived+"-headless"),
	} {
		if err := thief.Create(t.Context(), obj); err != nil {
			t.Errorf("creating %s: %v", what, err)
		}
	}
	mine.Labels[discoveryv1.LabelServiceName] = "web"
	if err := thief.Update(t.Context(), mine); !apierrors.IsForbidden(err) {
		t.Errorf("moving a slice to another Service: %v, want it forbidden", err)
	}
	k.controlKeys(thief)
}

// controlKeys checks that thief cannot write the keys by which an administrator controls the
// controller, and that the controller can remove them.
func (k *kubernetes) controlKeys(thief client.Client) {
	k.t.Helper()
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.InstallNamespace, Name: names.IdentityConfigMap},
		Data:       map[string]string{"demo-set.cls1.leave": "by admin", "demo-set.cls9.forget": "by admin"},
	}
	_ = k.Admin.Delete(k.t.Context(), config.DeepCopy())
	k.create(config)
	k.t.Cleanup(func() { _ = k.Admin.Delete(context.Background(), config) })
	for patch, allowed := range map[string]bool{
		`{"data":{"demo-set.cls2.leave":"x"}}`: false, `{"data":{"demo-set.cls2.forget":"x"}}`: false, `{"data":{"demo-set.cls2.trust":"x"}}`: false,
		`{"data":{"demo-set.cls1.leave":"y"}}`: false, `{"data":{"demo-set.cls1.leave":null}}`: true, `{"data":{"demo-set.cls9.forget":null}}`: true,
		`{"data":{"demo-set.cls1":"uid","demo-set.cls1.joined":"2026-01-01T00:00:00Z"}}`: true,
		// The identities and pins of clusters with these IDs.
		`{"data":{"set1.trust":"x","set1.leave":"x","set1.forget":"x","set1.trust.joined":"x"}}`: true, `{"data":{"set1.trust.trust":"x"}}`: false,
	} {
		err := thief.Patch(k.t.Context(), config.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch)), client.DryRunAll)
		if allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			k.t.Errorf("patching the ConfigMap with %s: %v, want it allowed: %t", patch, err, allowed)
		}
	}
}

func TestAttack_HandMadeSlice(t *testing.T) {
	// the second is the control
	for setting, want := range map[string][]string{config.ExportControllerSlices: nil, config.ExportAllSlices: {"10.200.0.1"}} {
		t.Run(setting, func(t *testing.T) {
			k := inKubernetes(t, func(o *config.Options) { o.Scope.ExportSlices = setting })
			k.export(k.key, nil, "10.200.0.1") // an address of another tenant
			k.imported(k.key, want...)
		})
	}
}

func TestAttack_LargeAnnotations(t *testing.T) {
	k := inKubernetes(t)
	reader := k.hostile(intruder)
	k.export(k.key, func(e *mcsv1beta1.ServiceExport) {
		e.Spec.ExportedAnnotations = map[string]string{"example.com/harmless": "x", "example.com/large": strings.Repeat("x", 60<<10)}
		e.Spec.ExportedLabels = map[string]string{}
		for i := range 500 {
			e.Spec.ExportedLabels[fmt.Sprint("example.com/l", i)] = strings.Repeat("x", 63)
		}
	}, "10.1.0.1")
	k.eventually("the export", func() error {
		view, err := reader.reg.Lookup(t.Context(), k.key)
		if err != nil || len(view.Exports()) != 1 {
			return fmt.Errorf("%d exports, %w", len(view.Exports()), err)
		}
		exp, size := view.Exports()[0], 0
		for _, pairs := range []map[string]string{exp.Annotations, exp.Labels} {
			for key, value := range pairs {
				size += len(key) + len(value)
			}
		}
		if exp.Annotations["example.com/harmless"] != "x" || len(exp.Labels) == 0 || size > 8<<10 {
			t.Errorf("exported are %d annotations and %d labels of %d bytes, want 8 KiB at most", len(exp.Annotations), len(exp.Labels), size)
		}
		return nil
	})
}

func TestAttack_EditedImport(t *testing.T) {
	k := inKubernetes(t)
	m := k.hostile(victim)
	m.publish(k.key, nil, "10.1.0.1")
	imp := k.imported(k.key, "10.1.0.1")
	var derived corev1.Service
	k.eventually("the derived Service", func() error {
		return k.get(mcs.Key{Namespace: k.key.Namespace, Name: mcs.DerivedName(k.key)}, &derived)
	})
	var slices discoveryv1.EndpointSliceList
	if err := k.Admin.List(t.Context(), &slices, client.InNamespace(k.key.Namespace), client.MatchingLabels{mcsv1beta1.LabelServiceName: k.key.Name}); err != nil || len(slices.Items) != 1 {
		t.Fatal(len(slices.Items), err)
	}
	slice := &slices.Items[0]
	edits := map[string]func(){
		"slice":         func() { slice.Endpoints[0].Addresses = []string{"10.200.0.1"} },
		"Service":       func() { derived.Spec.Selector = map[string]string{"app": "mine"} },
		"ServiceImport": func() { imp.Spec.Ports[0].Port = 666 },
	}
	for what, obj := range map[string]client.Object{"slice": slice, "Service": &derived, "ServiceImport": imp} {
		k.eventually("editing the "+what, func() error {
			if err := k.Admin.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
				return err
			}
			edits[what]()
			// control: the API server allows the tenant's edit
			return k.Admin.Update(t.Context(), obj)
		})
	}
	k.eventually("the repair", func() error {
		if err := k.Admin.Get(t.Context(), client.ObjectKeyFromObject(&derived), &derived); err != nil || len(derived.Spec.Selector) > 0 {
			return fmt.Errorf("the derived Service has selector %v, %w", derived.Spec.Selector, err)
		}
		if err := k.get(k.key, imp); err != nil || imp.Spec.Ports[0].Port != 80 {
			return fmt.Errorf("the ServiceImport has ports %v, %w", imp.Spec.Ports, err)
		}
		return nil
	})
	k.imported(k.key, "10.1.0.1")
}

// collisions returns two names of services of namespace shop whose short derived names are the
// same: the first 50 bits of their hashes are. They were found with 31,683,936 hashes.
func collisions() (a, b mcs.Key) {
	return mcs.Key{Namespace: "shop", Name: "sf21a8f"}, mcs.Key{Namespace: "shop", Name: "s1e37560"}
}

func TestAttack_CollidingNames(t *testing.T) {
	// two reconcilers that share a Service wrote it 188 times a second
	const watched = 500 * time.Millisecond
	k := inKubernetes(t)
	one, two := collisions()
	k.namespace(one.Namespace)
	rightful, m := k.hostile(victim), k.hostile(intruder)
	rightful.publish(one, nil, "10.1.0.1")
	k.imported(one, "10.1.0.1")
	ip := k.clusterSetIP(one)
	m.publish(two, nil, "10.3.0.1")
	k.imported(two, "10.3.0.1")
	if other := k.clusterSetIP(two); other == ip {
		t.Errorf("both imports have the IP %s", ip)
	}
	quiet := func(what string) {
		t.Helper()
		k.eventually(what, func() error {
			before := k.versions(one.Namespace)
			time.Sleep(watched)
			if after := k.versions(one.Namespace); !maps.Equal(before, after) {
				return fmt.Errorf("objects are written while nothing changes: %v, after %s %v", before, watched, after)
			}
			return nil
		})
	}
	quiet("both imports")
	if err := m.reg.Withdraw(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	k.eventually("the end of the second import", func() error {
		if err := k.get(two, &mcsv1beta1.ServiceImport{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	quiet("the first import alone")
	k.imported(one, "10.1.0.1")
	if now := k.clusterSetIP(one); now != ip {
		t.Errorf("the import that stays has the IP %s, and had %s", now, ip)
	}
}

// versions returns the resource versions of the Services, ServiceImports and EndpointSlices of a
// namespace.
func (k *kubernetes) versions(namespace string) map[string]string {
	k.t.Helper()
	out := map[string]string{}
	for _, list := range []client.ObjectList{&corev1.ServiceList{}, &mcsv1beta1.ServiceImportList{}, &discoveryv1.EndpointSliceList{}} {
		if err := k.Admin.List(k.t.Context(), list, client.InNamespace(namespace)); err != nil {
			k.t.Fatal(err)
		}
		_ = meta.EachListItem(list, func(obj runtime.Object) error {
			o := obj.(client.Object)
			out[fmt.Sprintf("%T %s", o, o.GetName())] = o.GetResourceVersion()
			return nil
		})
	}
	return out
}

func TestAttack_SquattedDerivedService(t *testing.T) {
	k := inKubernetes(t)
	squatter := controllertest.Service(mcs.Key{Namespace: k.key.Namespace, Name: mcs.DerivedName(k.key)})
	squatter.Spec.Selector = map[string]string{"app": "mine"}
	k.create(squatter)
	m := k.hostile(victim)
	m.publish(k.key, nil, "10.1.0.1")
	other := mcs.Key{Namespace: k.key.Namespace, Name: "other"}
	m.publish(other, nil, "10.1.0.2")
	k.imported(other, "10.1.0.2") // control
	var now corev1.Service
	if err := k.get(mcs.Key{Namespace: squatter.Namespace, Name: squatter.Name}, &now); err != nil || now.ResourceVersion != squatter.ResourceVersion {
		t.Errorf("the tenant's Service was changed: %v", err)
	}
	k.eventually("an event reports it", func() error {
		var events eventsv1.EventList
		if err := k.Admin.List(t.Context(), &events, client.InNamespace(k.key.Namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Type == corev1.EventTypeWarning && strings.Contains(e.Note, squatter.Name) {
				return nil
			}
		}
		return fmt.Errorf("not among %d events: %+v", len(events.Items), events.Items)
	})
	var imp mcsv1beta1.ServiceImport
	if err := k.get(k.key, &imp); client.IgnoreNotFound(err) != nil || len(imp.Spec.IPs) > 0 {
		t.Errorf("the import has the IPs %v of the tenant's Service, %v", imp.Spec.IPs, err)
	}
}

// request requests a URL as a pod does, and returns the status code.
func request(t *testing.T, url, token string) (int, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	pod := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the pod does not care
	answer, err := pod.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, nil
}

func TestAttack_PortsOfTheController(t *testing.T) {
	metricsAddress, statusAddress := testprocess.FreeAddress(t), testprocess.FreeAddress(t)
	_, metricsPort, _ := net.SplitHostPort(metricsAddress)
	_, statusPort, _ := net.SplitHostPort(statusAddress)
	k := inKubernetes(t, func(o *config.Options) {
		o.Serving.Metrics, o.Serving.MetricsSecure, o.Serving.Status = ":"+metricsPort, true, statusAddress
	})
	k.eventually("the status for kubectl mcs", func() error { // control, as through a port-forward
		code, err := request(t, "http://"+statusAddress+"/status", "")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("code %d", code)
		}
		return err
	})
	k.eventually("the metrics", func() error { _, err := request(t, "https://"+metricsAddress+"/metrics", ""); return err })
	for what, token := range map[string]string{"no token": "", "an invented token": "x"} {
		if code, err := request(t, "https://"+metricsAddress+"/metrics", token); err != nil || code == http.StatusOK {
			t.Errorf("metrics with %s: %d, %v; want a refusal", what, code, err)
		}
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		host := address.(*net.IPNet).IP
		if host.IsLoopback() || host.To4() == nil {
			continue
		}
		if code, err := request(t, "http://"+net.JoinHostPort(host.String(), statusPort)+"/status", ""); err == nil {
			t.Errorf("the status answers %d at %s", code, host)
		}
	}
	if _, err := config.Parse([]string{"--clusterset=set1", "--status-bind-address=0.0.0.0:8082"}); err == nil {
		t.Error("the status can be bound to every address")
	}
}

func TestAttack_FullNamespace(t *testing.T) {
	const limit = 10
	k := inKubernetes(t, func(o *config.Options) { o.Budgets.NamespaceImports = limit })
	rightful, m := k.hostile(victim), k.hostile(intruder)
	rightful.publish(k.key, nil, "10.1.0.1")
	k.imported(k.key, "10.1.0.1")
	count := func() int {
		var imports mcsv1beta1.ServiceImportList
		if err := k.Admin.List(t.Context(), &imports, client.InNamespace(k.key.Namespace)); err != nil {
			t.Fatal(err)
		}
		return len(imports.Items)
	}
	for i := range 3 * limit {
		m.publish(mcs.Key{Namespace: k.key.Namespace, Name: fmt.Sprint("svc-", i)}, nil, "10.3.0.1")
	}
	k.eventually("the attack", func() error { // control: as many are imported as may be
		if n := count(); n < limit {
			return fmt.Errorf("%d imports", n)
		}
		return nil
	})
	rightful.publish(k.key, nil, "10.1.0.1", "10.1.0.2")
	k.imported(k.key, "10.1.0.1", "10.1.0.2")
	neighbour := k.neighbour()
	rightful.publish(neighbour, nil, "10.1.0.3")
	k.imported(neighbour, "10.1.0.3")
	if n := count(); n > limit {
		t.Errorf("the namespace has %d imports", n)
	}
}

func TestAttack_Finalizers(t *testing.T) {
	k := inKubernetes(t)
	m, neighbour := k.hostile(victim), k.neighbour()
	keys := []mcs.Key{k.key, neighbour}
	for _, key := range keys {
		m.publish(key, nil, "10.1.0.1")
		k.imported(key, "10.1.0.1")
		k.clusterSetIP(key)
	}
	var imp mcsv1beta1.ServiceImport
	var derived corev1.Service
	var list discoveryv1.EndpointSliceList
	name := mcs.Key{Namespace: k.key.Namespace, Name: mcs.DerivedName(k.key)}
	if err := errors.Join(k.get(k.key, &imp), k.get(name, &derived), k.Admin.List(t.Context(), &list, client.InNamespace(k.key.Namespace), client.MatchingLabels{mcsv1beta1.LabelServiceName: k.key.Name})); err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{&imp, &derived}
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	finalizers := func(patch string) {
		for _, obj := range objects {
			if err := k.Admin.Patch(context.Background(), obj, client.RawPatch("application/merge-patch+json", []byte(patch))); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
	}
	finalizers(`{"metadata":{"finalizers":["example.com/never"]}}`)
	t.Cleanup(func() { finalizers(`{"metadata":{"finalizers":null}}`) })
	for _, key := range keys {
		if err := m.reg.Withdraw(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	k.eventually("the import of the neighbour ends", func() error {
		if err := k.get(neighbour, &mcsv1beta1.ServiceImport{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	k.eventually("that of the tenant waits for its finalizer", func() error { // control
		var held mcsv1beta1.ServiceImport
		if err := k.get(k.key, &held); err != nil {
			return err
		}
		if held.DeletionTimestamp == nil {
			return errors.New("it is not being deleted")
		}
		return nil
	})
	m.publish(neighbour, nil, "10.1.0.2")
	k.imported(neighbour, "10.1.0.2")
	finalizers(`{"metadata":{"finalizers":null}}`)
	m.publish(k.key, nil, "10.1.0.4")
	k.imported(k.key, "10.1.0.4")
}

func TestAttack_FlappingImports(t *testing.T) {
	k := inKubernetes(t)
	victims, intruders := k.hostile(victim), k.hostile(intruder)
	victims.publish(k.key, nil, "10.66.0.1")
	k.imported(k.key, "10.66.0.1")
	const services = 80 // the API server has 256 Service IPs
	key := func(i int) mcs.Key { return mcs.Key{Namespace: k.key.Namespace, Name: fmt.Sprint("flap-", i)} }
	for i := range services {
		intruders.publish(key(i), nil, "10.67.0.1")
	}
	for i := range services {
		k.imported(key(i), "10.67.0.1")
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var flaps atomic.Int64
	running.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			for i := range services {
				intruders.publish(key(i), nil, fmt.Sprintf("10.67.%d.%d", n/250%250, 1+n%250))
				flaps.Add(1)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	// its burst
	for began := time.Now(); time.Since(began) < 30*time.Second || flaps.Load() < 100_000; {
		time.Sleep(100 * time.Millisecond)
	}
	written := func() (generations int64) {
		var list discoveryv1.EndpointSliceList
		if err := k.Admin.List(t.Context(), &list, client.InNamespace(k.key.Namespace), client.MatchingLabels{mcsv1beta1.LabelSourceCluster: intruder}); err != nil {
			t.Fatal(err)
		}
		for _, slice := range list.Items {
			generations += slice.Generation
		}
		return generations
	}
	before, began := written(), time.Now()
	var longest time.Duration
	for n := range 10 {
		address, began := fmt.Sprint("10.66.0.", 2+n), time.Now()
		victims.publish(k.key, nil, address)
		k.imported(k.key, address)
		longest = max(longest, time.Since(began))
	}
	time.Sleep(10 * time.Second)
	writes := float64(written()-before) / time.Since(began).Seconds()
	stop()
	running.Wait()
	t.Logf("%d changes of the intruder, %.0f writes a second to the API server, a change of the victim took up to %v", flaps.Load(), writes, longest)
	if writes == 0 || writes > 2*50 { // the control is that there are some
		t.Errorf("%.0f writes of imported EndpointSlices a second, want some 50", writes)
	}
	if longest > 30*time.Second { // it took 55 s when changes were not limited at all
		t.Errorf("a change of the victim took up to %v", longest)
	}
}
