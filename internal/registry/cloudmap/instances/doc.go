// Package instances mirrors the exported endpoints of this cluster as AWS Cloud Map instances, for
// people and for consumers that do not read the pages of this project. Importing clusters do not
// use them.
//
// View is level-triggered. It reconciles a service when its export changes, lists all services once
// after a start to find instances of a previous process, and then reads one service at each
// interval, so that it repairs whatever a lost write, a late read or another writer left behind.
//
//	instance.go   the desired instances of an export, and the difference to existing ones
//	resources.go  the Cloud Map namespaces and services: cached lists, creation, removal
//	queue.go      the services with their state, and which one is next
//	view.go       reconciling a service
//	omitted.go    the endpoints that cannot be mirrored, for warnings and metrics
package instances
