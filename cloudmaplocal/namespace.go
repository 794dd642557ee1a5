package cloudmaplocal

import (
	"cmp"
	"slices"
	"strings"
)

// defaultSOATTL is the one that Cloud Map gives to hosted zones.
const defaultSOATTL = 15

// uniqueName is what no two namespaces may share: a name within its kind and, for private DNS, within its VPC.
func (ns *namespace) uniqueName() string {
	return strings.Join([]string{ns.Kind, ns.VPC, ns.Name}, "/")
}

func (r *region) createHTTPNamespace(in createNamespaceInput) (operationStarted, error) {
	in.Vpc, in.Properties = "", nil
	return started(r.createNamespace(kindHTTP, in))
}

func (r *region) createPrivateDNSNamespace(in createNamespaceInput) (operationStarted, error) {
	if err := vpcText.check(in.Vpc); err != nil {
		return operationStarted{}, err
	}
	return started(r.createNamespace(kindPrivate, in))
}

func (r *region) createPublicDNSNamespace(in createNamespaceInput) (operationStarted, error) {
	in.Vpc = ""
	return started(r.createNamespace(kindPublic, in))
}

func (r *region) createNamespace(kind string, in createNamespaceInput) (string, error) {
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
	if existing := r.namespaceLike(ns); existing != nil {
		return existing.recreate(ns)
	}
	if n := len(r.namespaces) + r.creationsInFlight(); n >= r.opts.NamespaceQuota {
		return "", limitExceeded("The account has %d namespaces in %s; its quota is %d.", n, r.key.region, r.opts.NamespaceQuota)
	}
	return r.submit(&operation{
		Type: opCreateNamespace, Namespace: ns, CreatorRequestID: in.CreatorRequestId,
		Targets: map[string]string{targetNamespace: ns.ID},
	})
}

func (r *region) namespaceLike(ns *namespace) *namespace {
	for _, existing := range r.namespaces {
		if existing.uniqueName() == ns.uniqueName() {
			return existing
		}
	}
	return nil
}

// creationsInFlight does not count one that would be a duplicate anyway: submit finds that out.
func (r *region) creationsInFlight() int {
	n := 0
	for _, op := range r.operations.queue {
		if op.Type == opCreateNamespace {
			n++
		}
	}
	return n
}

// recreate answers a creation of what exists: the same request gets the operation that created it.
func (ns *namespace) recreate(again *namespace) (string, error) {
	if ns.CreatorRequestID != "" && ns.CreatorRequestID == again.CreatorRequestID {
		return ns.OperationID, nil
	}
	return "", failure("NamespaceAlreadyExists", "A namespace of the name %s and the type %s exists already.", ns.Name, ns.Kind).
		with("NamespaceId", ns.ID).with("CreatorRequestId", ns.CreatorRequestID)
}

// addNamespace completes a creation. A name that another namespace uses already gets a suffix where names must be unique:
// in HttpName.
func (r *region) addNamespace(ns *namespace, operationID string) {
	ns.Created, ns.OperationID, ns.HTTPName = r.now, operationID, ns.Name
	for _, other := range r.namespaces {
		if other.HTTPName == ns.Name {
			ns.HTTPName = ns.Name + "-" + random(lower, operationIDTailLen)
		}
	}
	r.namespaces[ns.ID] = ns
	r.announce(change{kind: namespaceCreated, namespace: ns})
}

// setSOA takes the TTL out of the properties, which may be left out.
func (ns *namespace) setSOA(p *namespaceProperties) error {
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

func (r *region) updateHTTPNamespace(in updateNamespaceInput) (operationStarted, error) {
	return started(r.updateNamespace(kindHTTP, in))
}

func (r *region) updatePrivateDNSNamespace(in updateNamespaceInput) (operationStarted, error) {
	return started(r.updateNamespace(kindPrivate, in))
}

func (r *region) updatePublicDNSNamespace(in updateNamespaceInput) (operationStarted, error) {
	return started(r.updateNamespace(kindPublic, in))
}

func (r *region) updateNamespace(kind string, in updateNamespaceInput) (string, error) {
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

// change completes an update that was checked when it came in.
func (ns *namespace) change(c *namespaceChange) {
	if c.Description != nil {
		ns.Description = *c.Description
	}
	if c.Properties != nil {
		ns.SOATTL = *c.Properties.DnsProperties.SOA.TTL
	}
}

func (r *region) deleteNamespace(in idInput) (operationStarted, error) {
	ns, err := r.namespace("Id", in.Id)
	if err != nil {
		return operationStarted{}, err
	}
	if ns.services > 0 {
		return operationStarted{}, resourceInUse("The namespace %s contains %d services; delete them first.", ns.ID, ns.services)
	}
	return started(r.submit(&operation{Type: opDeleteNamespace, Targets: map[string]string{targetNamespace: ns.ID}}))
}

func (r *region) removeNamespace(id string) {
	r.announce(change{kind: namespaceDeleted, namespace: r.namespaces[id]})
	delete(r.namespaces, id)
}

// deleting reports whether a deletion of the namespace is in flight.
func (r *region) deleting(ns *namespace) bool {
	op := r.operations.subjects[ns.ID+"/"]
	return op != nil && op.Type == opDeleteNamespace
}

func (r *region) getNamespace(in idInput) (struct{ Namespace namespaceShape }, error) {
	var out struct{ Namespace namespaceShape }
	ns, err := r.namespace("Id", in.Id)
	if err != nil {
		return out, err
	}
	out.Namespace = r.namespaceShape(ns)
	out.Namespace.CreatorRequestId = ns.CreatorRequestID
	return out, nil
}

// namespaceShape is a namespace as ListNamespaces shows it. GetNamespace adds the CreatorRequestId.
func (r *region) namespaceShape(ns *namespace) namespaceShape {
	shape := namespaceShape{
		Arn: r.arn("namespace", ns.ID), CreateDate: timestamp(ns.Created), Description: ns.Description, Id: ns.ID, Name: ns.Name,
		ResourceOwner: r.key.account, ServiceCount: ns.services, Type: ns.Kind,
	}
	shape.Properties.HttpProperties = &httpProperties{HttpName: ns.HTTPName}
	if ns.Kind != kindHTTP {
		ttl := ns.SOATTL
		shape.Properties.DnsProperties = dnsProperties{HostedZoneId: ns.HostedZoneID, SOA: &soa{TTL: &ttl}}
	}
	return shape
}

var namespaceFilters = allowedFilters{
	"TYPE": {"EQ", "BEGINS_WITH"}, "NAME": {"EQ", "BEGINS_WITH"}, "HTTP_NAME": {"EQ", "BEGINS_WITH"}, "RESOURCE_OWNER": {"EQ"},
}

type listNamespacesOutput struct {
	Namespaces []namespaceShape
	NextToken  string `json:",omitempty"`
}

func (r *region) listNamespaces(in listInput) (listNamespacesOutput, error) {
	var out listNamespacesOutput
	if err := namespaceFilters.check(in.Filters); err != nil {
		return out, err
	}
	found := slices.DeleteFunc(append(r.listed().namespaces, r.req.shared.namespaces...), func(ns namespaceShape) bool {
		return !ns.matches(in.Filters, r.req.by.account)
	})
	found, token, err := page(found, func(ns namespaceShape) string { return ns.Id }, in.paging)
	out.Namespaces, out.NextToken = mapSlice(found, func(ns namespaceShape) namespaceShape { return ns }), token
	return out, err
}

// matches reports whether a list of this account with these filters shows the namespace.
func (ns namespaceShape) matches(filters []filter, account string) bool {
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

// ownerFilter is the value of the filter RESOURCE_OWNER for what owner has, as an account sees it.
func ownerFilter(owner, account string) string {
	if owner == account {
		return "SELF"
	}
	return "OTHER_ACCOUNTS"
}
