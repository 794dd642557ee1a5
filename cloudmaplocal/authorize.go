package cloudmaplocal

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
)

// permission says what an action is authorized on and which keys conditions can use, beside those of the resources' tags.
// [Service Authorization Reference, AWS Cloud Map]
type permission struct {
	// on is the resources, each of which must be allowed: "namespace", "service". None: the action has no resource-level
	// permissions, and only statements whose Resource is * can mean it.
	on   []string
	keys []string
	// tags says that the action is also one of tagging when the request has tags.
	tags bool
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
	onNothing    = permission{}
	onNamespace  = permission{on: []string{"namespace"}}
	onService    = permission{on: []string{"service"}}
	creation     = permission{keys: []string{keyRequestTag, keyTagKeys}, tags: true}
	discovery    = permission{on: []string{"namespace", "service"}, keys: []string{keyNamespaceName, keyServiceName}}
	serviceWrite = permission{on: []string{"service"}, keys: []string{keyServiceCreatedBy}}
	instRead     = permission{on: []string{"service"}, keys: []string{keyServiceARN}}
	instWrite    = permission{on: []string{"service"}, keys: []string{keyServiceARN, keyServiceCreatedBy}}
)

// permissions is those of every action.
var permissions = map[string]permission{
	"CreateHttpNamespace": creation, "CreatePrivateDnsNamespace": creation, "CreatePublicDnsNamespace": creation,
	"CreateService": {
		on: []string{"namespace", "service"}, keys: []string{keyRequestTag, keyTagKeys, keyNamespaceARN}, tags: true,
	},
	"DeleteNamespace": onNamespace, "GetNamespace": onNamespace,
	"UpdateHttpNamespace": onNamespace, "UpdatePrivateDnsNamespace": onNamespace, "UpdatePublicDnsNamespace": onNamespace,
	"DeleteService": serviceWrite, "UpdateService": serviceWrite,
	"DeleteServiceAttributes": serviceWrite, "UpdateServiceAttributes": serviceWrite,
	"GetService": onService, "GetServiceAttributes": onService,
	"RegisterInstance": instWrite, "DeregisterInstance": instWrite, "UpdateInstanceCustomHealthStatus": instWrite,
	"GetInstance": instRead, "GetInstancesHealthStatus": instRead, "ListInstances": instRead,
	"DiscoverInstances": discovery, "DiscoverInstancesRevision": discovery,
	"GetOperation":   {on: []string{"namespace"}},
	"ListNamespaces": onNothing, "ListServices": onNothing, "ListOperations": onNothing, "ListTagsForResource": onNothing,
	actionTag:       {keys: []string{keyRequestTag, keyTagKeys}},
	"UntagResource": {keys: []string{keyTagKeys}},
}

// resource is what an action is authorized on, with the tags that it has.
type resource struct {
	arn  string
	tags map[string]string
}

// authorize reports whether the caller may do what it asks for.
func (r *region) authorize() error {
	if r.isOwner() && len(r.req.by.policies) == 0 {
		return nil
	}
	about := r.subjectOf(r.req.body)
	return cmp.Or(r.checkPolicies(about), r.checkShare(about))
}

// checkPolicies is about the caller's own policies. Without any it may do everything.
func (r *region) checkPolicies(about subject) error {
	by, name := r.req.by, r.req.operation
	if len(by.policies) == 0 {
		return nil
	}
	needed := permissions[name]
	with := r.conditionsOf(about, needed)
	for _, on := range r.resourcesOf(about, needed) {
		if err := by.may(name, on, with); err != nil {
			return err
		}
	}
	if needed.tags && len(with[strings.ToLower(keyTagKeys)]) > 0 {
		return by.may(actionTag, resource{arn: "*"}, with)
	}
	return nil
}

// may reports whether the policies allow an action of Cloud Map on a resource.
func (i identity) may(operation string, on resource, with iampolicy.ConditionContext) error {
	context := iampolicy.ConditionContext{}
	for key, values := range with {
		context[key] = values
	}
	for key, value := range on.tags {
		context.Set(keyResourceTag+key, value)
	}
	context.Set("aws:PrincipalArn", cmp.Or(i.role, i.arn))
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

// resourcesOf is what the action must be allowed on. What does not exist (yet) has no tags, and * for an id.
func (r *region) resourcesOf(about subject, needed permission) []resource {
	if len(needed.on) == 0 {
		return []resource{{arn: "*"}}
	}
	var all []resource
	for _, kind := range needed.on {
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

// conditionsOf is what the request offers to conditions beside the tags of resources: the keys that the action supports.
func (r *region) conditionsOf(about subject, needed permission) iampolicy.ConditionContext {
	ref, _ := decode[tagReference](r.req.body) // what cannot be read has no tags
	with := iampolicy.ConditionContext{}
	with.Set("aws:RequestedRegion", r.req.by.region)
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
		set(keyServiceCreatedBy, r.createdBy(about.service.CreatedBy))
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

// tagReference is what conditions read of a request.
type tagReference struct {
	NamespaceName string
	ServiceName   string
	Tags          []tag
	TagKeys       []string
}
