package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/dns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// ServiceFacts are the facts about a service in the cluster of one context, from which diagnose
// decides. Objects that do not exist are nil.
type ServiceFacts struct {
	Context string
	// key is that of the service.
	key mcs.Key
	// controllerNamespace is the namespace of the controller.
	controllerNamespace string
	// problem is the reason why the objects could not be read; all other facts are then unknown.
	problem string
	// noPermission reports whether problem or controllerProblem is a permission that the user does
	// not have.
	noPermission bool

	// hasNamespace reports whether the service's namespace exists.
	hasNamespace bool
	// service is the Service that export names, or else that of the name of key, and slices are its
	// EndpointSlices.
	service *corev1.Service
	slices  []discoveryv1.EndpointSlice
	export  *mcsv1beta1.ServiceExport
	// otherNames are those under which service is exported, if there is no export.
	otherNames []string
	// Import and ImportedSlices are the ServiceImport and its EndpointSlices.
	Import         *mcsv1beta1.ServiceImport
	derived        *corev1.Service
	ImportedSlices []discoveryv1.EndpointSlice
	permissions    permissions
	// plugin is the version of this program.
	plugin string

	// controller is the controller's status, or nil because of controllerProblem.
	controller                          *status.Status
	controllerProblem, controllerRemedy string
	// Registry has the records of the service that the controller has read, or is nil because of
	// registryProblem.
	Registry        *status.Service
	registryProblem string

	// warning is the last Warning event about the ServiceImport, "" if there is none, or no
	// permission to list events.
	warning string

	// dns is nil because of dnsProblem.
	dns        *dns.Status
	dnsProblem string
	// probe is nil because of probeProblem, or if no probe was requested.
	probe        *status.Probe
	probeProblem string
	// egress limits the connections of the probe.
	egress egress
}

// gatherService gathers the facts of one cluster, optionally with a probe.
func gatherService(ctx context.Context, s *session.Session, k *session.Cluster, key mcs.Key, probe bool) ServiceFacts {
	f := ServiceFacts{Context: k.Context, key: key, controllerNamespace: s.ControllerNamespace, plugin: s.Version}
	if err := f.readObjects(ctx, k, key); err != nil {
		return ServiceFacts{Context: k.Context, problem: err.Error(), noPermission: session.IsNoPermission(err)}
	}
	f.warning = lastWarning(ctx, k, key)
	f.permissions = reviewPermissions(ctx, k, roleFile, s.ControllerNamespace, session.ManagerName)
	if zone, err := dns.ReadStatus(ctx, k); err != nil {
		f.dnsProblem = err.Error()
	} else {
		f.dns = &zone
	}
	controller, err := session.QueryController[status.Status](ctx, s, k, status.PathStatus)
	if err != nil {
		f.noPermission = session.IsNoPermission(err)
		_, f.controllerProblem, f.controllerRemedy = session.ExplainQuery(err)
		if probe {
			f.probeProblem = "only the controller can test it: see step controller"
		}
		return f
	}
	f.controller = &controller
	if f.registryProblem = controller.Unanswered(); f.registryProblem != "" {
		f.gatherProbe(ctx, s, k, probe)
		return f
	}
	if service, err := session.QueryController[status.Service](ctx, s, k, status.ServicePath(key)); err != nil {
		f.registryProblem = err.Error()
	} else {
		f.Registry = &service
	}
	f.gatherProbe(ctx, s, k, probe)
	return f
}

// gatherProbe lets the controller probe the service, if that is wanted.
func (f *ServiceFacts) gatherProbe(ctx context.Context, s *session.Session, k *session.Cluster, probe bool) {
	if !probe {
		return
	}
	if result, err := session.QueryController[status.Probe](ctx, s, k, status.ProbePath(f.key)); err != nil {
		f.probeProblem = err.Error()
	} else {
		f.probe = &result
		f.egress = readEgress(ctx, k, s.ControllerNamespace)
	}
}

// readObjects reads the Kubernetes objects of the service.
func (f *ServiceFacts) readObjects(ctx context.Context, k *session.Cluster, key mcs.Key) error {
	var err error
	f.hasNamespace, err = k.Find(ctx, "", key.Namespace, &corev1.Namespace{})
	if apierrors.IsForbidden(err) {
		// a user without permission to read the Namespace may still read objects in it
		f.hasNamespace = true
	} else if err != nil {
		return fmt.Errorf("reading namespace %s: %w", key.Namespace, err)
	}
	if f.export, err = readObject(ctx, k, key.Namespace, key.Name, &mcsv1beta1.ServiceExport{}); err != nil {
		return err
	}
	if err := f.readService(ctx, k); err != nil {
		return err
	}
	if f.Import, err = readObject(ctx, k, key.Namespace, key.Name, &mcsv1beta1.ServiceImport{}); err != nil {
		return err
	}
	if f.derived, err = readObject(ctx, k, key.Namespace, plan.DerivedName(key, f.Import), &corev1.Service{}); err != nil {
		return err
	}
	// A controller of an earlier version may have written them.
	if f.export != nil {
		f.export.Status.Conditions = mcs.RenameConditions(f.export.Status.Conditions)
	}
	if f.Import != nil {
		f.Import.Status.Conditions = mcs.RenameConditions(f.Import.Status.Conditions)
	}
	f.ImportedSlices, err = listSlices(ctx, k, key, client.MatchingLabels{mcsv1beta1.LabelServiceName: key.Name, plan.LabelManagedBy: plan.ManagedBy})
	return err
}

// readService reads the Service with its EndpointSlices.
func (f *ServiceFacts) readService(ctx context.Context, k *session.Cluster) (err error) {
	name, err := f.serviceName()
	if err != nil {
		return nil //nolint:nilerr // serviceStep reports it
	}
	if f.service, err = readObject(ctx, k, f.key.Namespace, name, &corev1.Service{}); err != nil {
		return err
	}
	if f.export == nil && f.service != nil {
		// a user without permission to list ServiceExports may still diagnose one
		f.otherNames, _ = k.NamesOf(ctx, f.key.Namespace, name)
	}
	f.slices, err = listSlices(ctx, k, f.key, client.MatchingLabels{discoveryv1.LabelServiceName: name})
	return err
}

// serviceName returns the name of the Service, or an error if the annotation of the ServiceExport
// has none.
func (f *ServiceFacts) serviceName() (string, error) {
	if f.export == nil {
		return f.key.Name, nil
	}
	return mcs.ExportedService(f.export)
}

// readObject returns an object, or nil if it does not exist.
func readObject[T any, P interface {
	*T
	client.Object
}](ctx context.Context, k *session.Cluster, namespace, name string, into P) (P, error) {
	exists, err := k.Find(ctx, namespace, name, into)
	if err != nil {
		return nil, fmt.Errorf("reading %T %s/%s: %w", *into, namespace, name, err)
	}
	if !exists {
		return nil, nil //nolint:nilnil // nil means that the object does not exist
	}
	return into, nil
}

func listSlices(ctx context.Context, k *session.Cluster, key mcs.Key, labels client.MatchingLabels) ([]discoveryv1.EndpointSlice, error) {
	var found discoveryv1.EndpointSliceList
	if err := k.List(ctx, key.Namespace, &found, labels); err != nil {
		return nil, fmt.Errorf("listing the EndpointSlices of %s: %w", key, err)
	}
	return found.Items, nil
}

// lastWarning returns the last Warning event about the ServiceImport of key, "" if there is none or
// if they cannot be read.
func lastWarning(ctx context.Context, k *session.Cluster, key mcs.Key) string {
	var events corev1.EventList
	if err := k.List(ctx, key.Namespace, &events, client.MatchingFields{"involvedObject.name": key.Name}); err != nil {
		return ""
	}
	var last corev1.Event
	for _, e := range events.Items {
		if e.Type == corev1.EventTypeWarning && e.InvolvedObject.Kind == mcsv1beta1.ServiceImportKindName && !EventTime(e).Before(EventTime(last)) {
			last = e
		}
	}
	if last.Reason == "" {
		return ""
	}
	return fmt.Sprintf("the last warning is of %s: %s: %s", EventTime(last).UTC().Format(time.RFC3339), last.Reason, last.Message)
}

// EventTime returns the time at which e occurred last.
func EventTime(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

// unread returns why the state of the service in the registry is unknown.
func (f *ServiceFacts) unread() string {
	return cmp.Or(f.registryProblem, "only the controller knows it: see step controller")
}

// Unread returns the lines of describe for a cluster whose controller does not say which clusters
// export the service: the reason, and what the ServiceExport shows.
func (f *ServiceFacts) Unread() []string {
	reason := cmp.Or(f.problem, f.controllerProblem, f.registryProblem)
	lines := []string{fmt.Sprintf("%s: exporters, importers and conflicts are unknown unless objects show them: %s", f.Context, reason)}
	if f.export == nil {
		return lines
	}
	text := fmt.Sprintf("%s: has a ServiceExport since %s", f.Context, f.export.CreationTimestamp.UTC().Format(time.RFC3339))
	for _, kind := range []string{string(mcsv1beta1.ServiceExportConditionReady), mcs.ConditionRecipients, mcs.ConditionImported} {
		if c := meta.FindStatusCondition(f.export.Status.Conditions, kind); c != nil {
			text += fmt.Sprintf("; %s=%s: %s", strings.TrimPrefix(kind, mcs.Domain+"/"), c.Status, c.Message)
		}
	}
	return append(lines, text)
}

// ExportConflicts returns the conflicts that the ServiceExport reports.
func (f *ServiceFacts) ExportConflicts() []string {
	if f.export == nil {
		return nil
	}
	c := meta.FindStatusCondition(f.export.Status.Conditions, string(mcsv1beta1.ServiceExportConditionConflict))
	if c == nil || c.Status != metav1.ConditionTrue {
		return nil
	}
	return []string{c.Message}
}

// ImportedFrom returns the clusters from which this one imports the service according to the
// ServiceImport.
func (f *ServiceFacts) ImportedFrom() []string {
	if f.Import == nil || f.Import.Labels[plan.LabelAppManagedBy] != plan.ManagedBy {
		return nil
	}
	return session.SourceClusters(f.Import)
}

// ClusterID returns the cluster's ID in the clusterset, or "" if the cluster is not known to be a
// member.
func (f *ServiceFacts) ClusterID() string {
	if f.controller == nil || f.controller.Identity == nil {
		return ""
	}
	return f.controller.Identity.ClusterID
}

// CountReady counts the endpoints in slices, each address once, and the ready ones among them.
func CountReady(slices []discoveryv1.EndpointSlice) (ready, all int) {
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

// groupBySource groups imported slices by their source cluster.
func groupBySource(slices []discoveryv1.EndpointSlice) map[string][]discoveryv1.EndpointSlice {
	out := map[string][]discoveryv1.EndpointSlice{}
	for _, s := range slices {
		id := s.Labels[mcsv1beta1.LabelSourceCluster]
		out[id] = append(out[id], s)
	}
	return out
}
