package cloudmaplocal

import "cmp"

// reference is every member by which a request can name what it is about.
type reference struct {
	Id            string // of a namespace or of a service
	Name          string // of what is to be created
	NamespaceId   string
	NamespaceName string
	OperationId   string
	OwnerAccount  string
	ResourceARN   string
	ServiceId     string
	ServiceName   string
}

// subject is what a request is about, as far as that exists: the truth, not what the replica shows.
type subject struct {
	namespace *namespace
	service   *service
	// serviceName may name a service that does not exist (yet).
	serviceName string
}

// subjectOf reads it out of a request. What cannot be read is about nothing.
func (r *region) subjectOf(body []byte) subject {
	ref, err := decode[reference](body)
	if err != nil {
		return subject{}
	}
	if op := r.operations.byID[ref.OperationId]; op != nil {
		ref.ServiceId, ref.NamespaceId = op.Targets[targetService], op.Targets[targetNamespace]
	}
	found := subject{namespace: r.namespaceOf(ref)}
	if found.service = r.serviceOf(ref, found.namespace); found.service != nil {
		found.namespace = r.namespaces[found.service.NamespaceID]
		found.serviceName = found.service.Name
		return found
	}
	found.serviceName = ref.ServiceName
	if ref.NamespaceId != "" {
		found.serviceName = cmp.Or(found.serviceName, ref.Name) // CreateService
	}
	return found
}

func (r *region) namespaceOf(ref reference) *namespace {
	if ns := r.namespaces[r.id("namespace", cmp.Or(ref.NamespaceId, ref.Id, ref.ResourceARN))]; ns != nil {
		return ns
	}
	for _, ns := range r.namespaces {
		if ns.HTTPName == ref.NamespaceName {
			return ns
		}
	}
	return nil
}

func (r *region) serviceOf(ref reference, in *namespace) *service {
	if svc := r.services[r.id("service", cmp.Or(ref.ServiceId, ref.Id, ref.ResourceARN))]; svc != nil {
		return svc
	}
	if in == nil || ref.ServiceName == "" {
		return nil
	}
	return r.serviceNamed(in, ref.ServiceName)
}

// arn is that of the most particular thing that the request is about; "*" without one.
func (s subject) arn(r *region) string {
	switch {
	case s.service != nil:
		return r.arn("service", s.service.ID)
	case s.namespace != nil:
		return r.arn("namespace", s.namespace.ID)
	}
	return "*"
}

// serviceName is the name of the service that a request is about; "" if it is about none.
func (r *region) serviceName(body []byte) (name string) {
	_ = r.do(func() error { // cannot fail
		name = r.subjectOf(body).serviceName
		return nil
	})
	return name
}
