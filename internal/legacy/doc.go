// Package legacy holds everything about the legacy controller, the AWS Cloud Map MCS Controller for
// K8s: importing from clusters that still run it, and taking over the objects that it created in
// this cluster. docs/migration.md describes the migration.
//
// Release 0.3.0 removes this package together with its uses: --import-from-aws-controller and
// --legacy-poll-interval (internal/config/migration.go), the registry (cmd/controller/legacy.go)
// and the hook imports.Takeover.
//
//	registry.go   the registry of the clusters that run the legacy controller: a registry.Registry that only reads
//	services.go   the Cloud Map services with their exports, and when to read each
//	schedule.go   when to list namespaces and services
//	exports.go    the exports that instances describe
//	takeover.go   which objects the legacy controller created, and which derived Service an import keeps
//	imports.go    the Kubernetes side of the takeover: gathering, retiring and deleting these objects
package legacy

const (
	// ControllerName is the name of the legacy controller in attributes of instances and labels of
	// EndpointSlices.
	ControllerName = "aws-cloud-map-mcs-controller-for-k8s"
	// RegistryName is the name of the registry in metrics, logs and errors.
	RegistryName = "aws-controller"
)
