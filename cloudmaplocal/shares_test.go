package cloudmaplocal

import (
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
)

// sharing is a server on which the owner shares the namespace demo and its service svc with the
// consumer. The outsider has no share.
type sharing struct {
	owner, consumer, outsider *testServer
	ns, nsARN, svc, svcARN    string
}

func newSharing(t *testing.T, share Share) sharing {
	t.Helper()
	share.Owner, share.With = ownAccount, []string{otherAccount}
	if share.Namespace == "" {
		share.Namespace = "demo"
	}
	w := newTestServer(t, Options{Behaviors: Behaviors{ShareAllowsTags: true}, Shares: []Share{share}, AccessKeys: []AccessKey{
		{ID: "OWNER", Account: ownAccount}, {ID: "CONSUMER", Account: otherAccount}, {ID: "OUTSIDER", Account: "333333333333"}}})
	as := func(key string) *testServer {
		return &testServer{t: t, server: w.server, clock: w.clock, url: w.url, Client: w.client("us-east-1", key, "s")}
	}
	s := sharing{owner: as("OWNER"), consumer: as("CONSUMER"), outsider: as("OUTSIDER")}
	s.ns = s.owner.namespace("demo")
	s.svc = s.owner.service(s.ns, "svc")
	prefix := "arn:aws:servicediscovery:us-east-1:" + ownAccount + ":"
	s.nsARN, s.svcARN = prefix+"namespace/"+s.ns, prefix+"service/"+s.svc
	return s
}

// TestSharedNamespace checks that a consumer can use everything by ARN and OwnerAccount, and
// nothing without them.
func TestSharedNamespace(t *testing.T) {
	s := newSharing(t, Share{})
	ctx := t.Context()
	got, err := s.consumer.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &s.nsARN})
	assertEqual(t, ownAccount, *must(t, got, err).Namespace.ResourceOwner)
	assertEqual(t, s.nsARN, *got.Namespace.Arn)
	_, err = s.consumer.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &s.ns})
	wantCode(t, err, "NamespaceNotFound")
	_, err = s.outsider.GetNamespace(ctx, &sd.GetNamespaceInput{Id: &s.nsARN})
	wantCode(t, err, "NamespaceNotFound")

	operation := s.consumer.register(s.svcARN, "a", map[string]string{"V": "1"})
	op, err := s.consumer.GetOperation(ctx, &sd.GetOperationInput{OperationId: &operation, OwnerAccount: new(ownAccount)})
	assertEqual(t, types.OperationStatusSuccess, must(t, op, err).Operation.Status)
	assertEqual(t, ownAccount, *op.Operation.OwnerAccount)
	_, err = s.consumer.GetOperation(ctx, &sd.GetOperationInput{OperationId: &operation})
	wantCode(t, err, "OperationNotFound")
	_, err = s.outsider.GetOperation(ctx, &sd.GetOperationInput{OperationId: &operation, OwnerAccount: new(ownAccount)})
	wantCode(t, err, "OperationNotFound")
	s.owner.register(s.svc, "b", map[string]string{})

	found, err := s.consumer.DiscoverInstances(ctx, &sd.DiscoverInstancesInput{
		NamespaceName: new("demo"), ServiceName: new("svc"), OwnerAccount: new(ownAccount)})
	assertEqual(t, 2, len(must(t, found, err).Instances))
	revision, err := s.consumer.DiscoverInstancesRevision(ctx, &sd.DiscoverInstancesRevisionInput{
		NamespaceName: new("demo"), ServiceName: new("svc"), OwnerAccount: new(ownAccount)})
	assertEqual(t, int64(2), *must(t, revision, err).InstancesRevision)
	for _, w := range []*testServer{s.consumer, s.outsider} {
		_, err = w.DiscoverInstances(ctx, &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("svc")})
		wantCode(t, err, "NamespaceNotFound")
	}
	_, err = s.outsider.DiscoverInstances(ctx, &sd.DiscoverInstancesInput{
		NamespaceName: new("demo"), ServiceName: new("svc"), OwnerAccount: new(ownAccount)})
	wantCode(t, err, "NamespaceNotFound")

	listed, err := s.owner.ListInstances(ctx, &sd.ListInstancesInput{ServiceId: &s.svc})
	assertEqual(t, ownAccount, *must(t, listed, err).ResourceOwner)
	assertEqual(t, otherAccount, *listed.Instances[0].CreatedByAccount)
	assertEqual(t, ownAccount, *listed.Instances[1].CreatedByAccount)
	one, err := s.consumer.GetInstance(ctx, &sd.GetInstanceInput{ServiceId: &s.svcARN, InstanceId: new("a")})
	assertEqual(t, otherAccount, *must(t, one, err).Instance.CreatedByAccount)
	assertEqual(t, ownAccount, *one.ResourceOwner)
	s.consumer.deregister(s.svcARN, "a")
	s.consumer.deregister(s.svcARN, "b")
}

// TestSharedServices checks services that a consumer creates in another account's namespace.
func TestSharedServices(t *testing.T) {
	s := newSharing(t, Share{})
	ctx := t.Context()
	created, err := s.consumer.CreateService(ctx, &sd.CreateServiceInput{NamespaceId: &s.nsARN, Name: new("theirs")})
	theirs := must(t, created, err).Service
	assertEqual(t, otherAccount, *theirs.CreatedByAccount)
	assertEqual(t, ownAccount, *theirs.ResourceOwner)
	if !strings.HasPrefix(*theirs.Arn, "arn:aws:servicediscovery:us-east-1:"+ownAccount+":service/") {
		t.Errorf("ARN %s", *theirs.Arn)
	}
	_, err = s.consumer.CreateService(ctx, &sd.CreateServiceInput{NamespaceId: &s.nsARN, Name: new("svc")})
	wantCode(t, err, "ServiceAlreadyExists")
	_, err = s.consumer.TagResource(ctx, &sd.TagResourceInput{ResourceARN: theirs.Arn, Tags: []types.Tag{{Key: new("a"), Value: new("b")}}})
	must(t, 0, err)
	_, err = s.consumer.UpdateServiceAttributes(ctx, &sd.UpdateServiceAttributesInput{ServiceId: theirs.Arn, Attributes: map[string]string{"k": "v"}})
	must(t, 0, err)
	_, err = s.consumer.DeleteService(ctx, &sd.DeleteServiceInput{Id: theirs.Arn})
	must(t, 0, err)

	for name, err := range map[string]error{
		"delete":     errorOf(s.consumer.DeleteService(ctx, &sd.DeleteServiceInput{Id: &s.svcARN})),
		"tag":        errorOf(s.consumer.TagResource(ctx, &sd.TagResourceInput{ResourceARN: &s.svcARN, Tags: []types.Tag{}})),
		"attributes": errorOf(s.consumer.UpdateServiceAttributes(ctx, &sd.UpdateServiceAttributesInput{ServiceId: &s.svcARN, Attributes: map[string]string{}})),
		"namespace":  errorOf(s.consumer.DeleteNamespace(ctx, &sd.DeleteNamespaceInput{Id: &s.nsARN})),
		"update": errorOf(s.consumer.UpdateHttpNamespace(ctx, &sd.UpdateHttpNamespaceInput{
			Id: &s.nsARN, Namespace: &types.HttpNamespaceChange{Description: new("x")}})),
		"tag namespace": errorOf(s.consumer.TagResource(ctx, &sd.TagResourceInput{ResourceARN: &s.nsARN, Tags: []types.Tag{}})),
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, err, "AccessDeniedException") })
	}
}

func TestSharedServicesOnlyOwn(t *testing.T) {
	s := newSharing(t, Share{OwnServicesOnly: true})
	wantCode(t, s.consumer.tryRegister(t.Context(), s.svcARN, "a"), "AccessDeniedException")
	created, err := s.consumer.CreateService(t.Context(), &sd.CreateServiceInput{NamespaceId: &s.nsARN, Name: new("theirs")})
	if err := s.consumer.tryRegister(t.Context(), *must(t, created, err).Service.Arn, "a"); err != nil {
		t.Error(err)
	}
}

func TestSharedLists(t *testing.T) {
	s := newSharing(t, Share{})
	own := s.consumer.namespace("own")
	s.consumer.service(own, "mine")
	s.owner.namespace("secret")
	namespaces := func(w *testServer, owner string) (names []string) {
		in := &sd.ListNamespacesInput{}
		if owner != "" {
			in.Filters = []types.NamespaceFilter{{Name: types.NamespaceFilterNameResourceOwner, Values: []string{owner}}}
		}
		out, err := w.ListNamespaces(t.Context(), in)
		found := map[string]bool{}
		for _, ns := range must(t, out, err).Namespaces {
			found[*ns.Name+" of "+*ns.ResourceOwner] = true
		}
		return sortedKeys(found)
	}
	mine, shared := "own of "+otherAccount, "demo of "+ownAccount
	assertEqual(t, []string{shared, mine}, namespaces(s.consumer, ""))
	assertEqual(t, []string{mine}, namespaces(s.consumer, "SELF"))
	assertEqual(t, []string{shared}, namespaces(s.consumer, "OTHER_ACCOUNTS"))
	assertEqual(t, []string{shared, "secret of " + ownAccount}, namespaces(s.owner, ""))
	assertEqual(t, 0, len(namespaces(s.outsider, "")))

	services := func(filters ...types.ServiceFilter) (names []string) {
		out, err := s.consumer.ListServices(t.Context(), &sd.ListServicesInput{Filters: filters})
		found := map[string]bool{}
		for _, svc := range must(t, out, err).Services {
			found[*svc.Name+" of "+*svc.ResourceOwner] = true
		}
		return sortedKeys(found)
	}
	caller := func(name types.ServiceFilterName, value string) types.ServiceFilter {
		return types.ServiceFilter{Name: name, Values: []string{value}}
	}
	mine, shared = "mine of "+otherAccount, "svc of "+ownAccount
	assertEqual(t, []string{mine, shared}, services())
	assertEqual(t, []string{shared}, services(caller(types.ServiceFilterNameNamespaceId, s.nsARN)))
	assertEqual(t, 0, len(services(caller(types.ServiceFilterNameNamespaceId, s.ns))))
	assertEqual(t, []string{mine}, services(caller(types.ServiceFilterNameNamespaceId, own)))
	assertEqual(t, []string{mine}, services(caller("RESOURCE_OWNER", "SELF")))
	assertEqual(t, []string{shared}, services(caller("RESOURCE_OWNER", "OTHER_ACCOUNTS")))
}

// TestUpdateOfSharedService is refused while others have instances in the service.
func TestUpdateOfSharedService(t *testing.T) {
	s := newSharing(t, Share{Namespace: "dns.test"})
	created, err := s.owner.CreatePrivateDnsNamespace(t.Context(), &sd.CreatePrivateDnsNamespaceInput{Name: new("dns.test"), Vpc: new("vpc-1")})
	ns := s.owner.operation(must(t, created, err).OperationId).Targets["NAMESPACE"]
	service, err := s.owner.CreateService(t.Context(), &sd.CreateServiceInput{NamespaceId: &ns, Name: new("db"), Type: types.ServiceTypeOptionHttp})
	svc := must(t, service, err).Service
	update := func() error {
		_, err := s.owner.UpdateService(t.Context(), &sd.UpdateServiceInput{Id: svc.Id, Service: &types.ServiceChange{Description: new("x")}})
		return err
	}
	must(t, 0, update())
	s.consumer.register(*svc.Arn, "a", map[string]string{})
	wantCode(t, update(), "InvalidInput")
	s.consumer.deregister(*svc.Arn, "a")
	must(t, 0, update())
}

// TestSharedQuotas: a consumer's requests use up the consumer's own buckets.
func TestSharedQuotas(t *testing.T) {
	w := newTestServer(t, Options{
		Limits: map[string]Limit{"GetNamespace": {PerSecond: 1, Burst: 1}},
		Shares: []Share{{Owner: ownAccount, Namespace: "demo", With: []string{otherAccount}}},
		AccessKeys: []AccessKey{
			{ID: "OWNER", Account: ownAccount}, {ID: "CONSUMER", Account: otherAccount}},
	})
	owner := &testServer{t: t, Client: w.client("us-east-1", "OWNER", "s")}
	ns := owner.namespace("demo")
	get := func(key, id string) error {
		_, err := w.client("us-east-1", key, "s").GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &id})
		return err
	}
	arn := "arn:aws:servicediscovery:us-east-1:" + ownAccount + ":namespace/" + ns
	must(t, 0, get("CONSUMER", arn))
	wantCode(t, get("CONSUMER", arn), "ThrottlingException")
	must(t, 0, get("OWNER", ns))
}

func TestUnshareAndEndpoint(t *testing.T) {
	s := newSharing(t, Share{})
	put := func(body string) { // through the endpoint
		t.Helper()
		if status, answer := s.owner.send(http.MethodPut, "/shares", body); status != http.StatusNoContent {
			t.Fatalf("%d %s", status, answer)
		}
	}
	put("[]")
	_, err := s.consumer.GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &s.nsARN})
	wantCode(t, err, "NamespaceNotFound")
	put(`[{"owner": "111111111111", "namespace": "` + s.ns + `", "region": "us-east-1", "with": ["333333333333"]}]`)
	_, err = s.outsider.GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &s.nsARN})
	must(t, 0, err)
	put("- {owner: '111111111111', namespace: demo, region: eu-central-1, with: ['333333333333']}")
	_, err = s.outsider.GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &s.nsARN})
	wantCode(t, err, "NamespaceNotFound")
	// The consumer of a share cannot share it again.
	put("- {owner: '111111111111', namespace: demo, with: ['222222222222']}\n- {owner: '222222222222', namespace: demo, with: ['333333333333']}")
	_, err = s.outsider.GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &s.nsARN})
	wantCode(t, err, "NamespaceNotFound")
	if status, body := s.owner.get("/shares"); status != http.StatusOK || strings.Count(body, `"namespace": "demo"`) != 2 {
		t.Errorf("%d %s", status, body)
	}
}

func TestRefusedShares(t *testing.T) {
	w := newTestServer(t, Options{})
	for body, want := range map[string]string{
		`[{"with":["111111111111"]}]`:                                                       "share 1: namespace",
		`[{"namespace":"a"}]`:                                                               "with: required",
		`[{"namespace":"a","with":["1"]}]`:                                                  "12 digits",
		`[{"namespace":"a","owner":"1","with":["111111111111"]}]`:                           "owner",
		`[{"namespace":"a","owner":"111111111111","with":["111111111111"]}]`:                "has it already",
		`[{"namespace":"a","region":"US","with":["111111111111"]}]`:                         "region",
		`[{"namespace":"a","with":["111111111111"],"for":"ever"}]`:                          "for",
		`[{"namespace":"a","with":["111111111111"]},{"namespace":"b","with":["22222222"]}]`: "share 2",
	} {
		if status, answer := w.send(http.MethodPut, "/shares", body); status != http.StatusBadRequest || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want 400 and %q", body, status, answer, want)
		}
	}
}

// TestSharedStateSurvivesRestart: the state file has the creators, but not the shares.
func TestSharedStateSurvivesRestart(t *testing.T) {
	path := t.TempDir() + "/state.json"
	opts := Options{StateFile: path, Shares: []Share{{Owner: ownAccount, Namespace: "demo", With: []string{otherAccount}}},
		AccessKeys: []AccessKey{{ID: "OWNER", Account: ownAccount}, {ID: "CONSUMER", Account: otherAccount}}}
	before := newTestServer(t, opts)
	owner := &testServer{t: t, Client: before.client("us-east-1", "OWNER", "s")}
	ns := owner.namespace("demo")
	consumer := &testServer{t: t, Client: before.client("us-east-1", "CONSUMER", "s")}
	created, err := consumer.CreateService(t.Context(), &sd.CreateServiceInput{
		NamespaceId: aws.String("arn:aws:servicediscovery:us-east-1:" + ownAccount + ":namespace/" + ns), Name: new("svc")})
	arn := must(t, created, err).Service.Arn
	consumer.register(*arn, "a", map[string]string{})
	must(t, 0, before.server.saver.save())

	after := newTestServer(t, opts)
	got, err := after.client("us-east-1", "CONSUMER", "s").GetInstance(t.Context(), &sd.GetInstanceInput{ServiceId: arn, InstanceId: new("a")})
	assertEqual(t, otherAccount, *must(t, got, err).Instance.CreatedByAccount)
	_, err = after.client("us-east-1", "CONSUMER", "s").DeregisterInstance(t.Context(), &sd.DeregisterInstanceInput{ServiceId: arn, InstanceId: new("a")})
	must(t, 0, err)
	_, err = after.client("us-east-1", "CONSUMER", "s").DeleteService(t.Context(), &sd.DeleteServiceInput{Id: arn})
	must(t, 0, err)
}
