package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// A diagnosis follows one service hop by hop: first through each cluster that exports it, then through each that imports it.
// It is decided from facts alone.
type diagnosis struct {
	Service string  `json:"service"`
	Stages  []stage `json:"stages"`
	// Stop is the first hop that does not work, nil when all do. The later ones may fail because of it.
	Stop *stop `json:"stop,omitempty"`
}

// A stage is the way through one cluster.
type stage struct {
	Context string `json:"context"`
	// Role is export or import.
	Role string  `json:"role"`
	Hops []check `json:"hops"`
}

// A stop is where the service stops.
type stop struct {
	Context string `json:"context"`
	check
}

// diagnose decides. Facts are in the order of the contexts.
func diagnose(key mcs.Key, all []serviceFacts) diagnosis {
	d := diagnosis{Service: key.String()}
	exporters := exportersOf(all)
	for _, f := range all {
		switch {
		case f.problem != "":
			d.add(f.context, "cluster", check{Name: "API server", Result: broken, Detail: f.problem, Hint: "see that kubectl --context " + f.context + " works"})
		case f.export != nil:
			d.add(f.context, "export", f.exportHops(key)...)
		}
	}
	if len(exporters) == 0 && len(d.Stages) == 0 {
		d.add(all[0].context, "export", noExport(key, all))
		return d
	}
	for _, f := range all {
		if f.problem == "" {
			d.add(f.context, "import", f.importHops(key, exporters, all)...)
		}
	}
	return d
}

// add adds a stage, and the stop if it is in it.
func (d *diagnosis) add(context, role string, hops ...check) {
	d.Stages = append(d.Stages, stage{context, role, hops})
	if i := slices.IndexFunc(hops, func(c check) bool { return c.Result == broken }); i >= 0 && d.Stop == nil {
		d.Stop = &stop{context, hops[i]}
	}
}

// exportersOf are the IDs of the clusters that export the service as far as is known: by their ServiceExport, or because
// another cluster's registry says so. Sorted.
func exportersOf(all []serviceFacts) []string {
	ids := map[string]bool{}
	for _, f := range all {
		if id := f.clusterID(); id != "" && f.export != nil && valid(f.export) {
			ids[id] = true
		}
		if f.seen != nil {
			for _, exp := range f.seen.Exports {
				ids[exp.Cluster] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

func valid(e *mcsv1beta1.ServiceExport) bool {
	return !meta.IsStatusConditionFalse(e.Status.Conditions, string(mcsv1beta1.ServiceExportConditionValid))
}

// noExport is the hop at which a service stops that nobody exports.
func noExport(key mcs.Key, all []serviceFacts) check {
	c := check{Name: "ServiceExport", Result: broken, Detail: "no cluster that could be asked exports " + key.String()}
	i := slices.IndexFunc(all, func(f serviceFacts) bool { return f.service != nil })
	if i < 0 {
		c.Detail += ", and there is no Service of that name in namespace " + key.Namespace
		c.Hint = "see that name and namespace are right (-n), and that --context names the cluster which has the Service"
		return c
	}
	c.Hint = fmt.Sprintf("run: kubectl mcs export %s -n %s --context %s", key.Name, key.Namespace, all[i].context)
	return c
}

// exportHops are those of a cluster that has a ServiceExport.
func (f *serviceFacts) exportHops(key mcs.Key) []check {
	return []check{
		f.serviceHop(key), f.endpointsHop(key), f.permissions.check(), f.controllerHop(), f.exportHop(), f.publishedHop(), f.conflictHop(),
	}
}

func (f *serviceFacts) serviceHop(key mcs.Key) check {
	c := check{Name: "Service", Result: broken}
	switch {
	case f.service == nil:
		c.Detail = "there is no Service " + key.String() + ", only its ServiceExport"
		c.Hint = "create the Service, or delete the ServiceExport: kubectl mcs unexport " + key.Name + " -n " + key.Namespace + " --context " + f.context
	case f.service.Spec.Type == corev1.ServiceTypeExternalName:
		c.Detail = "it is of type ExternalName, which has no endpoints to export"
		c.Hint = "export a Service of type ClusterIP, NodePort or LoadBalancer"
	default:
		var ports []string
		for _, p := range f.service.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
		}
		kind := string(cmp.Or(f.service.Spec.Type, corev1.ServiceTypeClusterIP))
		if f.service.Spec.ClusterIP == corev1.ClusterIPNone {
			kind = "headless"
		}
		c.Result, c.Detail = passed, strings.TrimSpace(kind+" "+strings.Join(ports, " "))
	}
	return c
}

func (f *serviceFacts) endpointsHop(key mcs.Key) check {
	c := check{Name: "EndpointSlices", Result: passed}
	ready, all := readyCount(f.slices)
	c.Detail = fmt.Sprintf("%d of %d endpoints ready", ready, all)
	if ready == 0 {
		c.Result = broken
		c.Hint = fmt.Sprintf("no pod of the Service is ready: see kubectl --context %s -n %s describe service %s and its pods", f.context, key.Namespace, key.Name)
	}
	return c
}

func (f *serviceFacts) controllerHop() check {
	c := check{Name: "controller", Result: broken}
	switch {
	case f.controller == nil:
		c.Detail = f.controllerProblem
		c.Hint = fmt.Sprintf("see kubectl --context %s -n %s get pods, and kubectl mcs check --context %[1]s", f.context, f.home)
	case f.controller.Identity == nil:
		c.Detail = "the cluster is not a member of a clusterset: " + f.controller.Problem
		c.Hint = "run: kubectl mcs join --context " + f.context + " --cluster-id=… --clusterset-id=…"
	case !f.controller.Synced:
		c.Detail = "the registry has not been read yet: " + cmp.Or(f.controller.ReadProblem, "it takes a moment after a start")
		c.Hint = "see kubectl mcs check --context " + f.context
	default:
		c.Result = passed
		c.Detail = fmt.Sprintf("%s is cluster %s of clusterset %s", f.controller.Version, f.controller.Identity.ClusterID, f.controller.Identity.ClusterSetID)
	}
	return c
}

func (f *serviceFacts) exportHop() check {
	c := check{Name: "ServiceExport", Result: broken}
	conditions := f.export.Status.Conditions
	valid := meta.FindStatusCondition(conditions, string(mcsv1beta1.ServiceExportConditionValid))
	readiness := meta.FindStatusCondition(conditions, string(mcsv1beta1.ServiceExportConditionReady))
	switch {
	case valid == nil:
		c.Detail = "no controller has looked at it"
		c.Hint = "the controller does not run or may not read ServiceExports: see the hops above"
	case valid.Status != metav1.ConditionTrue:
		c.Detail = "it is not valid: " + reason(valid)
		c.Hint = "see docs/reference/conditions.md about " + valid.Reason
	case readiness == nil || readiness.Status != metav1.ConditionTrue:
		c.Detail = "it is not exported: " + reason(readiness)
		c.Hint = exportHint(readiness)
	default:
		c.Result, c.Detail = passed, "valid and exported"
	}
	return c
}

// reason is a condition's reason and message.
func reason(c *metav1.Condition) string {
	if c == nil {
		return "the controller has not said why"
	}
	return c.Reason + ": " + c.Message
}

func exportHint(readiness *metav1.Condition) string {
	switch {
	case readiness == nil || readiness.Reason == string(mcsv1beta1.ServiceExportReasonPending):
		return "it should take a second or two; if it stays so, see kubectl mcs status"
	case strings.Contains(readiness.Message, "is already used by another cluster"):
		return "give one of the two clusters another ID: kubectl mcs join --cluster-id=… --clusterset-id=… --force"
	}
	return "see docs/reference/conditions.md about " + readiness.Reason
}

func (f *serviceFacts) publishedHop() check {
	c := check{Name: "registry", Result: passed, Detail: "the registry shows this cluster's export"}
	switch {
	case f.seen == nil:
		c.Result, c.Detail = skipped, cmp.Or(f.seenProblem, "the controller could not be asked")
	case f.seen.Publication == nil:
		c.Result, c.Detail = broken, "the controller publishes nothing for it"
		c.Hint = "see the ServiceExport's conditions, and the controller's log"
	case f.seen.Publication.State != "Exported":
		c.Result, c.Detail = broken, "not written yet: "+cmp.Or(f.seen.Publication.Problem, f.seen.Publication.State)
		c.Hint = "see kubectl mcs check --context " + f.context
	}
	return c
}

func (f *serviceFacts) conflictHop() check {
	c := check{Name: "conflicts", Result: passed, Detail: "none"}
	if conflict := meta.FindStatusCondition(f.export.Status.Conditions, string(mcsv1beta1.ServiceExportConditionConflict)); conflict != nil &&
		conflict.Status == metav1.ConditionTrue {
		c.Result, c.Detail = warned, reason(conflict)
		c.Hint = "the oldest export wins: make the Services agree (docs/api.md)"
	}
	return c
}

// importHops are those of a cluster that is to import the service from exporters.
func (f *serviceFacts) importHops(key mcs.Key, exporters []string, all []serviceFacts) []check {
	var hops []check
	if !f.namespace {
		return []check{{
			Name: "namespace", Result: broken, Detail: "there is no namespace " + key.Namespace + ", so nothing is imported into it",
			Hint: "run: kubectl --context " + f.context + " create namespace " + key.Namespace,
		}}
	}
	if f.export == nil { // otherwise they are hops of the export
		hops = append(hops, f.permissions.check(), f.controllerHop())
	}
	hops = append(hops, f.readHop(exporters), f.importHop(exporters))
	if f.imported != nil && f.imported.Spec.Type != mcsv1beta1.Headless {
		hops = append(hops, f.derivedHop())
	}
	hops = append(hops, f.importedHop(exporters, all), f.dnsHop())
	if f.probe != nil || f.probeProblem != "" {
		hops = append(hops, f.answerHop(), f.connectionHop())
	}
	return hops
}

// readHop compares what the registry shows here with who exports.
func (f *serviceFacts) readHop(exporters []string) check {
	c := check{Name: "registry", Result: passed}
	if f.seen == nil {
		c.Result, c.Detail = skipped, cmp.Or(f.seenProblem, "the controller could not be asked")
		return c
	}
	var read []string
	if f.seen.Own != nil {
		read = append(read, f.clusterID())
	}
	for _, exp := range f.seen.Exports {
		read = append(read, exp.Cluster)
	}
	slices.Sort(read)
	missing := slices.DeleteFunc(slices.Clone(exporters), func(id string) bool { return slices.Contains(read, id) })
	c.Detail = "has the exports of " + cmp.Or(strings.Join(read, ", "), "no cluster")
	switch {
	case len(f.seen.Unknown) > 0:
		c.Result = broken
		c.Detail += "; those of " + strings.Join(f.seen.Unknown, ", ") + " cannot be read"
		c.Hint = "see kubectl mcs status --context " + f.context + " for what is wrong with their records"
	case len(missing) > 0:
		c.Result = broken
		c.Detail += ", not of " + strings.Join(missing, ", ")
		c.Hint = "see that the clusters share one clusterset ID, registry, account and Region: kubectl mcs status --context with both"
	case len(f.seen.Stale) > 0:
		c.Result = warned
		c.Detail += "; stale: " + strings.Join(f.seen.Stale, ", ")
		c.Hint = "the controllers of stale clusters give no sign of life: see docs/stale-clusters.md"
	}
	return c
}

func (f *serviceFacts) importHop(exporters []string) check {
	c := check{Name: "ServiceImport", Result: broken}
	if f.imported == nil {
		c.Detail = "there is none"
		c.Hint = "see the hops above, and whether the namespace may import: docs/install.md#namespaces-that-export-and-import"
		return c
	}
	names := exporting(f.imported)
	missing := slices.DeleteFunc(slices.Clone(exporters), func(id string) bool { return slices.Contains(names, id) })
	readiness := meta.FindStatusCondition(f.imported.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady))
	switch {
	case f.imported.Labels[plan.LabelAppManagedBy] != plan.ManagedBy:
		c.Detail = "it is not this controller's: its label " + plan.LabelAppManagedBy + " is " + strconv.Quote(f.imported.Labels[plan.LabelAppManagedBy])
		c.Hint = "another implementation imports this service: remove its ServiceImport if this controller is to do it"
	case readiness != nil && readiness.Status != metav1.ConditionTrue:
		c.Detail, c.Hint = "it is not ready: "+reason(readiness), "see docs/reference/conditions.md about "+readiness.Reason
	case len(missing) > 0:
		c.Detail = "it names " + cmp.Or(strings.Join(names, ", "), "no cluster") + " as exporters, not " + strings.Join(missing, ", ")
		c.Hint = "see the hops above, and the controller's log"
	default:
		c.Result = passed
		c.Detail = strings.TrimSpace(fmt.Sprintf("%s %s from %s", f.imported.Spec.Type, strings.Join(f.imported.Spec.IPs, " "), strings.Join(names, ", ")))
	}
	return c
}

func (f *serviceFacts) derivedHop() check {
	c := check{Name: "derived Service", Result: broken}
	switch {
	case f.derived == nil:
		c.Detail, c.Hint = "there is none", "see the controller's log, and whether a quota or webhook refuses Services in this namespace"
	case !slices.Contains(f.imported.Spec.IPs, f.derived.Spec.ClusterIP):
		c.Detail = fmt.Sprintf("its IP %s is not the ServiceImport's %s", f.derived.Spec.ClusterIP, strings.Join(f.imported.Spec.IPs, " "))
		c.Hint = "the controller mends that within seconds: see that it runs"
	default:
		c.Result, c.Detail = passed, f.derived.Name+" "+f.derived.Spec.ClusterIP
	}
	return c
}

// importedHop compares the imported slices with what the exporters have.
func (f *serviceFacts) importedHop(exporters []string, all []serviceFacts) check {
	c := check{Name: "imported slices", Result: passed}
	sources := bySource(f.imports)
	var parts []string
	total := 0
	for _, id := range exporters {
		ready, count := readyCount(sources[id])
		total += ready
		parts = append(parts, fmt.Sprintf("%d of %d endpoints ready from %s", ready, count, id))
		i := slices.IndexFunc(all, func(o serviceFacts) bool { return o.clusterID() == id })
		if i < 0 {
			continue
		}
		if there, _ := readyCount(all[i].slices); there != ready {
			c.Result, c.Hint = warned, "changes take a second or two: run it again, and see the hops above"
			parts[len(parts)-1] += fmt.Sprintf(" (there: %d)", there)
		}
	}
	c.Detail = strings.Join(parts, ", ")
	if total == 0 {
		c.Result = broken
		c.Detail = cmp.Or(c.Detail, "no endpoints")
		c.Hint = "nobody's endpoints are ready, or they did not get here: see the hops above"
	}
	return c
}

func (f *serviceFacts) dnsHop() check {
	c := check{Name: "CoreDNS", Result: passed}
	switch {
	case f.dns == nil:
		c.Result, c.Detail, c.Hint = skipped, f.dnsProblem, "see docs/dns.md"
	case f.dns.State != coredns.Enabled:
		c.Result, c.Detail = broken, coredns.Zone+" is not enabled"
		if f.dns.State == coredns.Partly {
			c.Detail = coredns.Zone + " is enabled in part"
		}
		c.Hint = "run: kubectl mcs dns enable --context " + f.context
		for _, found := range f.dns.Checks {
			if found.Result == failed && found.Hint != "" && found.Hint != runEnable {
				c.Hint = found.Detail + ": " + found.Hint
			}
		}
	default:
		c.Detail = coredns.Zone + " is enabled"
	}
	return c
}

func (f *serviceFacts) answerHop() check {
	c := check{Name: "DNS answer", Result: passed}
	switch {
	case f.probe == nil:
		c.Result, c.Detail = skipped, f.probeProblem
	case f.probe.LookupProblem != "":
		c.Result, c.Detail = broken, f.probe.Name+": "+f.probe.LookupProblem
		c.Hint = "see kubectl mcs dns status --context " + f.context + "; negative answers are cached for some seconds"
	case f.imported != nil && f.imported.Spec.Type != mcsv1beta1.Headless &&
		slices.ContainsFunc(f.probe.Addresses, func(ip string) bool { return !slices.Contains(f.imported.Spec.IPs, ip) }):
		c.Result = broken
		c.Detail = fmt.Sprintf("%s is %s, and the ServiceImport has %s", f.probe.Name, strings.Join(f.probe.Addresses, " "), strings.Join(f.imported.Spec.IPs, " "))
		c.Hint = "an old answer is cached for up to 30 s; otherwise another implementation answers for " + coredns.Zone
	default:
		c.Detail = f.probe.Name + " is " + strings.Join(f.probe.Addresses, " ")
	}
	return c
}

func (f *serviceFacts) connectionHop() check {
	c := check{Name: "connection", Result: passed}
	if f.probe == nil {
		c.Result, c.Detail = skipped, f.probeProblem
		return c
	}
	var worked, toIP, toPods []string
	for _, conn := range f.probe.Connections {
		switch {
		case conn.Problem == "":
			worked = append(worked, conn.Address)
		case !toEndpoint(conn):
			toIP = append(toIP, conn.Address+": "+conn.Problem)
		default:
			toPods = append(toPods, fmt.Sprintf("%s of %s: %s", conn.Address, conn.Cluster, conn.Problem))
		}
	}
	switch {
	case len(toPods) > 0:
		c.Result, c.Detail = broken, strings.Join(toPods, "; ")
		c.Hint = "the pods cannot be reached from here: see routes between the pod networks, security groups, NetworkPolicies, and that the application listens; " + ownPolicy
	case len(toIP) > 0:
		c.Result, c.Detail = broken, strings.Join(toIP, "; ")
		c.Hint = "the pods can be reached and the clusterset IP cannot: see kube-proxy, or what takes its place, in this cluster; or " + ownPolicy
	case len(worked) == 0:
		c.Result, c.Detail = skipped, "nothing to connect to over TCP"
	default:
		c.Detail = "to " + strings.Join(worked, ", ")
	}
	return c
}
