package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// process has the dependencies of registries and what they write to them.
type process struct {
	dependencies
	gatherer *prometheus.Registry
	mu       sync.Mutex
	lines    []string
}

func newProcess(t *testing.T) *process {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	p := &process{gatherer: prometheus.NewRegistry()}
	metrics, err := registry.NewMetrics(p.gatherer)
	if err != nil {
		t.Fatal(err)
	}
	p.dependencies = dependencies{
		metrics: metrics, namespace: "system",
		kube: fake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: names.IdentityConfigMap},
		}).Build(),
		log: funcr.New(func(prefix, args string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.lines = append(p.lines, prefix+" "+args)
		}, funcr.Options{}),
	}
	return p
}

// start runs the registries of the flags until the test ends.
func (p *process) start(t *testing.T, flags ...string) registry.Registry {
	t.Helper()
	options, err := config.Parse(flags)
	if err != nil {
		t.Fatal(err)
	}
	create, err := newRegistry(t.Context(), options, p.dependencies)
	if err != nil {
		t.Fatal(err)
	}
	reg, err := create(t.Context(), mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- reg.Run(ctx, func(mcs.Key) {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("running the registry: %v", err)
		}
	})
	return reg
}

// hasMetric reports whether a metric of the registry is not 0.
func (p *process) hasMetric(t *testing.T, name, registry string) bool {
	t.Helper()
	families, err := p.gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if family.GetName() == "cloud_map_mcs_registry_"+name && label.GetValue() == registry && m.GetCounter().GetValue()+m.GetGauge().GetValue() > 0 {
					return true
				}
			}
		}
	}
	return false
}

// log returns the lines of the log.
func (p *process) log() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// hasLog reports whether the log has a line of the registry.
func (p *process) hasLog(registry string) bool {
	for _, line := range p.log() {
		if strings.HasPrefix(line, "registry ") && strings.Contains(line, fmt.Sprintf("%q=%q", "registry", registry)) {
			return true
		}
	}
	return false
}

// eventually fails unless condition returns "" within 30 seconds.
func eventually(t *testing.T, condition func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		problem := condition()
		if problem == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(problem)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// startCloudMap starts an emulator of Cloud Map, to which the AWS SDK sends all requests.
func startCloudMap(t *testing.T) {
	t.Helper()
	server, err := cloudmaplocal.New(cloudmaplocal.Options{Unthrottled: true})
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "", "AWS_ENDPOINT_URL": listener.URL,
	} {
		t.Setenv(name, value)
	}
}

// TestNewRegistry_PassesDependencies runs registries on Cloud Map: each has metrics and logs under
// its own name, and the one that is exported to keeps its resource IDs in the ConfigMap of the
// controller's namespace.
func TestNewRegistry_PassesDependencies(t *testing.T) {
	startCloudMap(t)
	p := newProcess(t)
	reg := p.start(t, "--aws-region=us-east-1", "--import-from=cloudmap,region=eu-central-1", "--import-from-aws-controller",
		"--peer-notifications=false")
	if err := reg.Withdraw(t.Context(), mcs.Key{Namespace: "demo", Name: "web"}); err != nil {
		t.Error(err)
	}
	eventually(t, func() string {
		var identities corev1.ConfigMap
		if err := p.kube.Get(t.Context(), client.ObjectKey{Namespace: "system", Name: names.IdentityConfigMap}, &identities); err != nil {
			return err.Error()
		}
		switch {
		case len(strings.Fields(identities.Data["set1.cls1.resource-ids"])) != 4:
			return fmt.Sprintf("the ConfigMap has %v, want the resource IDs", identities.Data)
		case !p.hasMetric(t, "changes_total", "cloudmap"):
			return "withdrawals are not counted"
		case !p.hasLog("cloudmap"):
			return fmt.Sprintf("the log has %q, want lines of the registry", p.log())
		}
		for _, name := range []string{"cloudmap", "cloudmap/eu-central-1", "aws-controller"} {
			if !p.hasMetric(t, "requests_total", name) {
				return "the requests of " + name + " are not counted"
			}
		}
		for _, name := range []string{"cloudmap", "cloudmap/eu-central-1"} {
			if !p.hasMetric(t, "poll_interval_seconds", name) {
				return "the poll interval of " + name + " is not set"
			}
		}
		return ""
	})
}

// TestNewRegistry_PassesDependenciesToEtcd runs a registry on a server that answers all of its
// requests with an error.
func TestNewRegistry_PassesDependenciesToEtcd(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.Protocols = &http.Protocols{}
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	p := newProcess(t)
	reg := p.start(t, "--registry=etcd", "--etcd-endpoints="+server.URL, "--etcd-insecure")
	if err := reg.Withdraw(t.Context(), mcs.Key{Namespace: "demo", Name: "web"}); err != nil {
		t.Error(err)
	}
	eventually(t, func() string {
		switch {
		case !p.hasMetric(t, "changes_total", "etcd"):
			return "withdrawals are not counted"
		case !p.hasMetric(t, "requests_total", "etcd"):
			return "requests are not counted"
		case !p.hasLog("etcd"):
			return fmt.Sprintf("the log has %q, want lines of the registry", p.log())
		}
		return ""
	})
}

// TestNewPeerNotifications compares the address that is published, and listens at it.
func TestNewPeerNotifications(t *testing.T) {
	for name, tc := range map[string]struct {
		options config.PeerNotifications
		podIP   string
		want    string
		wantErr bool
	}{
		"disabled":            {options: config.PeerNotifications{Bind: ":8479"}, podIP: "192.0.2.1"},
		"address of the pod":  {options: config.PeerNotifications{Enabled: true, Bind: ":8479", Networks: config.Prefixes{netip.MustParsePrefix("10.0.0.0/8")}}, podIP: "192.0.2.1", want: "192.0.2.1:8479"},
		"address of the flag": {options: config.PeerNotifications{Enabled: true, Bind: "127.0.0.1:0", Advertise: "192.0.2.2:99"}, want: "192.0.2.2:99"},
		"unknown address":     {options: config.PeerNotifications{Enabled: true, Bind: ":8479"}},
		"invalid address":     {options: config.PeerNotifications{Enabled: true, Bind: ":8479"}, podIP: "pod", wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("POD_IP", tc.podIP)
			got, err := newPeerNotifications(tc.options, logr.Discard())
			switch {
			case (err != nil) != tc.wantErr:
				t.Fatalf("error %v, want one: %v", err, tc.wantErr)
			case got == nil && tc.want == "":
				return
			case got == nil || got.Address.String() != tc.want:
				t.Fatalf("got %v, want address %q", got, tc.want)
			case len(got.Networks) != len(tc.options.Networks):
				t.Errorf("networks %v, want %v", got.Networks, tc.options.Networks)
			}
		})
	}
	got, err := newPeerNotifications(config.PeerNotifications{Enabled: true, Bind: "127.0.0.1:0", Advertise: "192.0.2.2:99"}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := got.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if address := conn.LocalAddr().String(); !strings.HasPrefix(address, "127.0.0.1:") {
		t.Errorf("listens at %s, want the bind address", address)
	}
}
