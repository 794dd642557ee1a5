// Package controller wires the controllers of this project into a manager and runs it. Each
// controller is a package:
//
//	membership  ClusterProperties or flags -> the cluster's identity, and its session with the registry;
//	            labels of the nodes -> ClusterProperties for Region and zone
//	exports     ServiceExport + Service + EndpointSlices -> the registry; conditions of the ServiceExport;
//	            with --auto-export-selector also Services -> ServiceExports
//	guard       --import-policy and this cluster's addresses: what of the other clusters' exports is imported
//	imports     the registry + this cluster's own exports -> ServiceImport, derived Service, imported EndpointSlices
//	serve       metrics, status endpoint, probes
//	kube        what they share
//
// They import one way: kube <- membership, guard <- exports, imports <- serve <- controller.
// Exports and imports are reconciled service by service: gather the existing objects, decide
// without I/O, apply the smallest set of writes. Everything is level-triggered: a notification,
// from Kubernetes or from the registry, only requeues a service.
//
// The controller's permissions in a cluster are those that it uses:
//
// +kubebuilder:rbac:groups=about.k8s.io,resources=clusterproperties,verbs=list;watch;create
// +kubebuilder:rbac:groups=about.k8s.io,resources=clusterproperties,resourceNames=region.topology.k8s.io;zone.topology.k8s.io,verbs=update;delete
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=serviceexports,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=serviceexports/status,verbs=update
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=serviceimports,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=serviceimports/status,verbs=update
// +kubebuilder:rbac:groups="",resources=services,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=cloud-map-mcs-system,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=cloud-map-mcs-system,resources=configmaps,verbs=create
// +kubebuilder:rbac:groups="",namespace=cloud-map-mcs-system,resources=configmaps,resourceNames=cloud-map-mcs-controller;cloud-map-mcs-controller-keys,verbs=get;patch
// +kubebuilder:rbac:groups="",namespace=cloud-map-mcs-system,resources=secrets,resourceNames=cloud-map-mcs-controller-signing-key,verbs=get;update
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=cloud-map-mcs-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=cloud-map-mcs-system,resources=leases,resourceNames=cloud-map-mcs-controller,verbs=get;update;watch
package controller
