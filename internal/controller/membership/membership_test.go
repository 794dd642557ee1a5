package membership

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

var (
	demoWeb  = mcs.Key{Namespace: "demo", Name: "web"}
	cls1     = mcs.Identity{ClusterSetID: "set", ClusterID: "cls1", UID: "uid"}
	cls9     = mcs.Identity{ClusterSetID: "set", ClusterID: "cls9", UID: "uid"}
	ofCLS1   = properties{Installed: true, ClusterID: "cls1", ClusterSetID: "set"}
	ofCLS9   = properties{Installed: true, ClusterID: "cls9", ClusterSetID: "set"}
	noValues = properties{Installed: true}
)

// testCluster is a cluster with a Membership and one exported service, in virtual time. A process
// of its controller is started with start.
type testCluster struct {
	t      *testing.T
	hub    *memory.Hub
	client client.Client
	// current are the ClusterProperties.
	current propertyValues
	events  chan string
	// wrap replaces each registry, unless it is nil.
	wrap atomic.Pointer[func(registry.Registry) (registry.Registry, error)]

	requeuer kube.Requeuer
	m        *Membership
	// end ends the process, stop waits a second more.
	end, stop func()
}

// queue returns a queue of the keys that are requeued from now on.
func (c *testCluster) queue() workqueue.TypedRateLimitingInterface[reconcile.Request] {
	c.t.Helper()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	if err := c.requeuer.Source().Start(c.t.Context(), queue); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(queue.ShutDown)
	return queue
}

func newTestCluster(t *testing.T) *testCluster {
	scheme, err := kube.NewScheme(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"})
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{t: t, hub: memory.NewHub()}
	c.set(ofCLS1, nil)
	c.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "uid"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: demoWeb.Namespace, Labels: map[string]string{corev1.LabelMetadataName: demoWeb.Namespace}}},
		controllertest.Service(demoWeb), controllertest.ServiceExport(demoWeb),
	).Build()
	return c
}

// createNamespace creates a namespace, with the cluster's UID.
func (c *testCluster) createNamespace(name string) {
	c.t.Helper()
	if err := c.client.Create(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *testCluster) deleteNamespace(name string) {
	c.t.Helper()
	if err := c.client.Delete(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		c.t.Fatal(err)
	}
}

// newRegistry passes on the registry of an identity, with the failures of the test.
func (c *testCluster) newRegistry(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
	wrap := c.wrap.Load()
	if wrap == nil {
		return c.hub.Registry(identity), nil
	}
	return (*wrap)(c.hub.Registry(identity))
}

// replaceRegistries replaces each registry that is created from now on.
func (c *testCluster) replaceRegistries(replace func(registry.Registry) (registry.Registry, error)) {
	c.wrap.Store(&replace)
}

// start starts a process of the controller, which ends when the test ends or by stop.
func (c *testCluster) start() {
	c.t.Helper()
	scope, err := kube.NewScope(config.Default().Scope)
	if err != nil {
		c.t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(100)
	c.events = recorder.Events
	c.m = &Membership{
		properties: c, leaveAfter: 5 * time.Minute, scope: scope, newRegistry: c.newRegistry,
		identities: &Identities{Client: c.client, Namespace: "system"}, events: kube.EventRecorder{Recorder: recorder},
		log: logr.Discard(), settle: 10 * time.Second, changed: make(chan struct{}, 1), departures: map[mcs.Identity]*departure{},
		publishAll: publishWeb, nodes: newNodeFacts(), refused: mcs.Properties{},
	}
	c.m.requeues = &requeues{reader: c.client, requeuers: []*kube.Requeuer{&c.requeuer}, state: c.m.State}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	m := c.m
	go func() {
		defer close(done)
		_ = m.Start(ctx)
	}()
	// The export controller.
	go func() {
		for ctx.Err() == nil {
			if s := m.State().Session; s != nil {
				_ = publishWeb(ctx, s.Identity, s.Registry)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	c.end = func() { stop(); <-done }
	c.stop = func() { c.end(); time.Sleep(time.Second) }
	c.t.Cleanup(c.stop)
}

// publishWeb publishes the service.
func publishWeb(ctx context.Context, identity mcs.Identity, reg registry.Registry) error {
	return reg.Publish(ctx, mcs.Export{Key: demoWeb, Cluster: identity.ClusterID})
}

// propertyValues are ClusterProperties that tests change while a Membership reads them.
type propertyValues struct {
	mu   sync.Mutex
	read properties
	err  error
	// writes are the attempts to write, each of which ends with writeErr.
	writes   []string
	writeErr error
}

// set sets the ClusterProperties, or the error of reading them.
func (c *testCluster) set(read properties, err error) {
	c.current.mu.Lock()
	defer c.current.mu.Unlock()
	c.current.read, c.current.err = read, err
}

// read implements propertySource.
func (c *testCluster) read(context.Context) (properties, error) {
	c.current.mu.Lock()
	defer c.current.mu.Unlock()
	return c.current.read, c.current.err
}

// write implements propertySource.
func (c *testCluster) write(_ context.Context, w plan.PropertyWrite) error {
	c.current.mu.Lock()
	defer c.current.mu.Unlock()
	c.current.writes = append(c.current.writes, string(w.Verb)+" "+w.Property.Name+" "+w.Property.Spec.Value)
	if c.current.writeErr != nil {
		return c.current.writeErr
	}
	objects := slices.DeleteFunc(slices.Clone(c.current.read.Objects), func(p aboutv1beta1.ClusterProperty) bool { return p.Name == w.Property.Name })
	if w.Verb != plan.VerbDelete {
		objects = append(objects, *w.Property)
	}
	c.current.read.Objects = objects
	return nil
}

// takeWrites returns the writes of ClusterProperties since the last call.
func (c *testCluster) takeWrites() []string {
	c.current.mu.Lock()
	defer c.current.mu.Unlock()
	defer func() { c.current.writes = nil }()
	return c.current.writes
}

// exporters returns the clusters that export the service to a clusterset.
func (c *testCluster) exporters(clusterSet string) string {
	var ids []string
	for _, exp := range c.hub.Exports(clusterSet) {
		ids = append(ids, exp.Cluster)
	}
	return strings.Join(ids, " ")
}

// wait lets time pass, and fails the test if the exporters are ever not the wanted ones.
func (c *testCluster) wait(d time.Duration, want string) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got := c.exporters("set"); got != want {
			c.t.Fatalf("%s before the end of the wait, the exporters are %q, want %q", time.Until(end), got, want)
		}
	}
}

// await lets time pass until the exporters are the wanted ones. At all times before there must be
// one.
func (c *testCluster) await(atMost time.Duration, want string) {
	c.t.Helper()
	for end := time.Now().Add(atMost); ; time.Sleep(10 * time.Millisecond) {
		got := c.exporters("set")
		if got == want {
			return
		}
		if got == "" || time.Now().After(end) {
			c.t.Fatalf("the exporters are %q, want %q within %s", got, want, atMost)
		}
	}
}

// settle waits for the next reconcile.
func (c *testCluster) settle() { time.Sleep(6 * time.Second) }

// stored returns the content of the ConfigMap.
func (c *testCluster) stored() map[string]string {
	c.t.Helper()
	stored, err := c.m.identities.read(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return stored.data
}

// request writes a key of the ConfigMap as a user does.
func (c *testCluster) request(key string) {
	c.t.Helper()
	if err := c.m.identities.patch(c.t.Context(), map[string]any{key: "requested"}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *testCluster) checkProblem(wantState, wantIdentity string) {
	c.t.Helper()
	state := c.m.State()
	if !strings.Contains(state.Problem, wantState) || (wantState == "") != (state.Problem == "") {
		c.t.Errorf("problem %q, want %q", state.Problem, wantState)
	}
	if !strings.Contains(state.IdentityProblem, wantIdentity) || (wantIdentity == "") != (state.IdentityProblem == "") {
		c.t.Errorf("problem with the identity %q, want %q", state.IdentityProblem, wantIdentity)
	}
}

func TestMembership_KeepsIdentityWithoutClusterProperty(t *testing.T) {
	for name, tt := range map[string]struct {
		read    properties
		err     error
		problem string
	}{
		"ClusterProperties deleted": {read: noValues, problem: "create ClusterProperty cluster.clusterset.k8s.io"},
		"CRD deleted":               {problem: "install the CRD"},
		"invalid value":             {read: properties{Installed: true, ClusterID: "not a label", ClusterSetID: "set"}, problem: "ClusterProperty cluster.clusterset.k8s.io: "},
		"API does not answer":       {err: errors.New("no answer"), problem: "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCluster(t)
				c.start()
				c.settle()
				c.wait(time.Second, "cls1")
				session := c.m.State().Session
				c.set(tt.read, tt.err)
				c.wait(4*time.Minute, "cls1")
				c.checkProblem("", "the cluster stays cls1 of clusterset set")
				c.checkProblem("", tt.problem)
				if event := <-c.events; !strings.Contains(event, "IdentityKept") {
					t.Errorf("event %q", event)
				}
				c.set(ofCLS1, nil)
				c.wait(10*time.Minute, "cls1")
				c.checkProblem("", "")
				if c.m.State().Session != session || len(c.events) > 0 {
					t.Error("the cluster has another session, or more events")
				}
			})
		})
	}
}

// A problem that keeps the cluster from joining is its state, until it is over.
func TestMembership_ReportsWhyItCannotJoin(t *testing.T) {
	for name, tt := range map[string]struct {
		prevent, allow func(*testCluster)
		problem        string
	}{
		"no registry": {
			prevent: func(c *testCluster) {
				c.replaceRegistries(func(registry.Registry) (registry.Registry, error) { return nil, errors.New("access denied") })
			},
			allow:   func(c *testCluster) { c.wrap.Store(nil) },
			problem: "starting the registry: access denied",
		},
		"no namespace kube-system": {
			prevent: func(c *testCluster) { c.deleteNamespace(metav1.NamespaceSystem) },
			allow:   func(c *testCluster) { c.createNamespace(metav1.NamespaceSystem) },
			problem: "reading the UID of namespace kube-system",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCluster(t)
				tt.prevent(c)
				c.start()
				c.settle()
				c.checkProblem(tt.problem, "")
				if c.m.State().Session != nil {
					t.Error("the cluster has a session")
				}
				tt.allow(c)
				c.settle()
				c.checkProblem("", "")
				c.wait(time.Second, "cls1")
			})
		})
	}
}

// A registry has all exports before it runs, also that of the identity that a cluster changes to
// while a new process starts.
func TestMembership_PublishesAllBeforeRegistryRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		var mu sync.Mutex
		calls := map[string][]string{}
		c.replaceRegistries(func(reg registry.Registry) (registry.Registry, error) {
			id := "cls1"
			if c.m.State().Session != nil {
				id = "cls9"
			}
			return recordingRegistry{Registry: reg, id: id, record: func(id, call string) {
				mu.Lock()
				defer mu.Unlock()
				if n := len(calls[id]); n == 0 || calls[id][n-1] != call {
					calls[id] = append(calls[id], call)
				}
			}}, nil
		})
		c.start()
		c.settle()
		c.set(ofCLS9, nil)
		c.settle()
		mu.Lock()
		defer mu.Unlock()
		for _, id := range []string{"cls1", "cls9"} {
			// a reconcile may publish before Run, which has a goroutine of its own
			got := calls[id]
			if len(got) < 2 || got[0] != "publish" || !slices.Contains(got[1:], "run") {
				t.Errorf("%s: calls %q, want publish, and run after it", id, got)
			}
		}
	})
}

// recordingRegistry records the calls of a registry of a cluster.
type recordingRegistry struct {
	registry.Registry
	record func(clusterID, call string)
	id     string
}

func (r recordingRegistry) Publish(ctx context.Context, exp mcs.Export) error {
	r.record(r.id, "publish")
	return r.Registry.Publish(ctx, exp)
}

func (r recordingRegistry) Run(ctx context.Context, notify func(mcs.Key)) error {
	r.record(r.id, "run")
	return r.Registry.Run(ctx, notify)
}

// The begin of a session requeues each export and import, since other controllers decided on them
// without it.
func TestMembership_RequeuesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		imported := mcs.Key{Namespace: demoWeb.Namespace, Name: "imported"}
		if err := c.client.Create(t.Context(), &mcsv1beta1.ServiceImport{
			ObjectMeta: metav1.ObjectMeta{Namespace: imported.Namespace, Name: imported.Name},
		}); err != nil {
			t.Fatal(err)
		}
		c.set(noValues, nil)
		c.start()
		c.settle()
		queue := c.queue()
		c.set(ofCLS1, nil)
		c.settle()
		var got []mcs.Key
		for queue.Len() > 0 {
			request, _ := queue.Get()
			got = append(got, kube.KeyOf(request.NamespacedName))
		}
		if !slices.Contains(got, demoWeb) || !slices.Contains(got, imported) {
			t.Errorf("requeued %v, want the export %s and the import %s", got, demoWeb, imported)
		}
	})
}

// A registry may notify of a key before the session is the state of the cluster; controllers do
// nothing without a session.
func TestMembership_RequeuesKeysNotifiedBeforeTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		early := mcs.Key{Namespace: demoWeb.Namespace, Name: "early"}
		c.replaceRegistries(func(reg registry.Registry) (registry.Registry, error) {
			c.requeuer.Requeue(early)
			time.Sleep(time.Second)
			return reporting{reg, registry.Report{Keys: []mcs.Key{early}}}, nil
		})
		queue := c.queue()
		c.start()
		var hasSession []bool
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			for queue.Len() > 0 {
				request, _ := queue.Get()
				if kube.KeyOf(request.NamespacedName) == early {
					hasSession = append(hasSession, c.m.State().Session != nil)
				}
				queue.Done(request)
			}
		}
		if want := []bool{false, true}; !slices.Equal(hasSession, want) {
			t.Errorf("the key was requeued with sessions %v, want %v", hasSession, want)
		}
	})
}

// A change of addresses of this cluster requeues the services with one of them, after everything
// else, and none on a standby.
func TestMembership_RequeuesAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		concerned, other := mcs.Key{Namespace: demoWeb.Namespace, Name: "concerned"}, mcs.Key{Namespace: demoWeb.Namespace, Name: "other"}
		c.replaceRegistries(func(reg registry.Registry) (registry.Registry, error) {
			return exporting{reg, map[mcs.Key]netip.Addr{concerned: netip.MustParseAddr("10.3.0.1"), other: netip.MustParseAddr("10.3.0.2")}}, nil
		})
		changed := map[netip.Addr]struct{}{netip.MustParseAddr("10.3.0.1"): {}}
		queue := c.queue()
		drain := func() (keys []mcs.Key) {
			for queue.Len() > 0 {
				request, _ := queue.Get()
				keys = append(keys, kube.KeyOf(request.NamespacedName))
				queue.Done(request)
			}
			return keys
		}
		c.set(noValues, nil)
		c.start()
		c.settle()
		drain()
		if err := errors.Join(c.m.RequeueAddresses(t.Context(), changed), c.m.RequeueSession(t.Context())); err != nil || queue.Len() > 0 {
			t.Errorf("without a session: %d requests, %v", queue.Len(), err)
		}
		c.set(ofCLS1, nil)
		c.settle()
		drain()
		if err := c.m.RequeueAddresses(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
		if got := drain(); !slices.Equal(got, []mcs.Key{concerned}) {
			t.Errorf("requeued %v, want %s only", got, concerned)
		}
		if err := c.m.RequeueSession(t.Context()); err != nil || !slices.Contains(drain(), other) {
			t.Errorf("everything was not requeued: %v", err)
		}
	})
}

// exporting is a registry in which another cluster exports services, each with one address.
type exporting struct {
	registry.Registry
	addresses map[mcs.Key]netip.Addr
}

func (r exporting) Report() registry.Report {
	return registry.Report{Keys: slices.Collect(maps.Keys(r.addresses))}
}

func (r exporting) Lookup(_ context.Context, key mcs.Key, _ ...string) (registry.View, error) {
	backends := []mcs.Backends{{Endpoints: []mcs.Endpoint{{Address: r.addresses[key]}}}}
	return registrytest.ViewOf(mcs.Export{Key: key, Cluster: "cls2", Backends: backends}), nil
}

// reporting is a registry with another report.
type reporting struct {
	registry.Registry
	report registry.Report
}

func (r reporting) Report() registry.Report { return r.report }

// The end of the process waits until the registry has ended.
func TestMembership_WaitsForTheEndOfSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		const slow = 500 * time.Millisecond
		c.replaceRegistries(func(reg registry.Registry) (registry.Registry, error) { return slowToEnd{reg, slow}, nil })
		c.start()
		c.settle()
		ended := c.m.State().Session.ended
		c.end()
		select {
		case <-ended:
		default:
			t.Error("Start returned before the end of the session")
		}
	})
}

// slowToEnd is a registry that goes on for some time after its context has ended.
type slowToEnd struct {
	registry.Registry
	pause time.Duration
}

func (r slowToEnd) Run(ctx context.Context, changed func(mcs.Key)) error {
	err := r.Registry.Run(ctx, changed)
	time.Sleep(r.pause)
	return err
}

func TestMembership_LeavesAfterLeaveAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.start()
		c.settle()
		c.set(noValues, nil)
		c.wait(5*time.Minute-time.Second, "cls1")
		time.Sleep(10 * time.Second)
		c.wait(time.Second, "")
		c.checkProblem("create ClusterProperty cluster.clusterset.k8s.io", "")
		c.checkStored(map[string]string{})
	})
}

// newLeavingCluster returns a cluster that leaves while the registry is down.
func newLeavingCluster(t *testing.T) *testCluster {
	t.Helper()
	c := newTestCluster(t)
	c.start()
	c.settle()
	c.hub.SetError(errors.New("the registry is down"))
	c.set(noValues, nil)
	c.wait(6*time.Minute, "cls1")
	return c
}

// A registry that is down when the cluster leaves keeps the exports. The next process removes them,
// although it has no identity.
func TestMembership_LeavesAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLeavingCluster(t)
		c.stop()
		c.start()
		c.wait(time.Minute, "cls1")
		c.hub.SetError(nil)
		time.Sleep(2 * time.Minute)
		c.wait(time.Second, "")
		c.checkStored(map[string]string{})
	})
}

// A leave that did not succeed yet is taken back when the ClusterProperties are there again.
func TestMembership_TakesLeavingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLeavingCluster(t)
		c.set(ofCLS1, nil)
		c.settle()
		c.settle()
		c.hub.SetError(nil)
		c.wait(5*time.Minute, "cls1")
		c.checkProblem("", "")
		c.checkStored(map[string]string{"set.cls1": "uid"})
	})
}

// checkStored compares the ConfigMap without the times at which the cluster joined.
func (c *testCluster) checkStored(want map[string]string) {
	c.t.Helper()
	got := c.stored()
	for key := range got {
		if strings.HasSuffix(key, names.JoinedSuffix) {
			delete(got, key)
		}
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		c.t.Errorf("ConfigMap (-want +got):\n%s", d)
	}
}

func TestMembership_StartWithoutIdentityWithdrawsNothing(t *testing.T) {
	for name, read := range map[string]properties{"no ClusterProperties": noValues, "no CRD": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCluster(t)
				c.start()
				c.settle()
				c.stop()
				c.set(read, nil)
				c.start()
				c.wait(20*time.Minute, "cls1")
				c.checkProblem("", "it leaves with kubectl mcs leave only")
				c.set(ofCLS1, nil)
				c.wait(time.Minute, "cls1")
				c.checkProblem("", "")
			})
		})
	}
}

func TestMembership_LeavesOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.start()
		c.settle()
		leave := names.LeaveKey("set", "cls1")
		c.request(leave)
		c.settle()
		c.wait(time.Minute, "") // although the ClusterProperties are there
		c.checkProblem("a user requested that it leaves", "")
		if leaving, err := c.m.LeavingIdentities(t.Context()); err != nil || len(leaving) > 0 {
			t.Errorf("still leaving %v (%v)", leaving, err)
		}
		c.stop()
		c.start()
		c.wait(time.Minute, "")
		// The request ends with the ClusterProperties. When they are there again, the cluster
		// joins.
		c.set(noValues, nil)
		c.settle()
		c.checkStored(map[string]string{})
		c.set(ofCLS1, nil)
		c.settle()
		c.wait(time.Minute, "cls1")
	})
}

// While the cluster is a member, the Region of its nodes is a ClusterProperty. It is written once,
// follows the nodes, and goes when the cluster leaves. A refusal is repeated once a minute.
func TestMembership_WritesDerivedProperties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelTopologyRegion: "eu-west-1"}}}
		if err := c.client.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		expect := func(want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, c.takeWrites(), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		}
		c.set(ofCLS1, nil)
		c.current.writeErr = apierrors.NewForbidden(schema.GroupResource{Resource: "clusterproperties"}, mcs.PropertyRegion, nil)
		c.start()
		c.settle()
		c.wait(10*time.Minute, "cls1")
		if n := len(c.takeWrites()); n < 9 || n > 11 {
			t.Errorf("%d attempts in 10 minutes", n)
		}
		if own, _ := c.m.Properties(); own[mcs.PropertyRegion] != "eu-west-1" {
			t.Errorf("properties %v", own)
		}
		c.current.mu.Lock()
		c.current.writeErr = nil
		c.current.mu.Unlock()
		c.wait(10*time.Minute, "cls1")
		expect("create " + mcs.PropertyRegion + " eu-west-1")
		c.set(properties{}, errors.New("not readable"))
		c.wait(time.Minute, "cls1")
		c.set(properties{Installed: true, ClusterID: "cls1", ClusterSetID: "set", Objects: []aboutv1beta1.ClusterProperty{
			*plan.PropertyWrites(mcs.Properties{mcs.PropertyRegion: "eu-west-1"}, nil)[0].Property,
		}}, nil)
		c.wait(time.Minute, "cls1")
		expect()
		node.Labels[corev1.LabelTopologyRegion] = "eu-west-2"
		if err := c.client.Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		c.wait(time.Minute, "cls1")
		expect("update " + mcs.PropertyRegion + " eu-west-2")
		c.request(names.LeaveKey("set", "cls1"))
		c.settle()
		c.wait(time.Minute, "")
		expect("delete " + mcs.PropertyRegion + " eu-west-2")
	})
}

func TestMembership_LeavesOnRequestWithoutClusterProperties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.start()
		c.settle()
		c.set(noValues, nil)
		c.request(names.LeaveKey("set", "cls1"))
		c.settle()
		c.settle()
		c.wait(time.Minute, "")
		c.checkStored(map[string]string{})
	})
}

func TestMembership_ChangesIdentityWithoutGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.start()
		c.settle()
		c.set(ofCLS9, nil)
		c.await(time.Minute, "cls1 cls9")
		c.wait(9*time.Second, "cls1 cls9") // the other clusters read the new exports
		c.checkProblem("", "the identity changes from cls1 of clusterset set to cls9 of clusterset set")
		if leaving, err := c.m.LeavingIdentities(t.Context()); err != nil || len(leaving) > 0 {
			t.Errorf("leaving %v (%v)", leaving, err)
		}
		c.await(time.Minute, "cls9")
		c.settle()
		c.checkProblem("", "")
		c.checkStored(map[string]string{"set.cls9": "uid"})
	})
}

// deniedRegistry is a registry that denies every request.
type deniedRegistry struct{ registry.Registry }

func (deniedRegistry) Run(ctx context.Context, _ func(mcs.Key)) error { <-ctx.Done(); return nil }

func (deniedRegistry) Members(context.Context) ([]registry.Member, error) {
	return nil, registry.ErrNotSynced
}

func (deniedRegistry) Report() registry.Report {
	return registry.Report{Writing: errors.New("access denied")}
}

// Without the permission to join under the new identity the cluster keeps the previous one, and
// publishes under it.
func TestMembership_KeepsIdentityThatCannotChange(t *testing.T) {
	for name, refuse := range map[string]func(*testCluster){
		"no registry": func(c *testCluster) {
			c.replaceRegistries(func(registry.Registry) (registry.Registry, error) { return nil, errors.New("access denied") })
		},
		"registry that denies access": func(c *testCluster) {
			c.replaceRegistries(func(reg registry.Registry) (registry.Registry, error) { return deniedRegistry{reg}, nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCluster(t)
				c.start()
				c.settle()
				refuse(c)
				c.set(ofCLS9, nil)
				c.wait(20*time.Minute, "cls1")
				c.checkProblem("", "access denied")
				c.set(ofCLS1, nil)
				c.wait(time.Minute, "cls1")
				c.checkProblem("", "")
				c.wrap.Store(nil)
				c.wait(2*time.Minute, "cls1")
				c.checkStored(map[string]string{"set.cls1": "uid"})
			})
		})
	}
}

// An identity that is changed back before the exports are confirmed under the new one leaves
// nothing behind.
func TestMembership_ChangesIdentityBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.start()
		c.settle()
		session := c.m.State().Session
		c.set(ofCLS9, nil)
		c.await(time.Minute, "cls1 cls9")
		c.set(ofCLS1, nil)
		c.await(time.Minute, "cls1")
		c.wait(time.Minute, "cls1")
		if c.m.State().Session != session {
			t.Error("the cluster has another session")
		}
		c.checkStored(map[string]string{"set.cls1": "uid"})
	})
}

func TestMembership_ChangesIdentityWhileNoProcessRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.start()
		c.settle()
		c.stop()
		c.set(ofCLS9, nil)
		c.start()
		c.await(time.Minute, "cls1 cls9")
		c.wait(9*time.Second, "cls1 cls9")
		c.await(time.Minute, "cls9")
		c.settle()
		c.checkStored(map[string]string{"set.cls9": "uid"})
	})
}

// An export that the other clusters import under the previous identity keeps that one until it is
// confirmed under the new one, however long that takes.
func TestMembership_AwaitsExportsOfThePreviousIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.start()
		c.settle()
		c.hub.HoldConfirmations(true)
		c.set(ofCLS9, nil)
		c.await(time.Minute, "cls1 cls9")
		c.wait(4*time.Minute, "cls1 cls9")
		events := len(c.events)
		c.wait(20*time.Minute, "cls1 cls9")
		c.checkProblem("", "1 exports are not confirmed under it yet, such as demo/web")
		c.checkProblem("", "the other clusters import them as exports of cls1, which stays a member until then")
		if got := len(c.events) - events; got != 1 {
			t.Errorf("%d events after --leave-after, want 1", got)
		}
		c.hub.HoldConfirmations(false)
		c.await(time.Minute, "cls9")
		c.settle()
		c.checkProblem("", "")
	})
}

// The same if the identity changed while no controller ran, or the controller restarts meanwhile.
func TestMembership_AwaitsExportsOfThePreviousIdentityAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.start()
		c.settle()
		c.stop()
		c.hub.HoldConfirmations(true)
		c.set(ofCLS9, nil)
		c.start()
		c.await(time.Minute, "cls1 cls9")
		c.wait(20*time.Minute, "cls1 cls9")
		c.checkProblem("", "the identity changes from cls1 of clusterset set to cls9 of clusterset set: 1 exports are not confirmed under it yet")
		if got := len(c.events); got != 2 {
			t.Errorf("%d events, want one at the begin and one after --leave-after", got)
		}
		if next := c.m.State().Next; next != cls9 {
			t.Errorf("the next identity is %+v", next)
		}
		if leaving, err := c.m.LeavingIdentities(t.Context()); err != nil || len(leaving) > 0 {
			t.Errorf("leaving %v (%v)", leaving, err)
		}
		c.hub.HoldConfirmations(false)
		c.await(time.Minute, "cls9")
		c.settle()
		c.checkProblem("", "")
		c.checkStored(map[string]string{"set.cls9": "uid"})
	})
}

func TestMayExport(t *testing.T) {
	for name, tt := range map[string]struct {
		view registry.View
		want bool
	}{
		"no exports":          {registry.View{}, false},
		"of another cluster":  {registrytest.With(registrytest.ViewOf(mcs.Export{Cluster: "cls2"}), registry.Unknown, "cls3"), false},
		"exported":            {registrytest.ViewOf(mcs.Export{Cluster: "cls2"}, mcs.Export{Cluster: "cls1"}), true},
		"unknown":             {registrytest.With(registry.View{}, registry.Unknown, "cls1"), true},
		"not read":            {registrytest.With(registry.View{}, registry.Ignored, "cls1"), true},
		"its record is gone":  {registrytest.With(registry.View{}, registry.Unseen, "cls1"), true},
		"registries not read": {registry.View{Incomplete: true}, true},
	} {
		if got := mayExport(tt.view, "cls1"); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// An export that neither identity has confirmed, such as one that is too large, delays the end of
// the previous one by --leave-after at most.
func TestMembership_LimitsTheChangeOfIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		big := mcs.Key{Namespace: demoWeb.Namespace, Name: "big"} // the test does not publish it
		for _, obj := range []client.Object{controllertest.Service(big), controllertest.ServiceExport(big)} {
			if err := c.client.Create(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
		}
		c.start()
		c.settle()
		c.set(ofCLS9, nil)
		c.await(time.Minute, "cls1 cls9")
		c.wait(4*time.Minute, "cls1 cls9")
		c.checkProblem("", "1 exports are confirmed under neither, such as demo/big")
		c.checkProblem("", "(--leave-after)")
		c.await(2*time.Minute, "cls9")
	})
}

func TestMembership_RemembersWhenItJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		began := time.Now()
		c.start()
		c.settle()
		c.settle()
		joined, err := c.m.identities.Joined(t.Context(), cls1)
		if err != nil || joined.Before(began.Add(-time.Second)) || joined.After(time.Now()) {
			t.Errorf("joined at %v (%v)", joined, err)
		}
		time.Sleep(time.Hour)
		c.stop()
		c.start()
		c.settle()
		if again, err := c.m.identities.Joined(t.Context(), cls1); err != nil || !again.Equal(joined) {
			t.Errorf("after a restart joined at %v (%v), want %v", again, err, joined)
		}
		if other, err := c.m.identities.Joined(t.Context(), cls9); err != nil || !other.IsZero() {
			t.Errorf("joined as another cluster at %v (%v)", other, err)
		}
	})
}

// A backup of another cluster's namespace was restored here, with its signing key, its identity and
// the time at which it joined. This cluster has not joined then: with that time it would count as
// the older holder of the ID, and its farewell would end the imports of the original.
func TestMembership_DoesNotRestoreWhenAnotherClusterJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		original, longAgo := cls1, time.Now().Add(-30*24*time.Hour)
		original.UID = "uid-of-another-cluster"
		c.set(noValues, nil)
		c.start()
		c.settle()
		c.stop() // the backup has both values, and no controller reads one of them alone
		if err := errors.Join(c.m.identities.Add(t.Context(), original), c.m.identities.setJoined(t.Context(), original, longAgo)); err != nil {
			t.Fatal(err)
		}
		c.start()
		began := time.Now()
		c.set(ofCLS1, nil)
		c.settle()
		c.settle()
		if joined, err := c.m.identities.Joined(t.Context(), cls1); err != nil || !joined.IsZero() && joined.Before(began.Add(-time.Second)) {
			t.Errorf("joined at %v (%v), as the other cluster", joined, err)
		}
	})
}

// forgetRecorder is a registry that records which clusters are forgotten.
type forgetRecorder struct {
	registry.Registry
	forgotten *[]string
}

func (r forgetRecorder) Forget(clusterID string) { *r.forgotten = append(*r.forgotten, clusterID) }

func TestMembership_ForgetsClustersOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		var forgotten []string
		c.replaceRegistries(func(reg registry.Registry) (registry.Registry, error) { return forgetRecorder{reg, &forgotten}, nil })
		c.start()
		c.settle()
		for _, key := range []string{names.ForgetKey("set", "cls2"), names.ForgetKey("set", "cls1"), names.ForgetKey("other", "cls3")} {
			c.request(key)
		}
		c.settle()
		c.settle()
		c.stop()
		if d := cmp.Diff([]string{"cls2"}, forgotten); d != "" {
			t.Errorf("forgotten (-want +got):\n%s", d)
		}
		c.checkStored(map[string]string{"set.cls1": "uid"})
	})
}

// trustRecorder is a registry that records which keys are trusted, and refuses "bad".
type trustRecorder struct {
	registry.Registry
	trusted *[]string
}

func (r trustRecorder) Trust(clusterID, key string) error {
	if *r.trusted = append(*r.trusted, clusterID+"="+key); key == "bad" {
		return errors.New("the key cannot be read")
	}
	return nil
}

// Requests to trust a key reach the registry once, by way of its wrappers, and are deleted, also
// those that cannot be fulfilled.
func TestMembership_TrustsKeysOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		var trusted []string
		c.replaceRegistries(func(reg registry.Registry) (registry.Registry, error) { return trustRecorder{reg, &trusted}, nil })
		c.start()
		c.settle()
		values := map[string]any{
			names.TrustKey("set", "cls2"): "KEY kubectl mcs trust at noon", names.TrustKey("set", "cls4"): "bad",
			names.TrustKey("set", "cls1"): "KEY", names.TrustKey("other", "cls3"): "KEY",
		}
		if err := c.m.identities.patch(t.Context(), values); err != nil {
			t.Fatal(err)
		}
		c.settle()
		c.settle()
		c.stop()
		if d := cmp.Diff([]string{"cls2=KEY", "cls4=bad"}, trusted); d != "" {
			t.Errorf("trusted (-want +got):\n%s", d)
		}
		c.checkStored(map[string]string{"set.cls1": "uid"})
	})
}

// An identity that was copied from another cluster is not this cluster's.
func TestMembership_IgnoresIdentitiesOfAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.set(noValues, nil)
		c.start()
		if err := c.m.identities.Add(t.Context(), mcs.Identity{ClusterSetID: "set", ClusterID: "cls5", UID: "uid-of-another-cluster"}); err != nil {
			t.Fatal(err)
		}
		c.settle()
		c.wait(time.Minute, "")
		c.checkProblem("create ClusterProperty cluster.clusterset.k8s.io", "")
		c.checkStored(nil)
	})
}

// leftoversRegistry leaves something when its cluster leaves.
type leftoversRegistry struct{ registry.Registry }

func (r leftoversRegistry) Run(ctx context.Context, notify func(mcs.Key)) error {
	err := r.Registry.Run(ctx, notify)
	if err == nil && errors.Is(context.Cause(ctx), registry.ErrLeave) {
		err = &registry.LeftoversError{Left: []registry.Leftover{{Resource: "namespace demo"}}}
	}
	return err
}

// TestMembership_Leftovers: a cluster whose resources cannot be deleted has left, and says what
// stays until it joins again.
func TestMembership_Leftovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCluster(t)
		c.replaceRegistries(func(r registry.Registry) (registry.Registry, error) { return leftoversRegistry{r}, nil })
		c.start()
		c.settle()
		c.set(noValues, nil)
		time.Sleep(6 * time.Minute)
		c.wait(time.Second, "")
		c.checkStored(map[string]string{})
		if left := c.m.Leftovers(); len(left) != 1 || left[0].Resource != "namespace demo" {
			t.Errorf("left: %+v, want the namespace", left)
		}
		c.set(ofCLS1, nil)
		c.settle()
		if left := c.m.Leftovers(); len(left) > 0 {
			t.Errorf("left after joining again: %+v", left)
		}
	})
}
