package cloudmaplocal

import "github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"

func (h serviceHandler) getServiceAttributes(in wire.ServiceInput) (struct{ ServiceAttributes wire.ServiceAttributes }, error) {
	var out struct{ ServiceAttributes wire.ServiceAttributes }
	svc, err := h.findService("ServiceId", in.ServiceId)
	if err != nil {
		return out, err
	}
	out.ServiceAttributes = wire.ServiceAttributes{
		Attributes: svc.Attributes, ResourceOwner: h.key.account, ServiceArn: h.store.arn("service", svc.ID),
	}
	if svc.Attributes == nil {
		out.ServiceAttributes.Attributes = map[string]string{}
	}
	return out, nil
}

// updateServiceAttributes adds and replaces attributes; others stay as they are.
func (h serviceHandler) updateServiceAttributes(in wire.UpdateAttributesInput) (wire.Empty, error) {
	svc, err := h.findService("ServiceId", in.ServiceId)
	if err != nil {
		return wire.Empty{}, err
	}
	if err := checkServiceAttributes(in.Attributes); err != nil {
		return wire.Empty{}, err
	}
	merged := merge(svc.Attributes, in.Attributes)
	if len(merged) > maxServiceAttributes {
		return wire.Empty{}, failure("ServiceAttributesLimitExceededException",
			"The service %s would have %d attributes; it can have %d.", svc.ID, len(merged), maxServiceAttributes)
	}
	svc.Attributes = merged
	return wire.Empty{}, nil
}

func (h serviceHandler) deleteServiceAttributes(in wire.DeleteAttributesInput) (wire.Empty, error) {
	svc, err := h.findService("ServiceId", in.ServiceId)
	if err != nil {
		return wire.Empty{}, err
	}
	if n := len(in.Attributes); n < 1 || n > maxServiceAttributes {
		return wire.Empty{}, invalidInput("Attributes: must have 1 to %d entries, not %d", maxServiceAttributes, n)
	}
	svc.Attributes = without(svc.Attributes, in.Attributes)
	return wire.Empty{}, nil
}
