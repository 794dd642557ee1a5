package cloudmaplocal

import "cmp"

// reference is every member by which a request can name what it is about.
type reference struct {
	Id            string // of a namespace or of a service
	InstanceId    string
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
	// aim may name a service and an instance that do not exist (yet).
	aim
}

// aim is the names of what a request is about, each "" if it is about none.
type aim struct{ service, instance string }

// subjectOf reads it out of a request. What cannot be read is about nothing.
func (r *region) subjectOf(body []byte) subject {
	ref, err := decode[reference](body)
	if err != nil {
		return subject{}
	}
	if op := r.operations.byID[ref.OperationId]; op != nil {
		ref.NamespaceId, ref.ServiceId, ref.InstanceId = op.Targets[targetNamespace], op.Targets[targetService], op.Targets[targetInstance]
	}
	found := subject{namespace: r.namespaceOf(ref), aim: aim{instance: ref.InstanceId}}
	if found.service = r.serviceOf(ref, found.namespace); found.service != nil {
		found.namespace = r.namespaces[found.service.NamespaceID]
		found.aim.service = found.service.Name
		return found
	}
	found.aim.service = ref.ServiceName
	if ref.NamespaceId != "" {
		found.aim.service = cmp.Or(found.aim.service, ref.Name) // CreateService
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

// aimOf is what a request is about.
func (r *region) aimOf(body []byte) (about aim) {
	_ = r.do(func() error { // cannot fail
		about = r.subjectOf(body).aim
		return nil
	})
	return about
}
