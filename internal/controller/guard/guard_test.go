package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

var key = mcs.Key{Namespace: "shop", Name: "web"}

// localAddresses is a LocalSource with a fixed answer.
type localAddresses struct {
	local *policy.Local
	err   error
}

// ReadLocal implements LocalSource.
func (l *localAddresses) ReadLocal(context.Context) (*policy.Local, error) { return l.local, l.err }

// write writes a policy.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newGuard(t *testing.T, text string) (g *Guard, path string, source *localAddresses, requeued *int) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "policy.yaml")
	if text != "" {
		write(t, path, text)
	}
	requeued = new(int)
	source = &localAddresses{local: &policy.Local{}}
	g = New(Config{
		Path: path, Source: source, Log: logr.Discard(), RequeueAll: func(context.Context) error { *requeued++; return nil },
		RequeueAddresses: func(context.Context, map[netip.Addr]struct{}) error { return nil },
	})
	return g, path, source, requeued
}

func viewOf(clusters ...string) registry.View {
	var exports []mcs.Export
	for _, c := range clusters {
		exports = append(exports, mcs.Export{Key: key, Cluster: c, Backends: []mcs.Backends{{Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.0.0.1")}}}}})
	}
	return registrytest.ViewOf(exports...)
}

func clustersOf(v registry.View) []string { return v.In(registry.Exports) }

// An export for other clusters does not exist for this one, and one for some clusters is unknown
// while this cluster's properties are.
func TestGuard_FiltersRecipients(t *testing.T) {
	only := func(cluster string) mcs.ClusterSelectors {
		recipients, err := mcs.ParseRecipients(cluster)
		if err != nil {
			t.Fatal(err)
		}
		return recipients
	}
	view := registrytest.ViewOf(
		mcs.Export{Key: key, Cluster: "cls1"}, mcs.Export{Key: key, Cluster: "cls2", Recipients: only("cls9")}, mcs.Export{Key: key, Cluster: "cls3", Recipients: only("cls8")},
	)
	view = registrytest.WithLiveness(registrytest.With(view, registry.Unknown, "cls7"), registry.Stale, "cls2", "cls3")
	known := false
	g := New(Config{Log: logr.Discard(), Importer: func() (mcs.Properties, bool) { return mcs.Properties{}.OfCluster("cls9", "set"), known }})
	check := func(exports, unknown, stale, notFor string) {
		t.Helper()
		got, refusals := g.Filter(key, view)
		all := fmt.Sprint(got.In(registry.Exports), got.In(registry.Unknown), got.WithLiveness(registry.Stale), g.NotFor(view))
		if want := fmt.Sprintf("[%s] [%s] [%s] [%s]", exports, unknown, stale, notFor); len(refusals) > 0 || strings.ReplaceAll(all, "][", "] [") != want {
			t.Errorf("exports, unknown, stale and not for this cluster are %s, want %s; refused %v", all, want, refusals)
		}
	}
	check("cls1", "cls2 cls3 cls7", "cls2 cls3", "")
	known = true
	check("cls1 cls2", "cls7", "cls2", "cls3")
	if len(view.Exports()) != 3 || len(view.In(registry.Unknown)) != 1 || len(view.WithLiveness(registry.Stale)) != 2 {
		t.Error("the view was changed")
	}
}

func TestGuard_FollowsFile(t *testing.T) {
	g, path, _, requeued := newGuard(t, "default: deny\nclusters: {cls1: {}}")
	now := time.Unix(1_790_000_000, 0)
	g.now = func() time.Time { return now }
	registerer := prometheus.NewPedanticRegistry()
	if err := RegisterMetrics(registerer, g); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name, text, want, problem string
		requeued                  int
		metric                    string
	}{
		{name: "start", want: "cls1", requeued: 1, metric: "1"},
		{name: "no change", want: "cls1", requeued: 1, metric: "1"},
		{name: "not valid", text: "default: x", want: "cls1", requeued: 1, problem: "must be allow or deny", metric: "0"},
		{name: "missing", text: "-", want: "cls1", requeued: 1, problem: "no such file", metric: "0"},
		{name: "valid again", text: "default: allow", want: "cls1,cls2", requeued: 2, metric: "1"},
	} {
		switch step.text {
		case "":
		case "-":
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		default:
			write(t, path, step.text)
		}
		g.refresh(t.Context())
		view, refusals := g.Filter(key, viewOf("cls1", "cls2"))
		if got := strings.Join(clustersOf(view), ","); got != step.want || (len(refusals) > 0) != (step.want == "cls1") {
			t.Errorf("%s: exports of %s, refusals %+v", step.name, got, refusals)
		}
		if s := g.State(); !strings.Contains(s.Problem, step.problem) || (s.Problem == "") != (step.problem == "") || !s.Loaded.Equal(now) {
			t.Errorf("%s: state %+v", step.name, s)
		}
		if *requeued != step.requeued || !g.IsReady() {
			t.Errorf("%s: requeued %d times, want %d", step.name, *requeued, step.requeued)
		}
		want := "# HELP cloud_map_mcs_import_policy_valid Whether the file of --import-policy is valid and in use: 1 or 0. Absent without --import-policy.\n" +
			"# TYPE cloud_map_mcs_import_policy_valid gauge\ncloud_map_mcs_import_policy_valid " + step.metric + "\n"
		if err := testutil.GatherAndCompare(registerer, strings.NewReader(want), "cloud_map_mcs_import_policy_valid"); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}

// A file that is not a policy changes nothing, whatever takes its place: a named pipe would block,
// and a device is read without end.
func TestGuard_KeepsPolicyForOtherFiles(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"empty":       func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"too large":   func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("#"), 2<<20), 0o600) },
		"directory":   func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"device":      func(path string) error { return errors.Join(os.Remove(path), os.Symlink("/dev/zero", path)) },
		"named pipe":  func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) },
		"broken link": func(path string) error { return errors.Join(os.Remove(path), os.Symlink(path+".missing", path)) },
	} {
		t.Run(name, func(t *testing.T) {
			g, path, _, _ := newGuard(t, "default: deny")
			g.refresh(t.Context())
			if err := replace(path); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() { defer close(done); g.refresh(t.Context()) }()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("reading the file does not end")
			}
			if view, _ := g.Filter(key, viewOf("cls1")); len(view.Exports()) > 0 || g.State().Problem == "" {
				t.Errorf("imported are %d exports, problem %q; want the previous policy and a problem", len(view.Exports()), g.State().Problem)
			}
			if err := errors.Join(os.Remove(path), os.WriteFile(path+".new", []byte("default: allow"), 0o600), os.Symlink(path+".new", path)); err != nil {
				t.Fatal(err)
			}
			g.refresh(t.Context()) // a ConfigMap is mounted as a link
			if view, _ := g.Filter(key, viewOf("cls1")); len(view.Exports()) != 1 || g.State().Problem != "" {
				t.Errorf("imported are %d exports, problem %q; want the new policy", len(view.Exports()), g.State().Problem)
			}
		})
	}
}

func TestGuard_NotReadyWithoutPolicyAndAddresses(t *testing.T) {
	g, path, source, requeued := newGuard(t, "")
	source.err = errors.New("no cache")
	for _, step := range []struct {
		text  string
		err   error
		ready bool
	}{{"", errors.New("no cache"), false}, {"default: no", errors.New("no cache"), false}, {"default: deny", errors.New("no cache"), false}, {"", nil, true}} {
		if step.text != "" {
			write(t, path, step.text)
		}
		source.err = step.err
		g.refresh(t.Context())
		if g.IsReady() != step.ready || (*requeued > 0) != step.ready {
			t.Errorf("policy %q, error %v: ready %t, requeued %d times", step.text, step.err, g.IsReady(), *requeued)
		}
	}
}

func TestGuard_RequeuesAfterFailure(t *testing.T) {
	g, path, source, _ := newGuard(t, "default: allow")
	requeued := 0
	var requeueErr error
	g.requeueAll = func(context.Context) error {
		if requeueErr == nil {
			requeued++
		}
		return requeueErr
	}
	for i, step := range []struct {
		name                 string
		text                 string
		localErr, requeueErr error
		want                 int
	}{
		{name: "start fails", requeueErr: errors.New("no cache"), want: 0},
		{name: "start", want: 1},
		{name: "nothing changed", want: 1},
		{name: "the policy changed, the addresses cannot be read", text: "default: deny", localErr: errors.New("no cache"), want: 1},
		{name: "the addresses can be read", want: 2},
		{name: "the policy changed, the requeue fails", text: "default: allow", requeueErr: errors.New("no cache"), want: 2},
		{name: "the requeue succeeds", want: 3},
	} {
		if step.text != "" {
			write(t, path, step.text)
		}
		g.now = func() time.Time { return time.Unix(int64(i)*3600, 0) }
		source.err, requeueErr = step.localErr, step.requeueErr
		g.refresh(t.Context())
		if requeued != step.want {
			t.Errorf("%s: requeued %d times, want %d", step.name, requeued, step.want)
		}
	}
}

// Nodes come and go all the time in a large cluster: only imports with their addresses are
// reconciled again.
func TestGuard_RequeuesChangedAddressesOnly(t *testing.T) {
	g, _, source, requeued := newGuard(t, "default: allow")
	var got []string
	var requeueErr error
	g.requeueAddresses = func(_ context.Context, addresses map[netip.Addr]struct{}) error {
		if requeueErr != nil {
			return requeueErr
		}
		for a := range addresses {
			got = append(got, a.String())
		}
		slices.Sort(got)
		return nil
	}
	network, other := netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.112.0.0/12")
	node := func(addresses map[string]string, networks ...netip.Prefix) *policy.Local {
		l := &policy.Local{ServiceNetworks: networks, Addresses: map[netip.Addr]string{}}
		for a, name := range addresses {
			l.Addresses[netip.MustParseAddr(a)] = name
		}
		return l
	}
	for i, step := range []struct {
		name  string
		local *policy.Local
		err   error
		want  []string
		all   int
	}{
		{name: "start", local: node(map[string]string{"192.168.0.1": "n1"}, network), all: 1},
		{name: "nothing changed", local: node(map[string]string{"192.168.0.1": "n1"}, network), all: 1},
		{name: "a node was added", local: node(map[string]string{"192.168.0.1": "n1", "192.168.0.2": "n2"}, network), want: []string{"192.168.0.2"}, all: 1},
		{name: "a node was removed, the requeue fails", local: node(map[string]string{"192.168.0.1": "n1"}, network), err: errors.New("no registry"), all: 1},
		{name: "the address has another node", local: node(map[string]string{"192.168.0.1": "n3"}, network), want: []string{"192.168.0.1", "192.168.0.2"}, all: 1},
		{name: "a Service network was added", local: node(map[string]string{"192.168.0.1": "n3"}, network, other), all: 2},
	} {
		g.now = func() time.Time { return time.Unix(int64(i)*3600, 0) }
		got, requeueErr, source.local = nil, step.err, step.local
		g.refresh(t.Context())
		if !slices.Equal(got, step.want) || *requeued != step.all {
			t.Errorf("%s: requeued the addresses %v and everything %d times, want %v and %d", step.name, got, *requeued, step.want, step.all)
		}
	}
}

func TestGuard_FiltersView(t *testing.T) {
	g, _, source, _ := newGuard(t, "default: deny\nclusters: {cls1: {}}\nsystemNamespaces: [default]")
	source.local = &policy.Local{ServiceNetworks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	g.refresh(t.Context())
	view := registrytest.With(registrytest.With(registrytest.With(viewOf("cls1", "cls2"), registry.Unknown, "cls3"), registry.Unseen, "cls4"), registry.Ignored, "cls5")
	view = registrytest.WithLiveness(registrytest.WithLiveness(view, registry.Stale, "cls1"), registry.Undecided, "cls2")
	got, refusals := g.Filter(key, view)
	if diff := cmp.Diff([]string{"cls1"}, clustersOf(got)); diff != "" || got.Exports()[0].EndpointCount() != 0 || len(refusals) != 2 {
		t.Errorf("exports %+v, refusals %+v", got.Exports(), refusals)
	}
	if len(got.In(registry.Unknown, registry.Unseen, registry.Ignored))+len(got.WithLiveness(registry.Undecided)) > 0 || !cmp.Equal(got.WithLiveness(registry.Stale), []string{"cls1"}) {
		t.Errorf("clusters that are denied are left: %+v", got)
	}
	if len(view.Exports()) != 2 || len(view.In(registry.Unknown)) != 1 || view.Exports()[0].EndpointCount() != 1 {
		t.Errorf("the input changed: %+v", view)
	}
	if !g.AllowsSystemNamespace("default") || g.AllowsSystemNamespace("kube-system") {
		t.Error("system namespaces do not follow the policy")
	}
	if g.CheckOwnAddress(netip.MustParseAddr("10.0.0.1")) == nil || g.CheckOwnAddress(netip.MustParseAddr("10.0.1.1")) != nil {
		t.Error("own addresses do not follow the Service networks")
	}
	g.Record(key, refusals)
	if got := g.State().Refusals[key]; len(got) != 2 {
		t.Errorf("recorded %+v", got)
	}
	registerer := prometheus.NewPedanticRegistry()
	if err := RegisterMetrics(registerer, g); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(registerer, "cloud_map_mcs_exports_refused"); n != 2 || err != nil {
		t.Errorf("%d series (%v), want 2", n, err)
	}
	g.Record(key, nil)
	if len(g.State().Refusals) > 0 {
		t.Error("ended refusals are left")
	}
}

func TestGuard_NilAllowsEverything(t *testing.T) {
	var g *Guard
	view, refusals := g.Filter(key, viewOf("cls1"))
	g.Record(key, refusals)
	if len(view.Exports()) != 1 || refusals != nil || !g.IsReady() || g.State().File != "" {
		t.Error("the nil Guard refuses something")
	}
}

func TestLocalReader_ReadLocal(t *testing.T) {
	scheme, err := kube.NewScheme(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.7"}, {Type: corev1.NodeHostName, Address: "n1"},
	}}}
	objects := []client.Object{
		node,
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12", "fd00:96::/112"}}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.168.0.9"}}},
		},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.7"}}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"None"}}},
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithIndex(&discoveryv1.EndpointSlice{}, kube.IndexService, func(o client.Object) []string {
		return []string{o.GetLabels()[discoveryv1.LabelServiceName]}
	})
	addresses := map[netip.Addr]string{
		netip.MustParseAddr("192.168.0.1"): "the address of node n1", netip.MustParseAddr("203.0.113.7"): "the address of node n1",
		netip.MustParseAddr("192.168.0.9"): "the address of an API server",
	}
	c := builder.Build()
	l := &LocalReader{reader: c, serviceCIDRs: true}
	got, err := l.ReadLocal(t.Context())
	want := &policy.Local{ServiceNetworks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/112")}, Addresses: addresses}
	compare := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
	if diff := cmp.Diff(want, got, compare); diff != "" || err != nil {
		t.Errorf("with ServiceCIDRs: %v\n%s", err, diff)
	}
	if again, err := l.ReadLocal(t.Context()); again != nil || err != nil {
		t.Errorf("read again without a change: %+v, %v", again, err)
	}
	addresses[netip.MustParseAddr("10.96.0.7")] = "the cluster IP of a Service of this cluster"
	got, err = (&LocalReader{reader: c}).ReadLocal(t.Context())
	if diff := cmp.Diff(&policy.Local{Addresses: addresses}, got, compare); diff != "" || err != nil {
		t.Errorf("without ServiceCIDRs: %v\n%s", err, diff)
	}
	node.Labels = map[string]string{
		corev1.LabelTopologyRegion: "r", corev1.LabelTopologyZone: "z", mcs.LabelZoneID: "i", "other": "x",
	}
	reduced, err := NodeTransform(node)
	if labels := reduced.(*corev1.Node).Labels; len(labels) != 3 || labels[mcs.LabelZoneID] != "i" {
		t.Errorf("labels of the reduced node: %v", labels)
	}
	if err != nil || reduced.(*corev1.Node).Name != "n1" || len(reduced.(*corev1.Node).Status.Addresses) != 3 {
		t.Errorf("reduced node %+v, %v", reduced, err)
	}
}
