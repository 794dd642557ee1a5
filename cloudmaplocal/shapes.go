package cloudmaplocal

import "github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"

// namespaceShape returns a namespace as ListNamespaces shows it. GetNamespace adds the
// CreatorRequestId.
func (s *store) namespaceShape(ns *namespace) wire.Namespace {
	count := ns.services
	shape := wire.Namespace{
		Arn: s.arn("namespace", ns.ID), CreateDate: wire.Timestamp(ns.Created), Description: ns.Description, Id: ns.ID, Name: ns.Name,
		ResourceOwner: s.key.account, ServiceCount: &count, Type: ns.Kind,
	}
	shape.Properties.HttpProperties = &wire.HTTPProperties{HttpName: ns.HTTPName}
	if ns.Kind != kindHTTP {
		ttl := ns.SOATTL
		shape.Properties.DnsProperties = wire.DNSProperties{HostedZoneId: ns.HostedZoneID, SOA: &wire.SOA{TTL: &ttl}}
	}
	return shape
}

func (s *store) serviceShape(svc *service) wire.Service {
	count := len(svc.Instances)
	return wire.Service{
		Arn: s.arn("service", svc.ID), CreateDate: wire.Timestamp(svc.Created), CreatedByAccount: s.creatorAccount(svc.CreatedBy),
		CreatorRequestId: svc.CreatorRequestID, Description: svc.Description, DnsConfig: svc.DNS,
		HealthCheckConfig: svc.HealthCheck, HealthCheckCustomConfig: svc.CustomHealth, Id: svc.ID,
		InstanceCount: &count, Name: svc.Name, NamespaceId: svc.NamespaceID, ResourceOwner: s.key.account,
		Type: svc.Kind,
	}
}

// instanceShape returns an instance as ListInstances shows it.
func (s *store) instanceShape(inst *instance) wire.Instance {
	return wire.Instance{Id: inst.ID, Attributes: inst.Attributes, CreatedByAccount: s.creatorAccount(inst.CreatedBy)}
}
