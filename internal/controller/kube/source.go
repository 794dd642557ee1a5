package kube

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// ReadLocalSource reads the ServiceExport of key, and the Service that it exports with its
// EndpointSlices; ServiceExport and Service are nil if they do not exist. A ServiceExport with a
// deletion timestamp counts as deleted, so that a finalizer does not keep it exported: it is in
// Terminating.
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

	if src.Service, err = FindExported(ctx, c, &exp); err != nil {
		return src, err
	}
	if src.Service == nil {
		return src, scope.confirmNoService(ctx, &exp)
	}
	src.Slices, err = ListSlices(ctx, c, key.Namespace, IndexService, src.Service.Name)
	return src, err
}

// FindExported returns the Service that exp exports. It is nil if it does not exist or is being
// deleted, or if exp names none.
func FindExported(ctx context.Context, c client.Reader, exp *mcsv1beta1.ServiceExport) (*corev1.Service, error) {
	name, err := mcs.ExportedService(exp)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // mcs.ExportValid reports it
	}
	var svc corev1.Service
	found, err := Find(ctx, c, types.NamespacedName{Namespace: exp.Namespace, Name: name}, &svc, client.UnsafeDisableDeepCopy)
	if err != nil || !found || svc.DeletionTimestamp != nil {
		return nil, err
	}
	return &svc, nil
}

// confirmNoService returns an error if the cache does not show the Service that exp exports and the
// API server has it. ServiceExports and Services are watched separately: a user may create a
// Service and then name it in an annotation, and the controller reads the annotation first. The
// export, which may be in use, must not be withdrawn for that. Without a Service before, nothing is
// exported that could be withdrawn.
func (s *Scope) confirmNoService(ctx context.Context, exp *mcsv1beta1.ServiceExport) error {
	name, err := mcs.ExportedService(exp)
	before := meta.FindStatusCondition(exp.Status.Conditions, string(mcsv1beta1.ServiceExportConditionValid))
	if err != nil || s.rules.HasService == nil || before == nil || before.Reason == string(mcsv1beta1.ServiceExportReasonNoService) {
		return nil //nolint:nilerr // mcs.ExportValid reports it
	}
	exists, err := s.rules.HasService(ctx, types.NamespacedName{Namespace: exp.Namespace, Name: name})
	if err != nil || !exists {
		return err
	}
	return fmt.Errorf("the cache does not show Service %s/%s yet, which exists: the export of ServiceExport %s stays as it is until then", exp.Namespace, name, exp.Name)
}

// HasService returns the Rules.HasService that asks reader, which has no cache. It lists because
// the controller has no permission to get a Service.
func HasService(reader client.Reader) func(context.Context, types.NamespacedName) (bool, error) {
	return func(ctx context.Context, name types.NamespacedName) (bool, error) {
		var list corev1.ServiceList
		if err := reader.List(ctx, &list, client.InNamespace(name.Namespace), client.MatchingFields{metav1.ObjectNameField: name.Name}); err != nil {
			return false, fmt.Errorf("looking for Service %s: %w", name, err)
		}
		return slices.ContainsFunc(list.Items, func(svc corev1.Service) bool { return svc.DeletionTimestamp == nil }), nil
	}
}

// IsExported reports whether the service is exported: its ServiceExport is valid and its namespace
// may export.
func (s LocalSource) IsExported() bool {
	return s.ServiceExport != nil && s.Denial == "" && mcs.ExportValid(s.ServiceExport, s.Service).Status == metav1.ConditionTrue
}
