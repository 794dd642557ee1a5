package show

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A Service is a service of a clusterset, as far as the controllers of the contexts know it.
type Service struct {
	// Context is that of the cluster whose Kubernetes objects show the service, "" if the service
	// is merged from the controllers. With a Context the importers, further exporters, drains, and
	// conflicts that no ServiceExport here reports are unknown, and the endpoints are those that
	// the cluster has imported.
	Context      string  `json:"context,omitempty"`
	ClusterSetID string  `json:"clusterSetID"`
	Key          mcs.Key `json:"key"`
	// State is problem, no endpoints, conflict, stale, drained, not imported here (in the clusters
	// of the contexts) or ok: the first that applies. With a Context it is ready instead of ok, and
	// unknown if the objects that show it cannot be read.
	State string `json:"state"`
	// Type and Ports are those of the oldest export, "" and none if no export could be read.
	Type  string     `json:"type,omitempty"`
	Ports []mcs.Port `json:"ports,omitempty"`
	// Exports are sorted by cluster.
	Exports []ExportSummary `json:"exports"`
	// Others are clusters that export the service to other clusters, or to a namespace that no
	// context imports: nothing else is known of these exports, such as which clusters import them.
	Others []string `json:"others,omitempty"`
	// Importers are the clusters that are known to import the service from others. Clusters with a
	// context show it by their ServiceImports; the others report it to the exporting clusters, so
	// Importers are complete only if ImportersKnown: each exporting cluster has a context.
	Importers      mcs.Importers `json:"importers"`
	ImportersKnown bool          `json:"importersKnown"`
	// Conflicts are the properties on which the exports disagree, Problems everything else that
	// needs an action.
	Conflicts []string `json:"conflicts,omitempty"`
	Problems  []string `json:"problems,omitempty"`
	// EndpointsUnknown: those of Exports are 0, because the user may not read them.
	EndpointsUnknown bool `json:"endpointsUnknown,omitempty"`
}

// An ExportSummary is one cluster's export, without its endpoints.
type ExportSummary struct {
	Cluster   string    `json:"cluster"`
	Created   time.Time `json:"created,omitzero"`
	Ready     int       `json:"ready"`
	Endpoints int       `json:"endpoints"`
	// Stale reports whether the cluster has no heartbeats. Drain is the part of the endpoints that
	// other clusters do not use.
	Stale bool      `json:"stale,omitempty"`
	Drain mcs.Drain `json:"drain,omitempty"`
	// ClusterSelectors are the tiers of clusters that are preferred, Recipients the clusters that
	// the export is for.
	ClusterSelectors mcs.ClusterSelectors `json:"clusterSelectors,omitempty"`
	Recipients       mcs.ClusterSelectors `json:"recipients,omitempty"`
}

// A ContextServices has the services that the controller of one context knows, or why they could
// not be read.
type ContextServices struct {
	Context  string
	Services []status.Service
	Problem  string
}

// QueryServices queries the controllers of all clusters for their services.
func QueryServices(ctx context.Context, s *session.Session, clusters []*session.Cluster) []ContextServices {
	return session.ForEachCluster(clusters, func(k *session.Cluster) ContextServices {
		services, err := session.QueryController[[]status.Service](ctx, s, k, status.PathServices)
		if err != nil {
			return ContextServices{Context: k.Context, Problem: err.Error()}
		}
		return ContextServices{Context: k.Context, Services: services}
	})
}

// MergeServices returns the services that the contexts know, sorted. The elements of both arguments
// are of the same contexts.
func MergeServices(statuses []ClusterStatus, lists []ContextServices) []Service {
	sets := map[string]*serviceMerger{}
	for i, c := range statuses {
		if c.Status == nil || c.Status.Identity == nil || lists[i].Problem != "" {
			continue
		}
		set := c.Status.Identity.ClusterSetID
		if sets[set] == nil {
			sets[set] = newServiceMerger(set)
		}
		sets[set].add(c.Status, lists[i].Services)
	}
	services := []Service{}
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		services = append(services, sets[set].merge()...)
	}
	return services
}

// A serviceMerger merges the services that the contexts of one clusterset know.
type serviceMerger struct {
	set      string
	services map[mcs.Key]*mergedService
	all      []status.Service
	// contexts are the clusters with a context, drains the drains of clusters.
	contexts map[string]bool
	drains   map[string]mcs.Drain
}

// A mergedService is a service with sets of the clusters that its lists will have.
type mergedService struct {
	Service
	stale, others, recipients, importing, importingNamespace, notReporting, overBudget, someOverBudget map[string]bool
	// imports are the imports of the clusters with a context: whether each imports the service from
	// others.
	imports map[string]bool
}

func newServiceMerger(set string) *serviceMerger {
	return &serviceMerger{set: set, services: map[mcs.Key]*mergedService{}, contexts: map[string]bool{}, drains: map[string]mcs.Drain{}}
}

func (m *serviceMerger) of(key mcs.Key) *mergedService {
	if m.services[key] == nil {
		m.services[key] = &mergedService{
			Service: Service{ClusterSetID: m.set, Key: key, Exports: []ExportSummary{}},
			stale:   map[string]bool{}, others: map[string]bool{}, recipients: map[string]bool{},
			importing: map[string]bool{}, importingNamespace: map[string]bool{}, notReporting: map[string]bool{}, overBudget: map[string]bool{}, someOverBudget: map[string]bool{}, imports: map[string]bool{},
		}
	}
	return m.services[key]
}

// add adds what one context knows.
func (m *serviceMerger) add(s *status.Status, services []status.Service) {
	id := s.Identity.ClusterID
	m.contexts[id] = true
	m.all = append(m.all, services...)
	for _, member := range s.Members {
		m.drains[member.ClusterID] = m.drains[member.ClusterID].Max(member.Drain)
	}
	for i := range services {
		m.of(services[i].Key).add(s, &services[i])
	}
	for _, p := range s.Imports {
		m.of(p.Key).addProblem("%s: the import is not ready: %s: %s", id, p.Reason, p.Message)
	}
	for _, key := range s.OverBudget {
		m.of(key).addProblem("%s: not imported: the namespace has too many imports (--budget-scale)", id)
	}
}

// add adds what the cluster with status c knows of the service.
func (m *mergedService) add(c *status.Status, s *status.Service) {
	id := c.Identity.ClusterID
	m.Conflicts = appendMissing(m.Conflicts, s.Conflicts...)
	addAll(m.stale, s.Stale)
	addAll(m.others, s.Ignored)
	addAll(m.others, s.NotFor)
	if s.ImportedFrom != nil {
		m.imports[id] = slices.ContainsFunc(s.ImportedFrom, func(from string) bool { return from != id })
	}
	m.addImporters(c, s)
	if p := s.Publication; p != nil && p.State != "Exported" {
		m.addProblem("%s: not exported: %s", id, cmp.Or(p.Problem, p.State))
	}
	if len(s.Unknown) > 0 {
		m.addProblem("%s: the exports of %s could not be read yet", id, mcs.JoinClusters(s.Unknown, maxImporterNames))
	}
	for _, r := range s.Refused {
		m.addProblem("%s: refused of %s: %s", id, r.Cluster, r.Message)
	}
}

// addImporters adds what the other members report to the cluster with status c about its export.
func (m *mergedService) addImporters(c *status.Status, s *status.Service) {
	importers := s.Importers
	switch {
	case s.Own == nil:
		return
	case importers == nil:
		importers = new(c.ImportersOf(*s.Own))
	}
	addAll(m.recipients, importers.Recipients)
	addAll(m.importing, importers.Importing)
	addAll(m.importingNamespace, importers.ImportingNamespace)
	addAll(m.notReporting, importers.NotReporting)
	addAll(m.overBudget, importers.OverBudget)
	addAll(m.someOverBudget, importers.SomeOverBudget)
}

func (m *mergedService) addProblem(format string, args ...any) {
	m.Problems = appendMissing(m.Problems, fmt.Sprintf(format, args...))
}

func addAll(set map[string]bool, items []string) {
	for _, item := range items {
		set[item] = true
	}
}

// merge returns the services, sorted.
func (m *serviceMerger) merge() []Service {
	for _, exp := range mergeExports(m.all) {
		svc := m.of(exp.Key)
		ready, all := countEndpoints(exp)
		svc.Exports = append(svc.Exports, ExportSummary{
			Cluster: exp.Cluster, Created: exp.Created, Ready: ready, Endpoints: all, Stale: svc.stale[exp.Cluster], Drain: exp.Drain.Max(m.drains[exp.Cluster]),
			ClusterSelectors: exp.ClusterSelectors, Recipients: exp.Recipients,
		})
		delete(svc.others, exp.Cluster)
		if len(svc.Exports) == 1 || exp.Created.Before(oldest(svc.Exports[:len(svc.Exports)-1])) {
			svc.Type, svc.Ports = string(exp.Type), exp.Ports
		}
	}
	services := make([]Service, 0, len(m.services))
	for _, svc := range m.services {
		services = append(services, svc.finish(m.contexts))
	}
	slices.SortFunc(services, func(a, b Service) int {
		return cmp.Or(strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name))
	})
	return services
}

func oldest(exports []ExportSummary) time.Time {
	return slices.MinFunc(exports, func(a, b ExportSummary) int { return a.Created.Compare(b.Created) }).Created
}

// finish returns the service with its lists and its state.
func (m *mergedService) finish(contexts map[string]bool) Service {
	s := m.Service
	s.Others = slices.Sorted(maps.Keys(m.others))
	s.Importers = correctImporters(mcs.Importers{
		Recipients: slices.Sorted(maps.Keys(m.recipients)), Importing: slices.Sorted(maps.Keys(m.importing)),
		ImportingNamespace: slices.Sorted(maps.Keys(m.importingNamespace)), NotReporting: slices.Sorted(maps.Keys(m.notReporting)),
		OverBudget: slices.Sorted(maps.Keys(m.overBudget)), SomeOverBudget: slices.Sorted(maps.Keys(m.someOverBudget)),
	}, m.imports)
	s.ImportersKnown = len(s.Others) == 0 && !slices.ContainsFunc(s.Exports, func(e ExportSummary) bool { return !contexts[e.Cluster] })
	s.State = serviceState(&s)
	return s
}

func serviceState(s *Service) string {
	ready, stale, drained := 0, false, false
	for _, e := range s.Exports {
		ready += e.Ready
		stale = stale || e.Stale
		drained = drained || e.Drain != ""
	}
	switch {
	case len(s.Problems) > 0:
		return "problem"
	case len(s.Exports) == 0:
		return stateNotHere
	case ready == 0:
		return stateNoEndpoints
	case len(s.Conflicts) > 0:
		return "conflict"
	case stale:
		return "stale"
	case drained:
		return "drained"
	}
	return stateOK
}

const (
	// stateOK is the state of a service that works.
	stateOK = "ok"
	// stateNoEndpoints is the state of a service of which no endpoint is ready.
	stateNoEndpoints = "no endpoints"
	// stateNotHere is the state of a service that no context imports. Other clusters may do so.
	stateNotHere = "not imported here"
)

func getServicesCommand(s *session.Session) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "services",
		Short: "List the services of the clusterset",
		Long: "Lists the services of the clusterset as the controllers of the contexts know them: the clusters that export and import them,\n" +
			"conflicts, and exports that are stale or drained. Of the clusters without a context, those that import a service are known from the contexts\n" +
			"of those that export it: name these, or the list says unknown.\n" +
			"Without permission to query a controller, or without its answer, lists what the ServiceExports, ServiceImports and EndpointSlices of\n" +
			"that context show. Exit code 3 when a controller does not answer although you may query it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, namespace, err := s.ClustersAndNamespace(o.allNamespaces)
			if err != nil {
				return err
			}
			statuses, lists := QueryStatuses(cmd.Context(), s, clusters), QueryServices(cmd.Context(), s, clusters)
			services := MergeServices(statuses, lists)
			if namespace != "" {
				services = slices.DeleteFunc(services, func(s Service) bool { return s.Key.Namespace != namespace })
			}
			unanswered := listUnanswered(statuses, lists)
			ofObjects, err := readServicesOf(cmd.Context(), s, clusters, unanswered, namespace)
			services = append(services, ofObjects...)
			if err := o.format.Print(s.Out, services, func(t *session.Table, wide bool) { printServices(t, services, wide) }); err != nil {
				return err
			}
			if err == nil && slices.ContainsFunc(unanswered, func(u unansweredQuery) bool { return u.reason != "" && !u.isRefused }) {
				err = session.ErrIncomplete
			}
			return err
		},
	}
	o.addFlags(s, cmd)
	return cmd
}

// An unansweredQuery says why the controller of a context has not listed its services.
type unansweredQuery struct {
	// reason is "" if it has. isRefused: the user may not query it.
	reason    string
	isRefused bool
}

// listUnanswered returns the queries of all contexts that were not answered.
func listUnanswered(statuses []ClusterStatus, lists []ContextServices) []unansweredQuery {
	all := make([]unansweredQuery, len(statuses))
	for i, c := range statuses {
		switch {
		case c.State == session.StateNoPermission:
			all[i] = unansweredQuery{c.Problem, true}
		case c.Status == nil:
			all[i].reason = strings.TrimSuffix(c.Problem+": "+c.Remedy, ": ")
		case lists[i].Problem != "":
			all[i].reason = cmp.Or(c.Status.Unanswered(), lists[i].Problem) + ": run kubectl mcs check --context " + c.Context
		}
	}
	return all
}

// readServicesOf returns the services that the objects of the contexts show whose controllers have
// not answered.
func readServicesOf(ctx context.Context, s *session.Session, clusters []*session.Cluster, unanswered []unansweredQuery, namespace string) (services []Service, err error) {
	errs := make([]error, len(clusters))
	for i, k := range clusters {
		if unanswered[i].reason == "" {
			continue
		}
		var found []Service
		s.Progressf("%s: the controller has not listed the services, so those without objects in this cluster, importers, and conflicts that no ServiceExport reports are unknown:\n  %s", k.Context, unanswered[i].reason)
		found, errs[i] = readServices(ctx, s, k, namespace)
		services = append(services, found...)
	}
	return services, session.JoinErrors(clusters, errs)
}

func printServices(t *session.Table, services []Service, wide bool) {
	header := []any{"NAMESPACE", "NAME", "TYPE", "PORTS", "EXPORTED BY", "IMPORTED BY", "ENDPOINTS", "READY", "STATE"}
	hasContext := slices.ContainsFunc(services, func(s Service) bool { return s.Context != "" })
	if hasContext {
		header = append([]any{"CONTEXT"}, header...)
	}
	if wide {
		header = append(header, "DETAIL")
	}
	t.Row(header...)
	for i := range services {
		svc := &services[i]
		ready, all := 0, 0
		var exporters, ports []string
		for _, e := range svc.Exports {
			exporters = append(exporters, e.Cluster)
			ready, all = ready+e.Ready, all+e.Endpoints
		}
		exporters = append(exporters, svc.Others...)
		for _, p := range svc.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
		row := []any{
			svc.Key.Namespace, svc.Key.Name, svc.Type, strings.Join(ports, ","), mcs.JoinClusters(exporters, maxImporterNames), importerCell(svc.Importers, svc.ImportersKnown), all, ready, svc.State,
		}
		if len(exporters) == 0 { // a ServiceExport does not have the ID
			row[4] = unknown
		}
		if len(svc.Exports) == 0 || svc.EndpointsUnknown {
			row[6], row[7] = unknown, unknown
		}
		if hasContext {
			row = append([]any{svc.Context}, row...)
		}
		if wide {
			row = append(row, strings.Join(slices.Concat(svc.Problems, svc.Conflicts), "; "))
		}
		t.Row(row...)
	}
}

// unknown is a cell that only a controller knows.
const unknown = "unknown"

// correctImporters returns importers with what is known of some clusters: whether each of them
// imports. That counts for more than what it has reported, which is as old as its last heartbeat. A
// cluster that imports is in no other list.
func correctImporters(i mcs.Importers, imports map[string]bool) mcs.Importers {
	importing := slices.DeleteFunc(slices.Clone(i.Importing), func(id string) bool { _, known := imports[id]; return known })
	for id, isImporting := range imports {
		if isImporting {
			importing = append(importing, id)
		}
	}
	slices.Sort(importing)
	isKnown := func(id string) bool {
		_, known := imports[id]
		return known || slices.Contains(importing, id)
	}
	return mcs.Importers{
		Recipients: i.Recipients, Importing: importing,
		ImportingNamespace: slices.DeleteFunc(slices.Clone(i.ImportingNamespace), isKnown), NotReporting: slices.DeleteFunc(slices.Clone(i.NotReporting), isKnown),
		OverBudget: i.OverBudget, SomeOverBudget: i.SomeOverBudget,
	}
}

// importerCell returns the cell with the clusters that import a service. known reports whether the
// reports of all other clusters are.
func importerCell(i mcs.Importers, known bool) string {
	var parts []string
	if len(i.Importing) > 0 {
		parts = append(parts, mcs.JoinClusters(i.Importing, maxImporterNames))
	}
	if len(i.OverBudget) > 0 {
		parts = append(parts, "over budget in "+mcs.JoinClusters(i.OverBudget, maxImporterNames))
	}
	rest := ""
	switch {
	case !known:
		rest = unknown
	case len(i.ImportingNamespace)+len(i.NotReporting)+len(i.SomeOverBudget) > 0:
		rest = "not reported"
	case len(parts) == 0:
		rest = "none"
	}
	switch {
	case rest == "":
	case len(parts) == 0:
		return rest
	default:
		parts = append(parts, "others "+rest)
	}
	return strings.Join(parts, ", ")
}
