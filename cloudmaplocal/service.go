package cloudmaplocal

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// serviceHandler has the operations on services and their attributes.
type serviceHandler struct{ *apiCall }

func (h serviceHandler) createService(in wire.CreateServiceInput) (struct{ Service wire.Service }, error) {
	var out struct{ Service wire.Service }
	if in.NamespaceId == "" && in.DnsConfig != nil {
		in.NamespaceId = in.DnsConfig.NamespaceId // where it was before it moved to the top
	}
	ns, err := h.findNamespace("NamespaceId", in.NamespaceId)
	if err != nil {
		return out, err
	}
	if h.operations.isDeleting(ns) {
		return out, namespaceNotFound(in.NamespaceId)
	}
	svc, err := newService(ns, in)
	if err != nil {
		return out, err
	}
	svc.CreatedBy = h.recordedCreator()
	existing := h.store.findServiceByName(ns, in.Name)
	switch {
	case existing == nil:
		h.replica.addChange(h.store.addService(ns, svc, h.now), h.now)
	case !existing.isSameRequest(svc):
		return out, failure("ServiceAlreadyExists", "A service of the name %s exists already.", in.Name).
			with("ServiceId", existing.ID).with("ServiceArn", h.store.arn("service", existing.ID)).
			with("CreatorRequestId", existing.CreatorRequestID)
	default:
		svc = existing
	}
	out.Service = h.store.serviceShape(svc)
	return out, nil
}

// newService checks a request against the kind of its namespace.
func newService(ns *namespace, in wire.CreateServiceInput) (*service, error) {
	tags, err := newTags(in.Tags)
	if err := cmp.Or(err, serviceNameText.check(in.Name), descriptionText.check(in.Description),
		requestIDText.check(in.CreatorRequestId), checkHealthCheck(in.HealthCheckConfig)); err != nil {
		return nil, err
	}
	svc := &service{
		ID: "srv-" + random(lower, idLen), NamespaceID: ns.ID, Name: in.Name, Kind: serviceHTTP, Description: in.Description,
		CreatorRequestID: in.CreatorRequestId, HealthCheck: in.HealthCheckConfig, CustomHealth: in.HealthCheckCustomConfig,
		tagged: tagged{Tags: tags}, Instances: map[string]*instance{},
	}
	if in.Type != "" {
		if err := checkOneOf("Type", in.Type, serviceHTTP); err != nil {
			return nil, err
		}
	}
	apiOnly := ns.Kind == kindHTTP || in.Type == serviceHTTP
	switch {
	case apiOnly && in.DnsConfig != nil:
		return nil, invalidInput("DnsConfig: can't be given for a service of the type HTTP, or in an HTTP namespace")
	case !apiOnly && in.DnsConfig == nil:
		return nil, invalidInput("DnsConfig: required in a namespace of the type %s, unless the service's Type is HTTP", ns.Kind)
	case !apiOnly:
		svc.Kind = serviceDNSHTTP
		svc.DNS = &wire.DNSConfig{
			NamespaceId: ns.ID, DnsRecords: in.DnsConfig.DnsRecords,
			RoutingPolicy: cmp.Or(in.DnsConfig.RoutingPolicy, routingMultivalue),
		}
		if err := checkDNSConfig(svc.DNS); err != nil {
			return nil, err
		}
	}
	return svc, checkHealthChecks(ns, svc)
}

// checkHealthChecks returns an error if the health checks do not fit the namespace or the records.
func checkHealthChecks(ns *namespace, svc *service) error {
	switch {
	case svc.HealthCheck == nil:
	case svc.CustomHealth != nil:
		return invalidInput("HealthCheckConfig and HealthCheckCustomConfig can't both be given")
	case ns.Kind == kindPrivate:
		return invalidInput("HealthCheckConfig: not for namespaces of the type %s; use HealthCheckCustomConfig", kindPrivate)
	case svc.DNS != nil && svc.DNS.DnsRecords[0].Type == "CNAME":
		return invalidInput("HealthCheckConfig: can't be given with CNAME records")
	}
	if svc.CustomHealth == nil {
		return nil
	}
	return checkCount("FailureThreshold", svc.CustomHealth.FailureThreshold, maxThreshold)
}

func (h serviceHandler) getService(in wire.IDInput) (struct{ Service wire.Service }, error) {
	var out struct{ Service wire.Service }
	svc, err := h.findService("Id", in.Id)
	if err != nil {
		return out, err
	}
	out.Service = h.store.serviceShape(svc)
	return out, nil
}

var serviceFilters = allowedFilters{"NAMESPACE_ID": {"EQ"}, "RESOURCE_OWNER": {"EQ"}}

func (h serviceHandler) listServices(in wire.ListInput) (wire.ListServicesOutput, error) {
	var out wire.ListServicesOutput
	if err := h.checkFilters(serviceFilters, in.Filters); err != nil {
		return out, err
	}
	found := slices.DeleteFunc(append(h.listVisible(h.store).services, h.req.shared.services...), func(svc wire.Service) bool {
		return !serviceMatches(svc, in.Filters, h.caller.account)
	})
	found, token, err := page(found, func(svc wire.Service) string { return svc.Id }, in.Paging)
	out.NextToken = token
	out.Services = mapSlice(found, func(svc wire.Service) wire.Service {
		svc.NamespaceId, svc.CreatorRequestId = "", "" // only GetService has them
		if h.opts.Behaviors.InstanceCount == CountAbsent {
			svc.InstanceCount = nil
		}
		return svc
	})
	return out, err
}

// serviceMatches reports whether a list of this account with these filters shows the service.
// Namespaces of the account can be named by ID, all namespaces by ARN.
func serviceMatches(svc wire.Service, filters []wire.Filter, account string) bool {
	prefix, _, _ := strings.Cut(svc.Arn, "service/")
	for _, f := range filters {
		value := f.Values[0]
		byID := value == svc.NamespaceId && svc.ResourceOwner == account
		if f.Name == "NAMESPACE_ID" && !byID && value != prefix+"namespace/"+svc.NamespaceId {
			return false
		}
		if f.Name == "RESOURCE_OWNER" && value != ownerFilter(svc.ResourceOwner, account) {
			return false
		}
	}
	return true
}

func (h serviceHandler) updateService(in wire.UpdateServiceInput) (wire.OperationStarted, error) {
	svc, err := h.findService("Id", in.Id)
	if err != nil {
		return wire.OperationStarted{}, err
	}
	if in.Service == nil {
		return wire.OperationStarted{}, invalidInput("Service: must not be empty")
	}
	ns := h.store.namespaceOf(svc)
	if ns.Kind == kindHTTP {
		return wire.OperationStarted{}, invalidInput("The service %s is in an HTTP namespace and can't be updated.", svc.ID)
	}
	for _, inst := range svc.Instances {
		if h.store.creatorAccount(inst.CreatedBy) != h.caller.account {
			return wire.OperationStarted{}, invalidInput("The service %s has instances that other accounts registered, and can't be updated.", svc.ID)
		}
	}
	if err := svc.checkChange(ns, in.Service); err != nil {
		return wire.OperationStarted{}, err
	}
	return started(h.submitOperation(&operation{
		Type: opUpdateService, Change: &operationChange{Service: in.Service}, Targets: map[string]string{targetService: svc.ID},
	}))
}

// checkChange validates an update in a DNS namespace: TTLs and the health check can change, the
// record types cannot.
func (svc *service) checkChange(ns *namespace, c *wire.ServiceChange) error {
	if c.Description != nil {
		if err := descriptionText.check(*c.Description); err != nil {
			return err
		}
	}
	if c.DnsConfig != nil {
		if svc.DNS == nil {
			return invalidInput("DnsConfig: the service %s has no DNS records", svc.ID)
		}
		types := func(records []wire.DNSRecord) []string {
			return slices.Sorted(slices.Values(mapSlice(records, func(d wire.DNSRecord) string { return d.Type })))
		}
		if !slices.Equal(types(svc.DNS.DnsRecords), types(c.DnsConfig.DnsRecords)) {
			return invalidInput("DnsRecords: the record types of a service can't be changed")
		}
		for _, record := range c.DnsConfig.DnsRecords {
			if err := checkTTL("DnsRecords.TTL", record.TTL); err != nil {
				return err
			}
		}
	}
	changed := *svc
	changed.applyChange(c)
	return cmp.Or(checkHealthCheck(c.HealthCheckConfig), checkHealthChecks(ns, &changed))
}

func (h serviceHandler) deleteService(in wire.IDInput) (wire.Empty, error) {
	svc, err := h.findService("Id", in.Id)
	if err != nil {
		return wire.Empty{}, err
	}
	if len(svc.Instances) > 0 || svc.inFlight > 0 {
		return wire.Empty{}, resourceInUse("The service %s contains instances (%d, and %d operations in progress); deregister them first.",
			svc.ID, len(svc.Instances), svc.inFlight)
	}
	if op := h.operations.inFlightByTarget[svc.ID+"/"]; op != nil {
		return wire.Empty{}, resourceInUse("The service %s is being updated by the operation %s.", svc.ID, op.ID)
	}
	if h.store.isInUse(svc.LastUsed, h.now) {
		return wire.Empty{}, resourceInUse("The service %s contained instances until %s; try again later.", svc.ID, svc.LastUsed.UTC())
	}
	h.replica.addChange(h.store.removeService(svc, h.now), h.now)
	return wire.Empty{}, nil
}
