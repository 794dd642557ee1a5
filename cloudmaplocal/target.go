package cloudmaplocal

import "cmp"

// requestIDs are all members by which a request can name its resources.
type requestIDs struct {
	Id            string // of a namespace or of a service
	InstanceId    string
	Name          string // of a new resource
	NamespaceId   string
	NamespaceName string
	OperationId   string
	OwnerAccount  string
	ResourceARN   string
	ServiceId     string
	ServiceName   string
}

// requestTarget has the existing resources of a request, from the region itself and not from the replica.
type requestTarget struct {
	namespace *namespace
	service   *service
	// The names can be of a service and an instance that do not exist (yet).
	targetNames
}

// targetNames are the names of the service and the instance of a request, "" if it names none.
type targetNames struct{ service, instance string }

// resolveTarget finds the resources of a request. An unreadable request has none.
func (r *region) resolveTarget(body []byte) requestTarget {
	ref, err := decode[requestIDs](body)
	if err != nil {
		return requestTarget{}
	}
	if op := r.operations.byID[ref.OperationId]; op != nil {
		ref.NamespaceId, ref.ServiceId, ref.InstanceId = op.Targets[targetNamespace], op.Targets[targetService], op.Targets[targetInstance]
	}
	found := requestTarget{namespace: r.namespaceOf(ref), targetNames: targetNames{instance: ref.InstanceId}}
	if found.service = r.serviceOf(ref, found.namespace); found.service != nil {
		found.namespace = r.namespaces[found.service.NamespaceID]
		found.targetNames.service = found.service.Name
		return found
	}
	found.targetNames.service = ref.ServiceName
	if ref.NamespaceId != "" {
		found.targetNames.service = cmp.Or(found.targetNames.service, ref.Name) // CreateService
	}
	return found
}

func (r *region) namespaceOf(ref requestIDs) *namespace {
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

func (r *region) serviceOf(ref requestIDs, in *namespace) *service {
	if svc := r.services[r.id("service", cmp.Or(ref.ServiceId, ref.Id, ref.ResourceARN))]; svc != nil {
		return svc
	}
	if in == nil || ref.ServiceName == "" {
		return nil
	}
	return r.serviceNamed(in, ref.ServiceName)
}

// arn returns the ARN of the most specific resource of the request; "*" without one.
func (s requestTarget) arn(r *region) string {
	switch {
	case s.service != nil:
		return r.arn("service", s.service.ID)
	case s.namespace != nil:
		return r.arn("namespace", s.namespace.ID)
	}
	return "*"
}

// resolveTargetNames returns the names of the resources of a request.
func (r *region) resolveTargetNames(body []byte) (about targetNames) {
	_ = r.withLock(func() error { // cannot fail
		about = r.resolveTarget(body).targetNames
		return nil
	})
	return about
}
