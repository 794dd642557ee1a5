package cloudmaplocal

import (
	"cmp"
	"strings"
)

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

// requestTarget has the existing resources of a request, from the region itself and not from the
// replica.
type requestTarget struct {
	namespace *namespace
	service   *service
	// The names can be of a service and an instance that do not exist (yet).
	targetNames
}

// hasRecords reports whether the service has DNS records, or the namespace of a request without a
// service may have some.
func (t requestTarget) hasRecords() bool {
	if t.service != nil {
		return t.service.DNS != nil
	}
	return t.namespace != nil && t.namespace.Kind != kindHTTP
}

// targetNames are the names of the service and the instance of a request, "" if it names none.
type targetNames struct{ service, instance string }

// resolveTarget finds the resources of a request. An unreadable request has none.
func (s *store) resolveTarget(body []byte, log *operationLog) requestTarget {
	ref, err := decode[requestIDs](body)
	if err != nil {
		return requestTarget{}
	}
	if op := log.byID[ref.OperationId]; op != nil {
		ref.NamespaceId, ref.ServiceId, ref.InstanceId = op.Targets[targetNamespace], op.Targets[targetService], op.Targets[targetInstance]
	}
	found := requestTarget{namespace: s.findNamespace(ref), targetNames: targetNames{instance: ref.InstanceId}}
	if found.service = s.findService(ref, found.namespace); found.service != nil {
		found.namespace = s.namespaceOf(found.service)
		found.targetNames.service = found.service.Name
		return found
	}
	found.targetNames.service = ref.ServiceName
	if ref.NamespaceId != "" {
		found.targetNames.service = cmp.Or(found.targetNames.service, ref.Name) // CreateService
	}
	return found
}

func (s *store) findNamespace(ref requestIDs) *namespace {
	if ns := s.namespaces[s.resourceID("namespace", cmp.Or(ref.NamespaceId, ref.Id, ref.ResourceARN))]; ns != nil {
		return ns
	}
	for _, ns := range s.namespaces {
		if ns.HTTPName == ref.NamespaceName {
			return ns
		}
	}
	return nil
}

func (s *store) findService(ref requestIDs, in *namespace) *service {
	if svc := s.services[s.resourceID("service", cmp.Or(ref.ServiceId, ref.Id, ref.ResourceARN))]; svc != nil {
		return svc
	}
	if in == nil || ref.ServiceName == "" {
		return nil
	}
	return s.findServiceByName(in, ref.ServiceName)
}

// arn returns the ARN of the most specific resource of the request; "*" without one.
func (t requestTarget) arn(s *store) string {
	switch {
	case t.service != nil:
		return s.arn("service", t.service.ID)
	case t.namespace != nil:
		return s.arn("namespace", t.namespace.ID)
	}
	return "*"
}

// requestOwner returns the account that a request names as the owner of its resource; "" if it
// names none.
func requestOwner(body []byte, region string) string {
	ref, err := decode[requestIDs](body)
	if err != nil {
		return ""
	}
	if ref.OwnerAccount != "" {
		return ref.OwnerAccount
	}
	for _, name := range []string{ref.ServiceId, ref.NamespaceId, ref.Id, ref.ResourceARN} {
		// arn:partition:servicediscovery:region:account:kind/id
		parts := strings.Split(name, ":")
		if len(parts) == 6 && parts[2] == signingService && parts[3] == region {
			return parts[4]
		}
	}
	return ""
}
