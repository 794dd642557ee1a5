package cloudmaplocal

import (
	"encoding/json"
	"strings"
	"testing"

	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
)

// policy reads a document of statements.
func policy(t testing.TB, statements ...string) Policy {
	t.Helper()
	var p Policy
	if err := json.Unmarshal([]byte(`{"Version":"2012-10-17","Statement":[`+strings.Join(statements, ",")+`]}`), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestJudge(t *testing.T) {
	const (
		register = "servicediscovery:RegisterInstance"
		arn      = "arn:aws:servicediscovery:us-east-1:111111111111:service/srv-1"
		anything = `{"Effect":"Allow","Action":"*","Resource":"*"}`
	)
	statement := func(rest string) string { return `{"Effect":"Allow",` + rest + `}` }
	when := func(condition string) string {
		return statement(`"Action":"*","Resource":"*","Condition":{` + condition + `}`)
	}
	tagged := conditionContext{"aws:resourcetag/cluster": {"cls1"}, "aws:tagkeys": {"a", "b"}, "x:arn": {arn}, "x:bool": {"true"}}
	tests := []struct {
		name       string
		statements []string
		with       conditionContext
		want       verdict
	}{
		{"no statement", nil, nil, notAllowed},
		{"everything", []string{anything}, nil, allowed},
		{"this action", []string{statement(`"Action":"servicediscovery:RegisterInstance","Resource":"*"`)}, nil, allowed},
		{"in another case", []string{statement(`"Action":"ServiceDiscovery:registerinstance","Resource":"*"`)}, nil, allowed},
		{"one of a list", []string{statement(`"Action":["a:b","servicediscovery:Reg*"],"Resource":["x","*"]`)}, nil, allowed},
		{"another action", []string{statement(`"Action":"servicediscovery:Get*","Resource":"*"`)}, nil, notAllowed},
		{"all but this action", []string{statement(`"NotAction":"servicediscovery:Register*","Resource":"*"`)}, nil, notAllowed},
		{"all but another action", []string{statement(`"NotAction":"servicediscovery:Get*","Resource":"*"`)}, nil, allowed},
		{"this resource", []string{statement(`"Action":"*","Resource":"` + arn + `"`)}, nil, allowed},
		{"resources like this", []string{statement(`"Action":"*","Resource":"arn:aws:servicediscovery:*:111111111111:service/*"`)}, nil, allowed},
		{"another kind", []string{statement(`"Action":"*","Resource":"arn:aws:servicediscovery:*:*:namespace/*"`)}, nil, notAllowed},
		{"all but this resource", []string{statement(`"Action":"*","NotResource":"` + arn + `"`)}, nil, notAllowed},
		{"denied after", []string{anything, `{"Effect":"Deny","Action":"servicediscovery:*","Resource":"*"}`}, nil, denied},
		{"denied before", []string{`{"Effect":"Deny","Action":"servicediscovery:*","Resource":"*"}`, anything}, nil, denied},
		{"another is denied", []string{`{"Effect":"Deny","Action":"sts:*","Resource":"*"}`, anything}, nil, allowed},

		{"equal", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"cls1"}`)}, tagged, allowed},
		{"key in another case", []string{when(`"StringEquals":{"AWS:resourceTag/Cluster":["x","cls1"]}`)}, tagged, allowed},
		{"value in another case", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"CLS1"}`)}, tagged, notAllowed},
		{"case ignored", []string{when(`"StringEqualsIgnoreCase":{"aws:ResourceTag/cluster":"CLS1"}`)}, tagged, allowed},
		{"not equal", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"cls2"}`)}, tagged, notAllowed},
		{"key absent", []string{when(`"StringEquals":{"aws:ResourceTag/owner":"cls1"}`)}, tagged, notAllowed},
		{"absent if exists", []string{when(`"StringEqualsIfExists":{"aws:ResourceTag/owner":"cls1"}`)}, tagged, allowed},
		{"different if exists", []string{when(`"StringEqualsIfExists":{"aws:ResourceTag/cluster":"cls2"}`)}, tagged, notAllowed},
		{"wildcard is no wildcard", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"cls*"}`)}, tagged, notAllowed},
		{"like", []string{when(`"StringLike":{"aws:ResourceTag/cluster":"cls?"}`)}, tagged, allowed},
		{"not like", []string{when(`"StringNotLike":{"aws:ResourceTag/cluster":"cls?"}`)}, tagged, notAllowed},
		{"not equals another", []string{when(`"StringNotEquals":{"aws:ResourceTag/cluster":"cls2"}`)}, tagged, allowed},
		{"not equals none of two", []string{when(`"StringNotEquals":{"aws:ResourceTag/cluster":["cls2","cls1"]}`)}, tagged, notAllowed},
		{"not equals absent", []string{when(`"StringNotEquals":{"aws:ResourceTag/owner":"cls1"}`)}, tagged, allowed},
		{"both conditions", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"cls1","aws:ResourceTag/owner":"x"}`)}, tagged, notAllowed},
		{"null", []string{when(`"Null":{"aws:ResourceTag/owner":"true"}`)}, tagged, allowed},
		{"null of what is there", []string{when(`"Null":{"aws:ResourceTag/cluster":true}`)}, tagged, notAllowed},
		{"not null", []string{when(`"Null":{"aws:ResourceTag/cluster":"false"}`)}, tagged, allowed},
		{"all values", []string{when(`"ForAllValues:StringEquals":{"aws:TagKeys":["a","b","c"]}`)}, tagged, allowed},
		{"all but one value", []string{when(`"ForAllValues:StringEquals":{"aws:TagKeys":["a","c"]}`)}, tagged, notAllowed},
		{"all of no values", []string{when(`"ForAllValues:StringEquals":{"aws:TagKeys":"a"}`)}, nil, allowed},
		{"any value", []string{when(`"ForAnyValue:StringEquals":{"aws:TagKeys":["b","c"]}`)}, tagged, allowed},
		{"any of others", []string{when(`"ForAnyValue:StringEquals":{"aws:TagKeys":["c"]}`)}, tagged, notAllowed},
		{"any of no values", []string{when(`"ForAnyValue:StringEquals":{"aws:TagKeys":["b"]}`)}, nil, notAllowed},
		{"ARN", []string{when(`"ArnLike":{"x:arn":"arn:aws:servicediscovery:*:*:service/srv-?"}`)}, tagged, allowed},
		{"ARN of fewer parts", []string{when(`"ArnLike":{"x:arn":"arn:*/srv-1"}`)}, tagged, notAllowed},
		{"ARN of another account", []string{when(`"ArnEquals":{"x:arn":"arn:aws:servicediscovery:*:222222222222:service/*"}`)}, tagged, notAllowed},
		{"bool", []string{when(`"Bool":{"x:bool":true}`)}, tagged, allowed},
		{"bool false", []string{when(`"Bool":{"x:bool":"false"}`)}, tagged, notAllowed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := judge([]Policy{policy(t, tt.statements...)}, register, arn, tt.with); got != tt.want {
				t.Errorf("verdict %d, want %d", got, tt.want)
			}
		})
	}
	if got := judge([]Policy{policy(t, anything), policy(t, `{"Effect":"Deny","Action":"*","Resource":"*"}`)}, register, arn, nil); got != denied {
		t.Errorf("one of two policies denies: verdict %d", got)
	}
}

func TestRefusedPolicies(t *testing.T) {
	for document, want := range map[string]string{
		`{}`: "Version", `[]`: "policy", `{"Version":"2012-10-17"}`: "statement 1",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Permit","Action":"*","Resource":"*"}]}`:                                                   `Effect "Permit" must`,
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Resource":"*"}}`:                                                                   "Action",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*"}}`:                                                                     "Resource",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","NotAction":"*","Resource":"*"}}`:                                      "Action",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"RegisterInstance","Resource":"*"}}`:                                       "RegisterInstance",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":[{}],"Resource":"*"}}`:                                                     "not a string",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"*","Principal":"*"}}`:                                      "Principal",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"*","NotPrincipal":"*"}}`:                                   "Principal",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"*","When":"now"}}`:                                         "When",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"${aws:x}"}}`:                                               "variables",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"StringEquals":{"a:b":"${aws:x}"}}}}`:      "variables",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"NumericEquals":{"a:b":"1"}}}}`:            "NumericEquals",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"ForSomeValues:StringLike":{"a:b":"1"}}}}`: "ForSomeValues",
		`{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"NullIfExists":{"a:b":"1"}}}}`:             "Null",
	} {
		var p Policy
		if err := json.Unmarshal([]byte(document), &p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want one that says %q", document, err, want)
		}
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add(`{"Version":"2012-10-17","Statement":[{"Sid":"a","Effect":"Deny","Action":["a:*"],"NotResource":"x","Condition":{"Null":{"a":"true"}}}]}`)
	f.Add(`{"Version":"2012-10-17","Statement":{"Effect":"Allow","NotAction":"a:b","Resource":"*","Condition":{"ForAllValues:ArnNotLikeIfExists":{"k":["a:b",true,1]}}}}`)
	f.Add(`{"Statement":null}`)
	f.Fuzz(func(t *testing.T, document string) {
		var p Policy
		if json.Unmarshal([]byte(document), &p) != nil {
			return
		}
		got := judge([]Policy{p}, "a:b", "x", conditionContext{"k": {"a:b"}})
		// A policy can only take away from what another allows, or add to it, and its Deny always wins.
		both := judge([]Policy{policy(t, `{"Effect":"Allow","Action":"*","Resource":"*"}`), p}, "a:b", "x", conditionContext{"k": {"a:b"}})
		if got == denied && both != denied || got != denied && both != allowed {
			t.Errorf("alone %d, beside one that allows all %d", got, both)
		}
	})
}

// TestPermissionsAreComplete compares the table with the operations.
func TestPermissionsAreComplete(t *testing.T) {
	same(t, sortedKeys(operations), sortedKeys(permissions))
}

// limited is a world with a service svc with the tag team=a, and a client of a key that has only these statements.
func limited(t *testing.T, statements ...string) (w *world, restricted *world, ns, svc string) {
	t.Helper()
	w = newWorld(t, Options{AccessKeys: []AccessKey{
		{ID: "ADMIN"}, {ID: "LIMITED", User: "cls1", Policies: []Policy{policy(t, statements...)}}}})
	w.Client = w.client("us-east-1", "ADMIN", "s")
	ns = w.namespace("demo")
	created, err := w.CreateService(t.Context(), &sd.CreateServiceInput{
		NamespaceId: &ns, Name: new("svc"), Tags: []types.Tag{{Key: new("team"), Value: new("a")}}})
	restricted = &world{t: t, server: w.server, url: w.url, Client: w.client("us-east-1", "LIMITED", "s")}
	return w, restricted, ns, *must(t, created, err).Service.Id
}

func allow(actions, condition string) string {
	return `{"Effect":"Allow","Action":[` + actions + `],"Resource":"*","Condition":{` + condition + `}}`
}

// TestEnforcement is about what requests offer to conditions: the resources, their tags and the keys of each action.
func TestEnforcement(t *testing.T) {
	const teamA, teamB = `"StringEquals":{"aws:ResourceTag/team":"a"}`, `"StringEquals":{"aws:ResourceTag/team":"b"}`
	register := func(w *world, _, svc string) error { return w.tryRegister(w.t.Context(), svc, "a") }
	discover := func(w *world, _, _ string) error {
		_, err := w.DiscoverInstances(w.t.Context(), &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("svc")})
		return err
	}
	create := func(tags ...string) func(w *world, ns, svc string) error {
		return func(w *world, ns, _ string) error {
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
		do        func(w *world, ns, svc string) error
		want      bool
	}{
		{"register by tag", allow(`"servicediscovery:RegisterInstance"`, teamA), register, true},
		{"register by another tag", allow(`"servicediscovery:RegisterInstance"`, teamB), register, false},
		{"register by name, which is no key of it", allow(`"servicediscovery:*"`, `"StringEquals":{"servicediscovery:ServiceName":"svc"}`), register, false},
		{"register by creator", allow(`"servicediscovery:*"`, `"StringEquals":{"servicediscovery:ServiceCreatedByAccount":"123456789012"}`), register, true},
		{"register on namespaces", `{"Effect":"Allow","Action":"*","Resource":"arn:aws:servicediscovery:us-east-1:123456789012:namespace/*"}`, register, false},
		{"register on services", `{"Effect":"Allow","Action":"*","Resource":"arn:aws:servicediscovery:us-east-1:123456789012:service/*"}`, register, true},
		{"register in a service that is not there", allow(`"*"`, teamA), func(w *world, _, _ string) error { return register(w, "", "srv-x") }, false},
		{"discover by names", allow(`"servicediscovery:Discover*"`, `"StringEquals":{"servicediscovery:NamespaceName":"demo","servicediscovery:ServiceName":"svc"}`), discover, true},
		{"discover by another name", allow(`"servicediscovery:Discover*"`, `"StringLike":{"servicediscovery:NamespaceName":"other*"}`), discover, false},
		{"discover by the tag of the service alone", allow(`"servicediscovery:Discover*"`, teamA), discover, false},
		{"discover on services alone", `{"Effect":"Allow","Action":"*","Resource":"arn:aws:servicediscovery:*:*:service/*"}`, discover, false},
		{"list on all", `{"Effect":"Allow","Action":"servicediscovery:ListServices","Resource":"*"}`, func(w *world, _, _ string) error {
			return second(w.ListServices(w.t.Context(), &sd.ListServicesInput{}))
		}, true},
		{"list on services", `{"Effect":"Allow","Action":"servicediscovery:ListServices","Resource":"arn:aws:servicediscovery:*"}`, func(w *world, _, _ string) error {
			return second(w.ListServices(w.t.Context(), &sd.ListServicesInput{}))
		}, false},
		{"create without tags", allow(`"servicediscovery:CreateService"`, ``), create(), true},
		{"create with tags but no permission to tag", allow(`"servicediscovery:CreateService"`, ``), create("team"), false},
		{"create with tags", allow(`"servicediscovery:CreateService","servicediscovery:TagResource"`, `"StringEquals":{"aws:RequestTag/team":"a"}`), create("team"), true},
		{"create without the tag", allow(`"servicediscovery:CreateService","servicediscovery:TagResource"`, `"StringEquals":{"aws:RequestTag/team":"a"}`), create(), false},
		{"create with one tag more", allow(`"servicediscovery:*"`, `"ForAllValues:StringEquals":{"aws:TagKeys":["team"]}`), create("team", "x"), false},
		{"create in this namespace", allow(`"servicediscovery:*"`, `"ArnLike":{"servicediscovery:NamespaceArn":"arn:aws:servicediscovery:*:*:namespace/ns-*"}`), create(), true},
		{"create by the tag of what is created", allow(`"servicediscovery:*"`, teamA), create("team"), false},
		{"tag, which knows no tags of resources", allow(`"servicediscovery:TagResource"`, teamA), func(w *world, _, svc string) error {
			arn := "arn:aws:servicediscovery:us-east-1:123456789012:service/" + svc
			return second(w.TagResource(w.t.Context(), &sd.TagResourceInput{ResourceARN: &arn, Tags: []types.Tag{{Key: new("a"), Value: new("b")}}}))
		}, false},
		{"untag by key", allow(`"servicediscovery:UntagResource"`, `"ForAllValues:StringEquals":{"aws:TagKeys":["x"]}`), func(w *world, _, svc string) error {
			arn := "arn:aws:servicediscovery:us-east-1:123456789012:service/" + svc
			return second(w.UntagResource(w.t.Context(), &sd.UntagResourceInput{ResourceARN: &arn, TagKeys: []string{"team"}}))
		}, false},
		{"by who it is", allow(`"*"`, `"ArnLike":{"aws:PrincipalArn":"arn:aws:iam::*:user/cls1"},"StringEquals":{"aws:PrincipalAccount":"123456789012","aws:RequestedRegion":"us-east-1"}`), register, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, w, ns, svc := limited(t, tt.statement)
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
	_, w, _, svc := limited(t, `{"Effect":"Allow","Action":"servicediscovery:Get*","Resource":"*"}`, `{"Effect":"Deny","Action":"*:GetService","Resource":"*"}`)
	start := "User: arn:aws:iam::123456789012:user/cls1 is not authorized to perform: servicediscovery:"
	for _, tt := range []struct {
		err  error
		want string
	}{
		{w.tryRegister(t.Context(), svc, "a"),
			start + "RegisterInstance on resource: " + arn + svc + " because no identity-based policy allows the servicediscovery:RegisterInstance action"},
		{second(w.GetService(t.Context(), &sd.GetServiceInput{Id: &svc})),
			start + "GetService on resource: " + arn + svc + " with an explicit deny in an identity-based policy"},
	} {
		wantStatus(t, tt.err, 400)
		if !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("error = %v, want %s", tt.err, tt.want)
		}
	}
}

// TestPoliciesOfRoles: a session may do what the role may, and a key with policies needs one to assume it.
func TestPoliciesOfRoles(t *testing.T) {
	for name, may := range map[string]bool{"sts:AssumeRole": true, "sts:GetCallerIdentity": false} {
		opts := twoAccounts(Role{Trust: []string{ownAccount}, Policies: []Policy{policy(t, `{"Effect":"Allow","Action":"servicediscovery:Get*","Resource":"*"}`)}})
		opts.AccessKeys[0].Policies = []Policy{policy(t, `{"Effect":"Allow","Action":"`+name+`","Resource":"arn:aws:iam::222222222222:role/*"}`)}
		w := newWorld(t, opts)
		c := w.as(assumeRole(w.sts(staticCredentials{"AKIDONE", "one"})))
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
