package controller

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/monitoring"
)

// peerNotificationMetrics exist only with peer notifications, which need the pods' network.
var peerNotificationMetrics = map[string]bool{"cloud_map_mcs_registry_peer_notifications_total": true, "cloud_map_mcs_registry_poll_interval_seconds": true}

// TestScrape checks that a scrape of a running controller has all metrics that the alerts and the
// dashboard use, and that promtool accepts it.
func TestScrape(t *testing.T) {
	a, b := twoClusters(t)
	url := localCloudMap(t, cloudmaplocal.Options{})
	registerer := prometheus.NewPedanticRegistry()
	metrics, err := registry.NewMetrics(registerer)
	if err != nil {
		t.Fatal(err)
	}
	keyrings := newKeyrings()
	services := filepath.Join(t.TempDir(), "services.yaml")
	if err := os.WriteFile(services, []byte("services: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	newRegistry := func(metrics *registry.Metrics) membership.RegistryFactory {
		return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
			client, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{Region: "ap-southeast-2", Endpoint: url, Metrics: metrics})
			if err != nil {
				return nil, err
			}
			cfg := cloudMapConfig(t, keyrings, identity)
			cfg.Metrics = metrics
			reg, err := cloudmap.New(client, cfg)
			if err != nil {
				return nil, err
			}
			mappings := mapped.New(client, mapped.Config{Identity: identity, Cluster: "cloud-map", Path: services, Logger: ctrllog.Log, Metrics: metrics})
			return union.New(union.Config{Identity: identity, Logger: ctrllog.Log}, union.Source{Name: cloudmapapi.DefaultName, Registry: registry.WithMetrics(reg, cloudmapapi.DefaultName, metrics)},
				union.Source{Name: mapped.RegistryName, Registry: mappings}), nil
		}
	}
	key := newKey("scrape")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	a.runWith(t, newRegistry(nil), testOptions(flags("cls1")))
	ctx, stop := context.WithCancel(context.Background())
	watched := &instance{stop: stop, done: make(chan error, 1)}
	options := testOptions(flags("cls2"))
	options.Scope.ImportPolicy = filepath.Join(t.TempDir(), "policy.yaml")
	// refuses an endpoint
	writePolicy(t, options.Scope.ImportPolicy, "default: allow\nclusters: {cls1: {podNetworks: [10.1.0.1/32]}}")
	options.Registry.PathHealth = string(mcs.PathHealthObserve)
	metrics.SetLedger(budget.NewLedger(config.Default().Budgets.Limits))
	setup := Setup{
		Options: options, NewRegistry: newRegistry(metrics), Registerer: registerer, RegistryMetrics: metrics, Logger: ctrllog.Log,
		Probes: (&podNetwork{}).probes(), Resolver: newResolver(t),
	}
	go func() { watched.done <- Run(ctx, b.cfg, setup) }()
	t.Cleanup(func() { watched.stopAndWait(t) })
	b.export(t, key, 2, 1)
	b.condition(t, key, "Ready=True Exported", "")
	a.export(t, key, 1, 2)
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}})

	used, err := monitoring.Used("../..")
	if err != nil {
		t.Fatal(err)
	}
	gatherers := prometheus.Gatherers{registerer, ctrlmetrics.Registry}
	eventually(t, "all metrics of alerts and dashboard in the scrape", func() error {
		families, err := gatherers.Gather()
		if err != nil {
			return err
		}
		names := maps.Clone(peerNotificationMetrics)
		for _, family := range families {
			names[family.GetName()] = true
		}
		if missing := monitoring.Missing(used, names); len(missing) > 0 {
			return fmt.Errorf("missing: %q", missing)
		}
		return nil
	})

	scrape := httptest.NewServer(promhttp.HandlerFor(registerer, promhttp.HandlerOpts{}))
	defer scrape.Close()
	path, err := filepath.Abs("../../bin/promtool")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil && os.Getenv("REQUIRE_PROMTOOL") == "" {
		t.Skip("bin/promtool is missing: make bin/promtool builds it")
	}
	response, err := scrape.Client().Get(scrape.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	check := exec.CommandContext(t.Context(), path, "check", "metrics")
	check.Stdin = response.Body
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// newResolver returns a resolver whose DNS server serves clusterset.local.
func newResolver(t *testing.T) *net.Resolver {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		reply := new(dns.Msg).SetRcode(query, dns.RcodeNameError)
		if q := query.Question[0]; q.Qtype == dns.TypeTXT {
			reply = new(dns.Msg).SetReply(query)
			reply.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: q.Qclass}, Txt: []string{"1.1.0"}}}
		}
		_ = w.WriteMsg(reply)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, conn.LocalAddr().String())
	}}
}
