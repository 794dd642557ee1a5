package cloudmaplocal

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// defaultSOATTL is the TTL that Cloud Map gives to hosted zones.
const defaultSOATTL = 15

// uniqueName returns a name that must be unique: the name within its kind and, for private DNS, within its VPC.
func (ns *namespace) uniqueName() string {
	return strings.Join([]string{ns.Kind, ns.VPC, ns.Name}, "/")
}

func (r *region) createHTTPNamespace(in wire.CreateNamespaceInput) (wire.OperationStarted, error) {
	in.Vpc, in.Properties = "", nil
	return started(r.createNamespace(kindHTTP, in))
}

func (r *region) createPrivateDNSNamespace(in wire.CreateNamespaceInput) (wire.OperationStarted, error) {
	if err := vpcText.check(in.Vpc); err != nil {
		return wire.OperationStarted{}, err
	}
	return started(r.createNamespace(kindPrivate, in))
}

func (r *region) createPublicDNSNamespace(in wire.CreateNamespaceInput) (wire.OperationStarted, error) {
	in.Vpc = ""
	return started(r.createNamespace(kindPublic, in))
}

func (r *region) createNamespace(kind string, in wire.CreateNamespaceInput) (string, error) {
	tags, err := newTags(in.Tags)
	if err := cmp.Or(err, checkNamespaceName(kind, in.Name), descriptionText.check(in.Description),
		requestIDText.check(in.CreatorRequestId)); err != nil {
		return "", err
	}
	ns := &namespace{
		ID: "ns-" + random(lower, idLen), Kind: kind, Name: in.Name, VPC: in.Vpc, Description: in.Description,
		CreatorRequestID: in.CreatorRequestId, Tags: tags,
	}
	if kind != kindHTTP {
		ns.HostedZoneID, ns.SOATTL = "Z"+random(upper, zoneIDLen), defaultSOATTL
		if err := ns.setSOA(in.Properties); err != nil {
			return "", err
		}
	}
	if existing := r.findDuplicateNamespace(ns); existing != nil {
		return existing.answerDuplicate(ns)
	}
	if n := len(r.namespaces) + r.creationsInFlight(); n >= r.opts.NamespaceQuota {
		return "", limitExceeded("The account has %d namespaces in %s; its quota is %d.", n, r.key.region, r.opts.NamespaceQuota)
	}
	return r.submit(&operation{
		Type: opCreateNamespace, Namespace: ns, CreatorRequestID: in.CreatorRequestId,
		Targets: map[string]string{targetNamespace: ns.ID},
	})
}

func (r *region) findDuplicateNamespace(ns *namespace) *namespace {
	for _, existing := range r.namespaces {
		if existing.uniqueName() == ns.uniqueName() {
			return existing
		}
	}
	return nil
}

// creationsInFlight counts creations in flight. submit detects duplicates.
func (r *region) creationsInFlight() int {
	n := 0
	for _, op := range r.operations.queue {
		if op.Type == opCreateNamespace {
			n++
		}
	}
	return n
}

// answerDuplicate answers the creation of an existing namespace: the same request gets the operation that created it.
func (ns *namespace) answerDuplicate(again *namespace) (string, error) {
	if ns.CreatorRequestID != "" && ns.CreatorRequestID == again.CreatorRequestID {
		return ns.OperationID, nil
	}
	return "", failure("NamespaceAlreadyExists", "A namespace of the name %s and the type %s exists already.", ns.Name, ns.Kind).
		with("NamespaceId", ns.ID).with("CreatorRequestId", ns.CreatorRequestID)
}

// addNamespace completes a creation. HttpName must be unique, so the second namespace of a name gets a suffix there.
func (r *region) addNamespace(ns *namespace, operationID string) {
	ns.Created, ns.OperationID, ns.HTTPName = r.now, operationID, ns.Name
	for _, other := range r.namespaces {
		if other.HTTPName == ns.Name {
			ns.HTTPName = ns.Name + "-" + random(lower, operationIDTailLen)
		}
	}
	r.namespaces[ns.ID] = ns
	r.replicate(change{kind: namespaceCreated, namespace: ns})
}

// setSOA takes the TTL out of the properties, which may be left out.
func (ns *namespace) setSOA(p *wire.NamespaceProperties) error {
	if p == nil {
		return nil
	}
	if p.DnsProperties.SOA == nil {
		return invalidInput("Properties.DnsProperties.SOA: must not be empty")
	}
	if err := checkTTL("SOA.TTL", p.DnsProperties.SOA.TTL); err != nil {
		return err
	}
	ns.SOATTL = *p.DnsProperties.SOA.TTL
	return nil
}

func (r *region) updateHTTPNamespace(in wire.UpdateNamespaceInput) (wire.OperationStarted, error) {
	return started(r.updateNamespace(kindHTTP, in))
}

func (r *region) updatePrivateDNSNamespace(in wire.UpdateNamespaceInput) (wire.OperationStarted, error) {
	return started(r.updateNamespace(kindPrivate, in))
}

func (r *region) updatePublicDNSNamespace(in wire.UpdateNamespaceInput) (wire.OperationStarted, error) {
	return started(r.updateNamespace(kindPublic, in))
}

func (r *region) updateNamespace(kind string, in wire.UpdateNamespaceInput) (string, error) {
	ns, err := r.namespace("Id", in.Id)
	if err != nil {
		return "", err
	}
	switch {
	case ns.Kind != kind:
		return "", invalidInput("The namespace %s is of the type %s, not %s.", ns.ID, ns.Kind, kind)
	case in.Namespace == nil:
		return "", invalidInput("Namespace: must not be empty")
	case kind == kindHTTP && in.Namespace.Description == nil:
		return "", invalidInput("Namespace.Description: must not be empty")
	}
	if kind == kindHTTP {
		in.Namespace.Properties = nil
	}
	if in.Namespace.Description != nil {
		err = descriptionText.check(*in.Namespace.Description)
	}
	trial := *ns
	if err := cmp.Or(err, trial.setSOA(in.Namespace.Properties)); err != nil {
		return "", err
	}
	return r.submit(&operation{
		Type: opUpdateNamespace, CreatorRequestID: in.UpdaterRequestId, Change: &operationChange{Namespace: in.Namespace},
		Targets: map[string]string{targetNamespace: ns.ID},
	})
}

// applyChange completes an update that was validated when it was received.
func (ns *namespace) applyChange(c *wire.NamespaceChange) {
	if c.Description != nil {
		ns.Description = *c.Description
	}
	if c.Properties != nil {
		ns.SOATTL = *c.Properties.DnsProperties.SOA.TTL
	}
}

func (r *region) deleteNamespace(in wire.IDInput) (wire.OperationStarted, error) {
	ns, err := r.namespace("Id", in.Id)
	if err != nil {
		return wire.OperationStarted{}, err
	}
	if ns.services > 0 {
		return wire.OperationStarted{}, resourceInUse("The namespace %s contains %d services; delete them first.", ns.ID, ns.services)
	}
	return started(r.submit(&operation{Type: opDeleteNamespace, Targets: map[string]string{targetNamespace: ns.ID}}))
}

func (r *region) removeNamespace(id string) {
	r.replicate(change{kind: namespaceDeleted, namespace: r.namespaces[id]})
	delete(r.namespaces, id)
}

// isDeleting reports whether a deletion of the namespace is in flight.
func (r *region) isDeleting(ns *namespace) bool {
	op := r.operations.inFlightByTarget[ns.ID+"/"]
	return op != nil && op.Type == opDeleteNamespace
}

func (r *region) getNamespace(in wire.IDInput) (struct{ Namespace wire.Namespace }, error) {
	var out struct{ Namespace wire.Namespace }
	ns, err := r.namespace("Id", in.Id)
	if err != nil {
		return out, err
	}
	out.Namespace = r.namespaceShape(ns)
	out.Namespace.CreatorRequestId = ns.CreatorRequestID
	return out, nil
}

// namespaceShape returns a namespace as ListNamespaces shows it. GetNamespace adds the CreatorRequestId.
func (r *region) namespaceShape(ns *namespace) wire.Namespace {
	shape := wire.Namespace{
		Arn: r.arn("namespace", ns.ID), CreateDate: wire.Timestamp(ns.Created), Description: ns.Description, Id: ns.ID, Name: ns.Name,
		ResourceOwner: r.key.account, ServiceCount: ns.services, Type: ns.Kind,
	}
	shape.Properties.HttpProperties = &wire.HTTPProperties{HttpName: ns.HTTPName}
	if ns.Kind != kindHTTP {
		ttl := ns.SOATTL
		shape.Properties.DnsProperties = wire.DNSProperties{HostedZoneId: ns.HostedZoneID, SOA: &wire.SOA{TTL: &ttl}}
	}
	return shape
}

var namespaceFilters = allowedFilters{
	"TYPE": {"EQ", "BEGINS_WITH"}, "NAME": {"EQ", "BEGINS_WITH"}, "HTTP_NAME": {"EQ", "BEGINS_WITH"}, "RESOURCE_OWNER": {"EQ"},
}

func (r *region) listNamespaces(in wire.ListInput) (wire.ListNamespacesOutput, error) {
	var out wire.ListNamespacesOutput
	if err := namespaceFilters.check(in.Filters); err != nil {
		return out, err
	}
	found := slices.DeleteFunc(append(r.visibleResources().namespaces, r.req.shared.namespaces...), func(ns wire.Namespace) bool {
		return !namespaceMatches(ns, in.Filters, r.req.caller.account)
	})
	found, token, err := page(found, func(ns wire.Namespace) string { return ns.Id }, in.Paging)
	out.Namespaces, out.NextToken = mapSlice(found, func(ns wire.Namespace) wire.Namespace { return ns }), token
	return out, err
}

// namespaceMatches reports whether a list of this account with these filters shows the namespace.
func namespaceMatches(ns wire.Namespace, filters []wire.Filter, account string) bool {
	for _, f := range filters {
		value := map[string]string{
			"TYPE": ns.Type, "NAME": ns.Name, "HTTP_NAME": ns.Properties.HttpProperties.HttpName,
			"RESOURCE_OWNER": ownerFilter(ns.ResourceOwner, account),
		}[f.Name]
		if f.Condition == "BEGINS_WITH" && strings.HasPrefix(value, f.Values[0]) {
			continue
		}
		if value != f.Values[0] {
			return false
		}
	}
	return true
}

// ownerFilter returns the value of the filter RESOURCE_OWNER for a resource of owner, from the view of account.
func ownerFilter(owner, account string) string {
	if owner == account {
		return "SELF"
	}
	return "OTHER_ACCOUNTS"
}
