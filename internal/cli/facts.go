package cli

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// serviceFacts are all that was gathered of a service in one context's cluster: what diagnose decides on. What is not there
// is nil.
type serviceFacts struct {
	context string
	// home is the controller's namespace.
	home string
	// problem is why the API server could not be asked; then nothing else is known.
	problem string

	namespace   bool
	service     *corev1.Service
	slices      []discoveryv1.EndpointSlice
	export      *mcsv1beta1.ServiceExport
	imported    *mcsv1beta1.ServiceImport
	derived     *corev1.Service
	imports     []discoveryv1.EndpointSlice
	permissions permissions

	// controller is what the controller says, or nil and why it could not be asked; seen is what it has read of the registry.
	controller        *status.Status
	controllerProblem string
	seen              *status.Service
	seenProblem       string

	// dns is nil when CoreDNS could not be looked at, for dnsProblem.
	dns        *dnsStatus
	dnsProblem string
	// probe is nil when none was asked for, or for probeProblem.
	probe        *status.Probe
	probeProblem string
}

// gatherService gathers the facts of one cluster, with a probe or without.
func (a *app) gatherService(ctx context.Context, k *cluster, key mcs.Key, probe bool) serviceFacts {
	f := serviceFacts{context: k.context, home: a.controllerNamespace}
	if err := f.readObjects(ctx, k, key); err != nil {
		return serviceFacts{context: k.context, problem: err.Error()}
	}
	f.permissions = checkPermissions(ctx, k, a.controllerNamespace, managerName)
	if dns, err := inspectDNS(ctx, k, ""); err != nil {
		f.dnsProblem = err.Error()
	} else {
		f.dns = &dns
	}
	said, err := askController[status.Status](ctx, a, k, status.PathStatus)
	if err != nil {
		f.controllerProblem = err.Error()
		return f
	}
	f.controller = &said
	if seen, err := askController[status.Service](ctx, a, k, status.ServicePath(key)); err != nil {
		f.seenProblem = err.Error()
	} else {
		f.seen = &seen
	}
	if !probe {
		return f
	}
	if probed, err := askController[status.Probe](ctx, a, k, status.ProbePath(key)); err != nil {
		f.probeProblem = err.Error()
	} else {
		f.probe = &probed
	}
	return f
}

// readObjects reads the Kubernetes objects of the service.
func (f *serviceFacts) readObjects(ctx context.Context, k *cluster, key mcs.Key) error {
	var err error
	f.namespace, err = find(ctx, k, "", key.Namespace, &corev1.Namespace{})
	if apierrors.IsForbidden(err) {
		f.namespace = true // who may not look at it may look into it
	} else if err != nil {
		return fmt.Errorf("reading namespace %s: %w", key.Namespace, err)
	}
	if f.service, err = read(ctx, k, key.Namespace, key.Name, &corev1.Service{}); err != nil {
		return err
	}
	if f.export, err = read(ctx, k, key.Namespace, key.Name, &mcsv1beta1.ServiceExport{}); err != nil {
		return err
	}
	if f.imported, err = read(ctx, k, key.Namespace, key.Name, &mcsv1beta1.ServiceImport{}); err != nil {
		return err
	}
	if f.derived, err = read(ctx, k, key.Namespace, mcs.DerivedName(key), &corev1.Service{}); err != nil {
		return err
	}
	if f.slices, err = slicesOf(ctx, k, key, client.MatchingLabels{discoveryv1.LabelServiceName: key.Name}); err != nil {
		return err
	}
	f.imports, err = slicesOf(ctx, k, key, client.MatchingLabels{mcsv1beta1.LabelServiceName: key.Name, plan.LabelManagedBy: plan.ManagedBy})
	return err
}

// read is an object, or nil when it is not there.
func read[T any, P interface {
	*T
	client.Object
}](ctx context.Context, k *cluster, namespace, name string, into P) (P, error) {
	there, err := find(ctx, k, namespace, name, into)
	if err != nil {
		return nil, fmt.Errorf("reading %T %s/%s: %w", *into, namespace, name, err)
	}
	if !there {
		return nil, nil //nolint:nilnil // nil is what is not there
	}
	return into, nil
}

func slicesOf(ctx context.Context, k *cluster, key mcs.Key, labels client.MatchingLabels) ([]discoveryv1.EndpointSlice, error) {
	var found discoveryv1.EndpointSliceList
	if err := list(ctx, k, key.Namespace, &found, labels); err != nil {
		return nil, fmt.Errorf("listing the EndpointSlices of %s: %w", key, err)
	}
	return found.Items, nil
}

// clusterID is the cluster's ID in the clusterset, "" while it is not known to be a member.
func (f *serviceFacts) clusterID() string {
	if f.controller == nil || f.controller.Identity == nil {
		return ""
	}
	return f.controller.Identity.ClusterID
}

// readyCount counts the endpoints in slices, each address once, and how many are ready.
func readyCount(slices []discoveryv1.EndpointSlice) (ready, all int) {
	seen := map[string]bool{}
	for _, s := range slices {
		for _, e := range s.Endpoints {
			isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
			for _, address := range e.Addresses {
				seen[address] = seen[address] || isReady
			}
		}
	}
	for _, isReady := range seen {
		all++
		if isReady {
			ready++
		}
	}
	return ready, all
}

// bySource are imported slices by their source cluster.
func bySource(imports []discoveryv1.EndpointSlice) map[string][]discoveryv1.EndpointSlice {
	out := map[string][]discoveryv1.EndpointSlice{}
	for _, s := range imports {
		id := s.Labels[mcsv1beta1.LabelSourceCluster]
		out[id] = append(out[id], s)
	}
	return out
}
