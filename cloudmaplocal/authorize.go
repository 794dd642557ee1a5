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

// resource is a resource that an action is authorized on, with its tags.
type resource struct {
	arn  string
	tags map[string]string
}

// authorize returns an error if the caller may not perform its request.
func (r *region) authorize() error {
	if r.isOwner() && len(r.req.caller.policies) == 0 {
		return nil
	}
	about := r.resolveTarget(r.req.body)
	return cmp.Or(r.checkPolicies(about), r.checkShare(about))
}

// checkPolicies evaluates the caller's own policies. A caller without policies is allowed everything.
func (r *region) checkPolicies(about requestTarget) error {
	caller, name := r.req.caller, r.req.operation
	if len(caller.policies) == 0 {
		return nil
	}
	needed := permissions[name]
	with := r.conditionsFor(about, needed)
	for _, on := range r.resourcesFor(about, needed) {
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
func (r *region) resourcesFor(about requestTarget, needed permission) []resource {
	if len(needed.resourceKinds) == 0 {
		return []resource{{arn: "*"}}
	}
	var all []resource
	for _, kind := range needed.resourceKinds {
		missing := resource{arn: r.arn(kind, "*")}
		switch {
		case kind == "namespace" && about.namespace != nil:
			all = append(all, resource{r.arn(kind, about.namespace.ID), about.namespace.Tags})
		case kind == "service" && about.service != nil && r.req.operation != "CreateService":
			all = append(all, resource{r.arn(kind, about.service.ID), about.service.Tags})
		default:
			all = append(all, missing)
		}
	}
	return all
}

// conditionsFor returns the condition keys of the request that the action supports, without the tags of resources.
func (r *region) conditionsFor(about requestTarget, needed permission) iampolicy.ConditionContext {
	ref, _ := decode[tagReference](r.req.body) // an unreadable request has no tags
	with := iampolicy.ConditionContext{}
	with.Set("aws:RequestedRegion", r.req.caller.region)
	set := func(key, value string) {
		if value != "" && slices.Contains(needed.keys, key) {
			with.Set(key, value)
		}
	}
	set(keyNamespaceName, ref.NamespaceName)
	set(keyServiceName, ref.ServiceName)
	if about.namespace != nil {
		set(keyNamespaceARN, r.arn("namespace", about.namespace.ID))
	}
	if about.service != nil {
		set(keyServiceARN, r.arn("service", about.service.ID))
		set(keyServiceCreatedBy, r.creatorAccount(about.service.CreatedBy))
	}
	keys := slices.Clone(ref.TagKeys)
	for _, t := range ref.Tags {
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

// tagReference has the members of a request that conditions use.
type tagReference struct {
	NamespaceName string
	ServiceName   string
	Tags          []wire.Tag
	TagKeys       []string
}
