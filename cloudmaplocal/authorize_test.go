package cloudmaplocal

import (
	"encoding/json"
	"strings"
	"testing"

	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
)

// policy reads a document of statements.
func policy(t testing.TB, statements ...string) iampolicy.Policy {
	t.Helper()
	var p iampolicy.Policy
	if err := json.Unmarshal([]byte(`{"Version":"2012-10-17","Statement":[`+strings.Join(statements, ",")+`]}`), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPermissionsAreComplete compares the tables of permissions and of quotas with the operations.
func TestPermissionsAreComplete(t *testing.T) {
	assertEqual(t, sortedKeys(handlers), sortedKeys(permissions))
	assertEqual(t, sortedKeys(handlers), operationNames())
}

// newRestrictedServer starts a server that has a service svc with the tag team=a, and returns a
// client that may do only what the statements allow.
func newRestrictedServer(t *testing.T, statements ...string) (w *testServer, restricted *testServer, ns, svc string) {
	t.Helper()
	w = newTestServer(t, Options{AccessKeys: []AccessKey{
		{ID: "ADMIN"}, {ID: "LIMITED", User: "cls1", Policies: []iampolicy.Policy{policy(t, statements...)}}}})
	w.Client = w.client("us-east-1", "ADMIN", "s")
	ns = w.namespace("demo")
	created, err := w.CreateService(t.Context(), &sd.CreateServiceInput{
		NamespaceId: &ns, Name: new("svc"), Tags: []types.Tag{{Key: new("team"), Value: new("a")}}})
	restricted = &testServer{t: t, server: w.server, url: w.url, Client: w.client("us-east-1", "LIMITED", "s")}
	return w, restricted, ns, *must(t, created, err).Service.Id
}

func allow(actions, condition string) string {
	return `{"Effect":"Allow","Action":[` + actions + `],"Resource":"*","Condition":{` + condition + `}}`
}

// TestEnforcement checks the condition keys of requests: resources, their tags and the keys of each
// action.
func TestEnforcement(t *testing.T) {
	const teamA, teamB = `"StringEquals":{"aws:ResourceTag/team":"a"}`, `"StringEquals":{"aws:ResourceTag/team":"b"}`
	register := func(w *testServer, _, svc string) error { return w.tryRegister(w.t.Context(), svc, "a") }
	discover := func(w *testServer, _, _ string) error {
		_, err := w.DiscoverInstances(w.t.Context(), &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("svc")})
		return err
	}
	create := func(tags ...string) func(w *testServer, ns, svc string) error {
		return func(w *testServer, ns, _ string) error {
			in := &sd.CreateServiceInput{NamespaceId: &ns, Name: new("new")}
			for _, key := range tags {
				in.Tags = append(in.Tags, types.Tag{Key: new(key), Value: new("a")})
			}
			_, err := w.CreateService(w.t.Context(), in)
			return err
		}
	}
	tests := []struct {
		name      string
		statement string
		do        func(w *testServer, ns, svc string) error
		want      bool
	}{
		{"register by tag", allow(`"servicediscovery:RegisterInstance"`, teamA), register, true},
		{"register by another tag", allow(`"servicediscovery:RegisterInstance"`, teamB), register, false},
		{"register by name, which is no key of it", allow(`"servicediscovery:*"`, `"StringEquals":{"servicediscovery:ServiceName":"svc"}`), register, false},
		{"register by creator", allow(`"servicediscovery:*"`, `"StringEquals":{"servicediscovery:ServiceCreatedByAccount":"123456789012"}`), register, true},
		{"register on namespaces", `{"Effect":"Allow","Action":"*","Resource":"arn:aws:servicediscovery:us-east-1:123456789012:namespace/*"}`, register, false},
		{"register on services", `{"Effect":"Allow","Action":"*","Resource":"arn:aws:servicediscovery:us-east-1:123456789012:service/*"}`, register, true},
		{"register in a service that is not there", allow(`"*"`, teamA), func(w *testServer, _, _ string) error { return register(w, "", "srv-x") }, false},
		{"discover by names", allow(`"servicediscovery:Discover*"`, `"StringEquals":{"servicediscovery:NamespaceName":"demo","servicediscovery:ServiceName":"svc"}`), discover, true},
		{"discover by another name", allow(`"servicediscovery:Discover*"`, `"StringLike":{"servicediscovery:NamespaceName":"other*"}`), discover, false},
		{"discover by the tag of the service alone", allow(`"servicediscovery:Discover*"`, teamA), discover, false},
		{"discover on services alone", `{"Effect":"Allow","Action":"*","Resource":"arn:aws:servicediscovery:*:*:service/*"}`, discover, false},
		{"list on all", `{"Effect":"Allow","Action":"servicediscovery:ListServices","Resource":"*"}`, func(w *testServer, _, _ string) error {
			return errorOf(w.ListServices(w.t.Context(), &sd.ListServicesInput{}))
		}, true},
		{"list on services", `{"Effect":"Allow","Action":"servicediscovery:ListServices","Resource":"arn:aws:servicediscovery:*"}`, func(w *testServer, _, _ string) error {
			return errorOf(w.ListServices(w.t.Context(), &sd.ListServicesInput{}))
		}, false},
		{"create without tags", allow(`"servicediscovery:CreateService"`, ``), create(), true},
		{"create with tags but no permission to tag", allow(`"servicediscovery:CreateService"`, ``), create("team"), false},
		{"create with tags", allow(`"servicediscovery:CreateService","servicediscovery:TagResource"`, `"StringEquals":{"aws:RequestTag/team":"a"}`), create("team"), true},
		{"create without the tag", allow(`"servicediscovery:CreateService","servicediscovery:TagResource"`, `"StringEquals":{"aws:RequestTag/team":"a"}`), create(), false},
		{"create with one tag more", allow(`"servicediscovery:*"`, `"ForAllValues:StringEquals":{"aws:TagKeys":["team"]}`), create("team", "x"), false},
		{"create in this namespace", allow(`"servicediscovery:*"`, `"ArnLike":{"servicediscovery:NamespaceArn":"arn:aws:servicediscovery:*:*:namespace/ns-*"}`), create(), true},
		{"create, if the new service may have the tag", allow(`"servicediscovery:*"`, teamA), create("team"), false},
		{"tag, which knows no tags of resources", allow(`"servicediscovery:TagResource"`, teamA), func(w *testServer, _, svc string) error {
			arn := "arn:aws:servicediscovery:us-east-1:123456789012:service/" + svc
			return errorOf(w.TagResource(w.t.Context(), &sd.TagResourceInput{ResourceARN: &arn, Tags: []types.Tag{{Key: new("a"), Value: new("b")}}}))
		}, false},
		{"untag by key", allow(`"servicediscovery:UntagResource"`, `"ForAllValues:StringEquals":{"aws:TagKeys":["x"]}`), func(w *testServer, _, svc string) error {
			arn := "arn:aws:servicediscovery:us-east-1:123456789012:service/" + svc
			return errorOf(w.UntagResource(w.t.Context(), &sd.UntagResourceInput{ResourceARN: &arn, TagKeys: []string{"team"}}))
		}, false},
		{"by who it is", allow(`"*"`, `"ArnLike":{"aws:PrincipalArn":"arn:aws:iam::*:user/cls1"},"StringEquals":{"aws:PrincipalAccount":"123456789012","aws:RequestedRegion":"us-east-1"}`), register, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, w, ns, svc := newRestrictedServer(t, tt.statement)
			err := tt.do(w, ns, svc)
			if tt.want {
				must(t, 0, err)
				return
			}
			wantCode(t, err, "AccessDeniedException")
		})
	}
}

func TestAccessDeniedMessage(t *testing.T) {
	const arn = "arn:aws:servicediscovery:us-east-1:123456789012:service/"
	_, w, _, svc := newRestrictedServer(t, `{"Effect":"Allow","Action":"servicediscovery:Get*","Resource":"*"}`, `{"Effect":"Deny","Action":"*:GetService","Resource":"*"}`)
	start := "User: arn:aws:iam::123456789012:user/cls1 is not authorized to perform: servicediscovery:"
	for _, tt := range []struct {
		err  error
		want string
	}{
		{w.tryRegister(t.Context(), svc, "a"),
			start + "RegisterInstance on resource: " + arn + svc + " because no identity-based policy allows the servicediscovery:RegisterInstance action"},
		{errorOf(w.GetService(t.Context(), &sd.GetServiceInput{Id: &svc})),
			start + "GetService on resource: " + arn + svc + " with an explicit deny in an identity-based policy"},
	} {
		wantStatus(t, tt.err, 400)
		if !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("error = %v, want %s", tt.err, tt.want)
		}
	}
}

// TestPoliciesOfRoles: a session has the permissions of its role, and a user with policies needs
// one to assume it.
func TestPoliciesOfRoles(t *testing.T) {
	for name, may := range map[string]bool{"sts:AssumeRole": true, "sts:GetCallerIdentity": false} {
		opts := twoAccounts(Role{Trust: []string{ownAccount}, Policies: []iampolicy.Policy{policy(t, `{"Effect":"Allow","Action":"servicediscovery:Get*","Resource":"*"}`)}})
		opts.AccessKeys[0].Policies = []iampolicy.Policy{policy(t, `{"Effect":"Allow","Action":"`+name+`","Resource":"arn:aws:iam::222222222222:role/*"}`)}
		w := newTestServer(t, opts)
		c := w.asAssumedRole(assumeRole(w.sts(staticCredentials{"AKIDONE", "one"})))
		_, err := c.GetService(t.Context(), &sd.GetServiceInput{Id: new("srv-x")})
		if !may {
			wantCode(t, err, "AccessDenied")
			continue
		}
		wantCode(t, err, "ServiceNotFound")
		_, err = c.ListServices(t.Context(), &sd.ListServicesInput{})
		wantCode(t, err, "AccessDeniedException")
		if !strings.Contains(err.Error(), "arn:aws:sts::222222222222:assumed-role/registry/") {
			t.Errorf("the error does not name the session: %v", err)
		}
	}
}
