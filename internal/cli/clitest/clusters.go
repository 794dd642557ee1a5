package clitest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// Version is that of the controllers and of the plugin.
const Version = "v1.2.3"

// Today is the clock of every cluster.
var Today = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// Clusters are a clusterset: clusters by the name of their context, cls1 being the current one.
type Clusters map[string]*Cluster

// A Cluster is one cluster of a clusterset with its controller. It is the controller's
// status.Source.
type Cluster struct {
	CoreDNS *CoreDNS
	// ControllerStatus, ServiceList, ProbeResult and ReachProblems are the responses of the
	// controller; ReachProblems is by IP.
	ControllerStatus status.Status
	ServiceList      []status.Service
	ProbeResult      status.Probe
	ReachProblems    map[string]string
	// Metrics are those of the controller.
	Metrics string
	// IgnoresRequests makes the controller ignore the requests of users in its ConfigMap.
	IgnoresRequests bool
	// RefusesKeys makes the controller refuse the keys that users name, as with --trusted-keys.
	RefusesKeys bool
	// Unread is the reason why the controller cannot say anything about services, "" if it can.
	Unread string
	// Unreachable makes every connection to the controller's pod fail.
	Unreachable bool
	// OnlyNamespace is the namespace in which the user may read everything, who may do nothing
	// else; "" is for an administrator.
	OnlyNamespace string
	// Denied are the resources, such as pods or pods/portforward, that the user may not access.
	Denied []string
	// Kubernetes is the version of the API server, Resources are the APIs that it serves.
	Kubernetes string
	Resources  []*metav1.APIResourceList

	objects []client.Object
	client  client.Client
}

// NewClusters returns two clusters, each with a running controller and without exports.
func NewClusters() Clusters {
	clusters := Clusters{}
	for i, id := range []string{"cls1", "cls2"} {
		clusters[id] = &Cluster{
			CoreDNS:       NewCoreDNS(),
			ReachProblems: map[string]string{}, Kubernetes: "v1.37.2",
			Resources: []*metav1.APIResourceList{
				apiResources("multicluster.x-k8s.io/v1beta1", "serviceexports", "serviceexports/status", "serviceimports", "serviceimports/status"),
				apiResources("multicluster.x-k8s.io/v1alpha1", "serviceimports"), apiResources("about.k8s.io/v1beta1", "clusterproperties"),
			},
			objects: []client.Object{
				ControllerPod("manager-standby", fmt.Sprintf("10.%d.0.8", i+1)), ControllerPod("manager-abc", fmt.Sprintf("10.%d.0.9", i+1)),
				&coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: session.DefaultNamespace, Name: session.LeaseName},
					Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("manager-abc_0123")},
				},
				CRD("serviceexports", "v0.5.2", "0"), CRD("serviceimports", "v0.5.2", "0"),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}},
				Property(aboutv1beta1.ClusterIDProperty, id), Property(aboutv1beta1.ClusterSetIDProperty, "set1"),
			},
			ControllerStatus: status.Status{
				Version: Version, Time: Today, Leader: true, Registry: "cloudmap", Synced: true, Audited: ptr.To(Today.Add(-90 * time.Second)),
				Identity: &mcs.Identity{ClusterID: id, ClusterSetID: "set1", UID: "uid-" + id},
				Members: []status.Member{
					{ClusterID: "cls1", UID: "uid-cls1", Version: Version, Key: "key-of-cls1", HeartbeatAge: 2.1, Networks: "10.10.0.0/23"},
					{ClusterID: "cls2", UID: "uid-cls2", Version: Version, Key: "key-of-cls2", HeartbeatAge: 7.8, Networks: "10.12.0.0/23"},
				},
				PathHealth: string(mcs.PathHealthWithdraw),
				Paths: []status.Path{{
					ClusterID: []string{"cls2", "cls1"}[i], State: status.PathReachable, Seconds: 3600,
					Controller: status.PathProbes{Targets: 1, Reached: 1}, Endpoints: status.PathProbes{Targets: 3, Reached: 3}, NotificationAge: ptr.To(1.2),
				}},
				DNS:    &status.DNS{State: status.DNSServed, Checked: Today},
				Stored: &status.Stored{Records: 3, View: 3},
				Requests: []status.Request{
					{Registry: "cloudmap", Operation: "DiscoverInstances", Result: "ok", Count: 60},
					{Registry: "cloudmap", Operation: "RegisterInstance", Result: "ok", Count: 5},
				},
			},
		}
		clusters[id].CoreDNS.Enable()
	}
	return clusters
}

func apiResources(groupVersion string, names ...string) *metav1.APIResourceList {
	list := &metav1.APIResourceList{GroupVersion: groupVersion}
	for _, name := range names {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
	}
	return list
}

// Add adds objects before the cluster starts.
func (c *Cluster) Add(objects ...client.Object) { c.objects = append(c.objects, objects...) }

// Remove removes the objects of obj's type and name.
func (c *Cluster) Remove(obj client.Object) {
	c.objects = slices.DeleteFunc(c.objects, func(o client.Object) bool {
		return fmt.Sprintf("%T", o) == fmt.Sprintf("%T", obj) && o.GetName() == obj.GetName()
	})
}

// RemovePods removes the controller's pods, the leader and the standby.
func (c *Cluster) RemovePods() {
	c.objects = slices.DeleteFunc(c.objects, func(o client.Object) bool {
		_, isPod := o.(*corev1.Pod)
		return isPod && o.GetNamespace() == session.DefaultNamespace
	})
}

// RemoveImports removes the ServiceImports, with their derived Services and EndpointSlices.
func (c *Cluster) RemoveImports() {
	c.objects = slices.DeleteFunc(c.objects, func(o client.Object) bool {
		_, isImport := o.(*mcsv1beta1.ServiceImport)
		return isImport || o.GetNamespace() == DemoWeb.Namespace && strings.HasPrefix(o.GetName(), "imported-")
	})
}

// Clear removes all objects and APIs of the controller.
func (c *Cluster) Clear() { c.objects, c.Resources = nil, nil }

// Imports returns the ServiceImports of the cluster.
func (c *Cluster) Imports() []*mcsv1beta1.ServiceImport {
	var found []*mcsv1beta1.ServiceImport
	for _, o := range c.objects {
		if imp, ok := o.(*mcsv1beta1.ServiceImport); ok {
			found = append(found, imp)
		}
	}
	return found
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	served.AddMCS(scheme, schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"})
	aboutv1beta1.AddToScheme(scheme, schema.GroupVersion{Group: aboutv1beta1.GroupName, Version: "v1beta1"})
	return scheme
}

// Start starts the clusters and returns the connections to them by context, that of the current
// context under "".
func (c Clusters) Start(t *testing.T) map[string]*session.Cluster {
	t.Helper()
	connections := map[string]*session.Cluster{}
	for name, k := range c {
		k.CoreDNS.NoReviews = k.OnlyNamespace != ""
		k.CoreDNS.NoPortForward = k.OnlyNamespace != "" || slices.Contains(k.Denied, portForward)
		k.CoreDNS.Start()
		k.CoreDNS.Kube.PrependReactor("get", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetNamespace() != "" && !k.mayRead(a.GetResource().Resource, a.GetNamespace()), nil, forbidden(a.GetResource().GroupResource())
		})
		k.CoreDNS.Kube.Resources = k.Resources
		k.CoreDNS.Kube.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: k.Kubernetes}
		k.client = interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(k.objects...).
			WithIndex(&corev1.Event{}, "involvedObject.name", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Name} }).
			WithIndex(&corev1.Event{}, "source", func(o client.Object) []string { return []string{o.(*corev1.Event).Source.Component} }).Build(), k.handleRequests())
		connections[name] = &session.Cluster{
			Context: name, Kube: k.CoreDNS.Kube, Now: func() time.Time { return Today }, PollInterval: time.Millisecond,
			Objects: func() (client.Client, error) { return k.client, nil }, ForwardPort: k.forwardPort,
		}
	}
	connections[""] = connections["cls1"]
	return connections
}

// handleRequests makes the controller forget the clusters, and trust the keys, that users name in
// its ConfigMap.
func (c *Cluster) handleRequests() interceptor.Funcs {
	return interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			namespace := key.Namespace
			if _, isNamespace := obj.(*corev1.Namespace); isNamespace {
				namespace = key.Name // a Role in the namespace allows it
			}
			if err := c.checkRead(w, namespace, obj); err != nil {
				return err
			}
			return w.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			var o client.ListOptions
			o.ApplyOptions(opts)
			if err := c.checkRead(w, o.Namespace, list); err != nil {
				return err
			}
			return w.List(ctx, list, opts...)
		},
		Delete: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			err := w.Delete(ctx, obj, opts...)
			if _, ok := obj.(*aboutv1beta1.ClusterProperty); !ok || err != nil || c.IgnoresRequests {
				return err
			}
			return completeLeaveRequests(ctx, w)
		},
		Create: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if err := w.Create(ctx, obj, opts...); err != nil {
				return err
			}
			return c.completeRequests(ctx, w, obj)
		},
		Apply: applyObject,
		Patch: func(ctx context.Context, w client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := w.Patch(ctx, obj, patch, opts...); err != nil {
				return err
			}
			return c.completeRequests(ctx, w, obj)
		},
	}
}

// checkRead returns an error if the user may not read objects of that type in namespace.
func (c *Cluster) checkRead(w client.Client, namespace string, obj runtime.Object) error {
	kind, err := w.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	if c.mayRead(resource.Resource, namespace) {
		return nil
	}
	return forbidden(resource.GroupResource())
}

// portForward is the resource of port-forwards.
const portForward = "pods/portforward"

func (c *Cluster) mayRead(resource, namespace string) bool {
	return (c.OnlyNamespace == "" || namespace == c.OnlyNamespace) && !slices.Contains(c.Denied, resource)
}

func forbidden(resource schema.GroupResource) error {
	return apierrors.NewForbidden(resource, "", errors.New("no rule allows it"))
}

// completeRequests removes the clusters that obj requests to forget and sets the keys that it
// requests to trust, if it is the ConfigMap with requests, and deletes the requests.
func (c *Cluster) completeRequests(ctx context.Context, w client.WithWatch, obj client.Object) error {
	config, ok := obj.(*corev1.ConfigMap)
	if !ok || config.Name != names.IdentityConfigMap || c.IgnoresRequests {
		return nil
	}
	members := c.ControllerStatus.Members
	for key, value := range config.Data {
		identity, isForget := strings.CutSuffix(key, names.ForgetSuffix)
		identity, isTrust := strings.CutSuffix(identity, names.TrustSuffix)
		if !isForget && !isTrust {
			continue
		}
		delete(config.Data, key)
		_, id, _ := strings.Cut(identity, ".")
		if isForget {
			members = slices.DeleteFunc(members, func(m status.Member) bool { return m.ClusterID == id })
		}
		for i := range members {
			if members[i].ClusterID == id && !c.RefusesKeys {
				members[i].Key, members[i].RefusedKey, members[i].Problems, members[i].Refused = strings.Fields(value)[0], "", nil, nil
			}
		}
	}
	c.ControllerStatus.Members = members
	return w.Update(ctx, config)
}

// applyObject applies an object. The fake client cannot apply NetworkPolicies: it has two schemas
// of a port.
func applyObject(ctx context.Context, w client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	text, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	var policy networkingv1.NetworkPolicy
	if err := json.Unmarshal(text, &policy); err != nil || policy.Kind != "NetworkPolicy" {
		return w.Apply(ctx, obj, opts...)
	}
	if err := w.Create(ctx, &policy); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// completeLeaveRequests deletes the requests to leave, which are complete without an identity.
func completeLeaveRequests(ctx context.Context, w client.WithWatch) error {
	var config corev1.ConfigMap
	if err := w.Get(ctx, client.ObjectKey{Namespace: session.DefaultNamespace, Name: names.IdentityConfigMap}, &config); err != nil {
		return client.IgnoreNotFound(err)
	}
	for key := range config.Data {
		if strings.HasSuffix(key, names.LeaveSuffix) {
			delete(config.Data, key)
		}
	}
	return w.Update(ctx, &config)
}

// hasRequest reports whether a user requests that the cluster leaves under an identity.
func (c *Cluster) hasRequest(ctx context.Context, clusterSetID, clusterID string) bool {
	var config corev1.ConfigMap
	err := c.client.Get(ctx, client.ObjectKey{Namespace: session.DefaultNamespace, Name: names.IdentityConfigMap}, &config)
	_, ok := config.Data[names.LeaveKey(clusterSetID, clusterID)]
	return err == nil && ok && !c.IgnoresRequests
}

// forwardPort connects to CoreDNS's DNS server or to the controller's status endpoint.
func (c *Cluster) forwardPort(ctx context.Context, pod *corev1.Pod, port int32, use func(io.ReadWriter) error) error {
	if pod.Namespace == metav1.NamespaceSystem {
		return c.CoreDNS.forwardPort(ctx, pod, port, use)
	}
	if slices.Contains(c.Denied, portForward) {
		return errors.New("unable to upgrade the connection")
	}
	if c.Unreachable {
		return errors.New("connection refused")
	}
	var source status.Source = c
	if pod.Name == "manager-standby" {
		source = standby{c}
	}
	return pipe(use, func(conn io.ReadWriter) error {
		req, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return err
		}
		w := httptest.NewRecorder()
		metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, c.Metrics) })
		status.NewHandler(source, metrics).ServeHTTP(w, req.WithContext(ctx))
		return w.Result().Write(conn)
	})
}

// standby is a replica of a cluster's controller that is not the leader, as package serve
// implements it.
type standby struct{ *Cluster }

const standbyProblem = "this replica is on standby: only the leader answers"

// Status implements status.Source.
func (s standby) Status(context.Context) status.Status {
	st := s.ControllerStatus
	return status.Status{Version: st.Version, Time: st.Time, Registry: st.Registry, Problem: standbyProblem}
}

// Service implements status.Source.
func (standby) Service(context.Context, mcs.Key) (status.Service, error) {
	return status.Service{}, errors.New(standbyProblem)
}

// Services implements status.Source.
func (standby) Services(context.Context) ([]status.Service, error) {
	return nil, errors.New(standbyProblem)
}

// Status implements status.Source. The identity is that of the ClusterProperties.
func (c *Cluster) Status(ctx context.Context) status.Status {
	st := c.ControllerStatus
	if c.Unread == "" {
		st.Services = len(c.ServiceList)
	}
	var id, set aboutv1beta1.ClusterProperty
	if c.client.Get(ctx, client.ObjectKey{Name: aboutv1beta1.ClusterIDProperty}, &id) != nil ||
		c.client.Get(ctx, client.ObjectKey{Name: aboutv1beta1.ClusterSetIDProperty}, &set) != nil {
		st.Identity, st.Problem = nil, "there is no ClusterProperty cluster.clusterset.k8s.io"
		return st
	}
	if c.hasRequest(ctx, set.Spec.Value, id.Spec.Value) {
		st.Identity, st.Problem = nil, "a user requested that it leaves"
		return st
	}
	identity := *st.Identity
	st.Members = slices.Clone(st.Members)
	for i := range st.Members {
		if st.Members[i].UID == identity.UID {
			st.Members[i].ClusterID = id.Spec.Value
		}
	}
	identity.ClusterID, identity.ClusterSetID = id.Spec.Value, set.Spec.Value
	st.Identity = &identity
	return st
}

// Service implements status.Source.
func (c *Cluster) Service(_ context.Context, key mcs.Key) (status.Service, error) {
	if c.Unread != "" {
		return status.Service{}, errors.New(c.Unread)
	}
	for _, service := range c.ServiceList {
		if service.Key == key {
			return service, nil
		}
	}
	return status.Service{Key: key}, nil
}

// Services implements status.Source. As those of a controller, the services of the list have no
// Importers, and the clusters that the ServiceImports are from.
func (c *Cluster) Services(ctx context.Context) ([]status.Service, error) {
	if c.Unread != "" {
		return nil, errors.New(c.Unread)
	}
	services := slices.Clone(c.ServiceList)
	for i := range services {
		services[i].Importers, services[i].ImportedFrom = nil, []string{}
		var imp mcsv1beta1.ServiceImport
		if err := c.client.Get(ctx, client.ObjectKey{Namespace: services[i].Key.Namespace, Name: services[i].Key.Name}, &imp); client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		services[i].ImportedFrom = append(services[i].ImportedFrom, session.SourceClusters(&imp)...)
	}
	return services, nil
}

// Probe implements status.Source.
func (c *Cluster) Probe(context.Context, mcs.Key) (status.Probe, error) { return c.ProbeResult, nil }

// Reach implements status.Source.
func (c *Cluster) Reach(_ context.Context, ip netip.Addr) status.Connection {
	return status.Connection{Target: status.Target{Address: netip.AddrPortFrom(ip, 8081).String()}, Problem: c.ReachProblems[ip.String()]}
}
