package cloudmaplocal

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestEveryOperation calls every operation with the SDK and fails if it misses one.
func TestEveryOperation(t *testing.T) {
	w := newTestServer(t, Options{})
	scenarios := map[string]func(*testing.T, *testServer){
		"HTTP namespace":   testHTTPNamespace,
		"DNS namespaces":   testDNSNamespaces,
		"namespace errors": testNamespaceErrors,
		"service":          testService,
		"DNS service":      testDNSService,
		"service errors":   testServiceErrors,
		"instance":         testInstance,
		"instance errors":  testInstanceErrors,
		"custom health":    testCustomHealth,
		"discover":         testDiscover,
		"operations":       testOperations,
		"attributes":       testServiceAttributes,
		"tags":             testTags,
		"ARNs":             testARNs,
	}
	for _, name := range sortedKeys(scenarios) {
		t.Run(name, func(t *testing.T) {
			here := *w
			here.t = t
			scenarios[name](t, &here)
		})
	}
	driven := w.server.Requests()
	for name := range handlers {
		if driven[name] == 0 {
			t.Errorf("%s was not driven", name)
		}
	}
}

// assertEqual compares values that the SDK decoded.
func assertEqual(t *testing.T, want, got any) {
	t.Helper()
	ignore := cmpopts.IgnoreUnexported(types.Namespace{}, types.NamespaceProperties{}, types.DnsProperties{}, types.SOA{},
		types.HttpProperties{}, types.Service{}, types.DnsConfig{}, types.DnsRecord{}, types.HealthCheckConfig{},
		types.HealthCheckCustomConfig{}, types.Instance{}, types.Operation{}, types.OperationSummary{}, types.Tag{},
		types.ServiceAttributes{}, types.InstanceSummary{}, types.HttpInstanceSummary{}, types.NamespaceSummary{})
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func wantMatch(t *testing.T, pattern, got string) {
	t.Helper()
	if !regexp.MustCompile("^" + pattern + "$").MatchString(got) {
		t.Errorf("%q does not look like %s", got, pattern)
	}
}

func testHTTPNamespace(t *testing.T, w *testServer) {
	ctx := t.Context()
	created, err := w.CreateHttpNamespace(ctx, &sd.CreateHttpNamespaceInput{
		Name: new("http"), Description: new("mine"), CreatorRequestId: new("once"), Tags: []types.Tag{{Key: new("a"), Value: new("b")}},
	})
	must(t, created, err)
	wantMatch(t, "[a-z0-9]{32}-[a-z0-9]{8}", *created.OperationId)
	op := w.operation(created.OperationId)
	id := op.Targets["NAMESPACE"]
	wantMatch(t, "ns-[a-z0-9]{16}", id)
	assertEqual(t, &types.Operation{
		Id: created.OperationId, Type: types.OperationTypeCreateNamespace, Status: types.OperationStatusSuccess,
		CreateDate: new(w.clock.Now()), UpdateDate: new(w.clock.Now()), OwnerAccount: new(DefaultAccount), Targets: map[string]string{"NAMESPACE": id},
	}, op)

	got, err := w.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &id})
	assertEqual(t, &types.Namespace{
		Arn: new("arn:aws:servicediscovery:us-east-1:123456789012:namespace/" + id), CreateDate: new(w.clock.Now()), CreatorRequestId: new("once"),
		Description: new("mine"), Id: &id, Name: new("http"), ResourceOwner: new(DefaultAccount), ServiceCount: new(int32(0)),
		Type: types.NamespaceTypeHttp, Properties: &types.NamespaceProperties{
			DnsProperties: &types.DnsProperties{}, HttpProperties: &types.HttpProperties{HttpName: new("http")},
		},
	}, must(t, got, err).Namespace)

	again, err := w.CreateHttpNamespace(ctx, &sd.CreateHttpNamespaceInput{Name: new("http"), CreatorRequestId: new("once")})
	assertEqual(t, created.OperationId, must(t, again, err).OperationId)

	updated, err := w.UpdateHttpNamespace(ctx, &sd.UpdateHttpNamespaceInput{Id: &id, Namespace: &types.HttpNamespaceChange{Description: new("yours")}})
	assertEqual(t, types.OperationTypeUpdateNamespace, w.operation(must(t, updated, err).OperationId).Type)
	got, err = w.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &id})
	assertEqual(t, new("yours"), must(t, got, err).Namespace.Description)

	deleted, err := w.DeleteNamespace(ctx, &sd.DeleteNamespaceInput{Id: &id})
	assertEqual(t, types.OperationTypeDeleteNamespace, w.operation(must(t, deleted, err).OperationId).Type)
	_, err = w.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &id})
	wantCode(t, err, "NamespaceNotFound")
}

func testDNSNamespaces(t *testing.T, w *testServer) {
	ctx := t.Context()
	private, err := w.CreatePrivateDnsNamespace(ctx, &sd.CreatePrivateDnsNamespaceInput{Name: new("example.com"), Vpc: new("vpc-1")})
	id := w.operation(must(t, private, err).OperationId).Targets["NAMESPACE"]
	got, err := w.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &id})
	ns := must(t, got, err).Namespace
	wantMatch(t, "Z[A-Z0-9]{20}", *ns.Properties.DnsProperties.HostedZoneId)
	assertEqual(t, new(int64(15)), ns.Properties.DnsProperties.SOA.TTL)

	public, err := w.CreatePublicDnsNamespace(ctx, &sd.CreatePublicDnsNamespaceInput{
		Name: new("example.com"), Properties: &types.PublicDnsNamespaceProperties{
			DnsProperties: &types.PublicDnsPropertiesMutable{SOA: &types.SOA{TTL: new(int64(100))}},
		},
	})
	publicID := w.operation(must(t, public, err).OperationId).Targets["NAMESPACE"]
	got, err = w.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &publicID})
	assertEqual(t, new(int64(100)), must(t, got, err).Namespace.Properties.DnsProperties.SOA.TTL)
	// The name is taken where names must be unique.
	wantMatch(t, `example\.com-[a-z0-9]{16}`, *got.Namespace.Properties.HttpProperties.HttpName)

	_, err = w.UpdatePrivateDnsNamespace(ctx, &sd.UpdatePrivateDnsNamespaceInput{Id: &id, Namespace: &types.PrivateDnsNamespaceChange{
		Properties: &types.PrivateDnsNamespacePropertiesChange{
			DnsProperties: &types.PrivateDnsPropertiesMutableChange{SOA: &types.SOAChange{TTL: new(int64(30))}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got, err = w.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &id})
	assertEqual(t, new(int64(30)), must(t, got, err).Namespace.Properties.DnsProperties.SOA.TTL)
	_, err = w.UpdatePublicDnsNamespace(ctx, &sd.UpdatePublicDnsNamespaceInput{Id: &publicID, Namespace: &types.PublicDnsNamespaceChange{Description: new("d")}})
	if err != nil {
		t.Error(err)
	}
	_, err = w.UpdatePublicDnsNamespace(ctx, &sd.UpdatePublicDnsNamespaceInput{Id: &id, Namespace: &types.PublicDnsNamespaceChange{Description: new("d")}})
	wantCode(t, err, "InvalidInput")
	testNamespaceFilters(t, w)
}

// testNamespaceFilters knows of a private and a public namespace example.com.
func testNamespaceFilters(t *testing.T, w *testServer) {
	tests := []struct {
		name, condition, value string
		want                   int
	}{
		{"NAME", "", "example.com", 2},
		{"NAME", "BEGINS_WITH", "example", 2},
		{"NAME", "EQ", "example", 0},
		{"HTTP_NAME", "EQ", "example.com", 1},
		{"HTTP_NAME", "BEGINS_WITH", "example.com", 2},
		{"TYPE", "EQ", "DNS_PUBLIC", 1},
		{"TYPE", "BEGINS_WITH", "DNS_", 2},
		{"RESOURCE_OWNER", "EQ", "OTHER_ACCOUNTS", 0},
	}
	for _, tt := range tests {
		out, err := w.ListNamespaces(t.Context(), &sd.ListNamespacesInput{Filters: []types.NamespaceFilter{{
			Name: types.NamespaceFilterName(tt.name), Condition: types.FilterCondition(tt.condition), Values: []string{tt.value},
		}}})
		if got := len(must(t, out, err).Namespaces); got != tt.want {
			t.Errorf("%s %s %s: %d namespaces, want %d", tt.name, tt.condition, tt.value, got, tt.want)
		}
	}
}

func testNamespaceErrors(t *testing.T, w *testServer) {
	ctx := t.Context()
	_, err := w.CreateHttpNamespace(ctx, &sd.CreateHttpNamespaceInput{Name: new("errors"), CreatorRequestId: new("first")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.CreateHttpNamespace(ctx, &sd.CreateHttpNamespaceInput{Name: new("errors")})
	var exists *types.NamespaceAlreadyExists
	if !errors.As(err, &exists) {
		t.Fatalf("error = %v, want NamespaceAlreadyExists", err)
	}
	wantStatus(t, err, 400)
	assertEqual(t, new("first"), exists.CreatorRequestId)
	w.service(*exists.NamespaceId, "one")
	_, err = w.DeleteNamespace(ctx, &sd.DeleteNamespaceInput{Id: exists.NamespaceId})
	wantCode(t, err, "ResourceInUse")
	_, err = w.DeleteNamespace(ctx, &sd.DeleteNamespaceInput{Id: new("ns-unknown")})
	wantCode(t, err, "NamespaceNotFound")
	_, err = w.CreateHttpNamespace(ctx, &sd.CreateHttpNamespaceInput{Name: new("with space")})
	wantCode(t, err, "InvalidInput")
	_, err = w.ListNamespaces(ctx, &sd.ListNamespacesInput{NextToken: new("nonsense")})
	wantCode(t, err, "InvalidInput")
	_, err = w.ListNamespaces(ctx, &sd.ListNamespacesInput{MaxResults: new(int32(101))})
	wantCode(t, err, "InvalidInput")
}

func testService(t *testing.T, w *testServer) {
	ctx := t.Context()
	ns := w.namespace("services")
	created, err := w.CreateService(ctx, &sd.CreateServiceInput{
		NamespaceId: &ns, Name: new("svc"), Description: new("d"), CreatorRequestId: new("once"),
		HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
	})
	svc := must(t, created, err).Service
	wantMatch(t, "srv-[a-z0-9]{16}", *svc.Id)
	want := &types.Service{
		Arn: new("arn:aws:servicediscovery:us-east-1:123456789012:service/" + *svc.Id), CreateDate: new(w.clock.Now()), CreatedByAccount: new(DefaultAccount),
		CreatorRequestId: new("once"), Description: new("d"), Id: svc.Id, InstanceCount: new(int32(0)), Name: new("svc"), NamespaceId: &ns,
		ResourceOwner: new(DefaultAccount), Type: types.ServiceTypeHttp,
		HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
	}
	assertEqual(t, want, svc)
	got, err := w.GetService(ctx, &sd.GetServiceInput{Id: svc.Id})
	assertEqual(t, want, must(t, got, err).Service)
	again, err := w.CreateService(ctx, &sd.CreateServiceInput{
		NamespaceId: &ns, Name: new("svc"), CreatorRequestId: new("once"),
		HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
	})
	assertEqual(t, svc.Id, must(t, again, err).Service.Id)
	w.service(ns, "SVC") // names in an HTTP namespace are case-sensitive
	namespace, err := w.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &ns})
	assertEqual(t, new(int32(2)), must(t, namespace, err).Namespace.ServiceCount)

	for i := range 5 {
		w.service(ns, numbered("more", i))
	}
	w.service(w.namespace("services-elsewhere"), "svc")
	found := map[string]bool{}
	pages := sd.NewListServicesPaginator(w.Client, &sd.ListServicesInput{
		MaxResults: new(int32(3)), Filters: []types.ServiceFilter{{Name: types.ServiceFilterNameNamespaceId, Values: []string{ns}}},
	})
	sizes := []int{}
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		sizes = append(sizes, len(must(t, page, err).Services))
		for _, svc := range page.Services {
			found[*svc.Name] = true
		}
	}
	assertEqual(t, []int{3, 3, 1}, sizes)
	assertEqual(t, 7, len(found))
	_, err = w.UpdateService(ctx, &sd.UpdateServiceInput{Id: svc.Id, Service: &types.ServiceChange{Description: new("x")}})
	wantCode(t, err, "InvalidInput") // not in an HTTP namespace
}

func testDNSService(t *testing.T, w *testServer) {
	ctx := t.Context()
	private, err := w.CreatePrivateDnsNamespace(ctx, &sd.CreatePrivateDnsNamespaceInput{Name: new("dns.local"), Vpc: new("vpc-1")})
	ns := w.operation(must(t, private, err).OperationId).Targets["NAMESPACE"]
	record := func(ttl int64) []types.DnsRecord { return []types.DnsRecord{{Type: "A", TTL: &ttl}} }
	created, err := w.CreateService(ctx, &sd.CreateServiceInput{
		Name: new("web"), DnsConfig: &types.DnsConfig{NamespaceId: &ns, DnsRecords: record(60)}, //nolint:staticcheck // old clients use it
	})
	svc := must(t, created, err).Service
	assertEqual(t, types.ServiceTypeDnsHttp, svc.Type)
	assertEqual(t, types.RoutingPolicyMultivalue, svc.DnsConfig.RoutingPolicy)
	assertEqual(t, record(60), svc.DnsConfig.DnsRecords)
	assertEqual(t, &ns, svc.NamespaceId)
	_, err = w.CreateService(ctx, &sd.CreateServiceInput{Name: new("WEB"), NamespaceId: &ns, DnsConfig: &types.DnsConfig{DnsRecords: record(60)}})
	wantCode(t, err, "ServiceAlreadyExists") // in DNS, case does not

	updated, err := w.UpdateService(ctx, &sd.UpdateServiceInput{Id: svc.Id, Service: &types.ServiceChange{
		Description: new("changed"), DnsConfig: &types.DnsConfigChange{DnsRecords: record(10)},
	}})
	op := w.operation(must(t, updated, err).OperationId)
	assertEqual(t, map[string]string{"SERVICE": *svc.Id}, op.Targets)
	got, err := w.GetService(ctx, &sd.GetServiceInput{Id: svc.Id})
	assertEqual(t, record(10), must(t, got, err).Service.DnsConfig.DnsRecords)
	assertEqual(t, new("changed"), got.Service.Description)
	_, err = w.UpdateService(ctx, &sd.UpdateServiceInput{Id: svc.Id, Service: &types.ServiceChange{
		DnsConfig: &types.DnsConfigChange{DnsRecords: []types.DnsRecord{{Type: "AAAA", TTL: new(int64(1))}}},
	}})
	wantCode(t, err, "InvalidInput")
	_, err = w.UpdateService(ctx, &sd.UpdateServiceInput{Id: svc.Id, Service: &types.ServiceChange{}})
	if err != nil {
		t.Fatal(err)
	}
	got, err = w.GetService(ctx, &sd.GetServiceInput{Id: svc.Id})
	if must(t, got, err).Service.DnsConfig != nil {
		t.Error("records that an update leaves out must be deleted")
	}
	_, err = w.RegisterInstance(ctx, &sd.RegisterInstanceInput{ServiceId: svc.Id, InstanceId: new("a"), Attributes: map[string]string{"AWS_EC2_INSTANCE_ID": "i-1"}})
	wantCode(t, err, "InvalidInput")
}

func testServiceErrors(t *testing.T, w *testServer) {
	ctx := t.Context()
	ns := w.namespace("service-errors")
	svc := w.service(ns, "svc")
	_, err := w.CreateService(ctx, &sd.CreateServiceInput{NamespaceId: &ns, Name: new("svc"), CreatorRequestId: new("other")})
	var exists *types.ServiceAlreadyExists
	if !errors.As(err, &exists) {
		t.Fatalf("error = %v, want ServiceAlreadyExists", err)
	}
	assertEqual(t, &svc, exists.ServiceId)
	wantMatch(t, "arn:aws:servicediscovery:us-east-1:123456789012:service/"+svc, *exists.ServiceArn)
	if exists.CreatorRequestId == nil {
		t.Error("ServiceAlreadyExists without CreatorRequestId")
	}
	_, err = w.CreateService(ctx, &sd.CreateServiceInput{NamespaceId: new("ns-unknown"), Name: new("svc")})
	wantCode(t, err, "NamespaceNotFound")
	_, err = w.CreateService(ctx, &sd.CreateServiceInput{Name: new("svc")})
	wantCode(t, err, "InvalidInput")
	_, err = w.GetService(ctx, &sd.GetServiceInput{Id: new("srv-unknown")})
	wantCode(t, err, "ServiceNotFound")
	w.register(svc, "a", map[string]string{})
	_, err = w.DeleteService(ctx, &sd.DeleteServiceInput{Id: &svc})
	wantCode(t, err, "ResourceInUse")
	w.deregister(svc, "a")
	if _, err = w.DeleteService(ctx, &sd.DeleteServiceInput{Id: &svc}); err != nil {
		t.Error(err)
	}
	_, err = w.DeleteService(ctx, &sd.DeleteServiceInput{Id: &svc})
	wantCode(t, err, "ServiceNotFound")
}

func testInstance(t *testing.T, w *testServer) {
	ctx := t.Context()
	svc := w.service(w.namespace("instances"), "svc")
	first := map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1", "AWS_INSTANCE_PORT": "80", "empty": ""}
	id := w.register(svc, "tcp-10_0_0_1-80", first)
	assertEqual(t, map[string]string{"SERVICE": svc, "INSTANCE": "tcp-10_0_0_1-80"}, w.operation(&id).Targets)
	got, err := w.GetInstance(ctx, &sd.GetInstanceInput{ServiceId: &svc, InstanceId: new("tcp-10_0_0_1-80")})
	assertEqual(t, first, must(t, got, err).Instance.Attributes)
	assertEqual(t, new(DefaultAccount), got.Instance.CreatedByAccount)
	if got.Instance.CreatorRequestId == nil {
		t.Error("GetInstance without CreatorRequestId, which the SDK always sends")
	}
	w.register(svc, "tcp-10_0_0_1-80", map[string]string{"other": "all"})
	got, err = w.GetInstance(ctx, &sd.GetInstanceInput{ServiceId: &svc, InstanceId: new("tcp-10_0_0_1-80")})
	assertEqual(t, map[string]string{"other": "all"}, must(t, got, err).Instance.Attributes)

	repeat := &sd.RegisterInstanceInput{ServiceId: &svc, InstanceId: new("again"), CreatorRequestId: new("r"), Attributes: first}
	one, err := w.RegisterInstance(ctx, repeat)
	must(t, one, err)
	two, err := w.RegisterInstance(ctx, repeat)
	assertEqual(t, one.OperationId, must(t, two, err).OperationId)

	for i := range 250 {
		w.register(svc, numbered("i", i), map[string]string{"n": numbered("v", i)})
	}
	found := map[string]bool{}
	for pages := sd.NewListInstancesPaginator(w.Client, &sd.ListInstancesInput{ServiceId: &svc}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		assertEqual(t, new(DefaultAccount), must(t, page, err).ResourceOwner)
		if len(page.Instances) > 100 {
			t.Errorf("a page of %d", len(page.Instances))
		}
		for _, inst := range page.Instances {
			found[*inst.Id] = true
		}
	}
	assertEqual(t, 252, len(found))
	service, err := w.GetService(ctx, &sd.GetServiceInput{Id: &svc})
	assertEqual(t, new(int32(252)), must(t, service, err).Service.InstanceCount)
}

func testInstanceErrors(t *testing.T, w *testServer) {
	ctx := t.Context()
	svc := w.service(w.namespace("instance-errors"), "svc")
	_, err := w.RegisterInstance(ctx, &sd.RegisterInstanceInput{ServiceId: new("srv-x"), InstanceId: new("a"), Attributes: map[string]string{}})
	wantCode(t, err, "ServiceNotFound")
	_, err = w.RegisterInstance(ctx, &sd.RegisterInstanceInput{ServiceId: &svc, InstanceId: new("a b"), Attributes: map[string]string{}})
	wantCode(t, err, "InvalidInput")
	_, err = w.RegisterInstance(ctx, &sd.RegisterInstanceInput{ServiceId: &svc, InstanceId: new("a"), Attributes: map[string]string{"": ""}})
	wantCode(t, err, "InvalidInput")
	_, err = w.DeregisterInstance(ctx, &sd.DeregisterInstanceInput{ServiceId: &svc, InstanceId: new("a")})
	wantCode(t, err, "InstanceNotFound")
	_, err = w.GetInstance(ctx, &sd.GetInstanceInput{ServiceId: &svc, InstanceId: new("a")})
	wantCode(t, err, "InstanceNotFound")
	_, err = w.ListInstances(ctx, &sd.ListInstancesInput{ServiceId: new("srv-x")})
	wantCode(t, err, "ServiceNotFound")
	for i := range maxInstancesPerService {
		w.register(svc, numbered("i", i), map[string]string{})
	}
	_, err = w.RegisterInstance(ctx, &sd.RegisterInstanceInput{ServiceId: &svc, InstanceId: new("more"), Attributes: map[string]string{}})
	wantCode(t, err, "ResourceLimitExceeded")
	w.register(svc, "i-0", map[string]string{"replaced": "yes"}) // not one more
	w.deregister(svc, "i-1")
	w.register(svc, "more", map[string]string{})
}

func testCustomHealth(t *testing.T, w *testServer) {
	ctx := t.Context()
	ns := w.namespace("health")
	created, err := w.CreateService(ctx, &sd.CreateServiceInput{
		NamespaceId: &ns, Name: new("svc"), HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
	})
	svc := *must(t, created, err).Service.Id
	w.register(svc, "a", map[string]string{})
	w.register(svc, "b", map[string]string{"AWS_INIT_HEALTH_STATUS": "UNHEALTHY"})
	w.register(svc, "c", map[string]string{})
	_, revision := w.discovered("health", "svc")
	_, err = w.UpdateInstanceCustomHealthStatus(ctx, &sd.UpdateInstanceCustomHealthStatusInput{ServiceId: &svc, InstanceId: new("c"), Status: "UNHEALTHY"})
	if err != nil {
		t.Fatal(err)
	}
	statuses, err := w.GetInstancesHealthStatus(ctx, &sd.GetInstancesHealthStatusInput{ServiceId: &svc})
	assertEqual(t, map[string]types.HealthStatus{"a": "HEALTHY", "b": "UNHEALTHY", "c": "UNHEALTHY"}, must(t, statuses, err).Status)
	statuses, err = w.GetInstancesHealthStatus(ctx, &sd.GetInstancesHealthStatusInput{ServiceId: &svc, Instances: []string{"c", "b"}, MaxResults: new(int32(1))})
	assertEqual(t, map[string]types.HealthStatus{"b": "UNHEALTHY"}, must(t, statuses, err).Status)
	if statuses.NextToken == nil {
		t.Error("one of two and no NextToken")
	}
	_, err = w.GetInstancesHealthStatus(ctx, &sd.GetInstancesHealthStatusInput{ServiceId: &svc, Instances: []string{"x"}})
	wantCode(t, err, "InstanceNotFound")

	if _, after := w.discovered("health", "svc"); after != revision {
		t.Errorf("revision went from %d to %d with a health status", revision, after)
	}
	for filter, want := range map[types.HealthStatusFilter][]string{
		"HEALTHY": {"a"}, "UNHEALTHY": {"b", "c"}, "ALL": {"a", "b", "c"}, "HEALTHY_OR_ELSE_ALL": {"a"}, "": {"a"},
	} {
		assertEqual(t, want, w.discoveredIDs(&sd.DiscoverInstancesInput{NamespaceName: new("health"), ServiceName: new("svc"), HealthStatus: filter}))
	}
	w.deregister(svc, "a")
	assertEqual(t, []string{"b", "c"}, w.discoveredIDs(&sd.DiscoverInstancesInput{
		NamespaceName: new("health"), ServiceName: new("svc"), HealthStatus: types.HealthStatusFilterHealthyOrElseAll,
	}))
	plain := w.service(ns, "plain")
	w.register(plain, "a", map[string]string{})
	_, err = w.UpdateInstanceCustomHealthStatus(ctx, &sd.UpdateInstanceCustomHealthStatusInput{ServiceId: &plain, InstanceId: new("a"), Status: "HEALTHY"})
	wantCode(t, err, "CustomHealthNotFound")
	// Without a health check the filter is ignored.
	assertEqual(t, []string{"a"}, w.discoveredIDs(&sd.DiscoverInstancesInput{
		NamespaceName: new("health"), ServiceName: new("plain"), HealthStatus: types.HealthStatusFilterUnhealthy,
	}))
}

// discoveredIDs returns the IDs that DiscoverInstances returns, sorted.
func (w *testServer) discoveredIDs(in *sd.DiscoverInstancesInput) []string {
	w.t.Helper()
	out, err := w.DiscoverInstances(w.t.Context(), in)
	return slices.Sorted(slices.Values(mapSlice(must(w.t, out, err).Instances, func(i types.HttpInstanceSummary) string { return *i.InstanceId })))
}

func testDiscover(t *testing.T, w *testServer) {
	ctx := t.Context()
	svc := w.service(w.namespace("discover"), "svc")
	for i := range 200 {
		w.register(svc, numbered("i", i), map[string]string{"PAGE": numbered("p", i%4), "az": numbered("z", i%2)})
	}
	find := func(query, optional map[string]string, limit *int32) int {
		return len(w.discoveredIDs(&sd.DiscoverInstancesInput{
			NamespaceName: new("discover"), ServiceName: new("svc"), QueryParameters: query, OptionalParameters: optional, MaxResults: limit,
		}))
	}
	assertEqual(t, 100, find(nil, nil, nil))
	assertEqual(t, 200, find(nil, nil, new(int32(1000))))
	assertEqual(t, 7, find(nil, nil, new(int32(7))))
	assertEqual(t, 50, find(map[string]string{"PAGE": "p-1"}, nil, nil))
	assertEqual(t, 50, find(map[string]string{"PAGE": "p-1", "az": "z-1"}, nil, nil))
	assertEqual(t, 0, find(map[string]string{"PAGE": "p-1", "az": "z-0"}, nil, nil))
	assertEqual(t, 0, find(map[string]string{"absent": ""}, nil, nil))
	assertEqual(t, 50, find(map[string]string{"az": "z-0"}, map[string]string{"PAGE": "p-2"}, nil))
	// opportunistic
	assertEqual(t, 100, find(map[string]string{"az": "z-0"}, map[string]string{"PAGE": "p-1"}, nil))

	order := func() []string {
		out, err := w.DiscoverInstances(ctx, &sd.DiscoverInstancesInput{NamespaceName: new("discover"), ServiceName: new("svc"), MaxResults: new(int32(1000))})
		return mapSlice(must(t, out, err).Instances, func(i types.HttpInstanceSummary) string { return *i.InstanceId })
	}
	if slices.Equal(order(), order()) {
		t.Error("twice the same order of 200 instances")
	}
	revision, err := w.DiscoverInstancesRevision(ctx, &sd.DiscoverInstancesRevisionInput{NamespaceName: new("discover"), ServiceName: new("svc")})
	assertEqual(t, new(int64(200)), must(t, revision, err).InstancesRevision)

	for _, tt := range []struct {
		in   sd.DiscoverInstancesInput
		code string
	}{
		{sd.DiscoverInstancesInput{NamespaceName: new("nowhere"), ServiceName: new("svc")}, "NamespaceNotFound"},
		{sd.DiscoverInstancesInput{NamespaceName: new("discover"), ServiceName: new("nothing")}, "ServiceNotFound"},
		{sd.DiscoverInstancesInput{NamespaceName: new("discover"), ServiceName: new("svc"), OwnerAccount: new("999999999999")}, "NamespaceNotFound"},
		{sd.DiscoverInstancesInput{NamespaceName: new("discover"), ServiceName: new("svc"), MaxResults: new(int32(1001))}, "InvalidInput"},
		{sd.DiscoverInstancesInput{NamespaceName: new("discover"), ServiceName: new("svc"), HealthStatus: "FINE"}, "InvalidInput"},
	} {
		_, err := w.DiscoverInstances(ctx, &tt.in)
		wantCode(t, err, tt.code)
	}
	_, err = w.DiscoverInstancesRevision(ctx, &sd.DiscoverInstancesRevisionInput{NamespaceName: new("discover"), ServiceName: new("nothing")})
	wantCode(t, err, "ServiceNotFound")
}

func testOperations(t *testing.T, w *testServer) {
	ns := w.namespace("operations")
	svc := w.service(ns, "svc")
	w.clock.Advance(time.Hour)
	since := w.clock.Now()
	for i := range 3 {
		w.register(svc, numbered("i", i), map[string]string{})
	}
	w.clock.Advance(time.Minute)
	w.deregister(svc, "i-0")
	of := func(name types.OperationFilterName, condition types.FilterCondition, values ...string) types.OperationFilter {
		return types.OperationFilter{Name: name, Condition: condition, Values: values}
	}
	mine := of("SERVICE_ID", "", svc)
	for _, tt := range []struct {
		name    string
		filters []types.OperationFilter
		want    int
	}{
		{"service", []types.OperationFilter{mine}, 4},
		{"namespace", []types.OperationFilter{of("NAMESPACE_ID", "EQ", ns)}, 1},
		{"type", []types.OperationFilter{mine, of("TYPE", "EQ", "REGISTER_INSTANCE")}, 3},
		{"types", []types.OperationFilter{mine, of("TYPE", "IN", "REGISTER_INSTANCE", "DEREGISTER_INSTANCE")}, 4},
		{"status", []types.OperationFilter{mine, of("STATUS", "EQ", "SUCCESS")}, 4},
		{"the documentation's spelling", []types.OperationFilter{mine, of("STATUS", "EQ", "SUCCEED")}, 4},
		{"unfinished", []types.OperationFilter{mine, of("STATUS", "IN", "SUBMITTED", "PENDING", "FAIL")}, 0},
		{"date", []types.OperationFilter{mine, of("UPDATE_DATE", "BETWEEN", itoa(since.Unix()), itoa(since.Unix()+10))}, 3},
		{"date in milliseconds", []types.OperationFilter{mine, of("UPDATE_DATE", "BETWEEN", itoa(since.UnixMilli()+1), itoa(since.UnixMilli()+60_000))}, 1},
	} {
		out, err := w.ListOperations(t.Context(), &sd.ListOperationsInput{Filters: tt.filters})
		if got := len(must(t, out, err).Operations); got != tt.want {
			t.Errorf("%s: %d operations, want %d", tt.name, got, tt.want)
		}
	}
	n := 0
	for pages := sd.NewListOperationsPaginator(w.Client, &sd.ListOperationsInput{Filters: []types.OperationFilter{mine}, MaxResults: new(int32(3))}); pages.HasMorePages(); {
		page, err := pages.NextPage(t.Context())
		n += len(must(t, page, err).Operations)
	}
	assertEqual(t, 4, n)
	_, err := w.GetOperation(t.Context(), &sd.GetOperationInput{OperationId: new("unknown")})
	wantCode(t, err, "OperationNotFound")
	id := w.deregister(svc, "i-1")
	_, err = w.GetOperation(t.Context(), &sd.GetOperationInput{OperationId: &id, OwnerAccount: new("999999999999")})
	wantCode(t, err, "OperationNotFound")
	_, err = w.ListOperations(t.Context(), &sd.ListOperationsInput{Filters: []types.OperationFilter{of("UPDATE_DATE", "BETWEEN", "yesterday", "today")}})
	wantCode(t, err, "InvalidInput")
}

func testServiceAttributes(t *testing.T, w *testServer) {
	ctx := t.Context()
	svc := w.service(w.namespace("attributes"), "svc")
	get := func() map[string]string {
		out, err := w.GetServiceAttributes(ctx, &sd.GetServiceAttributesInput{ServiceId: &svc})
		wantMatch(t, "arn:.*:service/"+svc, *must(t, out, err).ServiceAttributes.ServiceArn)
		return out.ServiceAttributes.Attributes
	}
	update := func(attributes map[string]string) error {
		_, err := w.UpdateServiceAttributes(ctx, &sd.UpdateServiceAttributesInput{ServiceId: &svc, Attributes: attributes})
		return err
	}
	assertEqual(t, map[string]string{}, get())
	if err := errors.Join(update(map[string]string{"a": "1", "b": "2"}), update(map[string]string{"b": "3", "c": "4"})); err != nil {
		t.Fatal(err)
	}
	assertEqual(t, map[string]string{"a": "1", "b": "3", "c": "4"}, get())
	if _, err := w.DeleteServiceAttributes(ctx, &sd.DeleteServiceAttributesInput{ServiceId: &svc, Attributes: []string{"a", "unknown"}}); err != nil {
		t.Fatal(err)
	}
	assertEqual(t, map[string]string{"b": "3", "c": "4"}, get())
	many := map[string]string{}
	for i := range maxServiceAttributes {
		many[numbered("k", i)] = ""
	}
	wantCode(t, update(many), "ServiceAttributesLimitExceededException")
	many["one more"] = ""
	wantCode(t, update(many), "InvalidInput")
	_, err := w.DeleteServiceAttributes(ctx, &sd.DeleteServiceAttributesInput{ServiceId: &svc, Attributes: []string{}})
	wantCode(t, err, "InvalidInput")
}

func testTags(t *testing.T, w *testServer) {
	ctx := t.Context()
	ns := w.namespace("tags")
	created, err := w.CreateService(ctx, &sd.CreateServiceInput{NamespaceId: &ns, Name: new("svc"), Tags: []types.Tag{{Key: new("b"), Value: new("2")}}})
	for _, arn := range []string{*must(t, created, err).Service.Arn, "arn:aws:servicediscovery:us-east-1:123456789012:namespace/" + ns} {
		_, err := w.TagResource(ctx, &sd.TagResourceInput{ResourceARN: &arn, Tags: []types.Tag{{Key: new("b"), Value: new("3")}, {Key: new("a"), Value: new("")}}})
		if err != nil {
			t.Fatal(err)
		}
		tags, err := w.ListTagsForResource(ctx, &sd.ListTagsForResourceInput{ResourceARN: &arn})
		assertEqual(t, []types.Tag{{Key: new("a"), Value: new("")}, {Key: new("b"), Value: new("3")}}, must(t, tags, err).Tags)
		if _, err := w.UntagResource(ctx, &sd.UntagResourceInput{ResourceARN: &arn, TagKeys: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		tags, err = w.ListTagsForResource(ctx, &sd.ListTagsForResourceInput{ResourceARN: &arn})
		assertEqual(t, []types.Tag{{Key: new("b"), Value: new("3")}}, must(t, tags, err).Tags)
	}
	many := make([]types.Tag, maxTags)
	for i := range many {
		many[i] = types.Tag{Key: new(numbered("k", i)), Value: new("")}
	}
	_, err = w.TagResource(ctx, &sd.TagResourceInput{ResourceARN: created.Service.Arn, Tags: many})
	var tooMany *types.TooManyTagsException
	if !errors.As(err, &tooMany) {
		t.Fatalf("error = %v, want TooManyTagsException", err)
	}
	assertEqual(t, created.Service.Arn, tooMany.ResourceName)
	for arn, code := range map[string]string{
		"arn:aws:servicediscovery:us-east-1:123456789012:service/srv-x": "ResourceNotFoundException",
		"srv-x": "InvalidInput",
	} {
		_, err := w.ListTagsForResource(ctx, &sd.ListTagsForResourceInput{ResourceARN: &arn})
		wantCode(t, err, code)
	}
}

func testARNs(t *testing.T, w *testServer) {
	ctx := t.Context()
	id := w.namespace("arns")
	arn := "arn:aws:servicediscovery:us-east-1:123456789012:namespace/" + id
	created, err := w.CreateService(ctx, &sd.CreateServiceInput{NamespaceId: &arn, Name: new("svc")})
	svc := must(t, created, err).Service
	assertEqual(t, &id, svc.NamespaceId)
	w.register(*svc.Arn, "a", map[string]string{})
	listed, err := w.ListInstances(ctx, &sd.ListInstancesInput{ServiceId: svc.Arn})
	assertEqual(t, 1, len(must(t, listed, err).Instances))
	services, err := w.ListServices(ctx, &sd.ListServicesInput{Filters: []types.ServiceFilter{{Name: "NAMESPACE_ID", Values: []string{arn}}}})
	assertEqual(t, 1, len(must(t, services, err).Services))
	for _, other := range []string{
		strings.Replace(*svc.Arn, "us-east-1", "eu-west-1", 1), strings.Replace(*svc.Arn, DefaultAccount, "999999999999", 1),
		strings.Replace(*svc.Arn, ":service/", ":namespace/", 1),
	} {
		_, err = w.GetService(ctx, &sd.GetServiceInput{Id: &other})
		wantCode(t, err, "ServiceNotFound")
	}
}

func TestRegions_AreIsolated(t *testing.T) {
	w := newTestServer(t, Options{})
	w.namespace("demo")
	count := func(c *sd.Client) int {
		out, err := c.ListNamespaces(t.Context(), &sd.ListNamespacesInput{})
		return len(must(t, out, err).Namespaces)
	}
	if n := count(w.client("eu-west-1", "AKID", "s")); n != 0 {
		t.Errorf("%d namespaces in the other Region, want none", n)
	}
	if n := count(w.client("us-east-1", "AKID2", "s")); n != 1 {
		t.Errorf("%d namespaces for the other key of the same account, want 1", n)
	}
}

func TestPartitions(t *testing.T) {
	for region, want := range map[string]string{
		"us-east-1": "arn:aws:", "cn-north-1": "arn:aws-cn:", "us-gov-west-1": "arn:aws-us-gov:",
	} {
		r := newStore(regionKey{DefaultAccount, region}, Behaviors{})
		if got := r.arn("service", "srv-x"); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, region+":123456789012:service/srv-x") {
			t.Errorf("ARN in %s = %s", region, got)
		}
	}
}

func TestNamespaceQuota(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{OperationDelay: Duration(time.Second)}})
	for i := range 50 {
		_, err := w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new(numbered("ns", i))})
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			w.clock.Advance(time.Second) // so that some exist and one is in flight
		}
	}
	_, err := w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("more")})
	wantCode(t, err, "ResourceLimitExceeded")
}

func TestInstancesPerNamespaceQuota(t *testing.T) {
	w := newTestServer(t, Options{InstancesPerNamespace: 3, Behaviors: Behaviors{OperationDelay: Duration(time.Second)}})
	created, err := w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("demo")})
	w.clock.Advance(time.Second)
	ns := w.operation(must(t, created, err).OperationId).Targets["NAMESPACE"]
	one, two := w.service(ns, "one"), w.service(ns, "two")
	w.register(one, "a", map[string]string{})
	w.register(one, "b", map[string]string{})
	w.register(two, "a", map[string]string{})
	more := &sd.RegisterInstanceInput{ServiceId: &two, InstanceId: new("b"), Attributes: map[string]string{}}
	_, err = w.RegisterInstance(t.Context(), more)
	wantCode(t, err, "ResourceLimitExceeded") // although nothing is registered yet
	w.clock.Advance(time.Second)
	w.deregister(one, "a")
	w.clock.Advance(time.Second)
	if _, err = w.RegisterInstance(t.Context(), more); err != nil {
		t.Error(err)
	}
}

// TestModelKnowsNoMore compares our table with the methods of the SDK's client.
func TestModelKnowsNoMore(t *testing.T) {
	want := slices.Sorted(maps.Keys(handlers))
	if diff := cmp.Diff(sdkOperations(), want); diff != "" {
		t.Errorf("operations of the SDK and ours (-SDK +ours):\n%s", diff)
	}
}
