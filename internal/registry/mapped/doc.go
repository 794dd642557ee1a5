// Package mapped is the registry of mapped services: services of AWS Cloud Map that no cluster
// exports, such as those of ECS and EC2, which an administrator of this cluster maps to
// ServiceImports with the file of --cloud-map-services. It is read-only, and one source of a union.
// All mapped services are exports of one pseudo-cluster. docs/ecs-ec2-lambda.md documents it,
// docs/proposals/020-services-in.md has the reasons.
//
//	servicesfile  the file: pure
//	convert.go    the export that instances describe: pure
//	schedule.go   which service to read next, within a fixed number of requests: pure
//	state.go      what is known of each service
//	registry.go   registry.Registry
package mapped

// RegistryName is the name of the registry in metrics, logs and errors.
const RegistryName = "cloud-map-services"

// MemberVersion stands in the list of members for the version of a controller.
const MemberVersion = "AWS Cloud Map"
