package cloudmaplocal

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// namespaceHandler has the operations on namespaces.
type namespaceHandler struct{ *apiCall }

// defaultSOATTL is the TTL that Cloud Map gives to hosted zones.
const defaultSOATTL = 15

func (h namespaceHandler) createHTTPNamespace(in wire.CreateNamespaceInput) (wire.OperationStarted, error) {
	in.Vpc, in.Properties = "", nil
	return started(h.createNamespace(kindHTTP, in))
}

func (h namespaceHandler) createPrivateDNSNamespace(in wire.CreateNamespaceInput) (wire.OperationStarted, error) {
	if err := vpcText.check(in.Vpc); err != nil {
		return wire.OperationStarted{}, err
	}
	return started(h.createNamespace(kindPrivate, in))
}

func (h namespaceHandler) createPublicDNSNamespace(in wire.CreateNamespaceInput) (wire.OperationStarted, error) {
	in.Vpc = ""
	return started(h.createNamespace(kindPublic, in))
}

func (h namespaceHandler) createNamespace(kind string, in wire.CreateNamespaceInput) (string, error) {
	tags, err := newTags(in.Tags)
	if err := cmp.Or(err, checkNamespaceName(kind, in.Name), descriptionText.check(in.Description),
		requestIDText.check(in.CreatorRequestId)); err != nil {
		return "", err
	}
	ns := &namespace{
		ID: "ns-" + random(lower, idLen), Kind: kind, Name: in.Name, VPC: in.Vpc, Description: in.Description,
		CreatorRequestID: in.CreatorRequestId, tagged: tagged{Tags: tags},
	}
	if kind != kindHTTP {
		ns.HostedZoneID, ns.SOATTL = "Z"+random(upper, zoneIDLen), defaultSOATTL
		if err := ns.setSOA(in.Properties); err != nil {
			return "", err
		}
	}
	if existing := h.store.findDuplicateNamespace(ns); existing != nil {
		return existing.answerDuplicate(ns)
	}
	if n := len(h.store.namespaces) + h.operations.countInFlight(opCreateNamespace); n >= h.opts.NamespaceQuota {
		return "", limitExceeded("The account has %d namespaces in %s; its quota is %d.", n, h.key.region, h.opts.NamespaceQuota)
	}
	return h.submitOperation(&operation{
		Type: opCreateNamespace, Namespace: ns, CreatorRequestID: in.CreatorRequestId,
		Targets: map[string]string{targetNamespace: ns.ID},
	})
}

// answerDuplicate answers the creation of an existing namespace: the same request gets the
// operation that created it.
func (ns *namespace) answerDuplicate(again *namespace) (string, error) {
	if ns.CreatorRequestID != "" && ns.CreatorRequestID == again.CreatorRequestID {
		return ns.OperationID, nil
	}
	return "", failure("NamespaceAlreadyExists", "A namespace of the name %s and the type %s exists already.", ns.Name, ns.Kind).
		with("NamespaceId", ns.ID).with("CreatorRequestId", ns.CreatorRequestID)
}

// setSOA sets the TTL from the properties, which are optional.
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

func (h namespaceHandler) updateHTTPNamespace(in wire.UpdateNamespaceInput) (wire.OperationStarted, error) {
	return started(h.updateNamespace(kindHTTP, in))
}

func (h namespaceHandler) updatePrivateDNSNamespace(in wire.UpdateNamespaceInput) (wire.OperationStarted, error) {
	return started(h.updateNamespace(kindPrivate, in))
}

func (h namespaceHandler) updatePublicDNSNamespace(in wire.UpdateNamespaceInput) (wire.OperationStarted, error) {
	return started(h.updateNamespace(kindPublic, in))
}

func (h namespaceHandler) updateNamespace(kind string, in wire.UpdateNamespaceInput) (string, error) {
	ns, err := h.findNamespace("Id", in.Id)
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
	return h.submitOperation(&operation{
		Type: opUpdateNamespace, CreatorRequestID: in.UpdaterRequestId, Change: &operationChange{Namespace: in.Namespace},
		Targets: map[string]string{targetNamespace: ns.ID},
	})
}

func (h namespaceHandler) deleteNamespace(in wire.IDInput) (wire.OperationStarted, error) {
	ns, err := h.findNamespace("Id", in.Id)
	if err != nil {
		return wire.OperationStarted{}, err
	}
	if ns.services > 0 {
		return wire.OperationStarted{}, resourceInUse("The namespace %s contains %d services; delete them first.", ns.ID, ns.services)
	}
	if h.store.isInUse(ns.LastUsed, h.now) {
		return wire.OperationStarted{}, resourceInUse("The namespace %s contained services until %s; try again later.", ns.ID, ns.LastUsed.UTC())
	}
	return started(h.submitOperation(&operation{Type: opDeleteNamespace, Targets: map[string]string{targetNamespace: ns.ID}}))
}

func (h namespaceHandler) getNamespace(in wire.IDInput) (struct{ Namespace wire.Namespace }, error) {
	var out struct{ Namespace wire.Namespace }
	ns, err := h.findNamespace("Id", in.Id)
	if err != nil {
		return out, err
	}
	out.Namespace = h.store.namespaceShape(ns)
	out.Namespace.CreatorRequestId = ns.CreatorRequestID
	return out, nil
}

var namespaceFilters = allowedFilters{
	"TYPE": {"EQ", "BEGINS_WITH"}, "NAME": {"EQ", "BEGINS_WITH"}, "HTTP_NAME": {"EQ", "BEGINS_WITH"}, "RESOURCE_OWNER": {"EQ"},
}

func (h namespaceHandler) listNamespaces(in wire.ListInput) (wire.ListNamespacesOutput, error) {
	var out wire.ListNamespacesOutput
	if err := h.checkFilters(namespaceFilters, in.Filters); err != nil {
		return out, err
	}
	found := slices.DeleteFunc(append(h.listVisible(h.store).namespaces, h.req.shared.namespaces...), func(ns wire.Namespace) bool {
		return !namespaceMatches(ns, in.Filters, h.caller.account)
	})
	found, token, err := page(found, func(ns wire.Namespace) string { return ns.Id }, in.Paging)
	out.Namespaces, out.NextToken = mapSlice(found, func(ns wire.Namespace) wire.Namespace {
		if h.opts.Behaviors.InstanceCount == CountAbsent {
			ns.ServiceCount = nil
		}
		return ns
	}), token
	return out, err
}

// checkFilters checks the filters of a list of resources.
func (c *apiCall) checkFilters(allowed allowedFilters, filters []wire.Filter) error {
	for _, f := range filters {
		if f.Name == "RESOURCE_OWNER" && c.opts.Behaviors.RefuseOwnerFilter {
			return invalidInput("Filters: '%s' is not a filter", f.Name)
		}
	}
	return allowed.check(filters)
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

// ownerFilter returns the value of the filter RESOURCE_OWNER for a resource of owner, from the view
// of account.
func ownerFilter(owner, account string) string {
	if owner == account {
		return "SELF"
	}
	return "OTHER_ACCOUNTS"
}
