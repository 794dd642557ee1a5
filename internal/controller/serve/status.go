package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/dns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/exports"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/guard"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/imports"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/paths"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// statusSource answers the requests to the status endpoint.
type statusSource struct {
	registryName string
	membership   Membership
	exports      *exports.Controller
	imports      *imports.Controller
	// failures returns the imports of which objects cannot be written.
	failures func() []imports.Failure
	requests *registry.Metrics
	reader   client.Reader
	// healthPort is the port of the controllers' probes, "" if they are off.
	healthPort string
	// elected is closed when this replica becomes the leader.
	elected <-chan struct{}
	prober  status.Prober
	guard   *guard.Guard
	paths   *paths.Paths
	dns     *dns.Watcher
}

var _ status.Source = (*statusSource)(nil)

// AddStatus makes mgr serve the status endpoint, on standby replicas too.
func AddStatus(mgr manager.Manager, options config.Options, requests *registry.Metrics, m Membership, exports *exports.Controller, imports *imports.Controller, g *guard.Guard, p *paths.Paths, d *dns.Watcher) error {
	serving := options.Serving
	if serving.Status == "0" {
		return nil
	}
	source := &statusSource{
		registryName: options.Registry.Name, membership: m, exports: exports, imports: imports, failures: imports.Failures, requests: requests,
		reader: mgr.GetCache(), elected: mgr.Elected(), guard: g, paths: p, dns: d,
	}
	if port := serving.ProbePort(); port != 0 {
		source.healthPort = strconv.Itoa(int(port))
	}
	listener, err := net.Listen("tcp", serving.Status)
	if err != nil {
		return fmt.Errorf("listening on --status-bind-address=%s: %w", serving.Status, err)
	}
	// Who may read the status, by port-forward, may read the metrics.
	metrics := promhttp.HandlerFor(ctrlmetrics.Registry, promhttp.HandlerOpts{})
	return mgr.Add(&manager.Server{
		Name:     "status",
		Server:   &http.Server{Handler: status.NewHandler(source, metrics), ReadHeaderTimeout: 5 * time.Second},
		Listener: listener,
	})
}

// Status implements status.Source.
func (s *statusSource) Status(ctx context.Context) status.Status {
	out := status.Status{Version: config.Version, Time: time.Now(), Leader: s.leads(), Registry: s.registryName}
	for _, r := range s.requests.RecentRequests() {
		out.Requests = append(out.Requests, status.Request(r))
	}
	session, problem := s.session()
	state := s.membership.State()
	out.Leaving, out.IdentityProblem = s.leaving(ctx), state.IdentityProblem
	for _, l := range s.membership.Leftovers() {
		out.Leftovers = append(out.Leftovers, status.Leftover(l))
	}
	if state.Next != (mcs.Identity{}) {
		out.Next = &state.Next
	}
	out.Imports = s.importProblems(ctx, out.Time)
	out.HeldImports, out.Held = s.heldImports(ctx)
	out.ImportPolicy, out.Refused = s.importPolicy()
	if out.Leader {
		out.DNS = new(s.dns.State())
	}
	if session == nil {
		out.Problem = problem
		return out
	}
	out.Identity = &session.Identity
	out.Budgets, out.OverBudget = s.budgets()
	report := registry.ReportOf(session.Registry)
	out.ReadProblem, out.WriteProblem = problemText(report.Reading), problemText(report.Writing)
	if !report.Audited.IsZero() {
		out.Audited = &report.Audited
	}
	if report.Stored != nil {
		stored := status.Stored(*report.Stored)
		out.Stored = &stored
	}
	members, err := session.Registry.Members(ctx)
	if err != nil {
		if notRead := registry.ErrNotSynced.Error(); out.ReadProblem == "" && !strings.HasSuffix(err.Error(), notRead) {
			out.ReadProblem = err.Error()
		}
		return out
	}
	out.Synced = true
	services, err := s.services(ctx, session, report.Keys)
	if err != nil {
		out.Problem = err.Error()
		return out
	}
	out.Members = countMembers(members, session.Identity.ClusterID, services, out.Time)
	out.PathHealth = string(s.paths.Mode())
	out.Paths, out.FaultHere = describePaths(s.paths.Verdict(), members, out.Time)
	out.Services = len(services)
	addServices(&out, services)
	return out
}

// addServices adds what is to be reported of the services.
func addServices(out *status.Status, services []status.Service) {
	for _, service := range services {
		if len(service.Conflicts) > 0 {
			out.Conflicts = append(out.Conflicts, status.Conflict{Key: service.Key, Problems: service.Conflicts})
		}
		switch p := service.Publication; {
		case p == nil:
		case p.State != registry.Exported.String():
			out.Publications = append(out.Publications, *p)
		case len(p.Warnings) > 0:
			out.InstanceWarnings = append(out.InstanceWarnings, *p)
		}
	}
}

func (s *statusSource) leads() bool {
	select {
	case <-s.elected:
		return true
	default:
		return false
	}
}

// session returns the cluster's session, or nil and the reason why there is none.
func (s *statusSource) session() (*membership.Session, string) {
	state := s.membership.State()
	switch {
	case state.Session != nil:
		return state.Session, ""
	case !s.leads():
		return nil, "this replica is on standby: only the leader answers"
	case state.IsPending():
		return nil, "the cluster's identity is being looked up"
	}
	return nil, state.Problem
}

// pendingImport is the time for which a new import may be Pending before it is a problem: its
// Service gets an IP within a second.
const pendingImport = 30 * time.Second

// importPolicy returns the state of the import policy, nil without a file, and the refusals,
// sorted.
func (s *statusSource) importPolicy() (p *status.ImportPolicy, refused []status.Refused) {
	state := s.guard.State()
	if state.File != "" {
		p = &status.ImportPolicy{File: state.File, Problem: state.Problem, Loaded: state.Loaded}
	}
	for key, refusals := range state.Refusals {
		for _, r := range refusals {
			refused = append(refused, status.Refused{Key: key, Refusal: r})
		}
	}
	slices.SortFunc(refused, func(a, b status.Refused) int {
		return cmp.Or(compareKeys(a.Key, b.Key), strings.Compare(a.Cluster, b.Cluster), strings.Compare(string(a.Reason), string(b.Reason)))
	})
	return p, refused
}

// reasonNotWritten is the reason of an import problem that no condition shows: an object of the
// import cannot be written.
const reasonNotWritten = "NotWritten"

// importProblems returns the imports that are not Ready or cannot be written, sorted.
func (s *statusSource) importProblems(ctx context.Context, now time.Time) (problems []status.ImportProblem) {
	if !s.leads() {
		return nil
	}
	failing := map[mcs.Key]string{}
	for _, f := range s.failures() {
		failing[f.Key] = f.Message
	}
	var imports mcsv1beta1.ServiceImportList
	if s.reader.List(ctx, &imports, client.UnsafeDisableDeepCopy, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}) != nil {
		imports.Items = nil
	}
	for i := range imports.Items {
		key := kube.KeyOf(client.ObjectKeyFromObject(&imports.Items[i]))
		readiness := meta.FindStatusCondition(imports.Items[i].Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady))
		if readiness == nil || readiness.Status == metav1.ConditionTrue || failing[key] == "" && isStarting(*readiness, now) {
			continue
		}
		delete(failing, key)
		problems = append(problems, status.ImportProblem{Key: key, Reason: readiness.Reason, Message: readiness.Message})
	}
	for key, message := range failing {
		problems = append(problems, status.ImportProblem{Key: key, Reason: reasonNotWritten, Message: message})
	}
	slices.SortFunc(problems, func(a, b status.ImportProblem) int { return compareKeys(a.Key, b.Key) })
	return problems
}

// isStarting reports whether a condition Ready that is False is that of a new import.
func isStarting(readiness metav1.Condition, now time.Time) bool {
	return readiness.Reason == string(mcsv1beta1.ServiceImportReasonPending) && now.Sub(readiness.LastTransitionTime.Time) < pendingImport
}

// heldImports returns the number of ended imports whose IPs are held, and those that are held
// longest.
func (s *statusSource) heldImports(ctx context.Context) (n int, held []status.HeldImport) {
	var services corev1.ServiceList
	if !s.leads() || s.reader.List(ctx, &services, client.UnsafeDisableDeepCopy, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}) != nil {
		return 0, nil
	}
	for i := range services.Items {
		svc := &services.Items[i]
		if since, isHeld := plan.HeldSince(svc); isHeld {
			key := mcs.Key{Namespace: svc.Namespace, Name: svc.Labels[mcsv1beta1.LabelServiceName]}
			held = append(held, status.HeldImport{Key: key, IPs: slices.Clone(svc.Spec.ClusterIPs), Since: since})
		}
	}
	slices.SortFunc(held, func(a, b status.HeldImport) int { return cmp.Or(a.Since.Compare(b.Since), compareKeys(a.Key, b.Key)) })
	return len(held), held[:min(len(held), status.MaxHeld)]
}

// budgets returns the use of all budgets, and the imports that wait because their namespace has too
// many.
func (s *statusSource) budgets() (budgets []status.Budget, waiting []mcs.Key) {
	if u, ok := s.requests.Budgets(); ok {
		for _, kind := range budget.Kinds() {
			budgets = append(budgets,
				status.Budget{Scope: "member", Kind: kind.String(), Used: u.Member[kind], Limit: u.Limits.Member[kind]},
				status.Budget{Scope: "total", Kind: kind.String(), Used: u.Total[kind], Limit: u.Limits.Total[kind]})
		}
	}
	if s.imports == nil {
		return budgets, nil
	}
	used, limit, waiting := s.imports.Budget()
	return append(budgets, status.Budget{Scope: "namespace", Kind: "imports", Used: used, Limit: limit}), waiting
}

func compareKeys(a, b mcs.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// leaving returns the identities under which the cluster leaves. It returns none if they cannot be
// read, as without the permission to.
func (s *statusSource) leaving(ctx context.Context) []mcs.Identity {
	leaving, err := s.membership.LeavingIdentities(ctx)
	if err != nil {
		return nil
	}
	return leaving
}

// describePaths returns the paths of a verdict, sorted.
func describePaths(v pathhealth.Verdict, members []registry.Member, now time.Time) (out []status.Path, faultHere bool) {
	for _, m := range members {
		p, ok := v.Paths[m.ClusterID]
		if !ok {
			continue
		}
		probes := func(k pathhealth.Kind) status.PathProbes {
			return status.PathProbes{Targets: p.Last[k].Targets, Reached: p.Last[k].Reached}
		}
		path := status.Path{
			ClusterID: m.ClusterID, State: string(p.State), Seconds: max(0, now.Sub(p.Since)).Round(time.Second).Seconds(),
			Controller: probes(pathhealth.Controller), Endpoints: probes(pathhealth.Endpoints),
		}
		if !m.Notified.IsZero() {
			path.NotificationAge = new(max(0, now.Sub(m.Notified)).Round(100 * time.Millisecond).Seconds())
		}
		out = append(out, path)
	}
	return out, v.FaultHere
}

// newMember returns a member without numbers.
func newMember(m registry.Member, now time.Time) status.Member {
	out := status.Member{
		ClusterID: m.ClusterID, UID: m.UID, Version: m.Version, Key: m.Key, RefusedKey: m.RefusedKey, Seal: sealOf(m.Seal), Stale: m.Stale, Mapped: m.Mapped, Drain: m.Properties.Drain(), Problems: m.Problems,
		Networks:     mcs.FormatNetworks(m.Properties.Networks()),
		Zones:        m.Properties.Zones().String(),
		ImportReport: m.Imports,
		HeartbeatAge: max(0, now.Sub(m.LastSeen)).Round(100 * time.Millisecond).Seconds(),
	}
	for _, problem := range m.Problems {
		if registry.IsRefused(problem) {
			out.Refused = append(out.Refused, problem)
		}
		if registry.IsOverBudget(problem) {
			out.OverBudget = append(out.OverBudget, problem)
		}
	}
	return out
}

// sealOf returns Member.Seal.
func sealOf(seal registry.Seal) string {
	switch seal {
	case registry.Sealed:
		return status.Sealed
	case registry.Unsealed:
		return status.Unsealed
	case registry.SealUnreadable:
		return status.SealUnreadable
	case registry.SealUnknown:
	}
	return ""
}

// countMembers returns the members with the numbers of their exports and endpoints.
func countMembers(members []registry.Member, own string, services []status.Service, now time.Time) []status.Member {
	out := make([]status.Member, len(members))
	index := map[string]*status.Member{}
	for i, m := range members {
		out[i] = newMember(m, now)
		index[m.ClusterID] = &out[i]
	}
	count := func(cluster string, exp mcs.Export) {
		if m := index[cluster]; m != nil {
			m.Exports++
			for _, b := range exp.Backends {
				m.Endpoints += len(b.Endpoints)
			}
		}
	}
	for _, service := range services {
		if service.Own != nil {
			count(own, *service.Own)
		}
		for _, exp := range service.Exports {
			count(exp.Cluster, exp)
		}
		for _, id := range service.Ignored {
			if m := index[id]; m != nil {
				m.Exports++
			}
		}
		for _, id := range service.Unknown {
			if m := index[id]; m != nil {
				m.Unknown++
			}
		}
	}
	return out
}

// Service implements status.Source.
func (s *statusSource) Service(ctx context.Context, key mcs.Key) (status.Service, error) {
	session, problem := s.session()
	if session == nil {
		return status.Service{}, errors.New(problem)
	}
	out, err := s.service(ctx, session, key)
	if out.Own != nil { // lists have no member for each export: Status.ImportersOf finds them
		if importers, known := s.exports.Importers(*out.Own); known {
			out.Importers = &importers
		}
	}
	return out, err
}

// Services implements status.Source.
func (s *statusSource) Services(ctx context.Context) ([]status.Service, error) {
	session, problem := s.session()
	if session == nil {
		return nil, errors.New(problem)
	}
	services, err := s.services(ctx, session, registry.ReportOf(session.Registry).Keys)
	if err != nil {
		return nil, err
	}
	return services, s.addImportedFrom(ctx, services)
}

// addImportedFrom adds the clusters that this cluster imports the services from.
func (s *statusSource) addImportedFrom(ctx context.Context, services []status.Service) error {
	var imports mcsv1beta1.ServiceImportList
	if err := s.reader.List(ctx, &imports, client.UnsafeDisableDeepCopy, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}); err != nil {
		return fmt.Errorf("listing the ServiceImports: %w", err)
	}
	clusters := map[mcs.Key][]string{}
	for i := range imports.Items {
		key := kube.KeyOf(client.ObjectKeyFromObject(&imports.Items[i]))
		for _, c := range imports.Items[i].Status.Clusters {
			clusters[key] = append(clusters[key], c.Cluster)
		}
	}
	for i := range services {
		services[i].ImportedFrom = slices.Concat([]string{}, clusters[services[i].Key])
	}
	return nil
}

// services returns the services of keys and those that this cluster publishes, sorted.
func (s *statusSource) services(ctx context.Context, session *membership.Session, keys []mcs.Key) ([]status.Service, error) {
	keys = append(keys, s.exports.PublishedKeys()...)
	slices.SortFunc(keys, compareKeys)
	keys = slices.Compact(keys)
	out := make([]status.Service, 0, len(keys))
	for _, key := range keys {
		service, err := s.service(ctx, session, key)
		if err != nil {
			return nil, err
		}
		out = append(out, service)
	}
	return out, nil
}

func (s *statusSource) service(ctx context.Context, session *membership.Session, key mcs.Key) (status.Service, error) {
	view, err := session.Registry.Lookup(ctx, key)
	if err != nil {
		return status.Service{}, err
	}
	out := status.Service{Key: key, Exports: view.Exports(), Ignored: view.In(registry.Ignored), Unknown: view.In(registry.Unknown), Stale: view.WithLiveness(registry.Stale), Mapped: newMappedService(view.Mapped, time.Now())}
	if out.NotImported, err = s.exports.ImportDenial(ctx, key.Namespace); err != nil {
		return status.Service{}, err
	}
	visible, refusals := s.guard.Filter(key, view)
	out.Refused, out.NotFor = refusals, s.guard.NotFor(view)
	all := visible.Exports()
	if own, ok := s.exports.PublishedExport(key); ok {
		out.Own, out.LeftOut = &own, s.exports.LeftOut(key)
		all = append(all, own)
	}
	if out.Own != nil || view.Local.State != registry.Absent {
		out.Publication = &status.Publication{Key: key, State: view.Local.State.String(), Problem: problemText(view.Local.Err), Warnings: view.Local.Warnings}
	}
	if len(all) < 2 {
		return out, nil
	}
	own, _ := s.membership.Properties()
	in := plan.PrecedenceInput{
		Exports: all, Unknown: visible.MayExport(), Order: visible.Order,
		Properties: visible.PropertiesWith(session.Identity.ClusterID, own), Now: time.Now(),
	}
	var imp mcsv1beta1.ServiceImport
	found, err := kube.Find(ctx, s.reader, kube.NameOf(key), &imp, client.UnsafeDisableDeepCopy)
	if found {
		in.Import = &imp
	}
	precedence := plan.DecidePrecedence(in)
	merged := precedence.Merge()
	for _, c := range merged.Conflicts {
		out.Conflicts = append(out.Conflicts, fmt.Sprintf("%s: %s", c.Reason, c.Message))
	}
	_, shared := precedence.OwnAddresses(merged.Type)
	out.Refused = slices.Concat(out.Refused, policy.OfShared(shared), policy.OfPorts(merged))
	return out, err
}

// newMappedService returns the mapped service of a view, nil if there is none.
func newMappedService(m *registry.MappedService, now time.Time) *status.MappedService {
	if m == nil {
		return nil
	}
	out := &status.MappedService{ClusterID: m.Cluster, Namespace: m.Namespace, Service: m.Service, Instances: m.Instances, Problems: m.Problems}
	if !m.ReadAt.IsZero() {
		out.ReadAge = new(max(0, now.Sub(m.ReadAt)).Round(100 * time.Millisecond).Seconds())
	}
	return out
}

// Probe implements status.Source. It connects to addresses of the import only.
func (s *statusSource) Probe(ctx context.Context, key mcs.Key) (status.Probe, error) {
	var imp mcsv1beta1.ServiceImport
	if _, err := kube.Find(ctx, s.reader, kube.NameOf(key), &imp); err != nil {
		return status.Probe{}, err
	}
	var imported discoveryv1.EndpointSliceList
	err := s.reader.List(ctx, &imported, client.InNamespace(key.Namespace), client.MatchingLabels{
		plan.LabelManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: key.Name,
	})
	if err != nil {
		return status.Probe{}, fmt.Errorf("listing the imported EndpointSlices of %s: %w", key, err)
	}
	return s.prober.Probe(ctx, key, probeTargets(&imp, imported.Items)), nil
}

// maxTargets limits the connections of one probe, which are made in parallel.
const maxTargets = 32

// probeTargets returns the first TCP port at each clusterset IP, and at one ready endpoint of each
// source cluster.
func probeTargets(imp *mcsv1beta1.ServiceImport, imported []discoveryv1.EndpointSlice) []status.Target {
	var targets []status.Target
	for _, ip := range imp.Spec.IPs {
		for _, p := range imp.Spec.Ports {
			if cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP {
				targets = append(targets, status.Target{Address: net.JoinHostPort(ip, strconv.Itoa(int(p.Port)))})
				break
			}
		}
	}
	seen := map[string]bool{}
	for _, slice := range imported {
		cluster := slice.Labels[mcsv1beta1.LabelSourceCluster]
		if address := readyAddress(slice); address != "" && !seen[cluster] && len(targets) < maxTargets {
			seen[cluster] = true
			targets = append(targets, status.Target{Address: address, Cluster: cluster})
		}
	}
	slices.SortStableFunc(targets, func(a, b status.Target) int { return strings.Compare(a.Cluster, b.Cluster) })
	return targets
}

// readyAddress returns a slice's first ready endpoint at its first TCP port, "" if it has none.
func readyAddress(slice discoveryv1.EndpointSlice) string {
	for _, p := range slice.Ports {
		if p.Port == nil || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			continue
		}
		for _, e := range slice.Endpoints {
			if (e.Conditions.Ready == nil || *e.Conditions.Ready) && len(e.Addresses) > 0 {
				return net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port)))
			}
		}
	}
	return ""
}

// Reach implements status.Source.
func (s *statusSource) Reach(ctx context.Context, ip netip.Addr) status.Connection {
	if s.healthPort == "" {
		return status.Connection{Target: status.Target{Address: ip.String()}, Problem: "there is no port to connect to: --health-probe-bind-address is off"}
	}
	return s.prober.Connect(ctx, status.Target{Address: net.JoinHostPort(ip.String(), s.healthPort)})
}

func problemText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
