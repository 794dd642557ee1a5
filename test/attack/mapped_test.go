package attack

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
)

// pseudoCluster has the mapped services.
const pseudoCluster = "cloud-map"

// mappedServices is a Cloud Map namespace with services that are mapped to the Kubernetes namespace
// shop, under the same names.
type mappedServices struct {
	t   *testing.T
	c   *cloud
	sdk *servicediscovery.Client
	ids map[string]string
	reg registry.Registry
	// requests are those of the registry that reads them.
	requests *registry.Metrics
	ledger   *budget.Ledger
}

// mapServices creates and maps services, and runs the registry that reads them, with the defaults.
func (c *cloud) mapServices(names ...string) *mappedServices {
	c.t.Helper()
	m := &mappedServices{t: c.t, c: c, sdk: c.sdk(admin), ids: map[string]string{}, ledger: budget.NewLedger(config.Default().Budgets.Limits)}
	out, err := m.sdk.CreateHttpNamespace(c.t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: aws.String("apps")})
	if err != nil {
		c.t.Fatal(err)
	}
	targets, err := c.client(admin).AwaitOperation(c.t.Context(), aws.ToString(out.OperationId))
	if err != nil {
		c.t.Fatal(err)
	}
	file := "services:\n"
	for _, name := range names {
		out, err := m.sdk.CreateService(c.t.Context(), &servicediscovery.CreateServiceInput{Name: &name, NamespaceId: aws.String(targets["NAMESPACE"])})
		if err != nil {
			c.t.Fatal(err)
		}
		m.ids[name] = aws.ToString(out.Service.Id)
		file += fmt.Sprintf("- {cloudMap: {namespace: apps, service: %s}, import: {namespace: shop, name: %[1]s}, ipFamilies: [IPv4, IPv6], ports: [{port: 80}]}\n", name)
	}
	path := filepath.Join(c.t.TempDir(), "services.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if m.requests, err = registry.NewMetrics(prometheus.NewRegistry()); err != nil {
		c.t.Fatal(err)
	}
	client, err := api.NewClient(c.t.Context(), api.Config{
		Name: mapped.RegistryName, Region: cloudmaplocal.DefaultRegion, Endpoint: "https://cloudmap.test", HTTPClient: c, Rates: mapped.Rates(), Metrics: m.requests,
		Credentials: credentials.NewStaticCredentialsProvider(admin, "secret", ""),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	m.reg = mapped.New(client, mapped.Config{
		Identity: identityOf(importer), Cluster: pseudoCluster, Path: path, StaleAfter: config.Default().Registry.StaleAfter, Ledger: m.ledger, Logger: logr.Discard(),
	})
	done := make(chan error, 1)
	ctx := c.t.Context() // ends before the cleanup
	go func() { done <- m.reg.Run(ctx, func(mcs.Key) {}) }()
	c.t.Cleanup(func() {
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	return m
}

// register registers an instance and reports whether Cloud Map accepts it.
func (m *mappedServices) register(service, id string, attrs map[string]string) bool {
	_, err := m.sdk.RegisterInstance(m.t.Context(), &servicediscovery.RegisterInstanceInput{ServiceId: aws.String(m.ids[service]), InstanceId: &id, Attributes: attrs})
	return err == nil
}

func (m *mappedServices) deregister(service, id string) {
	m.t.Helper()
	if _, err := m.sdk.DeregisterInstance(m.t.Context(), &servicediscovery.DeregisterInstanceInput{ServiceId: aws.String(m.ids[service]), InstanceId: &id}); err != nil {
		m.t.Error(err)
	}
}

// endpoints returns the imported endpoints of a service.
func (m *mappedServices) endpoints(service string) (out []mcs.Endpoint) {
	m.t.Helper()
	view, err := m.reg.Lookup(m.t.Context(), mcs.Key{Namespace: "shop", Name: service})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range view.Exports() {
		for _, b := range e.Backends {
			out = append(out, b.Endpoints...)
		}
	}
	return out
}

// perMinute returns the requests of the last minute.
func (m *mappedServices) perMinute() (n int) {
	for _, r := range m.requests.RecentRequests() {
		n += r.Count
	}
	return n
}

func TestAttack_HostileCloudMapService(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		names := []string{"victim", "hostile"}
		for i := range 48 {
			names = append(names, fmt.Sprint("quiet-", i))
		}
		m := c.mapServices(names...)
		m.register("victim", "a", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1", "AWS_INSTANCE_PORT": "80"})
		time.Sleep(10 * time.Minute) // virtual
		if got := m.endpoints("victim"); len(got) != 1 || !got[0].Ready {
			t.Fatalf("the control has endpoints %v", got)
		}
		if n := m.perMinute(); n == 0 || n > 60 {
			t.Errorf("%d requests a minute for 50 services while nothing changes, want at most 60", n)
		} else {
			t.Logf("%d requests a minute for 50 services while nothing changes", n)
		}
		m.register("victim", "b", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.2", "AWS_INSTANCE_PORT": "80"})
		begin := time.Now()
		for len(m.endpoints("victim")) != 2 && time.Since(begin) < time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		// Lists are 5 s apart, and DiscoverInstances may show the instance after the list.
		if took := time.Since(begin); took > 11*time.Second {
			t.Errorf("a new instance is imported after %v, want 11s at most", took)
		} else {
			t.Logf("a new instance is imported after %v", took)
		}
		m.deregister("victim", "b")

		accepted := 0
		for i := range 1000 {
			attrs := map[string]string{"AWS_INSTANCE_PORT": fmt.Sprint(1000 + i), "AVAILABILITY_ZONE": strings.Repeat("z", 100), "CLUSTER_ID": victim, "READY": "true"}
			switch i % 10 {
			case 0:
				attrs["AWS_INSTANCE_IPV4"] = "169.254.169.254"
			case 1:
				attrs["AWS_INSTANCE_IPV4"] = "127.0.0.1"
			case 2:
				attrs["AWS_INSTANCE_IPV6"] = "fd00:ec2::254"
			case 3:
				attrs["AWS_INSTANCE_IPV6"] = "64:ff9b::a9fe:a9fe"
			case 4:
				attrs["AWS_INSTANCE_IPV6"] = "::1"
			case 5:
				attrs["AWS_INSTANCE_IPV4"], attrs["AWS_INSTANCE_PORT"] = "10.9.0.1", "0"
			case 6:
				delete(attrs, "AWS_INSTANCE_PORT")
				attrs["junk"] = strings.Repeat("!", 1000)
			default:
				attrs["AWS_INSTANCE_IPV4"] = fmt.Sprintf("10.9.%d.%d", i/200, i%200+1)
			}
			if m.register("hostile", fmt.Sprint("i-", i), attrs) {
				accepted++
			}
		}
		if accepted < 800 {
			t.Fatalf("Cloud Map accepted %d instances, want most of them", accepted)
		}
		for i := range 600 { // ten minutes
			m.deregister("hostile", "i-9")
			time.Sleep(500 * time.Millisecond)
			m.register("hostile", "i-9", map[string]string{"AWS_INSTANCE_IPV4": "10.9.9.9", "AWS_INSTANCE_PORT": fmt.Sprint(1 + i)})
			time.Sleep(500 * time.Millisecond)
		}
		got := m.endpoints("hostile")
		if len(got) == 0 || len(got) > 1000 {
			t.Errorf("%d endpoints of the service are imported", len(got))
		}
		for _, e := range got {
			if err := mcs.CheckPodAddress(e.Address); err != nil || e.Zone != "" {
				t.Errorf("endpoint %+v is imported: %v", e, err)
			}
		}
		if got := m.endpoints("victim"); len(got) != 1 || !got[0].Ready {
			t.Errorf("the other service has endpoints %v", got)
		}
		// A list in 5 s shows another count, and up to three lists read again.
		if n := m.perMinute(); n > 60+12 {
			t.Errorf("%d requests a minute, want at most 12 more than without the attack", n)
		}
		members, err := m.reg.Members(t.Context())
		if err != nil || len(members) != 1 || len(members[0].Problems) == 0 || len(members[0].Problems) > 21 {
			t.Errorf("members %+v, %v; want one with some problems", members, err)
		}
		if u := m.ledger.Usage(); u.Total[budget.Exports] != len(names) || u.Total[budget.PortEndpoints] > 1000+len(names) {
			t.Errorf("the budgets have %v", u.Total)
		}
	})
}

func TestAttack_PseudoClusterID(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		m := c.mapServices("orders")
		m.register("orders", "a", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1", "AWS_INSTANCE_PORT": "80"})
		reader := c.join(importer)
		both := uniteMapped(m, reader)
		squatter := c.joinAs(admin, identityOf(pseudoCluster))
		key := mcs.Key{Namespace: "shop", Name: "orders"}
		exp := webExport(pseudoCluster, 1)
		exp.Key, exp.Backends[0].Endpoints[0].Address = key, netip.MustParseAddr("10.66.0.1")
		if err := squatter.Publish(t.Context(), exp); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute) // virtual
		if view, err := reader.Lookup(t.Context(), key); err != nil || len(view.Exports()) != 1 {
			t.Fatalf("the control has no export of the attacker: %+v, %v", view, err)
		}
		view, err := both.Lookup(t.Context(), key, pseudoCluster)
		if err != nil || len(view.Exports()) != 1 || view.Exports()[0].Backends[0].Endpoints[0].Address.String() != "10.0.0.1" {
			t.Errorf("the view is %+v, %v; want the mapped service", view, err)
		}
	})
}

// uniteMapped returns the union of a cluster's registry and the mapped services, as cmd/controller
// makes it. Both run.
func uniteMapped(m *mappedServices, of *member) *union.Registry {
	return union.New(union.Config{Identity: identityOf(importer), Logger: logr.Discard(), PseudoClusters: map[string]string{mapped.RegistryName: pseudoCluster}},
		union.Source{Name: "cloudmap", Registry: of}, union.Source{Name: mapped.RegistryName, Registry: m.reg})
}
