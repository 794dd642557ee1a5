package cloudmaplocal

import "time"

// apiOperation is an operation of the API. writes reports whether it changes the state.
type apiOperation struct {
	run    func(*region, request) (any, error)
	writes bool
}

// handlers is the whole API, by the name of the operation.
var handlers = map[string]apiOperation{
	"CreateHttpNamespace":       writes(namespaceHandler.createHTTPNamespace),
	"CreatePrivateDnsNamespace": writes(namespaceHandler.createPrivateDNSNamespace),
	"CreatePublicDnsNamespace":  writes(namespaceHandler.createPublicDNSNamespace),
	"GetNamespace":              reads(namespaceHandler.getNamespace),
	"ListNamespaces":            reads(namespaceHandler.listNamespaces),
	"UpdateHttpNamespace":       writes(namespaceHandler.updateHTTPNamespace),
	"UpdatePrivateDnsNamespace": writes(namespaceHandler.updatePrivateDNSNamespace),
	"UpdatePublicDnsNamespace":  writes(namespaceHandler.updatePublicDNSNamespace),
	"DeleteNamespace":           writes(namespaceHandler.deleteNamespace),

	"CreateService":           writes(serviceHandler.createService),
	"GetService":              reads(serviceHandler.getService),
	"ListServices":            reads(serviceHandler.listServices),
	"UpdateService":           writes(serviceHandler.updateService),
	"DeleteService":           writes(serviceHandler.deleteService),
	"GetServiceAttributes":    reads(serviceHandler.getServiceAttributes),
	"UpdateServiceAttributes": writes(serviceHandler.updateServiceAttributes),
	"DeleteServiceAttributes": writes(serviceHandler.deleteServiceAttributes),

	"RegisterInstance":                 writes(instanceHandler.registerInstance),
	"DeregisterInstance":               writes(instanceHandler.deregisterInstance),
	"GetInstance":                      reads(instanceHandler.getInstance),
	"ListInstances":                    reads(instanceHandler.listInstances),
	"UpdateInstanceCustomHealthStatus": writes(instanceHandler.updateCustomHealth),
	"GetInstancesHealthStatus":         reads(instanceHandler.healthStatus),

	"DiscoverInstances":         reads(discoveryHandler.discoverInstances),
	"DiscoverInstancesRevision": reads(discoveryHandler.discoverRevision),

	"GetOperation":   reads(operationHandler.getOperation),
	"ListOperations": reads(operationHandler.listOperations),

	"ListTagsForResource": reads(tagHandler.listTags),
	"TagResource":         writes(tagHandler.tagResource),
	"UntagResource":       writes(tagHandler.untagResource),
}

// handler is a group of operations, for example namespaceHandler: methods of an apiCall.
type handler interface{ ~struct{ *apiCall } }

func writes[H handler, In, Out any](f func(H, In) (Out, error)) apiOperation {
	return apiOperation{run: runner(f), writes: true}
}

func reads[H handler, In, Out any](f func(H, In) (Out, error)) apiOperation {
	return apiOperation{run: runner(f)}
}

// runner decodes the request before the region is locked; the answer is encoded after that.
func runner[H handler, In, Out any](f func(H, In) (Out, error)) func(*region, request) (any, error) {
	return func(r *region, req request) (any, error) {
		in, err := decode[In](req.body)
		if err != nil {
			return nil, err
		}
		var out Out
		err = r.withLock(func(now time.Time) error {
			c := &apiCall{region: r, access: r.accessOf(req.caller), req: req, now: now}
			if err := c.authorize(); err != nil {
				return err
			}
			out, err = f(H{c}, in)
			return err
		})
		return out, err
	}
}
