package cloudmaplocal

import (
	"maps"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

func (r *region) getServiceAttributes(in wire.ServiceInput) (struct{ ServiceAttributes wire.ServiceAttributes }, error) {
	var out struct{ ServiceAttributes wire.ServiceAttributes }
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return out, err
	}
	out.ServiceAttributes = wire.ServiceAttributes{
		Attributes: svc.Attributes, ResourceOwner: r.key.account, ServiceArn: r.arn("service", svc.ID),
	}
	if svc.Attributes == nil {
		out.ServiceAttributes.Attributes = map[string]string{}
	}
	return out, nil
}

// updateServiceAttributes adds and replaces attributes; others stay as they are.
func (r *region) updateServiceAttributes(in wire.UpdateAttributesInput) (wire.Empty, error) {
	svc, err := r.service("ServiceId", in.ServiceId)
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

func (r *region) deleteServiceAttributes(in wire.DeleteAttributesInput) (wire.Empty, error) {
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return wire.Empty{}, err
	}
	if n := len(in.Attributes); n < 1 || n > maxServiceAttributes {
		return wire.Empty{}, invalidInput("Attributes: must have 1 to %d entries, not %d", maxServiceAttributes, n)
	}
	svc.Attributes = without(svc.Attributes, in.Attributes)
	return wire.Empty{}, nil
}

// merge returns a new map with the entries of both maps; the second map wins.
func merge(a, b map[string]string) map[string]string {
	out := make(map[string]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

// without returns a new map that lacks some keys.
func without(m map[string]string, keys []string) map[string]string {
	out := merge(m, nil)
	for _, key := range keys {
		delete(out, key)
	}
	return out
}
