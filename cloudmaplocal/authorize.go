package cloudmaplocal

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// permission lists the resources that an action is authorized on and the condition keys that it
// supports, beside the tags of the resources. [Service Authorization Reference, AWS Cloud Map]
type permission struct {
	// resourceKinds are the kinds of resources that must all be allowed: "namespace", "service".
	// Empty: the action has no resource-level permissions and matches only statements with Resource
	// *.
	resourceKinds []string
	keys          []string
	// requiresTagging: the action also needs TagResource if the request has tags.
	requiresTagging bool
	// further are the actions of Route 53 and EC2 that Cloud Map performs with the rights of the
	// caller. onlyDNS: only if the namespace, or the service if the action is on one, has DNS
	// records.
	further []string
	onlyDNS bool
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
	instHealth   = permission{resourceKinds: []string{"service"}, keys: []string{keyServiceARN, keyServiceCreatedBy}}
	instWrite    = permission{resourceKinds: instHealth.resourceKinds, keys: instHealth.keys, further: changeRecords, onlyDNS: true}
)

// Actions of other services. [Developer Guide: API permissions reference, identity-based policies;
// for deletions only the managed policy AWSCloudMapFullAccess]
var (
	createZone        = []string{"route53:CreateHostedZone", "route53:GetHostedZone", "route53:ListHostedZonesByName"}
	createPrivateZone = append(slices.Clone(createZone), "ec2:DescribeVpcs", "ec2:DescribeRegions")
	deleteZone        = []string{"route53:DeleteHostedZone", "route53:GetHostedZone", "route53:ListHostedZonesByName"}
	changeRecords     = []string{"route53:ChangeResourceRecordSets", "route53:GetHostedZone", "route53:ListHostedZonesByName"}
	// onAnyResource have no resource-level permissions, or their resource does not exist yet. The
	// others are on the hosted zone.
	onAnyResource = []string{"route53:CreateHostedZone", "route53:ListHostedZonesByName", "ec2:DescribeVpcs", "ec2:DescribeRegions"}
)

// permissions has the permission of every action.
var permissions = map[string]permission{
	"CreateHttpNamespace":       creation,
	"CreatePrivateDnsNamespace": {keys: creation.keys, requiresTagging: true, further: createPrivateZone},
	"CreatePublicDnsNamespace":  {keys: creation.keys, requiresTagging: true, further: createZone},
	"CreateService": {
		resourceKinds: []string{"namespace", "service"}, keys: []string{keyRequestTag, keyTagKeys, keyNamespaceARN}, requiresTagging: true,
	},
	"DeleteNamespace": {resourceKinds: onNamespace.resourceKinds, further: deleteZone, onlyDNS: true}, "GetNamespace": onNamespace,
	"UpdateHttpNamespace": onNamespace, "UpdatePrivateDnsNamespace": onNamespace, "UpdatePublicDnsNamespace": onNamespace,
	"DeleteService": serviceWrite, "UpdateService": {resourceKinds: serviceWrite.resourceKinds, keys: serviceWrite.keys, further: changeRecords, onlyDNS: true},
	"DeleteServiceAttributes": serviceWrite, "UpdateServiceAttributes": serviceWrite,
	"GetService": onService, "GetServiceAttributes": onService,
	"RegisterInstance": instWrite, "DeregisterInstance": instWrite, "UpdateInstanceCustomHealthStatus": instHealth,
	"GetInstance": instRead, "GetInstancesHealthStatus": instRead, "ListInstances": instRead,
	"DiscoverInstances": discovery, "DiscoverInstancesRevision": discovery,
	"GetOperation":   {resourceKinds: []string{"namespace"}},
	"ListNamespaces": noResource, "ListServices": noResource, "ListOperations": noResource, "ListTagsForResource": noResource,
	actionTag:       {keys: []string{keyRequestTag, keyTagKeys}},
	"UntagResource": {keys: []string{keyTagKeys}},
}

// Operations that a share does not allow: changes of the namespace itself, and changes of services
// of other accounts.
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

// authorize returns an error if the caller may not perform its request. Without rights in other
// services the request is accepted, and its operation fails.
func (c *apiCall) authorize() error {
	if c.isOwner() && len(c.caller.policies) == 0 {
		return nil
	}
	about := c.store.resolveTarget(c.req.body, &c.operations)
	if err := cmp.Or(c.checkPolicies(about), c.checkShare(about)); err != nil {
		return err
	}
	err := c.checkFurther(about, permissions[c.req.operation])
	var denied *apiError
	if c.opts.Behaviors.DenyAtOnce || !errors.As(err, &denied) {
		return err
	}
	c.denial = &operationError{Code: opDenied, Message: denied.message}
	return nil
}

// checkPolicies evaluates the caller's own policies. A caller without policies is allowed
// everything.
func (c *apiCall) checkPolicies(about requestTarget) error {
	caller, name := c.caller, c.req.operation
	if len(caller.policies) == 0 {
		return nil
	}
	needed := permissions[name]
	with := c.conditionsFor(about, needed)
	for _, on := range c.resourcesFor(about, needed) {
		if err := caller.checkAllowed(actionName(name), on, with); err != nil {
			return err
		}
	}
	if needed.requiresTagging && len(with[strings.ToLower(keyTagKeys)]) > 0 {
		if err := caller.checkAllowed(actionName(actionTag), resource{arn: "*"}, with); err != nil {
			return err
		}
	}
	return nil
}

// checkFurther evaluates the actions of other services. Whose rights count for the hosted zone of a
// namespace that another account shares is not documented: none are needed here.
func (c *apiCall) checkFurther(about requestTarget, needed permission) error {
	if !c.isOwner() || len(c.caller.policies) == 0 || needed.onlyDNS && !about.hasRecords() {
		return nil
	}
	for _, action := range needed.further {
		on := resource{arn: "*"}
		if !slices.Contains(onAnyResource, action) {
			zone := "*" // of a namespace that does not exist yet
			if about.namespace != nil {
				zone = about.namespace.HostedZoneID
			}
			on.arn = "arn:" + c.store.partition() + ":route53:::hostedzone/" + zone
		}
		if err := c.caller.checkAllowed(action, on, iampolicy.ConditionContext{}); err != nil {
			return err
		}
	}
	return nil
}

// checkAllowed returns an error unless the policies allow an action on a resource.
func (i identity) checkAllowed(action string, on resource, with iampolicy.ConditionContext) error {
	context := iampolicy.ConditionContext{}
	for key, values := range with {
		context[key] = values
	}
	for key, value := range on.tags {
		context.Set(keyResourceTag+key, value)
	}
	context.Set("aws:PrincipalArn", cmp.Or(i.roleARN, i.arn))
	context.Set("aws:PrincipalAccount", i.account)
	switch iampolicy.Evaluate(i.policies, action, on.arn, context) {
	case iampolicy.Denied:
		return accessDenied(i.arn, action, on.arn, "with an explicit deny in an identity-based policy")
	case iampolicy.NotAllowed:
		return accessDenied(i.arn, action, on.arn, "because no identity-based policy allows the "+action+" action")
	}
	return nil
}

// resourcesFor returns the resources that the action must be allowed on. A resource that does not
// exist has no tags and the ID *.
func (c *apiCall) resourcesFor(about requestTarget, needed permission) []resource {
	if len(needed.resourceKinds) == 0 {
		return []resource{{arn: "*"}}
	}
	var all []resource
	for _, kind := range needed.resourceKinds {
		missing := resource{arn: c.store.arn(kind, "*")}
		switch {
		case kind == "namespace" && about.namespace != nil:
			all = append(all, resource{c.store.arn(kind, about.namespace.ID), about.namespace.visibleTags(c.now)})
		case kind == "service" && about.service != nil && c.req.operation != "CreateService":
			all = append(all, resource{c.store.arn(kind, about.service.ID), about.service.visibleTags(c.now)})
		default:
			all = append(all, missing)
		}
	}
	return all
}

// conditionsFor returns the condition keys of the request that the action supports, without the
// tags of resources.
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
func accessDenied(caller, action, resource, why string) error {
	return failure("AccessDeniedException", "User: %s is not authorized to perform: %s on resource: %s %s", caller, action, resource, why)
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

// checkShare returns an error if a share does not allow the request. For a resource that is not
// shared the operation itself returns not found.
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
	case c.changesTags() && !c.opts.Behaviors.ShareAllowsTags:
		return accessDenied(c.caller.arn, actionName(actionTag), about.arn(c.store), "because tags of shared resources can't be changed")
	case slices.Contains(ownersOnly, name),
		slices.Contains(creatorsOnly, name) && !created,
		share.OwnServicesOnly && slices.Contains(instanceWrites, name) && !created:
		return accessDenied(c.caller.arn, actionName(name), about.arn(c.store), "because no resource-based policy allows the "+actionName(name)+" action")
	}
	return nil
}

// changesTags reports whether the request sets or removes tags.
func (c *apiCall) changesTags() bool {
	fields, _ := decode[conditionFields](c.req.body) // an unreadable request has none
	return len(fields.Tags)+len(fields.TagKeys) > 0
}
