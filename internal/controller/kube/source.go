package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// LocalSource holds this cluster's objects of a service, from which its export is made.
type LocalSource struct {
	mcs.Source
	// Denial is the reason why the namespace may not export, "" if it may.
	Denial string
	// Terminating is the ServiceExport if it is being deleted: it exports nothing, and only its
	// status is written.
	Terminating *mcsv1beta1.ServiceExport
}

// ReadLocalSource reads the ServiceExport, Service and EndpointSlices of key; ServiceExport and
// Service are nil if they do not exist. A ServiceExport with a deletion timestamp counts as
// deleted, so that a finalizer does not keep it exported: it is in Terminating.
//
// The objects come from the cache and must not be changed.
func ReadLocalSource(ctx context.Context, c client.Reader, scope *Scope, identity mcs.Identity, key mcs.Key) (LocalSource, error) {
	src := LocalSource{Source: mcs.Source{
		Identity: identity, ControllerSlicesOnly: scope.flags.ExportSlices == config.ExportControllerSlices, CheckAddress: scope.rules.CheckAddress,
		ClusterPreference: mcs.ClusterPreference(scope.flags.ClusterPreference), InstanceDNS: mcs.InstanceDNS(scope.flags.InstanceDNS),
	}}

	var exp mcsv1beta1.ServiceExport
	if found, err := Find(ctx, c, NameOf(key), &exp); err != nil || !found {
		return src, err
	}
	if exp.DeletionTimestamp != nil {
		src.Terminating = &exp
		return src, nil
	}
	src.ServiceExport = &exp

	ns, _, err := ReadNamespace(ctx, c, key.Namespace)
	if err != nil {
		return src, err
	}
	src.Denial, src.NamespaceAnnotations = scope.ExportDenial(ns), ns.Annotations

	var svc corev1.Service
	if found, err := Find(ctx, c, NameOf(key), &svc, client.UnsafeDisableDeepCopy); err != nil || !found || svc.DeletionTimestamp != nil {
		return src, err
	}
	src.Service = &svc

	src.Slices, err = ListSlices(ctx, c, key.Namespace, IndexService, key.Name)
	return src, err
}

// IsExported reports whether the service is exported: its ServiceExport is valid and its namespace
// may export.
func (s LocalSource) IsExported() bool {
	return s.ServiceExport != nil && s.Denial == "" && mcs.ExportValid(s.Service).Status == metav1.ConditionTrue
}
