package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// sameRegion is PreferSameRegion as a list.
const sameRegion = `[{"propertySelector":{"matchProperties":{"cluster.clusterset.k8s.io":"@SameAsImporter@"}}},` +
	`{"propertySelector":{"matchProperties":{"region.topology.k8s.io":"@SameAsImporter@"}}}]`

// awaitSelection waits until the import has condition ClusterSelection with that status and reason,
// and text in its message.
func (k *cluster) awaitSelection(t *testing.T, key mcs.Key, want, text string) *mcsv1beta1.ServiceImport {
	t.Helper()
	var imp mcsv1beta1.ServiceImport
	eventually(t, "condition ClusterSelection of "+key.String(), func() error {
		if err := k.get(t, key, &imp); err != nil {
			return err
		}
		c := meta.FindStatusCondition(imp.Status.Conditions, mcs.ConditionClusterSelection)
		if c == nil || string(c.Status)+" "+c.Reason != want || !strings.Contains(c.Message, text) {
			return fmt.Errorf("condition %+v, want %q with %q", c, want, text)
		}
		return nil
	})
	return &imp
}

// annotate sets an exported annotation of the ServiceExport of key.
func (k *cluster) annotate(t *testing.T, key mcs.Key, name, value string) {
	t.Helper()
	change(t, k, controllertest.ServiceExport(key), func(e *mcsv1beta1.ServiceExport) {
		if e.Spec.ExportedAnnotations == nil {
			e.Spec.ExportedAnnotations = map[string]string{}
		}
		e.Spec.ExportedAnnotations[name] = value
	})
}

// setReady sets the readiness of all endpoints of slice.
func (k *cluster) setReady(t *testing.T, slice *discoveryv1.EndpointSlice, ready bool) {
	t.Helper()
	change(t, k, slice, func(s *discoveryv1.EndpointSlice) {
		for i := range s.Endpoints {
			s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready}
		}
	})
}

// remoteExport publishes an export of a cluster without Kubernetes.
func remoteExport(t *testing.T, hub *memory.Hub, clusterID string, properties mcs.Properties, exp mcs.Export) *memory.Registry {
	t.Helper()
	reg := hub.Registry(mcs.Identity{ClusterID: clusterID, ClusterSetID: "set", UID: clusterID})
	reg.SetProperties(properties)
	exp.Cluster = clusterID
	if err := reg.Publish(t.Context(), exp); err != nil {
		t.Fatal(err)
	}
	runRegistry(t, reg)
	return reg
}

// runRegistry runs the registry of a cluster without Kubernetes until the test ends.
func runRegistry(t *testing.T, reg *memory.Registry) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- reg.Run(ctx, func(mcs.Key) {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// readyWatch follows the imported slices of a service, and counts the moments at which none has a
// ready endpoint.
type readyWatch struct {
	mu    sync.Mutex
	ready map[string]int
	empty int
}

func (k *cluster) watchReady(t *testing.T, key mcs.Key) *readyWatch {
	t.Helper()
	c, err := client.NewWithWatch(k.env.Config, client.Options{Scheme: k.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(t.Context(), &discoveryv1.EndpointSliceList{}, client.InNamespace(key.Namespace), client.MatchingLabels{mcsv1beta1.LabelServiceName: key.Name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	r := &readyWatch{ready: map[string]int{}}
	go func() {
		for e := range w.ResultChan() {
			if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok {
				r.observe(s, e.Type == watch.Deleted)
			}
		}
	}()
	return r
}

func (r *readyWatch) observe(s *discoveryv1.EndpointSlice, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, n := r.total(), 0
	for _, ep := range s.Endpoints {
		if !deleted && *ep.Conditions.Ready {
			n++
		}
	}
	r.ready[s.Name] = n
	if before > 0 && r.total() == 0 {
		r.empty++
	}
}

func (r *readyWatch) total() (n int) {
	for ready := range maps.Values(r.ready) {
		n += ready
	}
	return n
}

func (r *readyWatch) emptyTimes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.empty
}

// Each importer uses the endpoints of the first selector that has a ready one: its own, then those
// of its Region, then all. The endpoints of the next clusters are there before those of the
// previous clusters leave.
func TestClusterSelection_FollowsReadiness(t *testing.T) {
	a, b := twoClusters(t)
	hub := memory.NewHub()
	key := newKey("selection")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	a.property(t, mcs.PropertyRegion, "eu-west-1")
	b.property(t, mcs.PropertyRegion, "eu-west-1")
	a.run(t, hub, flags("cls1"))
	b.run(t, hub, flags("cls2"))
	sliceA, sliceB := a.export(t, key, 1, 2), b.export(t, key, 2, 1)
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": {"10.2.0.1"}})
	a.annotate(t, key, mcs.AnnotationClusterSelectors, sameRegion)
	b.annotate(t, key, mcs.AnnotationClusterSelectors, sameRegion)
	a.condition(t, key, "Conflict=False NoConflicts", "")

	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": nil})
	imp := a.awaitSelection(t, key, "True FirstSelector", "every port: selector 1 (cls1)")
	if got, want := imp.Annotations[plan.AnnotationSelectorResults], `[{"clusters":["cls1"]},{"clusters":["cls1","cls2"]}]`; got != want {
		t.Errorf("results %s, want %s", got, want)
	}
	if got := imp.Annotations[plan.AnnotationClusterSelectors]; got != sameRegion {
		t.Errorf("selectors of the import are %s, want %s", got, sameRegion)
	}
	b.awaitSelection(t, key, "True FirstSelector", "every port: selector 1 (cls2)")
	b.imported(t, key, map[string][]string{"cls1": nil, "cls2": {"10.2.0.1"}})

	ready := a.watchReady(t, key)
	far := mcs.Export{
		Key: key, Type: mcsv1beta1.ClusterSetIP, Created: time.Now(), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}, ClusterSelectors: sameRegion,
		Backends: []mcs.Backends{{
			Ports:     []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
			Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.3.0.1"), Ready: true, Serving: true}},
		}},
	}
	remote := remoteExport(t, hub, "cls3", mcs.Properties{mcs.PropertyRegion: "us-east-1"}, far)
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": nil, "cls3": nil})

	t.Log("the own cluster has no ready endpoint: the Region serves")
	before := ready.emptyTimes()
	a.setReady(t, sliceA, false)
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1 not ready", "10.1.0.2 not ready"}, "cls2": {"10.2.0.1"}, "cls3": nil})
	a.awaitSelection(t, key, "True LaterSelector", "every port: selector 2 (cls1, cls2), because selector 1 (cls1) has no ready endpoint")
	a.eventOf(t, key, corev1.EventTypeNormal, "ClusterSelectionChanged")

	t.Log("the Region has none either: all clusters serve")
	b.setReady(t, sliceB, false)
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1 not ready", "10.1.0.2 not ready"}, "cls2": {"10.2.0.1 not ready"}, "cls3": {"10.3.0.1"}})
	a.awaitSelection(t, key, "True AllClusters", "each of 2 selectors has no ready endpoint")

	t.Log("the own cluster is ready again")
	a.setReady(t, sliceA, true)
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": nil, "cls3": nil})
	a.awaitSelection(t, key, "True FirstSelector", "")

	t.Log("another cluster gets another Region")
	a.setReady(t, sliceA, false)
	a.awaitSelection(t, key, "True AllClusters", "")
	remote.SetProperties(mcs.Properties{mcs.PropertyRegion: "eu-west-1"})
	imp = a.awaitSelection(t, key, "True LaterSelector", "selector 2 (cls1, cls2, cls3)")
	if got, want := imp.Annotations[plan.AnnotationSelectorResults], `[{"clusters":["cls1"]},{"clusters":["cls1","cls2","cls3"]}]`; got != want {
		t.Errorf("results %s, want %s", got, want)
	}
	// The endpoints became not ready before others took their place; nothing else may leave the
	// service without a ready endpoint.
	if n := ready.emptyTimes() - before; n > 3 {
		t.Errorf("%d times there was no ready endpoint, want one for each of the three times that the last ready endpoint failed", n)
	}

	t.Log("without selectors all clusters serve")
	a.setReady(t, sliceA, true)
	b.setReady(t, sliceB, true)
	a.annotate(t, key, mcs.AnnotationClusterSelectors, "[]")
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": {"10.2.0.1"}, "cls3": {"10.3.0.1"}})
	imp = a.awaitSelection(t, key, "False NoSelectors", "")
	if got := imp.Annotations[plan.AnnotationSelectorResults]; got != "" {
		t.Errorf("results %q are left", got)
	}
	b.condition(t, key, "Conflict=True ClusterSelectorsConflict", "clusterSelectors: using none from cluster cls1")
}

// The preference may come from the ServiceExport, its namespace or the cluster, in this order.
func TestClusterSelection_ShortForms(t *testing.T) {
	a, _ := twoClusters(t)
	hub := memory.NewHub()
	key := newKey("preference")
	a.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	t.Cleanup(func() { a.deleteObjects(t, key.Namespace) })
	options := testOptions(flags("cls1"))
	options.Scope.ClusterPreference = string(mcs.PreferSameRegion)
	a.runWith(t, hubRegistry(hub), options)
	a.export(t, key, 1, 1)
	other := hub.Registry(mcs.Identity{ClusterID: "cls2", ClusterSetID: "set", UID: "cls2"})
	runRegistry(t, other)
	published := func(want string) {
		t.Helper()
		eventually(t, "the selectors of the export", func() error {
			view, err := other.Lookup(t.Context(), key)
			if err != nil || len(view.Exports()) != 1 {
				return fmt.Errorf("%d exports, %w", len(view.Exports()), err)
			}
			if got := string(view.Exports()[0].ClusterSelectors); got != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	first, _, _ := strings.Cut(sameRegion, ",")
	sameCluster := first + "]"
	published(sameRegion)

	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}}
	change(t, a, ns, func(n *corev1.Namespace) {
		n.Annotations = map[string]string{mcs.AnnotationClusterPreference: string(mcs.PreferSameCluster)}
	})
	published(sameCluster)
	exp := controllertest.ServiceExport(key)
	change(t, a, exp, func(e *mcsv1beta1.ServiceExport) {
		e.Annotations = map[string]string{mcs.AnnotationClusterPreference: string(mcs.PreferNoCluster)}
	})
	published("")
	a.annotate(t, key, mcs.AnnotationClusterSelectors, sameRegion)
	published(sameRegion)
	a.condition(t, key, "Valid=True Valid", "")

	t.Log("a list that is not valid is reported, and the service stays exported")
	a.annotate(t, key, mcs.AnnotationClusterSelectors, `[{"propertySelector":{}}]`)
	a.condition(t, key, "Valid=False InvalidClusterSelector", "selector 1: propertySelector is empty")
	a.condition(t, key, "Ready=True Exported", "")
	a.event(t, key, "InvalidClusterSelector")
	published("")
}

// Selectors do not apply to headless services. Those of a ServiceExport are reported.
func TestClusterSelection_Headless(t *testing.T) {
	a, _ := twoClusters(t)
	key := newKey("selection-headless")
	a.namespace(t, key.Namespace)
	options := testOptions(flags("cls1"))
	options.Scope.ClusterPreference = string(mcs.PreferSameCluster)
	a.runWith(t, hubRegistry(memory.NewHub()), options)
	svc := controllertest.Service(key)
	svc.Spec.ClusterIP = corev1.ClusterIPNone
	a.create(t, svc)
	a.create(t, controllertest.ServiceExport(key))
	a.condition(t, key, "Valid=True Valid", "")
	a.annotate(t, key, mcs.AnnotationClusterSelectors, sameRegion)
	a.condition(t, key, "Valid=False InvalidServiceType", "it is headless")
	a.condition(t, key, "Ready=True Exported", "")
}

// The Region of the nodes is that of the cluster if they agree, and the networks of their pods and
// the IDs of their zones are those of the cluster, if no ClusterProperty has others.
func TestClusterProperties_OfNodes(t *testing.T) {
	a, _ := twoClusters(t)
	hub := memory.NewHub()
	a.run(t, hub, flags("cls1"))
	other := hub.Registry(mcs.Identity{ClusterID: "cls2", ClusterSetID: "set", UID: "cls2"})
	runRegistry(t, other)
	awaitProperty := func(name, want string) {
		t.Helper()
		eventually(t, "property "+name+" of cls1", func() error {
			members, err := other.Members(t.Context())
			for _, m := range members {
				if m.ClusterID == "cls1" && m.Properties != nil && m.Properties[name] == want {
					return nil
				}
			}
			return fmt.Errorf("members %+v, want %q: %w", members, want, err)
		})
	}
	region := func(want string) { t.Helper(); awaitProperty(mcs.PropertyRegion, want) }
	networks := func(want string) { t.Helper(); awaitProperty(mcs.PropertyNetworks, want) }
	zones := func(want string) { t.Helper(); awaitProperty(mcs.PropertyZones, want) }
	region("")
	node := func(name, region string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyRegion: region}}}
	}
	for _, n := range []*corev1.Node{node("selection-1", "eu-west-1"), node("selection-2", "eu-west-1")} {
		a.create(t, n)
		t.Cleanup(func() {
			if err := a.admin.Delete(context.Background(), n); err != nil {
				t.Error(err)
			}
		})
	}
	region("eu-west-1")
	networks("")
	zones("")
	labels := []map[string]string{
		{corev1.LabelTopologyZone: "eu-west-1a", mcs.LabelZoneID: "euw1-az3"}, {corev1.LabelTopologyZone: "eu-west-1b"},
	}
	for i, cidr := range []string{"10.1.0.0/24", "10.1.1.0/24"} {
		change(t, a, node(fmt.Sprintf("selection-%d", i+1), ""), func(n *corev1.Node) {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
			maps.Copy(n.Labels, labels[i])
		})
	}
	networks("10.1.0.0/23")
	a.property(t, mcs.PropertyNetworks, "10.0.0.0/16")
	networks("10.0.0.0/16")
	a.property(t, mcs.PropertyNetworks, "everything")
	networks("")
	a.property(t, mcs.PropertyNetworks, "")
	networks("10.1.0.0/23")
	zones("eu-west-1a=euw1-az3,eu-west-1b")
	a.property(t, mcs.PropertyZones, "eu-west-1a=euw1-az1")
	zones("eu-west-1a=euw1-az1")
	a.property(t, mcs.PropertyZones, "eu-west-1a=")
	zones("")
	a.property(t, mcs.PropertyZones, "")
	zones("eu-west-1a=euw1-az3,eu-west-1b")
	a.property(t, mcs.PropertyRegion, "eu-central-1")
	region("eu-central-1")
	a.property(t, mcs.PropertyRegion, "")
	region("eu-west-1")
	change(t, a, node("selection-2", ""), func(n *corev1.Node) { n.Labels[corev1.LabelTopologyRegion] = "eu-west-2" })
	region("")
}
