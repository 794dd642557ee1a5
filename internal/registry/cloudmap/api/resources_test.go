package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
)

const (
	ownerAccount = "111122223333"
	otherAccount = "444455556666"
)

var (
	ours   = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1"}
	theirs = mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1"}
)

// cloud is a local Cloud Map in the virtual time of a synctest bubble. Requests go to it without a
// network.
type cloud struct{ *cloudmaplocal.Server }

// Do implements the SDK's HTTPClient.
func (c cloud) Do(r *http.Request) (*http.Response, error) { return cloudmaptest.Serve(c.Server, r) }

// startCloud returns a Cloud Map whose access keys are the names of their accounts.
func startCloud(t *testing.T) cloud {
	t.Helper()
	server, err := cloudmaplocal.New(cloudmaplocal.Options{
		Unthrottled: true, Now: time.Now, Account: ownerAccount, Shares: []cloudmaplocal.Share{{Namespace: "shared", With: []string{otherAccount}}},
		AccessKeys: []cloudmaplocal.AccessKey{{ID: ownerAccount}, {ID: otherAccount, Account: otherAccount}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return cloud{server}
}

// client returns a client of an account.
func (c cloud) client(t *testing.T, account, namespaceOwner string) *Client {
	t.Helper()
	client, err := NewClient(t.Context(), Config{
		Region: "us-east-1", Endpoint: "http://127.0.0.1", HTTPClient: c, NamespaceOwner: namespaceOwner,
		Credentials: credentials.NewStaticCredentialsProvider(account, "secret", ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// fail makes requests fail from now on. Without rules none fails.
func (c cloud) fail(t *testing.T, rules ...cloudmaplocal.FaultRule) {
	t.Helper()
	if err := c.SetFaults(cloudmaplocal.FaultPlan{Rules: rules}); err != nil {
		t.Fatal(err)
	}
}

// must returns a value without an error.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestClient_CreatesAndReadsResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := t.Context(), startCloud(t).client(t, ownerAccount, "")
		in := must(c.CreateNamespace(ctx, "demo", ours, PartView))(t)
		want := Namespace{ID: in.ID, ARN: "arn:aws:servicediscovery:us-east-1:" + ownerAccount + ":namespace/" + in.ID, Name: "demo", HTTPName: "demo", Type: types.NamespaceTypeHttp, Owner: ownerAccount}
		if diff := cmp.Diff(want, in); diff != "" {
			t.Errorf("namespace (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(in, must(c.CreateNamespace(ctx, "demo", theirs, PartView))(t)); diff != "" {
			t.Errorf("namespace that exists (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]Namespace{"demo": in}, must(c.ListNamespaces(ctx))(t)); diff != "" {
			t.Errorf("namespaces (-want +got):\n%s", diff)
		}

		s := must(c.CreateService(ctx, in, "web", ours, PartView))(t)
		if diff := cmp.Diff(Service{ID: s.ID, ARN: "arn:aws:servicediscovery:us-east-1:" + ownerAccount + ":service/" + s.ID, Name: "web"}, s); diff != "" {
			t.Errorf("service (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(s, must(c.CreateService(ctx, in, "web", theirs, PartView))(t)); diff != "" {
			t.Errorf("service that exists (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(ServiceDescription{Service: s, NamespaceID: in.ID, Owner: ownerAccount}, must(c.GetService(ctx, s.ID))(t)); diff != "" {
			t.Errorf("description of the service (-want +got):\n%s", diff)
		}
		tags := map[string]string{"managed-by": "cloud-map-mcs-controller", "clusterset": "set1", "cluster": "cls1", "part": "view"}
		for _, arn := range []string{in.ARN, s.ARN} {
			if diff := cmp.Diff(tags, must(c.tagsOf(ctx, arn))(t)); diff != "" {
				t.Errorf("tags of %s (-want +got):\n%s", arn, diff)
			}
		}

		// More than one page of a list.
		services, instances := map[string]Service{"web": s}, []Instance(nil)
		for i := range listPage + 5 {
			instance := Instance{ID: fmt.Sprintf("i-%03d", i), Attributes: map[string]string{"N": fmt.Sprint(i)}}
			must(c.RegisterInstance(ctx, s.ID, instance))(t)
			instances = append(instances, instance)
			name := fmt.Sprint("web-", i)
			services[name] = must(c.CreateService(ctx, in, name, ours, PartView))(t)
		}
		if diff := cmp.Diff(services, must(c.ListServices(ctx, in))(t)); diff != "" {
			t.Errorf("services (-want +got):\n%s", diff)
		}
		byID := func(a, b Instance) int { return strings.Compare(a.ID, b.ID) }
		listed := slices.SortedFunc(slices.Values(must(c.ListInstances(ctx, s))(t)), byID)
		if diff := cmp.Diff(instances, listed); diff != "" {
			t.Errorf("instances (-want +got):\n%s", diff)
		}
		discovered, complete, revision, err := c.DiscoverInstancesAtRevision(ctx, "demo", "web", nil)
		if diff := cmp.Diff(instances, slices.SortedFunc(slices.Values(discovered), byID)); diff != "" || !complete || err != nil {
			t.Errorf("discovered instances, complete: %t, error %v (-want +got):\n%s", complete, err, diff)
		}
		if now := must(c.InstancesRevision(ctx, "demo", "web"))(t); now != revision || revision == 0 {
			t.Errorf("revision %d, then %d without a change", revision, now)
		}
		if found, _, err := c.DiscoverInstances(ctx, "demo", "web", map[string]string{"N": "7"}); err != nil || len(found) != 1 || found[0].ID != "i-007" {
			t.Errorf("query: %v, %v; want i-007", found, err)
		}
		if err := c.DeregisterInstance(ctx, s.ID, "i-007"); err != nil {
			t.Error(err)
		}
		if err := c.DeregisterInstance(ctx, s.ID, "i-007"); err != nil {
			t.Errorf("an instance that does not exist: %v", err)
		}
		if n := len(must(c.ListInstances(ctx, s))(t)); n != len(instances)-1 {
			t.Errorf("%d instances are left, want %d", n, len(instances)-1)
		}
	})
}

// A name of a namespace that was used before has another name for DiscoverInstances.
func TestHTTPName(t *testing.T) {
	properties := func(name *string) *types.NamespaceProperties {
		return &types.NamespaceProperties{HttpProperties: &types.HttpProperties{HttpName: name}}
	}
	for name, tt := range map[string]struct {
		properties *types.NamespaceProperties
		want       string
	}{
		"no properties":      {nil, "demo"},
		"no HTTP properties": {&types.NamespaceProperties{}, "demo"},
		"no HTTP name":       {properties(nil), "demo"},
		"HTTP name":          {properties(aws.String("demo_x1")), "demo_x1"},
	} {
		if got := httpName(aws.String("demo"), tt.properties); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A namespace of the user with DNS, and a service with health checks: records and instances in them
// need no DNS and are always visible.
func TestClient_UsesNamespaceWithDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := t.Context(), startCloud(t).client(t, ownerAccount, "")
		out := must(c.sdk.CreatePrivateDnsNamespace(ctx, &servicediscovery.CreatePrivateDnsNamespaceInput{Name: aws.String("demo"), Vpc: aws.String("vpc-12345678")}))(t)
		targets := must(c.AwaitOperation(ctx, aws.ToString(out.OperationId)))(t)
		in := must(c.ListNamespaces(ctx))(t)["demo"]
		if in.ID != targets["NAMESPACE"] || in.Type != types.NamespaceTypeDnsPrivate {
			t.Fatalf("namespace %+v, want %v with private DNS", in, targets)
		}
		s := must(c.CreateService(ctx, in, "web", ours, PartView))(t)
		described := must(c.sdk.GetService(ctx, &servicediscovery.GetServiceInput{Id: aws.String(s.ID)}))(t)
		if described.Service.Type != types.ServiceTypeHttp {
			t.Errorf("service of type %s, want HTTP", described.Service.Type)
		}
		checked := must(c.sdk.CreateService(ctx, &servicediscovery.CreateServiceInput{
			Name: aws.String("checked"), NamespaceId: aws.String(in.ID), Type: types.ServiceTypeOptionHttp, HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
		}))(t)
		for id, health := range map[string]string{"a": "UNHEALTHY", "b": "HEALTHY"} {
			must(c.RegisterInstance(ctx, aws.ToString(checked.Service.Id), Instance{ID: id, Attributes: map[string]string{"AWS_INIT_HEALTH_STATUS": health}}))(t)
		}
		if found, _, err := c.DiscoverInstances(ctx, "demo", "checked", nil); err != nil || len(found) != 2 {
			t.Errorf("instances %v, %v; want also the unhealthy one", found, err)
		}
	})
}

// requests are the methods of Client that make one request each.
func requests(ctx context.Context, c *Client) map[string]func() error {
	in, s := Namespace{ID: "ns-1", Name: "demo"}, Service{ID: "srv-1", Name: "web"}
	return map[string]func() error{
		"ListNamespaces":      func() error { _, err := c.ListNamespaces(ctx); return err },
		"CreateHttpNamespace": func() error { _, err := c.CreateNamespace(ctx, "demo", ours, PartView); return err },
		"GetNamespace":        func() error { _, err := c.GetNamespace(ctx, "ns-1"); return err },
		"DeleteNamespace":     func() error { return c.DeleteNamespace(ctx, in) },
		"ListServices":        func() error { _, err := c.ListServices(ctx, in); return err },
		"CreateService":       func() error { _, err := c.CreateService(ctx, in, "web", ours, PartView); return err },
		"GetService":          func() error { _, err := c.GetService(ctx, "srv-1"); return err },
		"DeleteService":       func() error { return c.DeleteService(ctx, s) },
		"ListInstances":       func() error { _, err := c.ListInstances(ctx, s); return err },
		"RegisterInstance": func() error {
			_, err := c.RegisterInstance(ctx, "srv-1", Instance{ID: "a", Attributes: map[string]string{"N": "1"}})
			return err
		},
		"CreatePrivateDnsNamespace": func() error {
			_, err := c.CreatePrivateNamespace(ctx, "demo", "vpc-0a1b2c3d", ours, PartView)
			return err
		},
		"UpdateInstanceCustomHealthStatus": func() error { return c.SetHealth(ctx, "srv-1", "a", HealthHealthy) },
		"DeregisterInstance":               func() error { return c.DeregisterInstance(ctx, "srv-1", "a") },
		"DiscoverInstances":                func() error { _, _, err := c.DiscoverInstances(ctx, "demo", "web", nil); return err },
		"DiscoverInstancesRevision":        func() error { _, err := c.InstancesRevision(ctx, "demo", "web"); return err },
		"GetOperation":                     func() error { _, err := c.AwaitOperation(ctx, "op"); return err },
		"ListTagsForResource":              func() error { _, err := c.IsCreatedBy(ctx, "arn:aws:x", ours); return err },
	}
}

func TestClient_ReturnsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := startCloud(t)
		all := requests(t.Context(), cloud.client(t, ownerAccount, ""))
		if len(all) != len(DefaultRates()) {
			t.Errorf("%d requests, want one for each of %d rates", len(all), len(DefaultRates()))
		}
		for operation, request := range all {
			for _, tt := range []struct {
				code, text string
				is         func(error) bool
			}{
				{"AccessDeniedException", "allows servicediscovery:" + operation, IsDenied},
				{"InternalFailure", "InternalFailure: no", IsRetryable},
				{"Throttling", "retrying at a lower rate", IsThrottled},
				{"InvalidInput", "InvalidInput: no", IsInvalid},
			} {
				cloud.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: tt.code, Message: "no"})
				if err := request(); err == nil || !tt.is(err) || !strings.Contains(err.Error(), "AWS Cloud Map "+operation+": ") || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("%s, %s: error %v", operation, tt.code, err)
				}
			}
			cloud.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultHang})
			// for the rate limit: ListNamespaces is made again without its filter if AWS refuses it
			time.Sleep(time.Minute)
			began := time.Now()
			if err := request(); err == nil || !strings.Contains(err.Error(), "no answer within 10s") || time.Since(began) != RequestTimeout {
				t.Errorf("%s without an answer: error %v after %v", operation, err, time.Since(began))
			}
		}
	})
}

// Only resources with the tags of this clusterset are deleted, and namespaces only by the cluster
// that created them.
func TestClient_ReadsTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := t.Context(), startCloud(t).client(t, ownerAccount, "")
		in := must(c.CreateNamespace(ctx, "demo", ours, PartView))(t)
		for i, tt := range []struct {
			name            string
			tags            []types.Tag
			managed, isOurs bool
		}{
			{"this cluster", Tags(ours, PartView), true, true},
			{"another cluster", Tags(theirs, PartView), true, false},
			{"another clusterset", Tags(mcs.Identity{ClusterID: "cls1", ClusterSetID: "set2"}, PartView), false, false},
			{"another program", slices.DeleteFunc(Tags(ours, PartView), func(tag types.Tag) bool { return *tag.Key == tagManagedBy }), false, false},
			{"a user", nil, false, false},
		} {
			created := must(c.sdk.CreateService(ctx, &servicediscovery.CreateServiceInput{Name: aws.String(fmt.Sprint("web-", i)), NamespaceId: aws.String(in.ID), Tags: tt.tags}))(t)
			s := Service{ID: *created.Service.Id, ARN: *created.Service.Arn, Name: *created.Service.Name}
			if got := must(c.IsCreatedBy(ctx, s.ARN, ours))(t); got != tt.isOurs {
				t.Errorf("%s: created by this cluster: %t", tt.name, got)
			}
			if gone := must(NewDeletions(c, ours).Service(ctx, in, s))(t); gone != tt.managed {
				t.Errorf("%s: deleted: %t", tt.name, gone)
			}
			if _, found := must(c.ListServices(ctx, in))(t)[s.Name]; found == tt.managed {
				t.Errorf("%s: the service is there: %t", tt.name, found)
			}
			if tt.managed {
				if isOurs, err := c.IsCreatedBy(ctx, s.ARN, ours); err != nil || isOurs {
					t.Errorf("%s: a service that does not exist is created by this cluster: %t, %v", tt.name, isOurs, err)
				}
				if gone, err := NewDeletions(c, ours).Service(ctx, in, s); err != nil || !gone {
					t.Errorf("%s: a service that does not exist is gone: %t, %v", tt.name, gone, err)
				}
			}
		}
	})
}

// A deletion waits until AWS has processed the removal of the instances, and reports resources that
// others use or protect.
func TestDeletions(t *testing.T) {
	inUse, denied, broken := cloudmaplocal.FaultRule{Code: "ResourceInUse"}, cloudmaplocal.FaultRule{Code: "AccessDeniedException"}, cloudmaplocal.FaultRule{Code: "InternalFailure"}
	invalid := cloudmaplocal.FaultRule{Code: "InvalidInput"}
	for name, tt := range map[string]struct {
		fault       cloudmaplocal.FaultRule
		next        int
		wait        time.Duration // then it is tried again
		gone, again bool
		reason      string
		isProtected bool
	}{
		"in use at first":         {fault: inUse, next: 5, gone: true},
		"in use":                  {fault: inUse, again: true},
		"in use for a minute":     {fault: inUse, next: 7, wait: time.Minute, gone: true},
		"in use for two minutes":  {fault: inUse, wait: InUsePatience, reason: "ResourceInUse"},
		"denied":                  {fault: denied, reason: "AccessDenied", isProtected: true},
		"invalid at first":        {fault: invalid, again: true},
		"invalid for two minutes": {fault: invalid, wait: InUsePatience, reason: "InvalidInput"},
		"broken":                  {fault: broken, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cloud := startCloud(t)
				ctx, c := t.Context(), cloud.client(t, ownerAccount, "")
				in := must(c.CreateNamespace(ctx, "demo", ours, PartView))(t)
				tt.fault.Kind, tt.fault.Next, tt.fault.Operations = cloudmaplocal.FaultError, tt.next, []string{"DeleteNamespace"}
				cloud.fail(t, tt.fault)
				deletions := NewDeletions(c, ours)
				gone, err := deletions.Namespace(ctx, in)
				if tt.wait > 0 {
					if gone || err == nil {
						t.Errorf("at first: gone: %t, error %v", gone, err)
					}
					time.Sleep(tt.wait)
					gone, err = deletions.Namespace(ctx, in)
				}
				if gone != tt.gone || (err != nil) != tt.again {
					t.Errorf("gone: %t, error %v", gone, err)
				}
				if _, found := must(c.ListNamespaces(ctx))(t)["demo"]; found == tt.gone {
					t.Errorf("the namespace is there: %t", found)
				}
				left := deletions.Left()
				if tt.reason == "" {
					if len(left) > 0 {
						t.Errorf("left: %+v", left)
					}
					return
				}
				want := "aws servicediscovery delete-namespace --region us-east-1 --id " + in.ID
				if len(left) != 1 || left[0].Resource != "namespace demo" || left[0].Command != want || left[0].IsProtected != tt.isProtected || !strings.Contains(left[0].Reason, tt.reason) {
					t.Errorf("left: %+v, want the reason %s and the command %s", left, tt.reason, want)
				}
			})
		})
	}
}

// With policies by tags, IAM denies access to what another cluster has deleted meanwhile.
func TestDeletions_OfAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := startCloud(t)
		ctx, c := t.Context(), cloud.client(t, ownerAccount, "")
		in := must(c.CreateNamespace(ctx, "demo", ours, PartView))(t)
		rule := cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{"DeleteNamespace"}, Code: "ResourceInUse"}
		cloud.fail(t, rule)
		go func() {
			time.Sleep(50 * time.Millisecond) // until the second attempt, after 100 ms
			cloud.fail(t)
			if err := cloud.client(t, ownerAccount, "").DeleteNamespace(ctx, in); err != nil {
				t.Error(err)
			}
			rule.Code = "AccessDeniedException"
			cloud.fail(t, rule)
		}()
		deletions := NewDeletions(c, ours)
		if gone, err := deletions.Namespace(ctx, in); !gone || err != nil || len(deletions.Left()) > 0 {
			t.Errorf("gone: %t, error %v, left %+v", gone, err, deletions.Left())
		}
	})
}

// A deletion that AWS accepts and that fails later is not a success.
func TestDeletions_FollowsOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := startCloud(t)
		ctx, c := t.Context(), cloud.client(t, ownerAccount, "")
		in := must(c.CreateNamespace(ctx, "demo", ours, PartView))(t)
		cloud.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultFail, Operations: []string{"DeleteNamespace"}, Code: "ACCESS_DENIED"})
		deletions := NewDeletions(c, ours)
		gone, err := deletions.Namespace(ctx, in)
		left := deletions.Left()
		if gone || err != nil || len(left) != 1 || !left[0].IsProtected || !strings.Contains(left[0].Reason, "route53:DeleteHostedZone") {
			t.Errorf("gone %t, error %v, left %+v; want what stays, with the right that is missing", gone, err, left)
		}
	})
}

// Two clusters create a namespace at once: both get it, without an error.
func TestClient_CreateNamespaceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := cloudmaplocal.New(cloudmaplocal.Options{
			Unthrottled: true, Now: time.Now, Account: ownerAccount, AccessKeys: []cloudmaplocal.AccessKey{{ID: ownerAccount}},
			Behaviors: cloudmaplocal.Behaviors{OperationDelay: cloudmaplocal.Duration(2 * time.Second)},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cloud := t.Context(), cloud{server}
		type result struct {
			in  Namespace
			err error
		}
		results := make(chan result, 2)
		for _, identity := range []mcs.Identity{ours, theirs} {
			c := cloud.client(t, ownerAccount, "")
			go func() {
				in, err := c.CreateNamespace(ctx, "demo", identity, PartView)
				results <- result{in, err}
			}()
		}
		one, other := <-results, <-results
		if one.err != nil || other.err != nil || one.in.ID == "" || one.in.ID != other.in.ID {
			t.Errorf("%+v and %+v, want one namespace and no error", one, other)
		}
	})
}

// Another account shares its namespace: requests name the ARN and the owner, and the share may not
// allow tags.
func TestClient_UsesSharedNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := startCloud(t)
		ctx, owner, c := t.Context(), cloud.client(t, ownerAccount, ""), cloud.client(t, otherAccount, ownerAccount)
		if !c.UsesSharedNamespace() || c.InOwnAccount().UsesSharedNamespace() || owner.UsesSharedNamespace() {
			t.Error("the clients do not know whether the namespace is shared")
		}
		if _, err := c.CreateNamespace(ctx, "shared", ours, PartControl); err == nil || !strings.Contains(err.Error(), "account "+ownerAccount+" shares no namespace shared") {
			t.Errorf("creating the namespace in the other account: error %v", err)
		}
		must(owner.CreateNamespace(ctx, "shared", theirs, PartControl))(t)
		must(owner.CreateNamespace(ctx, "private", theirs, PartControl))(t)
		own := must(c.InOwnAccount().CreateNamespace(ctx, "shared", ours, PartView))(t)
		found := must(c.ListNamespaces(ctx))(t)
		in := found["shared"]
		if len(found) != 1 || in.Owner != ownerAccount || in.ID != in.ARN {
			t.Fatalf("namespaces %v, want the shared one with its ARN", found)
		}
		if diff := cmp.Diff(map[string]Namespace{"shared": own}, must(c.InOwnAccount().ListNamespaces(ctx))(t)); diff != "" || own.ID == own.ARN {
			t.Errorf("namespaces of the own account (-want +got):\n%s", diff)
		}

		s := must(c.CreateService(ctx, in, "members", ours, PartMembers))(t)
		if s.ID != s.ARN || len(must(owner.tagsOf(ctx, s.ARN))(t)) > 0 {
			t.Errorf("service %+v, want one with its ARN and without tags", s)
		}
		ofOwner := must(owner.CreateService(ctx, found["shared"], "of-owner", theirs, PartMembers))(t)
		ofOwner.ID = ofOwner.ARN
		deletions := NewDeletions(c, ours)
		if gone, err := deletions.Service(ctx, in, ofOwner); gone || err != nil || len(deletions.Left()) != 1 || !deletions.Left()[0].IsProtected {
			t.Errorf("a service of the owner: gone %t, error %v, left %+v", gone, err, deletions.Left())
		}
		if gone, err := deletions.Namespace(ctx, in); gone || err != nil {
			t.Errorf("the namespace of the owner: gone %t, error %v", gone, err)
		}
		operation := must(c.RegisterInstance(ctx, s.ID, Instance{ID: "a", Attributes: map[string]string{"N": "1"}}))(t)
		must(c.AwaitOperation(ctx, operation))(t)
		if found, _, err := c.DiscoverInstances(ctx, "shared", "members", nil); err != nil || len(found) != 1 {
			t.Errorf("instances %v, %v", found, err)
		}
		if revision, err := c.InstancesRevision(ctx, "shared", "members"); err != nil || revision == 0 {
			t.Errorf("revision %d, %v", revision, err)
		}
		cloud.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{"CreateService"}, Code: "AccessDeniedException"})
		for account, c := range map[string]*Client{"the other account": c, "the owner": owner} {
			if _, err := c.CreateService(ctx, in, "denied", ours, PartMembers); !IsDenied(err) {
				t.Errorf("creating a service in %s is denied: error %v", account, err)
			}
		}
	})
}

// AWS accepts a request, and the operation fails later.
func TestClient_ReturnsFailureOfOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := startCloud(t)
		ctx, c := t.Context(), cloud.client(t, ownerAccount, "")
		in := must(c.CreateNamespace(ctx, "demo", ours, PartView))(t)
		s := must(c.CreateService(ctx, in, "web", ours, PartView))(t)
		cloud.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultFail, Code: "ACCESS_DENIED", Message: "no"})
		operation := must(c.RegisterInstance(ctx, s.ID, Instance{ID: "a", Attributes: map[string]string{"N": "1"}}))(t)
		var failed *OperationError
		if _, done, err := c.GetOperation(ctx, operation); !done || !errors.As(err, &failed) || failed.Code != "ACCESS_DENIED" || failed.Message != "no" {
			t.Errorf("done: %t, error %v; want the failure", done, err)
		}
		if _, err := c.CreateNamespace(ctx, "other", ours, PartView); !errors.As(err, &failed) || !strings.HasPrefix(err.Error(), "creating namespace other: ") {
			t.Errorf("creating a namespace: error %v, want the failure", err)
		}
		cloud.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultLost})
		operation = must(c.RegisterInstance(ctx, s.ID, Instance{ID: "b", Attributes: map[string]string{"N": "1"}}))(t)
		began := time.Now()
		if _, err := c.AwaitOperation(ctx, operation); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != operationTimeout {
			t.Errorf("an operation that never ends: error %v after %v", err, time.Since(began))
		}
	})
}

func TestRetryThrottled(t *testing.T) {
	throttled, other := &types.RequestLimitExceeded{}, errors.New("broken")
	for name, tt := range map[string]struct {
		errs []error // of the attempts; the last one repeats
		want error
		made int
	}{
		"at once":                             {[]error{nil}, nil, 1},
		"throttled once":                      {[]error{throttled, nil}, nil, 2},
		"always throttled":                    {[]error{throttled}, throttled, maxAttempts},
		"another error":                       {[]error{throttled, other}, other, 2},
		"a duplicate of an unknown operation": {[]error{&types.DuplicateRequest{DuplicateOperationId: aws.String("none")}, nil}, nil, 2},
		"a duplicate without operation":       {[]error{&types.DuplicateRequest{}}, &types.DuplicateRequest{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made, c := 0, startCloud(t).client(t, ownerAccount, "")
				err := c.RetryThrottled(t.Context(), func() error {
					made++
					return tt.errs[min(made, len(tt.errs))-1]
				})
				if fmt.Sprint(err) != fmt.Sprint(tt.want) || made != tt.made {
					t.Errorf("error %v after %d attempts, want %v after %d", err, made, tt.want, tt.made)
				}
			})
		})
	}
}

// A throttled request has not succeeded if the context ends before the next attempt.
func TestRetryThrottled_ReturnsErrorWhenContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t).client(t, ownerAccount, "")
		ctx, cancel := context.WithCancel(t.Context())
		made := 0
		err := c.RetryThrottled(ctx, func() error {
			made++
			cancel()
			return &types.RequestLimitExceeded{}
		})
		if !IsThrottled(err) || made != 1 {
			t.Errorf("error %v after %d attempts, want that of the only one", err, made)
		}
	})
}

// A write waits for another write of the same instance that is in progress, whether it succeeds or
// fails.
func TestRetryThrottled_AwaitsOtherWrite(t *testing.T) {
	for _, kind := range []cloudmaplocal.FaultKind{cloudmaplocal.FaultFail, cloudmaplocal.FaultLost} {
		synctest.Test(t, func(t *testing.T) {
			cloud := startCloud(t)
			ctx, c := t.Context(), cloud.client(t, ownerAccount, "")
			in := must(c.CreateNamespace(ctx, "demo", ours, PartView))(t)
			s := must(c.CreateService(ctx, in, "web", ours, PartView))(t)
			const delay = 30 * time.Second
			cloud.fail(t, cloudmaplocal.FaultRule{Kind: kind, Delay: map[cloudmaplocal.FaultKind]cloudmaplocal.Duration{cloudmaplocal.FaultFail: cloudmaplocal.Duration(delay)}[kind]})
			operation := must(c.RegisterInstance(ctx, s.ID, Instance{ID: "a", Attributes: map[string]string{"N": "1"}}))(t)
			cloud.fail(t)
			made, began := 0, time.Now()
			err := c.RetryThrottled(ctx, func() error {
				if made++; made > 1 {
					return nil
				}
				return &types.DuplicateRequest{DuplicateOperationId: aws.String(operation)}
			})
			if kind == cloudmaplocal.FaultFail && (err != nil || time.Since(began) < delay) {
				t.Errorf("error %v after %v, want success after the other write has failed", err, time.Since(began))
			}
			if kind == cloudmaplocal.FaultLost && (!errors.Is(err, context.DeadlineExceeded) || made > 1) {
				t.Errorf("error %v after %d attempts, want none while the other write goes on", err, made)
			}
		})
	}
}

// bodyRecorder records the bodies of requests, and answers none.
type bodyRecorder struct{ bodies []io.ReadCloser }

func (r *bodyRecorder) Do(request *http.Request) (*http.Response, error) {
	r.bodies = append(r.bodies, request.Body)
	return nil, errors.New("not sent")
}

// writerTo is a body with the method that net/http must not see.
type writerTo struct{ io.Reader }

func (writerTo) Close() error                     { return nil }
func (writerTo) WriteTo(io.Writer) (int64, error) { return 0, errors.New("closed") }

func TestPlainBodies(t *testing.T) {
	recorder := &bodyRecorder{}
	for _, body := range []io.ReadCloser{writerTo{strings.NewReader("{}")}, http.NoBody, nil} {
		_, _ = plainBodies{recorder}.Do(&http.Request{Body: body})
	}
	if _, found := recorder.bodies[0].(io.WriterTo); found {
		t.Error("net/http sees WriteTo")
	}
	if text, err := io.ReadAll(recorder.bodies[0]); string(text) != "{}" || err != nil {
		t.Errorf("body %q, %v", text, err)
	}
	if recorder.bodies[1] != http.NoBody || recorder.bodies[2] != nil {
		t.Error("requests without a body have one")
	}
}

// An endpoint that is not a URL may contain a password.
func TestCheckEndpoint_HidesInvalidURL(t *testing.T) {
	err := Config{}.checkEndpoint("https://user:secret@cloudmap:port")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v, want one without the password", err)
	}
}

// Each code of AWS has one meaning, also below the error of the SDK's operation.
func TestIsErrorOfOneKind(t *testing.T) {
	kinds := map[string]func(error) bool{"throttled": IsThrottled, "denied": IsDenied, "invalid": IsInvalid, "not found": IsNotFound, "service not found": IsServiceNotFound, "in use": IsInUse, "expected": IsExpected}
	for _, tt := range []struct {
		err  error
		want []string
	}{
		{nil, nil},
		{errors.New("broken"), nil},
		{&types.RequestLimitExceeded{}, []string{"expected", "throttled"}},
		{&smithy.GenericAPIError{Code: "AccessDeniedException"}, []string{"denied"}},
		{&types.InvalidInput{}, []string{"invalid"}},
		{&types.NamespaceNotFound{}, []string{"expected", "not found"}},
		{&types.ServiceNotFound{}, []string{"expected", "not found", "service not found"}},
		{&types.ResourceInUse{}, []string{"in use"}},
	} {
		err := tt.err
		if err != nil {
			err = fmt.Errorf("writing: %w", newRequestError("RegisterInstance", &smithy.OperationError{Err: err}))
		}
		var got []string
		for kind, is := range kinds {
			if is(err) {
				got = append(got, kind)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%v is %q, want %q", err, got, tt.want)
		}
	}
}

// A service with instances that stay is of another cluster with the same ID: it is no leftover, and
// not waited for as one that AWS has still to process.
func TestDeletions_ServiceOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := t.Context(), startCloud(t).client(t, ownerAccount, "")
		in := must(c.CreateNamespace(ctx, "demo", ours, PartView))(t)
		s := must(c.CreateService(ctx, in, "web", ours, PartView))(t)
		must(c.RegisterInstance(ctx, s.ID, Instance{ID: "a", Attributes: map[string]string{"A": "1"}}))(t)
		deletions := NewDeletions(c, ours)
		if gone, err := deletions.Service(ctx, in, s); gone || !IsInUse(err) {
			t.Errorf("at first: gone: %t, error %v, want that it is in use", gone, err)
		}
		time.Sleep(listedPatience)
		if gone, err := deletions.Service(ctx, in, s); gone || err != nil {
			t.Errorf("after %s: gone: %t, error %v", listedPatience, gone, err)
		}
		if left := deletions.Left(); len(left) > 0 {
			t.Errorf("left: %+v", left)
		}
		if err := c.DeregisterInstance(ctx, s.ID, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if gone := must(deletions.Service(ctx, in, s))(t); !gone {
			t.Error("without instances the service stays")
		}
	})
}
