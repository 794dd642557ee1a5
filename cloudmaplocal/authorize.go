package cloudmaplocal

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// permission lists the resources that an action is authorized on and the condition keys that it supports, beside the
// tags of the resources. [Service Authorization Reference, AWS Cloud Map]
type permission struct {
	// resourceKinds are the kinds of resources that must all be allowed: "namespace", "service". Empty: the action has no
	// resource-level permissions and matches only statements with Resource *.
	resourceKinds []string
	keys          []string
	// requiresTagging: the action also needs TagResource if the request has tags.
	requiresTagging bool
}

// Condition keys.
const (
	keyNamespaceARN     = "servicediscovery:NamespaceArn"
	keyNamespaceName    = "servicediscovery:NamespaceName"
	keyServiceARN       = "servicediscovery:ServiceArn"
	keyServiceName      = "servicediscovery:ServiceName"
	keyServiceCreatedBy = "servicediscovery:ServiceCreatedByAccount"
	keyTagKeys          = "aws:TagKeys"
	keyRequestTag       = "aws:RequestTag/"
	keyResourceTag      = "aws:ResourceTag/"

	actionTag = "TagResource"
)

var (
	noResource   = permission{}
	onNamespace  = permission{resourceKinds: []string{"namespace"}}
	onService    = permission{resourceKinds: []string{"service"}}
	creation     = permission{keys: []string{keyRequestTag, keyTagKeys}, requiresTagging: true}
	discovery    = permission{resourceKinds: []string{"namespace", "service"}, keys: []string{keyNamespaceName, keyServiceName}}
	serviceWrite = permission{resourceKinds: []string{"service"}, keys: []string{keyServiceCreatedBy}}
	instRead     = permission{resourceKinds: []string{"service"}, keys: []string{keyServiceARN}}
	instWrite    = permission{resourceKinds: []string{"service"}, keys: []string{keyServiceARN, keyServiceCreatedBy}}
)

// permissions has the permission of every action.
var permissions = map[string]permission{
	"CreateHttpNamespace": creation, "CreatePrivateDnsNamespace": creation, "CreatePublicDnsNamespace": creation,
	"CreateService": {
		resourceKinds: []string{"namespace", "service"}, keys: []string{keyRequestTag, keyTagKeys, keyNamespaceARN}, requiresTagging: true,
	},
	"DeleteNamespace": onNamespace, "GetNamespace": onNamespace,
	"UpdateHttpNamespace": onNamespace, "UpdatePrivateDnsNamespace": onNamespace, "UpdatePublicDnsNamespace": onNamespace,
	"DeleteService": serviceWrite, "UpdateService": serviceWrite,
	"DeleteServiceAttributes": serviceWrite, "UpdateServiceAttributes": serviceWrite,
	"GetService": onService, "GetServiceAttributes": onService,
	"RegisterInstance": instWrite, "DeregisterInstance": instWrite, "UpdateInstanceCustomHealthStatus": instWrite,
	"GetInstance": instRead, "GetInstancesHealthStatus": instRead, "ListInstances": instRead,
	"DiscoverInstances": discovery, "DiscoverInstancesRevision": discovery,
	"GetOperation":   {resourceKinds: []string{"namespace"}},
	"ListNamespaces": noResource, "ListServices": noResource, "ListOperations": noResource, "ListTagsForResource": noResource,
	actionTag:       {keys: []string{keyRequestTag, keyTagKeys}},
	"UntagResource": {keys: []string{keyTagKeys}},
}

// Operations that a share does not allow: changes of the namespace itself, and changes of services of other accounts.
var (
	ownersOnly = []string{
		"DeleteNamespace", "UpdateHttpNamespace", "UpdatePrivateDnsNamespace", "UpdatePublicDnsNamespace",
	}
	creatorsOnly = []string{
		"UpdateService", "DeleteService", "UpdateServiceAttributes", "DeleteServiceAttributes", "TagResource", "UntagResource",
	}
	instanceWrites = []string{"RegisterInstance", "DeregisterInstance", "UpdateInstanceCustomHealthStatus"}
)

// resource is a resource that an action is authorized on, with its tags.
type resource struct {
	arn  string
	tags map[string]string
}

// authorize returns an error if the caller may not perform its request.
func (c *apiCall) authorize() error {
	if c.isOwner() && len(c.caller.policies) == 0 {
		return nil
	}
	about := c.store.resolveTarget(c.req.body, &c.operations)
	return cmp.Or(c.checkPolicies(about), c.checkShare(about))
}

// checkPolicies evaluates the caller's own policies. A caller without policies is allowed everything.
func (c *apiCall) checkPolicies(about requestTarget) error {
	caller, name := c.caller, c.req.operation
	if len(caller.policies) == 0 {
		return nil
	}
	needed := permissions[name]
	with := c.conditionsFor(about, needed)
	for _, on := range c.resourcesFor(about, needed) {
		if err := caller.checkAllowed(name, on, with); err != nil {
			return err
		}
	}
	if needed.requiresTagging && len(with[strings.ToLower(keyTagKeys)]) > 0 {
		return caller.checkAllowed(actionTag, resource{arn: "*"}, with)
	}
	return nil
}

// checkAllowed returns an error unless the policies allow an action of Cloud Map on a resource.
func (i identity) checkAllowed(operation string, on resource, with iampolicy.ConditionContext) error {
	context := iampolicy.ConditionContext{}
	for key, values := range with {
		context[key] = values
	}
	for key, value := range on.tags {
		context.Set(keyResourceTag+key, value)
	}
	context.Set("aws:PrincipalArn", cmp.Or(i.roleARN, i.arn))
	context.Set("aws:PrincipalAccount", i.account)
	switch iampolicy.Evaluate(i.policies, actionName(operation), on.arn, context) {
	case iampolicy.Denied:
		return accessDenied(i.arn, operation, on.arn, "with an explicit deny in an identity-based policy")
	case iampolicy.NotAllowed:
		return accessDenied(i.arn, operation, on.arn,
			"because no identity-based policy allows the "+actionName(operation)+" action")
	}
	return nil
}

// resourcesFor returns the resources that the action must be allowed on. A resource that does not exist has no tags and
// the ID *.
func (c *apiCall) resourcesFor(about requestTarget, needed permission) []resource {
	if len(needed.resourceKinds) == 0 {
		return []resource{{arn: "*"}}
	}
	var all []resource
	for _, kind := range needed.resourceKinds {
		missing := resource{arn: c.store.arn(kind, "*")}
		switch {
		case kind == "namespace" && about.namespace != nil:
			all = append(all, resource{c.store.arn(kind, about.namespace.ID), about.namespace.Tags})
		case kind == "service" && about.service != nil && c.req.operation != "CreateService":
			all = append(all, resource{c.store.arn(kind, about.service.ID), about.service.Tags})
		default:
			all = append(all, missing)
		}
	}
	return all
}

// conditionsFor returns the condition keys of the request that the action supports, without the tags of resources.
func (c *apiCall) conditionsFor(about requestTarget, needed permission) iampolicy.ConditionContext {
	fields, _ := decode[conditionFields](c.req.body) // an unreadable request has none
	with := iampolicy.ConditionContext{}
	with.Set("aws:RequestedRegion", c.caller.region)
	set := func(key, value string) {
		if value != "" && slices.Contains(needed.keys, key) {
			with.Set(key, value)
		}
	}
	set(keyNamespaceName, fields.NamespaceName)
	set(keyServiceName, fields.ServiceName)
	if about.namespace != nil {
		set(keyNamespaceARN, c.store.arn("namespace", about.namespace.ID))
	}
	if about.service != nil {
		set(keyServiceARN, c.store.arn("service", about.service.ID))
		set(keyServiceCreatedBy, c.store.creatorAccount(about.service.CreatedBy))
	}
	keys := slices.Clone(fields.TagKeys)
	for _, t := range fields.Tags {
		keys = append(keys, t.Key)
		if slices.Contains(needed.keys, keyRequestTag) {
			with.Set(keyRequestTag+t.Key, t.Value)
		}
	}
	if slices.Contains(needed.keys, keyTagKeys) && len(keys) > 0 {
		with.Set(keyTagKeys, keys...)
	}
	return with
}

// accessDenied returns the error with AWS's text. why ends the sentence.
func accessDenied(caller, operation, resource, why string) error {
	return failure("AccessDeniedException", "User: %s is not authorized to perform: %s on resource: %s %s",
		caller, actionName(operation), resource, why)
}

// actionName returns the name of an operation in policies.
func actionName(operation string) string { return signingService + ":" + operation }

// conditionFields are the fields of a request that condition keys depend on.
type conditionFields struct {
	NamespaceName string
	ServiceName   string
	Tags          []wire.Tag
	TagKeys       []string
}

// checkShare returns an error if a share does not allow the request. For a resource that is not shared the operation
// itself returns not found.
func (c *apiCall) checkShare(about requestTarget) error {
	if c.isOwner() || about.namespace == nil {
		return nil
	}
	share := c.shareOf(about.namespace)
	if share == nil {
		return nil
	}
	created := about.service != nil && c.store.creatorAccount(about.service.CreatedBy) == c.caller.account
	name := c.req.operation
	switch {
	case slices.Contains(ownersOnly, name),
		slices.Contains(creatorsOnly, name) && !created,
		share.OwnServicesOnly && slices.Contains(instanceWrites, name) && !created:
		return accessDenied(c.caller.arn, name, about.arn(c.store), "because no resource-based policy allows the "+actionName(name)+" action")
	}
	return nil
}
