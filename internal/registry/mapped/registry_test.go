package mapped

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/go-logr/logr"
	"go.uber.org/goleak"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	cls1   = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}
	orders = mcs.Key{Namespace: "shop", Name: "orders"}
	access = credentials.NewStaticCredentialsProvider("test", "secret", "")
)

// cloud is a local Cloud Map with faults, and an SDK client like that of a process that registers
// itself.
type cloud struct {
	t      *testing.T
	server *cloudmaplocal.Server
	url    string
	sdk    *servicediscovery.Client
	// fault is the error code of every request that it is not "" for, "down" for no answer.
	fault atomic.Pointer[func(operation string) string]
	// isUncounted: ListServices has no numbers of instances.
	isUncounted atomic.Bool

	mu       sync.Mutex
	requests map[string]int
	ids      map[string]string // of namespaces, and of services as namespace/name
}

// ServeHTTP implements http.Handler.
func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	c.mu.Lock()
	c.requests[operation]++
	c.mu.Unlock()
	if fault := c.fault.Load(); fault != nil {
		switch code := (*fault)(operation); code {
		case "":
		case "down":
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		default:
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"__type":%q,"message":"as the test wants"}`, code)
			return
		}
	}
	if operation == "ListServices" && c.isUncounted.Load() {
		answer := httptest.NewRecorder()
		c.server.ServeHTTP(answer, r)
		fmt.Fprint(w, instanceCount.ReplaceAllString(answer.Body.String(), ""))
		return
	}
	c.server.ServeHTTP(w, r)
}

// instanceCount is the number of instances in an answer of ListServices.
var instanceCount = regexp.MustCompile(`"InstanceCount":\d+,`)

// fail sets the code that requests fail with.
func (c *cloud) fail(fault func(operation string) string) {
	if fault == nil {
		c.fault.Store(nil)
		return
	}
	c.fault.Store(&fault)
}

// always fails every request with code.
func always(code string) func(string) string { return func(string) string { return code } }

func (c *cloud) count(operation string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests[operation]
}

func startCloud(t *testing.T) *cloud {
	t.Helper()
	server, err := cloudmaplocal.New(cloudmaplocal.Options{Unthrottled: true})
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{t: t, server: server, requests: map[string]int{}, ids: map[string]string{}}
	listener := httptest.NewServer(c)
	t.Cleanup(listener.Close)
	c.url = listener.URL
	c.sdk = servicediscovery.New(servicediscovery.Options{BaseEndpoint: aws.String(c.url), Region: "us-east-1", Credentials: access})
	return c
}

func (c *cloud) await(operation *string) map[string]string {
	c.t.Helper()
	var targets map[string]string
	within(c.t, "the operation ends", func() bool {
		out, err := c.sdk.GetOperation(context.Background(), &servicediscovery.GetOperationInput{OperationId: operation})
		if err != nil {
			c.t.Fatal(err)
		}
		targets = out.Operation.Targets
		return out.Operation.Status == types.OperationStatusSuccess
	})
	return targets
}

// create creates a service with a custom health check, as ECS does, and its namespace.
func (c *cloud) create(namespace, service string) {
	c.t.Helper()
	if c.ids[namespace] == "" {
		out, err := c.sdk.CreateHttpNamespace(c.t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: &namespace})
		if err != nil {
			c.t.Fatal(err)
		}
		c.ids[namespace] = c.await(out.OperationId)["NAMESPACE"]
	}
	out, err := c.sdk.CreateService(c.t.Context(), &servicediscovery.CreateServiceInput{
		Name: &service, NamespaceId: aws.String(c.ids[namespace]), HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.ids[namespace+"/"+service] = aws.ToString(out.Service.Id)
}

// register registers an instance with attributes as "NAME=value".
func (c *cloud) register(service, id string, attrs ...string) {
	c.t.Helper()
	c.registerAttributes(service, id, instance(id, attrs...).Attributes)
}

func (c *cloud) registerAttributes(service, id string, attributes map[string]string) {
	c.t.Helper()
	out, err := c.sdk.RegisterInstance(c.t.Context(), &servicediscovery.RegisterInstanceInput{
		ServiceId: aws.String(c.ids[service]), InstanceId: &id, Attributes: attributes,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.await(out.OperationId)
}

func (c *cloud) deregister(service, id string) {
	c.t.Helper()
	out, err := c.sdk.DeregisterInstance(c.t.Context(), &servicediscovery.DeregisterInstanceInput{ServiceId: aws.String(c.ids[service]), InstanceId: &id})
	if err != nil {
		c.t.Fatal(err)
	}
	c.await(out.OperationId)
}

// running is a registry that runs until the test ends.
type running struct {
	*Registry
	t    *testing.T
	path string

	mu       sync.Mutex
	notified map[mcs.Key]int
}

// writeFile replaces the file as the kubelet does.
func (r *running) writeFile(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.path+".new", []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.path+".new", r.path); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) notifications(key mcs.Key) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notified[key]
}

// shows waits until the view of orders has these endpoints, in the form of describe.
func (r *running) shows(want string) {
	r.t.Helper()
	var view registry.View
	within(r.t, fmt.Sprintf("the endpoints are %q", want), func() bool {
		view, _ = r.Lookup(context.Background(), orders, "cloud-map", "cls2")
		return len(view.Exports()) == 1 && describe(view.Exports()[0]) == want
	})
	if !slices.Equal(view.In(registry.Unseen), []string{"cls2"}) || len(view.In(registry.Unknown)) > 0 {
		r.t.Errorf("view %+v, want only cls2 unseen", view)
	}
}

func (r *running) problems() []string {
	members, err := r.Members(context.Background())
	if err != nil || len(members) != 1 || members[0].ClusterID != "cloud-map" || !members[0].Mapped {
		r.t.Errorf("members %+v, %v", members, err)
		return nil
	}
	return members[0].Problems
}

// startRegistry runs a registry until the test ends.
func startRegistry(t *testing.T, c *cloud, text string, change ...func(*Config)) *running {
	t.Helper()
	r := newRegistry(t, c, text, change...)
	run(t, r, func(key mcs.Key) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.notified[key]++
	})
	return r
}

// run runs a registry until the test ends.
func run(t *testing.T, reg registry.Registry, notify func(mcs.Key)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- reg.Run(ctx, notify) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// newRegistry creates a registry with short intervals, and the file with text, "" for no file.
func newRegistry(t *testing.T, c *cloud, text string, change ...func(*Config)) *running {
	t.Helper()
	rates := map[string]api.Rate{}
	for operation := range api.DefaultRates() {
		rates[operation] = api.Rate{PerSecond: 1e6, Burst: 1e6}
	}
	client, err := api.NewClient(t.Context(), api.Config{Region: "us-east-1", Endpoint: c.url, Rates: rates, Credentials: access})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "services.yaml")
	cfg := Config{
		Identity: cls1, Cluster: "cloud-map", Path: path, Logger: logr.Discard(), StaleAfter: 200 * time.Millisecond,
		intervals: intervals{
			reload: 5 * time.Millisecond, poll: 10 * time.Millisecond, readPace: 5 * time.Millisecond, namespaces: time.Hour, missing: 20 * time.Millisecond,
			tick: 5 * time.Millisecond,
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	r := &running{Registry: New(client, cfg), t: t, path: path, notified: map[mcs.Key]int{}}
	if text != "" {
		r.writeFile(text)
	}
	return r
}

// within waits for a condition.
func within(t *testing.T, what string, met func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for !met() {
		select {
		case <-ctx.Done():
			t.Fatal("not in time: " + what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func TestRegistry_FollowsService(t *testing.T) {
	c := startCloud(t)
	c.create("apps", "orders")
	r := startRegistry(t, c, entry("port: 80}]", "port: 80, targetPort: 8080}]\n  ipFamilies: [IPv4, IPv6]"))
	r.shows("") // zero endpoints is a state
	c.register("apps/orders", "a", "IPV4=10.0.0.1", "AVAILABILITY_ZONE=eu-central-1a")
	r.shows("http8080 10.0.0.1@eu-central-1a")
	c.register("apps/orders", "b", "IPV4=10.0.0.2", "IPV6=2001:db8::2")
	r.shows("http8080 10.0.0.1@eu-central-1a 10.0.0.2 2001:db8::2")
	if r.notifications(orders) < 3 {
		t.Errorf("%d notifications, want one for each change", r.notifications(orders))
	}
	_, err := c.sdk.UpdateInstanceCustomHealthStatus(t.Context(), &servicediscovery.UpdateInstanceCustomHealthStatusInput{
		ServiceId: aws.String(c.ids["apps/orders"]), InstanceId: aws.String("a"), Status: types.CustomHealthStatusUnhealthy,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.shows("http8080 10.0.0.1!@eu-central-1a 10.0.0.2 2001:db8::2")
	c.deregister("apps/orders", "a")
	r.shows("http8080 10.0.0.2 2001:db8::2")
	c.register("apps/orders", "lambda", "arn=x")
	within(t, "the instance without an address is reported", func() bool {
		return slices.ContainsFunc(r.problems(), func(p string) bool { return strings.HasPrefix(p, "shop/orders: instance lambda left out") })
	})
	if keys := r.Report().Keys; !slices.Equal(keys, []mcs.Key{orders}) || r.Report().Reading != nil {
		t.Errorf("report %+v", r.Report())
	}
}

// TestRegistry_ImportsEC2Instances: AWS fills in the address of an instance that is registered by
// the ID of an EC2 instance, and allows no port attribute with it, so that the port has to be in
// the mapping.
func TestRegistry_ImportsEC2Instances(t *testing.T) {
	c := startCloud(t)
	c.create("apps", "orders")
	c.registerAttributes("apps/orders", "a", map[string]string{"AWS_EC2_INSTANCE_ID": "i-0123456789abcdef0", "AWS_INIT_HEALTH_STATUS": "UNHEALTHY"})
	out, err := c.sdk.GetInstance(t.Context(), &servicediscovery.GetInstanceInput{ServiceId: aws.String(c.ids["apps/orders"]), InstanceId: aws.String("a")})
	if err != nil {
		t.Fatal(err)
	}
	address := out.Instance.Attributes["AWS_INSTANCE_IPV4"]
	r := startRegistry(t, c, entry("", ""))
	within(t, "the instance without a port is reported", func() bool {
		return slices.ContainsFunc(r.problems(), func(p string) bool {
			return strings.HasPrefix(p, "shop/orders: instance a left out: AWS_INSTANCE_PORT is ") && strings.HasSuffix(p, "set targetPort in the mapping")
		})
	})
	r.writeFile(entry("port: 80}]", "port: 80, targetPort: 8080}]"))
	r.shows("http8080 " + address + "!")
	if _, err := c.sdk.UpdateInstanceCustomHealthStatus(t.Context(), &servicediscovery.UpdateInstanceCustomHealthStatusInput{
		ServiceId: aws.String(c.ids["apps/orders"]), InstanceId: aws.String("a"), Status: types.CustomHealthStatusHealthy,
	}); err != nil {
		t.Fatal(err)
	}
	r.shows("http8080 " + address)
	if problems := r.problems(); len(problems) > 0 {
		t.Errorf("problems %q", problems)
	}
}

// TestRegistry_SilenceChangesNothing: whatever Cloud Map answers, and a service or namespace that
// is gone, leave the endpoints. While it answers, the service becomes stale, and live again.
func TestRegistry_SilenceChangesNothing(t *testing.T) {
	c := startCloud(t)
	c.create("apps", "orders")
	c.register("apps/orders", "a", "IPV4=10.0.0.1", "PORT=80")
	r := startRegistry(t, c, entry("", ""))
	r.shows("http80 10.0.0.1")
	isStale := func() bool {
		view, _ := r.Lookup(context.Background(), orders)
		members, _ := r.Members(context.Background())
		return slices.Equal(view.WithLiveness(registry.Stale), []string{"cloud-map"}) && members[0].Stale
	}
	for _, code := range []string{"NamespaceNotFound", "ServiceNotFound", "AccessDeniedException", "InvalidInput"} {
		c.fail(always(code))
		within(t, "it is stale after "+code, isStale)
		r.shows("http80 10.0.0.1")
		if p := r.problems(); len(p) != 1 || !strings.Contains(p[0], "shop/orders (service orders in apps): not read, its last endpoints stay: AWS Cloud Map DiscoverInstances: "+code) {
			t.Errorf("problems %q", p)
		}
		if r.Report().Reading == nil {
			t.Error("the report has no problem although nothing can be read")
		}
		c.fail(nil)
		within(t, "it is live again", func() bool { return !isStale() && len(r.problems()) == 0 })
	}
	for _, code := range []string{"down", "ThrottlingException", "RequestLimitExceeded"} {
		c.fail(always(code))
		before := c.count("DiscoverInstances")
		within(t, "requests fail for longer than it takes to be stale", func() bool { return c.count("DiscoverInstances") > before+60 })
		if isStale() {
			t.Errorf("it is stale after %s, which is no answer", code)
		}
		r.shows("http80 10.0.0.1")
		c.fail(nil)
		within(t, "it is read again", func() bool { return len(r.problems()) == 0 })
	}
}

// TestRegistry_UnreadIsUnknown: after a restart, a service that cannot be read may have endpoints,
// and a mapping that cannot be read may exist.
func TestRegistry_UnreadIsUnknown(t *testing.T) {
	c := startCloud(t)
	r := startRegistry(t, c, "")
	view, err := r.Lookup(t.Context(), orders, "cloud-map", "cls2")
	if err != nil || !slices.Equal(view.In(registry.Unseen), []string{"cloud-map", "cls2"}) {
		t.Errorf("without the file: %+v, %v; want both clusters unseen", view, err)
	}
	within(t, "the missing file is reported", func() bool {
		p := r.problems()
		return len(p) == 1 && strings.HasSuffix(p[0], "services.yaml is not in use: reading it: no such file or directory") && r.Report().Reading != nil
	})
	r.writeFile("services: [{}]")
	within(t, "the invalid file is reported", func() bool {
		p := r.problems()
		return len(p) == 1 && strings.Contains(p[0], "services[0].cloudMap.namespace")
	})
	if r.notifications(orders) > 0 {
		t.Error("a notification without a change")
	}
	r.writeFile(entry("", ""))
	within(t, "the lookup from before is notified", func() bool { return r.notifications(orders) > 0 })
	view, err = r.Lookup(t.Context(), orders, "cloud-map", "cls2")
	if err != nil || !slices.Equal(view.In(registry.Unknown), []string{"cloud-map"}) || !slices.Equal(view.In(registry.Unseen), []string{"cls2"}) {
		t.Errorf("a service that does not exist: %+v, %v; want it unknown", view, err)
	}
	if m := view.Mapped; m == nil || m.Cluster != "cloud-map" || m.Namespace != "apps" || m.Service != "orders" || !m.ReadAt.IsZero() || len(m.Problems) > 1 {
		t.Errorf("the mapped service is %+v, want orders in apps, not read", m)
	}
	c.create("apps", "orders")
	r.shows("")
	view, err = r.Lookup(t.Context(), orders)
	if m := view.Mapped; err != nil || m == nil || m.ReadAt.IsZero() || len(m.Problems) > 0 {
		t.Errorf("the mapped service is %+v (%v), want it read", m, err)
	}
}

// TestRegistry_FileDecides: the removal of a mapping ends the export at once, also while Cloud Map
// does not answer. A broken file changes nothing.
func TestRegistry_FileDecides(t *testing.T) {
	c := startCloud(t)
	c.create("apps", "orders")
	c.create("apps", "other")
	c.register("apps/orders", "a", "IPV4=10.0.0.1", "PORT=80")
	c.register("apps/other", "a", "IPV4=10.0.0.9", "PORT=90")
	r := startRegistry(t, c, entry("", ""))
	r.shows("http80 10.0.0.1")
	r.writeFile("services: {")
	within(t, "the broken file is reported", func() bool { return len(r.problems()) == 1 })
	r.shows("http80 10.0.0.1")
	r.writeFile(entry("port: 80", "port: 80, targetPort: 81"))
	r.shows("http81 10.0.0.1")
	r.writeFile("zones: {us-east-1a: use1-az6}\n" + entry("port: 80", "port: 80, targetPort: 81"))
	within(t, "the zones are known", func() bool {
		view, err := r.Lookup(t.Context(), orders)
		return err == nil && view.Clusters["cloud-map"].Properties[mcs.PropertyZones] == "us-east-1a=use1-az6"
	})
	r.shows("http81 10.0.0.1")
	r.writeFile(entry("service: orders", "service: other"))
	r.shows("http90 10.0.0.9")

	// A read that hangs must not delay the removal.
	release := make(chan struct{})
	var hanging atomic.Int64
	c.fail(func(string) string { hanging.Add(1); <-release; return "down" })
	defer close(release)
	within(t, "a read hangs", func() bool { return hanging.Load() > 0 })
	before := r.notifications(orders)
	r.writeFile("services: []")
	within(t, "the export ends", func() bool {
		view, err := r.Lookup(context.Background(), orders, "cloud-map")
		return err == nil && len(view.In(registry.Exports, registry.Unknown, registry.Unseen)) == 0 && r.notifications(orders) > before
	})
	if p := r.problems(); len(p) > 0 {
		t.Errorf("problems %q", p)
	}
}

// TestRegistry_ReadsChangedCountAtOnce: with many services, one whose number of instances changes
// does not wait for its turn.
func TestRegistry_ReadsChangedCountAtOnce(t *testing.T) {
	c := startCloud(t)
	c.create("apps", "orders")
	r := startRegistry(t, c, entry("", ""), func(cfg *Config) { cfg.intervals.readPace = time.Hour })
	r.shows("")
	turn := c.count("DiscoverInstances")
	c.register("apps/orders", "a", "IPV4=10.0.0.1", "PORT=80")
	r.shows("http80 10.0.0.1")
	within(t, "some lists follow", func() bool { return c.count("ListServices") > 20 })
	if n := c.count("DiscoverInstances") - turn; n > 2+recheckLists {
		t.Errorf("%d reads for one change", n)
	}
	if n := c.count("ListNamespaces"); n != 1 {
		t.Errorf("%d lists of namespaces, want 1", n)
	}
	// Without the right to list, reading in turn works.
	c.fail(func(operation string) string {
		if strings.HasPrefix(operation, "List") {
			return "AccessDeniedException"
		}
		return ""
	})
	other := startRegistry(t, c, entry("", ""))
	other.shows("http80 10.0.0.1")
	c.register("apps/orders", "b", "IPV4=10.0.0.2", "PORT=80")
	other.shows("http80 10.0.0.1 10.0.0.2")
}

// TestRegistry_ReadsChangedRevisionAtOnce: without numbers of instances in lists, revisions show
// changes, and the lists end.
func TestRegistry_ReadsChangedRevisionAtOnce(t *testing.T) {
	c := startCloud(t)
	c.create("apps", "orders")
	c.isUncounted.Store(true)
	r := startRegistry(t, c, entry("", ""), func(cfg *Config) { cfg.intervals.readPace = time.Hour })
	r.shows("")
	within(t, "revisions are read", func() bool { return c.count("DiscoverInstancesRevision") > 0 })
	turn := c.count("DiscoverInstances")
	c.register("apps/orders", "a", "IPV4=10.0.0.1", "PORT=80")
	r.shows("http80 10.0.0.1")
	c.deregister("apps/orders", "a")
	r.shows("")
	revisions := c.count("DiscoverInstancesRevision")
	within(t, "some revisions follow", func() bool { return c.count("DiscoverInstancesRevision") > revisions+10 })
	if reads, lists := c.count("DiscoverInstances")-turn, c.count("ListServices"); reads != 2 || lists != maxListsWithoutCounts {
		t.Errorf("%d reads for two changes, %d lists of services", reads, lists)
	}
	if problems := r.problems(); len(problems) > 0 {
		t.Errorf("problems: %q", problems)
	}
}

// TestRegistry_CountIsUnknown: a service without a number of instances in the list, and without the
// right to read revisions, is read in turn, which is reported once.
func TestRegistry_CountIsUnknown(t *testing.T) {
	c := startCloud(t)
	c.create("apps", "orders")
	c.register("apps/orders", "a", "IPV4=10.0.0.1", "PORT=80")
	c.isUncounted.Store(true)
	c.fail(func(operation string) string {
		if operation == "DiscoverInstancesRevision" {
			return "AccessDeniedException"
		}
		return ""
	})
	r := startRegistry(t, c, entry("", ""), func(cfg *Config) { cfg.intervals.readPace = 50 * time.Millisecond })
	r.shows("http80 10.0.0.1")
	const want = "AWS gives no number of instances of shop/orders (service orders in apps): changes are found within 50ms, as those of health are"
	within(t, "it is reported", func() bool { return slices.Equal(r.problems(), []string{want}) })
	c.deregister("apps/orders", "a")
	r.shows("")
	c.fail(func(string) string { return "" })
	within(t, "it is over", func() bool { return len(r.problems()) == 0 })
}

// TestRegistry_HasBudgets: a service with more than its budget stays as it was, and the removal of
// its mapping returns its part.
func TestRegistry_HasBudgets(t *testing.T) {
	c := startCloud(t)
	c.create("apps", "orders")
	c.register("apps/orders", "a", "IPV4=10.0.0.1", "PORT=80")
	limits := budget.Limits{}
	for _, kind := range budget.Kinds() {
		limits.Member[kind], limits.Total[kind] = 1_000_000, 100_000_000
	}
	limits.Member[budget.Endpoints] = 8 // a half of it is reserved for two namespaces
	ledger := budget.NewLedger(limits)
	r := startRegistry(t, c, entry("", ""), func(cfg *Config) { cfg.Ledger = ledger })
	r.shows("http80 10.0.0.1")
	for i := range 10 {
		c.register("apps/orders", fmt.Sprint("b", i), fmt.Sprintf("IPV4=10.0.1.%d", i), "PORT=80")
	}
	within(t, "the excess is reported", func() bool { return slices.ContainsFunc(r.problems(), registry.IsOverBudget) })
	if used := ledger.Usage().Member[budget.Endpoints]; used > 8 || used == 0 {
		t.Errorf("%d endpoints of a budget of 8", used)
	}
	r.writeFile("services: []")
	within(t, "the budget is released", func() bool { return ledger.Usage().Total == budget.Amounts{} })
}

func TestRegistry_RefusesOwnID(t *testing.T) {
	c := startCloud(t)
	r := startRegistry(t, c, entry("", ""), func(cfg *Config) { cfg.Cluster = cls1.ClusterID })
	within(t, "the ID is refused", func() bool {
		members, err := r.Members(context.Background())
		return err == nil && len(members[0].Problems) == 1 && strings.Contains(members[0].Problems[0], "--cloud-map-services-cluster=cls1 is the ID of this cluster")
	})
}
