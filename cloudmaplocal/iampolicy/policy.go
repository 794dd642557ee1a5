// Package iampolicy evaluates IAM policy documents of identities: whether they allow an action on a
// resource under a request's condition keys. It implements the policy language as this project
// reads the IAM documentation; it is not AWS's code.
package iampolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Policy is an IAM policy document that is attached to an identity, in IAM's JSON: Version,
// Statement with Sid, Effect, Action or NotAction, Resource or NotResource, and Condition.
//
// The evaluator rejects documents with features that it does not implement, instead of evaluating
// them wrongly: policy variables, and condition operators other than those for strings, ARNs,
// booleans and Null.
type Policy struct {
	statements []statement
}

// statement is one statement of a policy.
type statement struct {
	sid        string
	deny       bool
	actions    patterns
	resources  patterns
	conditions []condition
}

// patterns is a list with wildcards, or the complement of such a list.
type patterns struct {
	list []string
	not  bool
}

func (p patterns) match(text string) bool {
	return p.not != slices.ContainsFunc(p.list, func(pattern string) bool { return MatchWildcard(pattern, text) })
}

// condition is one key under one operator.
type condition struct {
	operator operator
	key      string // in lower case
	values   []string
}

// operator is a parsed condition operator.
type operator struct {
	set      string // ForAllValues, ForAnyValue or ""
	ifExists bool
	negated  bool
	null     bool
	compare  func(pattern, value string) bool
}

// comparisons are the condition operators without Not, set prefixes and the suffix IfExists.
var comparisons = map[string]func(pattern, value string) bool{
	"StringEquals":           func(pattern, value string) bool { return pattern == value },
	"StringEqualsIgnoreCase": strings.EqualFold,
	"StringLike":             MatchWildcard,
	"ArnEquals":              arnLike, // the same as ArnLike according to the reference
	"ArnLike":                arnLike,
	"Bool":                   strings.EqualFold,
}

// negations are the negated operators.
var negations = map[string]string{
	"StringNotEquals":           "StringEquals",
	"StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
	"StringNotLike":             "StringLike",
	"ArnNotEquals":              "ArnEquals",
	"ArnNotLike":                "ArnLike",
}

// arnLike compares ARNs part by part, so that a wildcard stays within its part.
func arnLike(pattern, value string) bool {
	const parts = 6
	wanted, have := strings.SplitN(pattern, ":", parts), strings.SplitN(value, ":", parts)
	if len(wanted) != len(have) {
		return false
	}
	for i := range wanted {
		if !MatchWildcard(wanted[i], have[i]) {
			return false
		}
	}
	return true
}

// parseOperator parses an operator such as ForAllValues:StringNotEqualsIfExists.
func parseOperator(text string) (operator, error) {
	var op operator
	name := text
	if set, rest, found := strings.Cut(name, ":"); found {
		if set != "ForAllValues" && set != "ForAnyValue" {
			return op, fmt.Errorf("condition operator %s: %s is neither ForAllValues nor ForAnyValue", text, set)
		}
		op.set, name = set, rest
	}
	name, op.ifExists = strings.CutSuffix(name, "IfExists")
	if name == "Null" && !op.ifExists && op.set == "" {
		op.null = true
		return op, nil
	}
	if positive, negated := negations[name]; negated {
		op.negated, name = true, positive
	}
	if op.compare = comparisons[name]; op.compare == nil {
		return op, fmt.Errorf("condition operator %s: this evaluator knows %v, %v and Null", text,
			slices.Sorted(maps.Keys(comparisons)), slices.Sorted(maps.Keys(negations)))
	}
	return op, nil
}

// accepts reports whether the condition holds for the values of a key in the request; values is
// empty if the request has no such key.
func (c condition) accepts(have []string) bool {
	op := c.operator
	matches := func(value string) bool {
		return op.negated != slices.ContainsFunc(c.values, func(pattern string) bool { return op.compare(pattern, value) })
	}
	switch {
	case op.null:
		return slices.ContainsFunc(c.values, func(value string) bool { return strings.EqualFold(value, "true") == (len(have) == 0) })
	case len(have) == 0:
		return op.ifExists || op.set == "ForAllValues" || op.set == "" && op.negated
	case op.set == "ForAllValues":
		return !slices.ContainsFunc(have, func(value string) bool { return !matches(value) })
	}
	return slices.ContainsFunc(have, matches)
}

// texts is a string, or a list of them, or in a condition also booleans and numbers, as IAM allows.
type texts []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *texts) UnmarshalJSON(raw []byte) error {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	*t = texts{}
	for _, item := range list {
		var text string
		switch err := json.Unmarshal(item, &text); {
		case err == nil:
			*t = append(*t, text)
		case len(item) > 0 && strings.ContainsRune("tf-0123456789", rune(item[0])):
			*t = append(*t, string(item))
		default:
			return fmt.Errorf("%s is not a string or a list of strings", item)
		}
	}
	return nil
}

type documentShape struct {
	Version   string
	ID        string `json:"Id"`
	Statement json.RawMessage
}

type statementShape struct {
	Sid                     string
	Effect                  string
	Action, NotAction       texts
	Resource, NotResource   texts
	Condition               map[string]map[string]texts
	Principal, NotPrincipal json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler. The error of an invalid document names the statement.
func (p *Policy) UnmarshalJSON(raw []byte) error {
	var document documentShape
	if err := decodeStrictly(raw, &document); err != nil {
		return fmt.Errorf("reading the policy: %w", err)
	}
	if document.Version != "2012-10-17" && document.Version != "2008-10-17" {
		return fmt.Errorf("reading the policy: Version %q: must be 2012-10-17", document.Version)
	}
	var shapes []json.RawMessage
	if json.Unmarshal(document.Statement, &shapes) != nil {
		shapes = []json.RawMessage{document.Statement} // a single statement without a list
	}
	p.statements = nil
	for i, raw := range shapes {
		read, err := parseStatement(raw)
		if err != nil {
			return fmt.Errorf("reading the policy: statement %d: %w", i+1, err)
		}
		p.statements = append(p.statements, read)
	}
	return nil
}

func decodeStrictly(raw []byte, into any) error {
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

func parseStatement(raw []byte) (statement, error) {
	var shape statementShape
	if err := decodeStrictly(raw, &shape); err != nil {
		return statement{}, err
	}
	read := statement{sid: shape.Sid, deny: shape.Effect == "Deny"}
	if shape.Principal != nil || shape.NotPrincipal != nil {
		return read, errors.New("it has a Principal, which is not for policies of identities")
	}
	if !read.deny && shape.Effect != "Allow" {
		return read, fmt.Errorf("the Effect %q must be Allow or Deny", shape.Effect)
	}
	var err, errResources, errConditions error
	read.actions, err = parsePatterns("Action", shape.Action, shape.NotAction)
	for i, action := range read.actions.list {
		if action != "*" && !strings.Contains(action, ":") {
			return read, fmt.Errorf("the Action %q must be like servicediscovery:RegisterInstance", action)
		}
		read.actions.list[i] = strings.ToLower(action)
	}
	read.resources, errResources = parsePatterns("Resource", shape.Resource, shape.NotResource)
	read.conditions, errConditions = parseConditions(shape.Condition)
	return read, errors.Join(err, errResources, errConditions)
}

func parsePatterns(name string, list, not texts) (patterns, error) {
	all := append(slices.Clone(list), not...)
	switch {
	case (list == nil) == (not == nil):
		return patterns{}, fmt.Errorf("%s, Not%s: one of them is required", name, name)
	case slices.ContainsFunc(all, hasVariable):
		return patterns{}, fmt.Errorf("%s: policy variables like ${…} are not known here", name)
	}
	return patterns{list: all, not: not != nil}, nil
}

func hasVariable(text string) bool { return strings.Contains(text, "${") }

func parseConditions(shapes map[string]map[string]texts) (all []condition, err error) {
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		op, err := parseOperator(name)
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(shapes[name])) {
			values := shapes[name][key]
			if slices.ContainsFunc(values, hasVariable) {
				return nil, fmt.Errorf("condition %s: policy variables like ${…} are not known here", key)
			}
			all = append(all, condition{operator: op, key: strings.ToLower(key), values: values})
		}
	}
	return all, nil
}

// ConditionContext has the condition keys of a request: values by key, the keys in lower case.
type ConditionContext map[string][]string

// Set sets the values of a key. Tag keys are part of condition keys, which are compared without
// regard to case.
func (c ConditionContext) Set(key string, values ...string) { c[strings.ToLower(key)] = values }

// Verdict is the result of an evaluation.
type Verdict int

const (
	// NotAllowed means that no statement allows the action.
	NotAllowed Verdict = iota
	// Allowed means that a statement allows the action, and none denies it.
	Allowed
	// Denied means that a statement denies the action.
	Denied
)

// Evaluate evaluates policies together: a Deny anywhere wins.
func Evaluate(policies []Policy, action, resource string, with ConditionContext) Verdict {
	result := NotAllowed
	for _, policy := range policies {
		for _, s := range policy.statements {
			if !s.applies(action, resource, with) {
				continue
			}
			if s.deny {
				return Denied
			}
			result = Allowed
		}
	}
	return result
}

func (s statement) applies(action, resource string, with ConditionContext) bool {
	return s.actions.match(strings.ToLower(action)) && s.resources.match(resource) &&
		!slices.ContainsFunc(s.conditions, func(c condition) bool { return !c.accepts(with[c.key]) })
}

// MatchWildcard reports whether text matches a pattern with * for any text and ? for any character.
func MatchWildcard(pattern, text string) bool {
	// The position of the last * and the end of the text that it matches so far.
	star, taken := -1, 0
	p, t := 0, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, taken = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p++
			t++
		case star >= 0:
			taken++
			p, t = star+1, taken
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
