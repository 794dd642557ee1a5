// Package controller makes the cluster it runs in follow its ServiceExports and the registry. Four parts:
//
//	membership  who is this cluster (ClusterProperty)? -> a session with the registry, or why there is none
//	exports     ServiceExport + Service + EndpointSlices -> the registry; conditions of the ServiceExport
//	autoexport  Services that match a selector -> ServiceExports; off by default
//	imports     the registry + this cluster's own exports -> ServiceImport, derived Service, imported EndpointSlices
//
// Exports and imports are reconciled service by service: gather what is there, decide without I/O, apply the smallest
// writes. Everything is level-triggered; a notification, from Kubernetes or from the registry, says "look again".
//
// What the controller may do in a cluster is what it uses, and is written here:
//
// +kubebuilder:rbac:groups=about.k8s.io,resources=clusterproperties,verbs=list;watch
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=serviceexports,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=serviceexports/status,verbs=update
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=serviceimports,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=serviceimports/status,verbs=update
// +kubebuilder:rbac:groups="",resources=services,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=cloud-map-mcs-system,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=cloud-map-mcs-system,resources=configmaps,verbs=create
// +kubebuilder:rbac:groups="",namespace=cloud-map-mcs-system,resources=configmaps,resourceNames=cloud-map-mcs-controller,verbs=get;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=cloud-map-mcs-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=cloud-map-mcs-system,resources=leases,resourceNames=cloud-map-mcs-controller,verbs=get;update
package controller
