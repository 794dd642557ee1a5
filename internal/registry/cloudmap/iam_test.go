package cloudmap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// The policies of deploy/iam, by purpose.
var (
	joinPolicies = []string{"cluster.json", "create.json"}
	viewPolicies = append(slices.Clone(joinPolicies), "instance-view.json")
)

// policyDocument is a file of deploy/iam for a cluster.
func policyDocument(t *testing.T, file string, identity mcs.Identity) []byte {
	t.Helper()
	document, err := cloudmaptest.PolicyDocument(os.DirFS("../../../deploy/iam"), file, identity)
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// policyOf reads documents, without the statements whose Sid is dropped.
func policyOf(t *testing.T, identity mcs.Identity, files []string, dropped ...string) (all []iampolicy.Policy) {
	t.Helper()
	for _, file := range files {
		var document struct {
			Version   string
			Statement []map[string]any
		}
		if err := json.Unmarshal(policyDocument(t, file, identity), &document); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		document.Statement = slices.DeleteFunc(document.Statement, func(s map[string]any) bool {
			return slices.Contains(dropped, file+" "+s["Sid"].(string))
		})
		raw, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		var read iampolicy.Policy
		if err := json.Unmarshal(raw, &read); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, read)
	}
	return all
}

// keyFor is the access key of a cluster.
func keyFor(identity mcs.Identity) string { return "AKID" + identity.ClusterID + identity.ClusterSetID }

// admin is the access key that may do everything: that of the test's own environment.
const admin = "AKIDTEST"

// startGuarded is startCloud where each cluster of two clustersets has a key of its own, with these
// policies and no more.
func startGuarded(t *testing.T, options cloudmaplocal.Options, files []string, dropped ...string) *cloud {
	t.Helper()
	options.AccessKeys = []cloudmaplocal.AccessKey{{ID: admin}}
	for _, set := range []string{"set1", "set2"} {
		for i := range 3 {
			identity := mcs.Identity{ClusterID: "cls" + strconv.Itoa(i+1), ClusterSetID: set}
			options.AccessKeys = append(options.AccessKeys, cloudmaplocal.AccessKey{
				ID: keyFor(identity), User: identity.ClusterID, Policies: policyOf(t, identity, files, dropped...)})
		}
	}
	c := startCloud(t, options)
	c.keyOf = keyFor
	return c
}

// denials is how many requests were denied, by operation.
func (c *cloud) denials(t *testing.T) map[string]int {
	t.Helper()
	denied, err := cloudmaptest.Denied(t.Context(), c.url)
	if err != nil {
		t.Fatal(err)
	}
	return denied
}

// TestContractUnderIAM is the whole contract with no more rights than docs/iam.md gives.
func TestContractUnderIAM(t *testing.T) {
	registrytest.Run(t, func(t *testing.T) registrytest.Backend {
		return backend(startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, joinPolicies), fast)
	})
}

// lifetime is everything that clusters do, from joining to leaving, where they try to leave for so
// long. It ends early when done says so, and gives what leaving came to.
func lifetime(t *testing.T, c *cloud, view bool, leave time.Duration, done func() bool) error {
	t.Helper()
	run := func(identity mcs.Identity) (*Registry, func(error) error) {
		cfg := fast(identity)
		cfg.InstanceView, cfg.times.leave = view, leave
		reg := c.registry(t, cfg)
		ctx, cancel := context.WithCancelCause(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- reg.Run(ctx, func(mcs.Key) {}) }()
		return reg, func(cause error) error {
			if done() {
				cause = context.Canceled
			}
			cancel(cause)
			return <-ended
		}
	}
	until := func(what string, met func() bool) {
		within(t, 3*patience, what, func() bool { return done() || met() })
	}
	if view {
		leftover(t, c)
	}
	a, stopA := run(cls1)
	b, stopB := run(cls2)
	key := webKey(0)
	publish(t, a, webExport(cls1.ClusterID, 0, 2))
	until("cls2 sees the export of cls1", func() bool { return shows(t, b, cls1.ClusterID, key) })
	// A service stays if the process ends before it has deleted it.
	until("the leftover is gone", func() bool {
		_, there := c.service(t, "left", "over")
		return !view || !there
	})
	if err := stopA(context.Canceled); err != nil {
		return errors.Join(err, stopB(context.Canceled))
	}
	a, stopA = run(cls1)
	publish(t, a, webExport(cls1.ClusterID, 0, 2))
	until("cls1 has joined again", func() bool { return joined(a) })
	until("the instances are there", func() bool { return !view || len(c.instances(t, key.Namespace, key.Name)) == 2 })
	if err := a.Withdraw(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	until("cls2 sees it withdrawn", func() bool { return !shows(t, b, cls1.ClusterID, key) })
	until("the services are gone", func() bool {
		_, there := c.service(t, key.Namespace, key.Name)
		return !there
	})
	return errors.Join(withoutProtected(stopA(registry.ErrLeave)), withoutProtected(stopB(registry.ErrLeave)))
}

// leftover is an instance that the previous process of cls1 left.
func leftover(t *testing.T, c *cloud) {
	t.Helper()
	in, err := c.client.CreateNamespace(t.Context(), "left", cls1, api.PartView)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.client.CreateService(t.Context(), in, "over", cls1, api.PartView)
	if err != nil {
		t.Fatal(err)
	}
	attributes := map[string]string{format.AttrClusterID: cls1.ClusterID, format.AttrClusterSetID: cls1.ClusterSetID, "K8S_CONTROLLER": plan.ManagedBy}
	if _, err := c.client.RegisterInstance(t.Context(), s.ID, api.Instance{ID: "tcp-10_0_0_1-80", Attributes: attributes}); err != nil {
		t.Fatal(err)
	}
}

// TestPoliciesSuffice: a cluster joins, exports, imports and leaves without a denied request, and
// leaves nothing behind.
func TestPoliciesSuffice(t *testing.T) {
	for _, delay := range []time.Duration{0, 50 * time.Millisecond} {
		t.Run(fmt.Sprint("operations take ", delay), func(t *testing.T) {
			c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.Behaviors{OperationDelay: cloudmaplocal.Duration(delay)}}, viewPolicies)
			if err := lifetime(t, c, true, time.Minute, func() bool { return false }); err != nil {
				t.Error(err)
			}
			if denied := c.denials(t); len(denied) > 0 {
				t.Errorf("denied: %v", denied)
			}
			within(t, 3*patience, "nothing is left", func() bool {
				left, err := c.client.ListNamespaces(t.Context())
				return err == nil && len(left) == 0
			})
		})
	}
}

// TestSealedPoliciesSuffice: on the resources that the templates of deploy/iam create, clusters
// without create.json join, export, import and leave. No request is denied but the deletions of
// what the administrator created, and all of it is empty in the end: CloudFormation deletes no
// service with instances.
func TestSealedPoliciesSuffice(t *testing.T) {
	c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, []string{"cluster.json", "instance-view.json"})
	resources, err := cloudmaptest.Stacks(os.DirFS("../../../deploy/iam"), "set1", "cls1", "cls2")
	if err != nil {
		t.Fatal(err)
	}
	if err := cloudmaptest.Create(t.Context(), c.sdk(admin), resources); err != nil {
		t.Fatal(err)
	}
	if err := lifetime(t, c, true, time.Minute, func() bool { return false }); err != nil {
		t.Error(err)
	}
	denied := c.denials(t)
	delete(denied, "DeleteService")
	if len(denied) > 0 {
		t.Errorf("denied: %v", denied)
	}
	within(t, 3*patience, "the resources are empty", func() bool {
		for _, r := range resources {
			if r.Type != cloudmaptest.TypeService {
				continue
			}
			if _, there := c.service(t, "mcs.set1", r.Name); !there {
				t.Fatalf("%s is gone", r.Name)
			}
			if left := c.instances(t, "mcs.set1", r.Name); len(left) > 0 {
				t.Logf("%s has %d instances", r.Name, len(left))
				return false
			}
		}
		return true
	})
}

// TestClusterWithoutCatalog: a cluster that joins a sealed clusterset before an administrator has
// created its catalog reports the command that does, and is a member once it exists.
func TestClusterWithoutCatalog(t *testing.T) {
	c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, []string{"cluster.json"})
	resources, err := cloudmaptest.Stacks(os.DirFS("../../../deploy/iam"), "set1", "cls1", "cls2")
	if err != nil {
		t.Fatal(err)
	}
	if err := cloudmaptest.Create(t.Context(), c.sdk(admin), resources[:3]); err != nil {
		t.Fatal(err)
	}
	reg, _ := running(t, c, cls2)
	within(t, 3*patience, "it reports the command", func() bool {
		report := reg.Report()
		problem := errors.Join(report.Reading, report.Writing)
		return problem != nil && strings.Contains(problem.Error(), "kubectl mcs registry seal --clusterset-id=set1 cls2 | sh")
	})
	in, err := c.client.ListNamespaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	namespace := in[format.ControlNamespace("set1")]
	if _, err := c.client.CreateService(t.Context(), namespace, format.CatalogName("cls2"), cls2, api.PartCatalog); err != nil {
		t.Fatal(err)
	}
	within(t, 3*patience, "it is a member", func() bool { return joined(reg) })
}

// TestEveryStatementIsNeeded drops one statement at a time: some request from the join to the leave
// is then denied.
func TestEveryStatementIsNeeded(t *testing.T) {
	for _, file := range viewPolicies {
		var document struct {
			Statement []struct{ Sid, Effect string }
		}
		if err := json.Unmarshal(policyDocument(t, file, cls1), &document); err != nil {
			t.Fatal(err)
		}
		for _, s := range document.Statement {
			if s.Effect == "Deny" {
				continue // TestProtectedCatalogs
			}
			t.Run(file+" "+s.Sid, func(t *testing.T) {
				view, files := file == "instance-view.json", joinPolicies
				if view {
					files = viewPolicies
				}
				c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, files, file+" "+s.Sid)
				denied := func() bool { return len(c.denials(t)) > 0 }
				// what is denied may keep it from leaving
				_ = lifetime(t, c, view, time.Second, denied)
				if !denied() {
					t.Error("nothing is denied without it")
				}
			})
		}
	}
}

// TestExportingInALoopIsNotDenied: two clusters export and withdraw one service again and again, so
// that each has the ID of a Cloud Map service that the other one deletes. None of their requests
// counts as denied, which check, status and an alert would report as missing permissions.
func TestExportingInALoopIsNotDenied(t *testing.T) {
	c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, viewPolicies)
	metrics, err := registry.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	join := func(identity mcs.Identity) *Registry {
		client, cfg := withKey(keyFor(identity)), fast(identity)
		client.Metrics, cfg.InstanceView = metrics, true
		reg := c.registryOf(t, c.clientFor(t, client), cfg)
		start(t, reg)
		return reg
	}
	a, b, key := join(cls1), join(cls2), webKey(0)
	within(t, 3*patience, "both are members", func() bool { return joined(a) && joined(b) })
	for range 5 {
		publish(t, a, webExport(cls1.ClusterID, 0, 1))
		publish(t, b, webExport(cls2.ClusterID, 0, 1))
		within(t, 3*patience, "both see both exports, and the instances are there", func() bool {
			return shows(t, a, cls2.ClusterID, key) && shows(t, b, cls1.ClusterID, key) && len(c.instances(t, key.Namespace, key.Name)) > 0
		})
		if err := errors.Join(a.Withdraw(t.Context(), key), b.Withdraw(t.Context(), key)); err != nil {
			t.Fatal(err)
		}
		within(t, 3*patience, "the service is gone", func() bool {
			_, there := c.service(t, key.Namespace, key.Name)
			return !there
		})
	}
	requests := 0
	for _, r := range metrics.RecentRequests() {
		requests += r.Count
		if r.Result == api.ResultDenied {
			t.Errorf("%d requests %s count as denied", r.Count, r.Operation)
		}
	}
	if requests == 0 {
		t.Error("no request was counted")
	}
}

// TestDeletedIsNotDenied makes each request that names a resource by its ID for one that another
// cluster has deleted. IAM denies them, since the policies go by tags, and the client reports that
// the resource does not exist. One that exists without the tags stays denied.
func TestDeletedIsNotDenied(t *testing.T) {
	c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, viewPolicies)
	guarded := c.clientFor(t, withKey(keyFor(cls1)))
	create := func(name string, identity mcs.Identity) (api.Namespace, api.Service) {
		in, err := c.client.CreateNamespace(t.Context(), name, identity, api.PartView)
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.client.CreateService(t.Context(), in, "web", identity, api.PartView)
		if err != nil {
			t.Fatal(err)
		}
		return in, s
	}
	requests := func(in api.Namespace, s api.Service) map[string]error {
		ctx, failed := t.Context(), map[string]error{}
		_, failed["GetNamespace"] = guarded.GetNamespace(ctx, in.ID)
		_, failed["GetService"] = guarded.GetService(ctx, s.ID)
		_, failed["CreateService"] = guarded.CreateService(ctx, in, "web", cls1, api.PartView)
		_, failed["ListInstances"] = guarded.ListInstances(ctx, s)
		_, failed["RegisterInstance"] = guarded.RegisterInstance(ctx, s.ID, api.Instance{ID: "a", Attributes: map[string]string{"A": "b"}})
		failed["UpdateInstanceCustomHealthStatus"] = guarded.SetHealth(ctx, s.ID, "a", api.HealthHealthy)
		return failed
	}
	in, s := create("shop", cls1)
	if _, err := guarded.ListServices(t.Context(), in); err != nil { // as every controller has done
		t.Fatal(err)
	}
	if err := errors.Join(c.client.DeleteService(t.Context(), s), c.client.DeleteNamespace(t.Context(), in)); err != nil {
		t.Fatal(err)
	}
	for operation, err := range requests(in, s) {
		if !api.IsNotFound(err) {
			t.Errorf("%s after the deletion: %v, want that the resource does not exist", operation, err)
		}
	}
	for operation, err := range map[string]error{
		"DeregisterInstance": guarded.DeregisterInstance(t.Context(), s.ID, "a"),
		"DeleteService":      guarded.DeleteService(t.Context(), s),
		"DeleteNamespace":    guarded.DeleteNamespace(t.Context(), in),
	} {
		if err != nil {
			t.Errorf("%s after the deletion: %v, want nothing to do", operation, err)
		}
	}
	for operation, err := range requests(create("others", mcs.Identity{ClusterID: "x", ClusterSetID: "x"})) {
		wantDenied(t, operation, err)
	}
}

// wantDenied fails the test unless a request was denied.
func wantDenied(t *testing.T, what string, err error) {
	t.Helper()
	if !api.IsDenied(err) {
		t.Errorf("%s: error = %v, want AccessDeniedException", what, err)
	}
}

// TestOthersRecords tests that the permissions of one cluster do not allow access to another's
// catalog, another clusterset, other namespaces of the account.
func TestOthersRecords(t *testing.T) {
	c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, viewPolicies)
	a, _ := running(t, c, cls1)
	_, _ = running(t, c, cls2)
	other := cls1
	other.ClusterSetID = "set2"
	_, _ = running(t, c, other)
	publish(t, a, webExport(cls1.ClusterID, 0, 1))
	within(t, 3*patience, "the page is written, and the other clusterset is there", func() bool {
		_, there := c.service(t, "mcs.set2", "catalog.cls1")
		return there && len(c.instances(t, "mcs.set1", "catalog.cls1")) > 0
	})
	foreign, err := c.client.CreateNamespace(t.Context(), "ecs", mcs.Identity{ClusterID: "x", ClusterSetID: "x"}, api.PartView)
	if err != nil {
		t.Fatal(err)
	}
	task, err := c.client.CreateService(t.Context(), foreign, "task", mcs.Identity{ClusterID: "x", ClusterSetID: "x"}, api.PartView)
	if err != nil {
		t.Fatal(err)
	}

	intruder := c.clientFor(t, withKey(keyFor(cls2)))
	services := map[string]api.Service{"task of another": task}
	for _, place := range [][2]string{{"mcs.set1", "catalog.cls1"}, {"mcs.set2", "catalog.cls1"}, {"mcs.set2", "members"}} {
		s, ok := c.service(t, place[0], place[1])
		if !ok {
			t.Fatalf("there is no %s in %s", place[1], place[0])
		}
		services[place[1]+" of "+place[0]] = s
	}
	for name, s := range services {
		_, err := intruder.RegisterInstance(t.Context(), s.ID, api.Instance{ID: "page-00-0", Attributes: map[string]string{"A": "b"}})
		wantDenied(t, "writing "+name, err)
		wantDenied(t, "removing from "+name, intruder.DeregisterInstance(t.Context(), s.ID, "page-00-0"))
		wantDenied(t, "deleting "+name, intruder.DeleteService(t.Context(), s))
	}
	if _, _, err := intruder.DiscoverInstances(t.Context(), "mcs.set1", format.MembersService, nil); err != nil {
		t.Errorf("reading the own clusterset: %v", err)
	}
	// one that exists and one that does not
	for _, namespace := range []string{"mcs.set2", "mcs.set3"} {
		_, _, err := intruder.DiscoverInstances(t.Context(), namespace, format.MembersService, nil)
		wantDenied(t, "reading "+namespace, err)
	}
	_, err = intruder.CreateService(t.Context(), foreign, "mine", cls2, api.PartView)
	wantDenied(t, "creating a service in a namespace of others", err)
	_, err = intruder.CreateNamespace(t.Context(), "mine", cls1, api.PartView)
	wantDenied(t, "creating a namespace in another's name", err)
	_, err = intruder.CreateNamespace(t.Context(), "mcs.set3", mcs.Identity{ClusterID: "cls2", ClusterSetID: "set3"}, api.PartControl)
	wantDenied(t, "creating another clusterset", err)
	_, err = intruder.RegisterInstance(t.Context(), memberService(t, c).ID, api.Instance{ID: "cls1", Attributes: map[string]string{"A": "b"}})
	if err != nil { // docs/iam.md says so: IAM knows no instances
		t.Errorf("writing another's member record: %v", err)
	}
}

func memberService(t *testing.T, c *cloud) api.Service {
	t.Helper()
	s, ok := c.service(t, "mcs.set1", format.MembersService)
	if !ok {
		t.Fatal("there is no service members")
	}
	return s
}

// TestReader reads the clusterset and nothing else, and writes nothing.
func TestReader(t *testing.T) {
	c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, []string{"reader.json"})
	c.keyOf = func(mcs.Identity) string { return admin }
	_, _ = running(t, c, cls1)
	within(t, 3*patience, "cls1 is a member", func() bool { return len(c.instances(t, "mcs.set1", format.MembersService)) == 1 })
	reader := c.clientFor(t, withKey(keyFor(cls2)))
	found, _, err := reader.DiscoverInstances(t.Context(), "mcs.set1", format.MembersService, nil)
	if err != nil || len(found) != 1 {
		t.Errorf("found %v, %v", found, err)
	}
	_, _, err = reader.DiscoverInstances(t.Context(), "mcs.set2", format.MembersService, nil)
	wantDenied(t, "reading another clusterset", err)
	_, err = reader.RegisterInstance(t.Context(), memberService(t, c).ID, api.Instance{ID: "cls2", Attributes: map[string]string{"A": "b"}})
	wantDenied(t, "writing", err)
	if _, err := reader.ListServices(t.Context(), api.Namespace{ID: "ns-x"}); err != nil {
		t.Errorf("listing: %v", err)
	}
}

// TestMappedServicesPolicy reads the mapped Cloud Map namespace, and no other.
func TestMappedServicesPolicy(t *testing.T) {
	c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, []string{"mapped-services.json"})
	sdk := c.sdk(admin)
	// the policy has a placeholder
	for _, namespace := range []string{"<mapped-namespace>", "other"} {
		out, err := sdk.CreateHttpNamespace(t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: aws.String(namespace)})
		if err != nil {
			t.Fatal(err)
		}
		var id string
		within(t, patience, "the namespace exists", func() bool {
			o, err := sdk.GetOperation(t.Context(), &servicediscovery.GetOperationInput{OperationId: out.OperationId})
			if err != nil {
				return false
			}
			id = o.Operation.Targets["NAMESPACE"]
			return o.Operation.Status == types.OperationStatusSuccess
		})
		if _, err := sdk.CreateService(t.Context(), &servicediscovery.CreateServiceInput{Name: aws.String("orders"), NamespaceId: &id}); err != nil {
			t.Fatal(err)
		}
	}
	reader := c.clientFor(t, withKey(keyFor(cls2)))
	if _, _, err := reader.DiscoverHealth(t.Context(), "<mapped-namespace>", "orders"); err != nil {
		t.Errorf("reading a mapped service: %v", err)
	}
	_, _, err := reader.DiscoverHealth(t.Context(), "other", "orders")
	wantDenied(t, "reading another namespace", err)
	namespaces, err := reader.ListNamespaces(t.Context())
	if err != nil {
		t.Fatalf("listing namespaces: %v", err)
	}
	if counts, _, err := reader.CountInstances(t.Context(), namespaces["other"]); err != nil || len(counts) != 1 {
		t.Errorf("counting instances: %v, %v", counts, err)
	}
	_, err = reader.RegisterInstance(t.Context(), "srv-x", api.Instance{ID: "x", Attributes: map[string]string{"A": "b"}})
	wantDenied(t, "writing", err)
}

// TestCompatibilityPolicy reads the instances of the AWS Cloud Map MCS Controller for K8s, and no
// records of a clusterset.
func TestCompatibilityPolicy(t *testing.T) {
	c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, []string{"compatibility.json"})
	c.keyOf = func(mcs.Identity) string { return admin }
	_, _ = running(t, c, cls1)
	within(t, 3*patience, "cls1 is a member", func() bool { return len(c.instances(t, "mcs.set1", format.MembersService)) == 1 })
	sdk := c.sdk(admin)
	if _, err := sdk.CreateHttpNamespace(t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: aws.String("legacy")}); err != nil {
		t.Fatal(err)
	}
	var untagged *servicediscovery.CreateServiceOutput
	within(t, patience, "the namespace of the legacy controller exists", func() bool {
		all, err := sdk.ListNamespaces(t.Context(), &servicediscovery.ListNamespacesInput{})
		if err != nil {
			return false
		}
		i := slices.IndexFunc(all.Namespaces, func(n types.NamespaceSummary) bool { return aws.ToString(n.Name) == "legacy" })
		if i < 0 {
			return false
		}
		untagged, err = sdk.CreateService(t.Context(), &servicediscovery.CreateServiceInput{Name: aws.String("web"), NamespaceId: all.Namespaces[i].Id})
		return err == nil
	})
	reader := c.clientFor(t, withKey(keyFor(cls2)))
	if _, _, err := reader.DiscoverInstances(t.Context(), "legacy", "web", nil); err != nil {
		t.Errorf("discovering instances of the legacy controller: %v", err)
	}
	if _, err := reader.ListInstances(t.Context(), api.Service{ID: aws.ToString(untagged.Service.Id)}); err != nil {
		t.Errorf("listing instances of the legacy controller: %v", err)
	}
	_, _, err := reader.DiscoverInstances(t.Context(), "mcs.set1", format.MembersService, nil)
	wantDenied(t, "discovering member records", err)
	_, err = reader.ListInstances(t.Context(), memberService(t, c))
	wantDenied(t, "listing member records", err)
	catalog, _ := c.service(t, "mcs.set1", "catalog.cls1")
	_, err = reader.ListInstances(t.Context(), catalog)
	wantDenied(t, "listing a catalog", err)
}

// TestProtectedCatalogs tests the limits of policies by tags, and the remedy of docs/iam.md. A
// cluster that may tag the resources that it creates may tag anything: AWS knows no resources for
// TagResource. The administrator's tag catalog-of, which no cluster may set, keeps it off
// nevertheless.
func TestProtectedCatalogs(t *testing.T) {
	for name, protected := range map[string]bool{"with catalog-of": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, []string{"cluster.json", "instance-view.json"})
			bootstrap(t, c, protected, cls1, cls2)
			a, _ := running(t, c, cls1)
			b, _ := running(t, c, cls2)
			key := webKey(0)
			publish(t, a, webExport(cls1.ClusterID, 0, 1))
			within(t, 3*patience, "cls2 sees the export of cls1", func() bool { return shows(t, b, cls1.ClusterID, key) })

			intruder := c.clientFor(t, withKey(keyFor(cls2)))
			catalog, _ := c.service(t, "mcs.set1", "catalog.cls1")
			_, err := c.sdk(keyFor(cls2)).TagResource(t.Context(), &servicediscovery.TagResourceInput{
				ResourceARN: &catalog.ARN, Tags: api.Tags(cls2, api.PartView)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = intruder.RegisterInstance(t.Context(), catalog.ID, api.Instance{ID: "page-00-0", Attributes: map[string]string{"A": "b"}})
			if !protected {
				if err != nil {
					t.Errorf("the documented gap is closed; say so in docs/iam.md: %v", err)
				}
				return
			}
			wantDenied(t, "writing another's catalog after tagging it", err)
			for _, key := range []string{"catalog-of", "other"} {
				_, err = c.sdk(keyFor(cls2)).TagResource(t.Context(), &servicediscovery.TagResourceInput{
					ResourceARN: &catalog.ARN, Tags: append(api.Tags(cls2, api.PartView), types.Tag{Key: aws.String(key), Value: aws.String("cls2")})})
				wantDenied(t, "setting the tag "+key, err)
			}
			_, err = c.sdk(keyFor(cls2)).UntagResource(t.Context(), &servicediscovery.UntagResourceInput{
				ResourceARN: &catalog.ARN, TagKeys: []string{"catalog-of"}})
			wantDenied(t, "removing the tag", err)
		})
	}
}

// bootstrap makes what an administrator makes before clusters that may not create it join
// (docs/iam.md).
func bootstrap(t *testing.T, c *cloud, protected bool, identities ...mcs.Identity) {
	t.Helper()
	in, err := c.client.CreateNamespace(t.Context(), "mcs.set1", cls1, api.PartControl)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.CreateService(t.Context(), in, format.MembersService, cls1, api.PartMembers); err != nil {
		t.Fatal(err)
	}
	for _, identity := range identities {
		s, err := c.client.CreateService(t.Context(), in, format.CatalogName(identity.ClusterID), identity, api.PartCatalog)
		if err != nil {
			t.Fatal(err)
		}
		if !protected {
			continue
		}
		if _, err := c.sdk(admin).TagResource(t.Context(), &servicediscovery.TagResourceInput{
			ResourceARN: &s.ARN, Tags: []types.Tag{{Key: aws.String("catalog-of"), Value: &identity.ClusterID}}}); err != nil {
			t.Fatal(err)
		}
	}
}

// shows reports whether a registry shows a cluster's export of key.
func shows(t *testing.T, reg *Registry, clusterID string, key mcs.Key) bool {
	t.Helper()
	return look(t, reg, key).Clusters[clusterID].State == registry.Exports
}
