package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/golden"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// today is the clock of every cluster in a fleet.
var today = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// A fleet is a clusterset to type commands in: clusters by the name of their context, cls1 being the current one.
type fleet map[string]*ship

// A ship is one cluster of a fleet. It is its controller's status.Source too.
type ship struct {
	world    *world
	objects  []client.Object
	status   status.Status
	services []status.Service
	probe    status.Probe
	reach    map[string]string // by IP: why another controller cannot be reached
	silent   bool              // the controller's pod does not answer
	client   client.Client

	kubernetes string // the API server's version
	resources  []*metav1.APIResourceList
}

// newFleet is two clusters; in both runs a controller, and nothing is exported.
func newFleet() fleet {
	f := fleet{}
	for i, id := range []string{"cls1", "cls2"} {
		f[id] = &ship{
			world: newWorld(),
			reach: map[string]string{}, kubernetes: "v1.37.2",
			resources: []*metav1.APIResourceList{
				apiResources("multicluster.x-k8s.io/v1beta1", "serviceexports", "serviceexports/status", "serviceimports", "serviceimports/status"),
				apiResources("multicluster.x-k8s.io/v1alpha1", "serviceimports"), apiResources("about.k8s.io/v1beta1", "clusterproperties"),
			},
			objects: []client.Object{
				controllerPod("manager-abc", fmt.Sprintf("10.%d.0.9", i+1)),
				&coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: leaseName},
					Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("manager-abc_0123")},
				},
				crd("serviceexports", "v0.5.2", "0"), crd("serviceimports", "v0.5.2", "0"),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}},
				property(aboutv1beta1.ClusterIDProperty, id), property(aboutv1beta1.ClusterSetIDProperty, "set1"),
			},
			status: status.Status{
				Version: "v1.2.3", Time: today, Leader: true, Registry: "cloudmap", Synced: true,
				Identity: &mcs.Identity{ClusterID: id, ClusterSetID: "set1", UID: "uid-" + id},
				Members: []status.Member{
					{ClusterID: "cls1", UID: "uid-cls1", Version: "v1.2.3", HeartbeatAge: 2.1},
					{ClusterID: "cls2", UID: "uid-cls2", Version: "v1.2.3", HeartbeatAge: 7.8},
				},
				Requests: []status.Request{
					{Registry: "cloudmap", Operation: "DiscoverInstances", Result: "ok", Count: 60},
					{Registry: "cloudmap", Operation: "RegisterInstance", Result: "ok", Count: 5},
				},
			},
		}
		enableDNS(f[id].world)
	}
	return f
}

func apiResources(groupVersion string, names ...string) *metav1.APIResourceList {
	list := &metav1.APIResourceList{GroupVersion: groupVersion}
	for _, name := range names {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
	}
	return list
}

func crd(plural, release, revision string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name:   plural + ".multicluster.x-k8s.io",
		Labels: map[string]string{"multicluster.x-k8s.io/release-version": release, "multicluster.x-k8s.io/crd-schema-revision": revision},
	}}
}

func controllerPod(name, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: name, Labels: managerLabels},
		Status: corev1.PodStatus{
			PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

func property(name, value string) *aboutv1beta1.ClusterProperty {
	return &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: aboutv1beta1.ClusterPropertySpec{Value: value}}
}

// add puts an object into a cluster.
func (s *ship) add(objects ...client.Object) { s.objects = append(s.objects, objects...) }

// drop takes out the objects of obj's type and name.
func (s *ship) drop(obj client.Object) {
	var rest []client.Object
	for _, o := range s.objects {
		if fmt.Sprintf("%T", o) != fmt.Sprintf("%T", obj) || o.GetName() != obj.GetName() {
			rest = append(rest, o)
		}
	}
	s.objects = rest
}

func fleetScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	served.AddMCS(scheme, schemaVersion(mcsv1beta1.GroupName))
	aboutv1beta1.AddToScheme(scheme, schemaVersion(aboutv1beta1.GroupName))
	return scheme
}

// sail starts the clusters.
func (f fleet) sail(t *testing.T) map[string]*cluster {
	t.Helper()
	clusters := map[string]*cluster{}
	for name, s := range f {
		s.world.start()
		s.world.kube.Resources = s.resources
		s.world.kube.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: s.kubernetes}
		s.client = fake.NewClientBuilder().WithScheme(fleetScheme(t)).WithObjects(s.objects...).Build()
		clusters[name] = &cluster{
			context: name, kube: s.world.kube, ask: s.world.ask, now: func() time.Time { return today }, poll: time.Millisecond,
			objects: func() (client.Client, error) { return s.client, nil }, fetch: s.fetch,
		}
	}
	clusters[""] = clusters["cls1"]
	return clusters
}

func (s *ship) fetch(ctx context.Context, pod *corev1.Pod, path string) ([]byte, error) {
	if s.silent {
		return nil, fmt.Errorf("asking pod %s/%s for %s: connection refused", pod.Namespace, pod.Name, path)
	}
	w := httptest.NewRecorder()
	status.NewHandler(s).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
	if w.Code != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(w.Body.String()))
	}
	return w.Body.Bytes(), nil
}

// Status is the ship's, under the identity that the ClusterProperties say.
func (s *ship) Status(ctx context.Context) status.Status {
	now := s.status
	now.Services = len(s.services)
	var id, set aboutv1beta1.ClusterProperty
	if s.client.Get(ctx, client.ObjectKey{Name: aboutv1beta1.ClusterIDProperty}, &id) != nil ||
		s.client.Get(ctx, client.ObjectKey{Name: aboutv1beta1.ClusterSetIDProperty}, &set) != nil {
		now.Identity, now.Problem = nil, "there is no ClusterProperty cluster.clusterset.k8s.io"
		return now
	}
	identity := *now.Identity
	now.Members = slices.Clone(now.Members)
	for i := range now.Members {
		if now.Members[i].UID == identity.UID {
			now.Members[i].ClusterID = id.Spec.Value
		}
	}
	identity.ClusterID, identity.ClusterSetID = id.Spec.Value, set.Spec.Value
	now.Identity = &identity
	return now
}

func (s *ship) Service(_ context.Context, key mcs.Key) (status.Service, error) {
	for _, service := range s.services {
		if service.Key == key {
			return service, nil
		}
	}
	return status.Service{Key: key}, nil
}

func (s *ship) Services(context.Context) ([]status.Service, error) { return s.services, nil }

func (s *ship) Probe(context.Context, mcs.Key) (status.Probe, error) { return s.probe, nil }

func (s *ship) Reach(_ context.Context, ip netip.Addr) status.Connection {
	return status.Connection{Target: status.Target{Address: netip.AddrPortFrom(ip, 8081).String()}, Problem: s.reach[ip.String()]}
}

// TestFleetSessions are terminal sessions with several clusters, kept in testdata/<name>.txt.
func TestFleetSessions(t *testing.T) {
	for _, tt := range fleetSessions {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet()
			if tt.setup != nil {
				tt.setup(f)
			}
			clusters := f.sail(t)
			var got strings.Builder
			for _, line := range tt.commands {
				transcript, code := runIn(t, clusters, line)
				fmt.Fprintf(&got, "%s[exit %d]\n\n", withoutBase(transcript), code)
			}
			golden.Check(t, filepath.Join("testdata", tt.name+".txt"), got.String())
		})
	}
}

// withoutBase is a transcript without the objects of deploy/base that may come and go there: its change is none of the plugin.
func withoutBase(transcript string) string {
	var out strings.Builder
	for l := range strings.Lines(transcript) {
		_, rest, _ := strings.Cut(l, ": ")
		kind, _, _ := strings.Cut(rest, " ")
		listed := strings.HasSuffix(l, " applied\n") || strings.HasSuffix(l, " is deleted\n")
		if !listed || slices.Contains([]string{"Namespace", "CustomResourceDefinition", "Deployment"}, kind) {
			out.WriteString(l)
		}
	}
	return out.String()
}

type fleetSession struct {
	name     string
	setup    func(fleet)
	commands []string
}

var fleetSessions = []fleetSession{
	{name: "status", commands: []string{
		"status", "status --context cls1,cls2", "status --context cls1 --context cls2 -o wide", "status -o json", "status -o yaml", "get clusters --contexts cls1,cls2",
	}},
	{name: "status-troubles", setup: func(f fleet) {
		f["cls1"].status.Members[1].Stale = true
		f["cls1"].status.Members[1].HeartbeatAge = 150
		f["cls1"].status.Members[1].Problems = []string{"page 07 cannot be read: \x1b[31mred"}
		f["cls1"].status.Conflicts = []status.Conflict{{Key: demoWeb, Problems: []string{"PortConflict: port http differs"}}}
		f["cls1"].status.Publications = []status.Publication{{Key: demoWeb, State: "Pending", Problem: "AccessDeniedException"}, {Key: demoWeb, State: "Pending"}}
		f["cls2"].silent = true
	}, commands: []string{"status --context cls1,cls2", "get clusters --context cls1,cls2"}},
	{name: "status-no-controller", setup: func(f fleet) {
		f["cls1"].drop(controllerPod("manager-abc", ""))
		pod := controllerPod("manager-new", "")
		pod.Status.Conditions = nil
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "ImagePullBackOff", Message: "no such image",
		}}}}
		f["cls2"].drop(controllerPod("manager-abc", ""))
		f["cls2"].add(pod)
	}, commands: []string{"status --context cls1,cls2"}},
	{name: "get", setup: func(f fleet) {
		exportWeb(f)
		f["cls2"].add(&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "db", CreationTimestamp: metav1.NewTime(today.Add(-time.Minute))}})
	}, commands: []string{
		"get exports", "get exports -A --context cls1,cls2", "get exports -o wide", "get imports --context cls1,cls2", "get imports -o wide", "get imports -o yaml",
	}},
	{name: "diagnose", setup: exportWeb, commands: []string{
		"diagnose web --context cls1,cls2", "diagnose web --context cls2", "diagnose web --context cls2 --no-probe", "diagnose nothing --context cls1,cls2",
		"describe web --context cls1,cls2", "describe web --context cls2 -o yaml",
	}},
	{name: "diagnose-no-permission", setup: func(f fleet) {
		exportWeb(f)
		f["cls2"].world.controllerMayNot = "endpointslices"
		f["cls2"].drop(slice("imported-1", nil))
	}, commands: []string{"diagnose web --context cls1,cls2"}},
	{name: "diagnose-no-dns", setup: func(f fleet) {
		exportWeb(f)
		f["cls2"].world.config.Data["Corefile"] = stockCorefile
		f["cls2"].probe.Addresses, f["cls2"].probe.LookupProblem = nil, "no such host"
	}, commands: []string{"diagnose web --context cls1,cls2"}},
	{name: "check", setup: func(f fleet) {
		exportWeb(f)
		f["cls1"].add(&appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, NumberReady: 3},
		})
	}, commands: []string{"check", "check --context cls1,cls2", "check -o yaml"}},
	{name: "check-nothing-installed", setup: func(f fleet) {
		f["cls1"].resources, f["cls1"].objects = nil, nil
		f["cls1"].world.config.Data["Corefile"] = stockCorefile
		f["cls1"].world.controllerMayNot = "*"
	}, commands: []string{"check --wait 2ms"}},
	{name: "check-troubles", setup: func(f fleet) {
		exportWeb(f)
		s := f["cls1"]
		s.kubernetes = "v1.30.1-eks-1234"
		s.drop(crd("serviceimports", "", ""))
		s.drop(crd("serviceexports", "", ""))
		s.add(crd("serviceimports", "v0.5.2", "0"), crd("serviceexports", "v0.3.0", "4"))
		s.status.Version, s.status.Time = "v1.1.0", today.Add(-time.Hour)
		s.status.ReadProblem = "AccessDeniedException: no"
		s.status.Requests = append(s.status.Requests,
			status.Request{Operation: "DiscoverInstances", Result: "denied", Count: 9}, status.Request{Operation: "RegisterInstance", Result: "throttled", Count: 2})
		s.status.Members[1].Stale = true
		s.status.Publications = []status.Publication{{Key: demoWeb, State: "Pending", Problem: "AccessDeniedException"}}
		s.probe.Connections[0].Problem = "connection refused"
		s.reach["10.2.0.9"] = "no answer"
		s.add(&appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, NumberReady: 2},
		})
		f["cls2"].silent = true
	}, commands: []string{"check --context cls1,cls2"}},
	{name: "check-network-policy", setup: func(f fleet) {
		exportWeb(f)
		for i := range f["cls1"].probe.Connections {
			f["cls1"].probe.Connections[i].Problem = "no answer"
		}
	}, commands: []string{"check", "diagnose web"}},
	{name: "registry", setup: exportWeb, commands: []string{
		"registry get web", "registry get web --context cls2 -o json", "registry get nothing", "registry dump --context cls2", "registry dump -o table",
		"graph --context cls1,cls2", "graph --context cls2 -o svg", "graph -o png",
	}},
	{name: "install", commands: []string{
		"install --wait 0s --context cls1,cls2", "install --wait 2ms", "install now", "install -- --nonsense", "uninstall --dry-run",
	}},
	{name: "install-newer-crds", setup: func(f fleet) {
		f["cls1"].drop(crd("serviceimports", "", ""))
		f["cls1"].add(crd("serviceimports", "v0.9.0", "0"))
	}, commands: []string{"install --wait 0s"}},
	{name: "uninstall-no-pod", setup: func(f fleet) { f["cls1"].drop(controllerPod("manager-abc", "")) }, commands: []string{"install --wait 0s", "uninstall --yes"}},
	{name: "join-leave", commands: []string{
		"join --cluster-id cls1 --clusterset-id set1", "join --cluster-id cls9 --clusterset-id set1", "join --cluster-id cls9 --clusterset-id set1 --force", "leave", "leave --yes",
		"leave -y", "join --cluster-id new --clusterset-id other --wait 0s", "join --cluster-id A.b --clusterset-id x", "join --cluster-id a",
	}},
	{name: "join-twice", setup: func(f fleet) {
		f["cls1"].drop(property(aboutv1beta1.ClusterIDProperty, ""))
		f["cls1"].status.WriteProblem = `cluster ID "cls2" is already used by another cluster of the clusterset`
	}, commands: []string{"join --cluster-id cls2 --clusterset-id set1", "status"}},
	{name: "uninstall", setup: exportWeb, commands: []string{
		"install --wait 0s", "uninstall --dry-run", "uninstall", "uninstall --yes", "uninstall --dry-run", "uninstall --yes --crds", "get exports",
	}},
	{name: "export", setup: func(f fleet) {
		f["cls1"].add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"}})
	}, commands: []string{
		"export web --wait 0s", "export web --wait 5ms", "export web --wait 0s --context cls1,cls2", "unexport web --context cls1,cls2",
	}},
	{name: "fleet-usage", commands: []string{
		"export", "export a b", "status now", "status -o xml", "status --context nowhere", "status --context cls1,cls1", "dns status --context cls1,cls2", "--nonsense",
	}},
}

func TestCompletion(t *testing.T) {
	f := newFleet()
	exportWeb(f)
	clusters := f.sail(t)
	for line, want := range map[string]string{
		"__complete unexport ":            "web\n",
		"__complete unexport web ":        ":4\n",
		"__complete status -o j":          "json\n",
		"__complete check --context cls1": "cls1\n",
	} {
		got, code := runIn(t, clusters, line)
		if code != ExitOK || !strings.Contains(got, want) {
			t.Errorf("%s: exit code %d, wants %q:\n%s", line, code, want, got)
		}
	}
}
