package cloudmaplocal

import "maps"

func (r *region) getServiceAttributes(in serviceInput) (struct{ ServiceAttributes serviceAttributes }, error) {
	var out struct{ ServiceAttributes serviceAttributes }
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return out, err
	}
	out.ServiceAttributes = serviceAttributes{
		Attributes: svc.Attributes, ResourceOwner: r.key.account, ServiceArn: r.arn("service", svc.ID),
	}
	if svc.Attributes == nil {
		out.ServiceAttributes.Attributes = map[string]string{}
	}
	return out, nil
}

// updateServiceAttributes adds and replaces; what the request does not name stays.
func (r *region) updateServiceAttributes(in updateAttributesInput) (empty, error) {
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return empty{}, err
	}
	if err := checkServiceAttributes(in.Attributes); err != nil {
		return empty{}, err
	}
	merged := merge(svc.Attributes, in.Attributes)
	if len(merged) > maxServiceAttributes {
		return empty{}, failure("ServiceAttributesLimitExceededException",
			"The service %s would have %d attributes; it can have %d.", svc.ID, len(merged), maxServiceAttributes)
	}
	svc.Attributes = merged
	return empty{}, nil
}

func (r *region) deleteServiceAttributes(in deleteAttributesInput) (empty, error) {
	svc, err := r.service("ServiceId", in.ServiceId)
	if err != nil {
		return empty{}, err
	}
	if n := len(in.Attributes); n < 1 || n > maxServiceAttributes {
		return empty{}, invalidInput("Attributes: must have 1 to %d entries, not %d", maxServiceAttributes, n)
	}
	svc.Attributes = without(svc.Attributes, in.Attributes)
	return empty{}, nil
}

// merge is a new map with the entries of both; those of the second win.
func merge(a, b map[string]string) map[string]string {
	out := make(map[string]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

// without is a new map that lacks some keys.
func without(m map[string]string, keys []string) map[string]string {
	out := merge(m, nil)
	for _, key := range keys {
		delete(out, key)
	}
	return out
}
