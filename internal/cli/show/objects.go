package show

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/doctor"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// This file reads services from the Kubernetes objects of one cluster, whose controller does not
// list them: the user may not query it, or it does not answer.

// stateReady is the state of a service that is ok according to the objects of one cluster.
const stateReady = "ready"

// An objectReader collects the services of the objects of one context.
type objectReader struct {
	context  string
	services map[mcs.Key]*Service
	// drained has the imports of which not all endpoints are in use because of a drain.
	drained map[mcs.Key]bool
	// lacksImports and lacksSlices: the user may not list ServiceImports, or EndpointSlices.
	lacksImports, lacksSlices bool
}

// readServices returns the services of a namespace, or of all if it is "", that the objects of the
// cluster show, sorted. Objects that the user may not list are unknown, and an error if that is all
// of them. Services of one name in several contexts are not merged: their clusterset is not known.
func readServices(ctx context.Context, s *session.Session, k *session.Cluster, namespace string) ([]Service, error) {
	exports, exportsErr := k.ListExports(ctx, namespace)
	imports, importsErr := k.ListImports(ctx, namespace)
	var imported discoveryv1.EndpointSliceList
	slicesErr := k.List(ctx, namespace, &imported, client.MatchingLabels{plan.LabelManagedBy: plan.ManagedBy})
	if slicesErr != nil {
		slicesErr = fmt.Errorf("listing EndpointSlices: %w", slicesErr)
	}
	for _, part := range []struct {
		name string
		err  error
	}{{"services that are only exported", exportsErr}, {"imports", importsErr}, {"endpoints", slicesErr}} {
		switch {
		case part.err == nil:
		case !session.IsNoPermission(part.err) || exportsErr != nil && importsErr != nil:
			return nil, part.err
		default:
			s.Progressf("%s: %s are unknown: %v", k.Context, part.name, part.err)
		}
	}
	r := objectReader{context: k.Context, services: map[mcs.Key]*Service{}, drained: map[mcs.Key]bool{}, lacksImports: importsErr != nil, lacksSlices: slicesErr != nil}
	for i := range imports {
		if imports[i].Labels[plan.LabelAppManagedBy] == plan.ManagedBy {
			r.addImport(&imports[i], imported.Items)
		}
	}
	for i := range exports {
		r.addExport(&exports[i])
	}
	services := make([]Service, 0, len(r.services))
	for _, svc := range r.services {
		svc.State = r.state(svc)
		services = append(services, *svc)
	}
	slices.SortFunc(services, compareServices)
	return services, nil
}

// state returns the state of a service that objects show.
func (r *objectReader) state(svc *Service) string {
	state := serviceState(svc)
	switch {
	case state == stateNotHere && r.lacksImports, state == stateNoEndpoints && r.lacksSlices:
		return unknown
	case state == stateOK && r.drained[svc.Key]:
		return "drained"
	case state == stateOK:
		return stateReady
	}
	return state
}

func compareServices(a, b Service) int {
	return cmp.Or(strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name), strings.Compare(a.Context, b.Context))
}

func (r *objectReader) of(namespace, name string) *Service {
	key := mcs.Key{Namespace: namespace, Name: name}
	if r.services[key] == nil {
		r.services[key] = &Service{Context: r.context, Key: key, Exports: []ExportSummary{}}
	}
	return r.services[key]
}

// addImport adds an import with its endpoints in the slices of all imports.
func (r *objectReader) addImport(imp *mcsv1beta1.ServiceImport, slicesOfAll []discoveryv1.EndpointSlice) {
	svc := r.of(imp.Namespace, imp.Name)
	svc.Type = string(imp.Spec.Type)
	for _, p := range imp.Spec.Ports {
		svc.Ports = append(svc.Ports, mcs.Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	stale := plan.StaleClusters(imp)
	for _, cluster := range session.SourceClusters(imp) {
		var of []discoveryv1.EndpointSlice
		for _, s := range slicesOfAll {
			if s.Namespace == imp.Namespace && s.Labels[mcsv1beta1.LabelServiceName] == imp.Name && s.Labels[mcsv1beta1.LabelSourceCluster] == cluster {
				of = append(of, s)
			}
		}
		ready, all := doctor.CountReady(of)
		svc.Exports = append(svc.Exports, ExportSummary{Cluster: cluster, Ready: ready, Endpoints: all, Stale: slices.Contains(stale, cluster)})
	}
	svc.EndpointsUnknown = r.lacksSlices
	r.drained[svc.Key] = meta.IsStatusConditionTrue(mcs.RenameConditions(imp.Status.Conditions), mcs.ConditionDrained)
	svc.addProblem("the import is not ready", meta.FindStatusCondition(imp.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady)))
}

// addExport adds the export of the cluster itself. Its ID is not known.
func (r *objectReader) addExport(e *mcsv1beta1.ServiceExport) {
	svc := r.of(e.Namespace, e.Name)
	svc.addProblem("not exported", meta.FindStatusCondition(e.Status.Conditions, string(mcsv1beta1.ServiceExportConditionReady)))
	if c := meta.FindStatusCondition(e.Status.Conditions, string(mcsv1beta1.ServiceExportConditionConflict)); c != nil && c.Status == metav1.ConditionTrue {
		svc.Conflicts = append(svc.Conflicts, c.Message)
	}
}

// addProblem adds a problem unless the condition Ready is True.
func (s *Service) addProblem(text string, ready *metav1.Condition) {
	switch {
	case ready == nil:
		s.Problems = append(s.Problems, s.Context+": "+text+": the controller has not set the condition Ready")
	case ready.Status != metav1.ConditionTrue:
		s.Problems = append(s.Problems, fmt.Sprintf("%s: %s: %s: %s", s.Context, text, ready.Reason, ready.Message))
	}
}
