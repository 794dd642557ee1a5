package iampolicy

import (
	"encoding/json"
	"strings"
	"testing"
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

func TestEvaluate(t *testing.T) {
	const (
		register = "servicediscovery:RegisterInstance"
		arn      = "arn:aws:servicediscovery:us-east-1:111111111111:service/srv-1"
		anything = `{"Effect":"Allow","Action":"*","Resource":"*"}`
	)
	statement := func(rest string) string { return `{"Effect":"Allow",` + rest + `}` }
	when := func(condition string) string {
		return statement(`"Action":"*","Resource":"*","Condition":{` + condition + `}`)
	}
	tagged := ConditionContext{"aws:resourcetag/cluster": {"cls1"}, "aws:tagkeys": {"a", "b"}, "x:arn": {arn}, "x:bool": {"true"}}
	tests := []struct {
		name       string
		statements []string
		with       ConditionContext
		want       Verdict
	}{
		{"no statement", nil, nil, NotAllowed},
		{"everything", []string{anything}, nil, Allowed},
		{"this action", []string{statement(`"Action":"servicediscovery:RegisterInstance","Resource":"*"`)}, nil, Allowed},
		{"in another case", []string{statement(`"Action":"ServiceDiscovery:registerinstance","Resource":"*"`)}, nil, Allowed},
		{"one of a list", []string{statement(`"Action":["a:b","servicediscovery:Reg*"],"Resource":["x","*"]`)}, nil, Allowed},
		{"another action", []string{statement(`"Action":"servicediscovery:Get*","Resource":"*"`)}, nil, NotAllowed},
		{"all but this action", []string{statement(`"NotAction":"servicediscovery:Register*","Resource":"*"`)}, nil, NotAllowed},
		{"all but another action", []string{statement(`"NotAction":"servicediscovery:Get*","Resource":"*"`)}, nil, Allowed},
		{"this resource", []string{statement(`"Action":"*","Resource":"` + arn + `"`)}, nil, Allowed},
		{"resources like this", []string{statement(`"Action":"*","Resource":"arn:aws:servicediscovery:*:111111111111:service/*"`)}, nil, Allowed},
		{"another kind", []string{statement(`"Action":"*","Resource":"arn:aws:servicediscovery:*:*:namespace/*"`)}, nil, NotAllowed},
		{"all but this resource", []string{statement(`"Action":"*","NotResource":"` + arn + `"`)}, nil, NotAllowed},
		{"denied after", []string{anything, `{"Effect":"Deny","Action":"servicediscovery:*","Resource":"*"}`}, nil, Denied},
		{"denied before", []string{`{"Effect":"Deny","Action":"servicediscovery:*","Resource":"*"}`, anything}, nil, Denied},
		{"another is denied", []string{`{"Effect":"Deny","Action":"sts:*","Resource":"*"}`, anything}, nil, Allowed},

		{"equal", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"cls1"}`)}, tagged, Allowed},
		{"key in another case", []string{when(`"StringEquals":{"AWS:resourceTag/Cluster":["x","cls1"]}`)}, tagged, Allowed},
		{"value in another case", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"CLS1"}`)}, tagged, NotAllowed},
		{"case ignored", []string{when(`"StringEqualsIgnoreCase":{"aws:ResourceTag/cluster":"CLS1"}`)}, tagged, Allowed},
		{"not equal", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"cls2"}`)}, tagged, NotAllowed},
		{"key absent", []string{when(`"StringEquals":{"aws:ResourceTag/owner":"cls1"}`)}, tagged, NotAllowed},
		{"absent if exists", []string{when(`"StringEqualsIfExists":{"aws:ResourceTag/owner":"cls1"}`)}, tagged, Allowed},
		{"different if exists", []string{when(`"StringEqualsIfExists":{"aws:ResourceTag/cluster":"cls2"}`)}, tagged, NotAllowed},
		{"wildcard is no wildcard", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"cls*"}`)}, tagged, NotAllowed},
		{"like", []string{when(`"StringLike":{"aws:ResourceTag/cluster":"cls?"}`)}, tagged, Allowed},
		{"not like", []string{when(`"StringNotLike":{"aws:ResourceTag/cluster":"cls?"}`)}, tagged, NotAllowed},
		{"not equals another", []string{when(`"StringNotEquals":{"aws:ResourceTag/cluster":"cls2"}`)}, tagged, Allowed},
		{"not equals none of two", []string{when(`"StringNotEquals":{"aws:ResourceTag/cluster":["cls2","cls1"]}`)}, tagged, NotAllowed},
		{"not equals absent", []string{when(`"StringNotEquals":{"aws:ResourceTag/owner":"cls1"}`)}, tagged, Allowed},
		{"both conditions", []string{when(`"StringEquals":{"aws:ResourceTag/cluster":"cls1","aws:ResourceTag/owner":"x"}`)}, tagged, NotAllowed},
		{"null", []string{when(`"Null":{"aws:ResourceTag/owner":"true"}`)}, tagged, Allowed},
		{"null, although the tag exists", []string{when(`"Null":{"aws:ResourceTag/cluster":true}`)}, tagged, NotAllowed},
		{"not null", []string{when(`"Null":{"aws:ResourceTag/cluster":"false"}`)}, tagged, Allowed},
		{"all values", []string{when(`"ForAllValues:StringEquals":{"aws:TagKeys":["a","b","c"]}`)}, tagged, Allowed},
		{"all but one value", []string{when(`"ForAllValues:StringEquals":{"aws:TagKeys":["a","c"]}`)}, tagged, NotAllowed},
		{"all of no values", []string{when(`"ForAllValues:StringEquals":{"aws:TagKeys":"a"}`)}, nil, Allowed},
		{"any value", []string{when(`"ForAnyValue:StringEquals":{"aws:TagKeys":["b","c"]}`)}, tagged, Allowed},
		{"any of others", []string{when(`"ForAnyValue:StringEquals":{"aws:TagKeys":["c"]}`)}, tagged, NotAllowed},
		{"any of no values", []string{when(`"ForAnyValue:StringEquals":{"aws:TagKeys":["b"]}`)}, nil, NotAllowed},
		{"ARN", []string{when(`"ArnLike":{"x:arn":"arn:aws:servicediscovery:*:*:service/srv-?"}`)}, tagged, Allowed},
		{"ARN of fewer parts", []string{when(`"ArnLike":{"x:arn":"arn:*/srv-1"}`)}, tagged, NotAllowed},
		{"ARN of another account", []string{when(`"ArnEquals":{"x:arn":"arn:aws:servicediscovery:*:222222222222:service/*"}`)}, tagged, NotAllowed},
		{"bool", []string{when(`"Bool":{"x:bool":true}`)}, tagged, Allowed},
		{"bool false", []string{when(`"Bool":{"x:bool":"false"}`)}, tagged, NotAllowed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Evaluate([]Policy{policy(t, tt.statements...)}, register, arn, tt.with); got != tt.want {
				t.Errorf("verdict %d, want %d", got, tt.want)
			}
		})
	}
	if got := Evaluate([]Policy{policy(t, anything), policy(t, `{"Effect":"Deny","Action":"*","Resource":"*"}`)}, register, arn, nil); got != Denied {
		t.Errorf("one of two policies denies: verdict %d", got)
	}
}

func TestPolicy_RefusesDocument(t *testing.T) {
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
			t.Errorf("%s: error = %v, want one that contains %q", document, err, want)
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
		got := Evaluate([]Policy{p}, "a:b", "x", ConditionContext{"k": {"a:b"}})
		// Beside a policy that allows everything, only a Deny can change the result.
		both := Evaluate([]Policy{policy(t, `{"Effect":"Allow","Action":"*","Resource":"*"}`), p}, "a:b", "x", ConditionContext{"k": {"a:b"}})
		if got == Denied && both != Denied || got != Denied && both != Allowed {
			t.Errorf("alone %d, beside one that allows all %d", got, both)
		}
	})
}

func TestMatchWildcard(t *testing.T) {
	tests := []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "abc", true}, {"a", "a", true}, {"a", "A", false},
		{"a*", "abc", true}, {"*c", "abc", true}, {"a*c", "abbbc", true}, {"a*c", "abcd", false}, {"a?c", "abc", true},
		{"a?c", "ac", false}, {"?", "", false}, {"**", "x", true}, {"a*b*c", "aXbYbZc", true}, {"a*b*c", "aXcYb", false},
		{"*a*a*a*b", strings.Repeat("a", 50), false}, {"[a]", "a", false}, {"a\\*", "a\\b", true},
	}
	for _, tt := range tests {
		if got := MatchWildcard(tt.pattern, tt.text); got != tt.want {
			t.Errorf("MatchWildcard(%q, %q) = %v", tt.pattern, tt.text, got)
		}
	}
}
