package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A Diagnosis has the steps of one service: first in each cluster that exports it, then in each
// that imports it.
type Diagnosis struct {
	Service string  `json:"service"`
	Phases  []Phase `json:"phases"`
	// Failure is the first step that failed, or nil. Later steps may fail because of it.
	Failure *Failure `json:"failure,omitempty"`
}

// A Phase has the steps of the export or the import in one cluster.
type Phase struct {
	Context string `json:"context"`
	// Name is cluster, export or import.
	Name  string        `json:"name"`
	Steps []check.Check `json:"steps"`
}

// A Failure is a failed step with its context.
type Failure struct {
	Context string `json:"context"`
	check.Check
}

// Diagnose decides from the facts, which are in the order of the contexts.
func Diagnose(key mcs.Key, all []ServiceFacts) Diagnosis {
	d := Diagnosis{Service: key.String()}
	exporters, mapped := exportersOf(all), mappedClusters(all)
	for _, f := range all {
		switch {
		case f.problem != "":
			d.addPhase(f.Context, phaseCluster, f.problemStep())
		case f.export != nil:
			d.addPhase(f.Context, "export", f.exportSteps(key)...)
		}
	}
	isExported := len(exporters) > 0 || len(d.Phases) > 0
	if !isExported && !slices.ContainsFunc(all, func(f ServiceFacts) bool { return f.Registry == nil }) {
		d.addPhase(all[0].Context, "export", noExportStep(key, all))
		return d
	}
	for _, f := range all {
		if f.problem == "" && (isExported || f.Registry == nil) {
			d.addPhase(f.Context, "import", f.importPhase(key, exporters, mapped, all)...)
		}
	}
	return d
}

// importPhase returns the steps of the import in a cluster. exporters are the clusters that export
// the service, and mapped the pseudo-clusters among them.
func (f *ServiceFacts) importPhase(key mcs.Key, exporters, mapped []string, all []ServiceFacts) []check.Check {
	here := f.exportersHere(exporters, mapped)
	if len(here) == 0 && len(exporters) > 0 && f.Registry != nil {
		return []check.Check{{Name: "mapped service", Result: check.OK, Detail: "not mapped in this cluster, and no cluster exports it: nothing is imported"}}
	}
	return f.importSteps(key, here, all)
}

// phaseCluster is the name of the phase of a cluster whose objects could not be read.
const phaseCluster = "cluster"

// problemStep returns the step of a cluster whose objects could not be read.
func (f *ServiceFacts) problemStep() check.Check {
	if f.noPermission {
		return check.Check{
			Name: "objects", Result: check.Unknown, Detail: f.problem,
			Remedy: "ask an administrator for the role view in the namespace: " + docs.URL("install.md#roles-for-teams"),
		}
	}
	return apiServerFailure(f.Context, f.problem)
}

// unknown returns the steps that are unknown, a text for each context, and the first remedy among
// them.
func (d *Diagnosis) unknown() (texts []string, remedy string) {
	steps := map[string][]string{}
	for _, p := range d.Phases {
		for _, step := range p.Steps {
			if step.Result == check.Unknown && !slices.Contains(steps[p.Context], step.Name) {
				steps[p.Context], remedy = append(steps[p.Context], step.Name), cmp.Or(remedy, step.Remedy)
			}
		}
	}
	for _, context := range slices.Sorted(maps.Keys(steps)) {
		texts = append(texts, "in "+context+": "+strings.Join(steps[context], ", "))
	}
	return texts, remedy
}

// isUnread reports whether the objects of a cluster could not be read.
func (d *Diagnosis) isUnread() bool {
	return slices.ContainsFunc(d.Phases, func(p Phase) bool { return p.Name == phaseCluster })
}

// addPhase adds a phase, and its failure if it is the first.
func (d *Diagnosis) addPhase(context, name string, steps ...check.Check) {
	d.Phases = append(d.Phases, Phase{context, name, steps})
	if i := slices.IndexFunc(steps, check.Check.IsFailure); i >= 0 && d.Failure == nil {
		d.Failure = &Failure{context, steps[i]}
	}
}

// exportersOf returns the sorted IDs of the clusters that export the service, according to a valid
// ServiceExport or to another cluster's view of the registry.
func exportersOf(all []ServiceFacts) []string {
	ids := map[string]bool{}
	for _, f := range all {
		if id := f.ClusterID(); id != "" && f.export != nil && isValid(f.export) {
			ids[id] = true
		}
		if f.Registry != nil {
			for _, exp := range f.Registry.Exports {
				ids[exp.Cluster] = true
			}
			for _, id := range f.Registry.Ignored {
				ids[id] = true
			}
			if m := f.Registry.Mapped; m != nil {
				ids[m.ClusterID] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// mappedClusters returns the pseudo-clusters of the services of AWS Cloud Map that are mapped to
// the service in any of the clusters.
func mappedClusters(all []ServiceFacts) (ids []string) {
	for _, f := range all {
		if f.Registry != nil && f.Registry.Mapped != nil {
			ids = append(ids, f.Registry.Mapped.ClusterID)
		}
	}
	return ids
}

// exportersHere returns the exporters without the pseudo-clusters of which this cluster maps no
// service: each cluster has its own mappings. Without the view of the controller, it returns those
// of the ServiceImport: others may not export to this cluster.
func (f *ServiceFacts) exportersHere(exporters, mapped []string) []string {
	if f.Registry == nil {
		return f.ImportedFrom()
	}
	if m := f.Registry.Mapped; m != nil {
		mapped = subtract(mapped, []string{m.ClusterID})
	}
	return subtract(exporters, mapped)
}

// isValid reports whether a ServiceExport is valid, or exported although a part of it is not.
func isValid(e *mcsv1beta1.ServiceExport) bool {
	return meta.IsStatusConditionTrue(e.Status.Conditions, string(mcsv1beta1.ServiceExportConditionReady)) || !meta.IsStatusConditionFalse(e.Status.Conditions, string(mcsv1beta1.ServiceExportConditionValid))
}

// noExportStep returns the failed step of a service without an export.
func noExportStep(key mcs.Key, all []ServiceFacts) check.Check {
	c := check.Check{Name: "ServiceExport", Result: check.Failed, Detail: "no cluster in the checked contexts exports " + key.String() + mappingProblem(all)}
	i := slices.IndexFunc(all, func(f ServiceFacts) bool { return f.service != nil })
	if i < 0 {
		c.Detail += ", and namespace " + key.Namespace + " has no Service of that name"
		c.Remedy = "check the name, the namespace (-n), and that --context names the cluster that has the Service"
		return c
	}
	c.Remedy = fmt.Sprintf("run kubectl mcs export %s -n %s --context %s", key.Name, key.Namespace, all[i].Context)
	if others := all[i].otherNames; len(others) > 0 {
		c.Detail += ", and Service " + key.Name + " is exported as " + strings.Join(others, ", ")
		c.Remedy = fmt.Sprintf("run kubectl mcs diagnose %s -n %s --context %s", others[0], key.Namespace, all[i].Context)
	}
	return c
}

// mappingProblem returns that no file maps the service, with the problems of the files, "" if
// services of AWS Cloud Map are not mapped.
func mappingProblem(all []ServiceFacts) string {
	text := ""
	for _, f := range all {
		if f.controller == nil {
			continue
		}
		for _, m := range f.controller.Members {
			if m.Mapped {
				text = ", and no file of --cloud-map-services maps it"
			}
			if m.Mapped && len(m.Problems) > 0 {
				return text + " (" + f.Context + ": " + strings.Join(check.Summarize(m.Problems, 3), "; ") + ")"
			}
		}
	}
	return text
}

// exportSteps returns the steps of a cluster that has a ServiceExport.
func (f *ServiceFacts) exportSteps(key mcs.Key) []check.Check {
	steps := []check.Check{
		f.serviceStep(key), f.endpointsStep(key), f.permissionsStep(), f.controllerStep(), f.exportStep(), f.publicationStep(),
	}
	return slices.Concat(steps, f.exportedSteps(), []check.Check{f.conflictStep()}, f.instanceSteps())
}

// instanceSteps returns a step if the instances of Cloud Map do not show the export as the user
// asked for.
func (f *ServiceFacts) instanceSteps() []check.Check {
	if f.Registry == nil || f.Registry.Publication == nil || len(f.Registry.Publication.Warnings) == 0 {
		return nil
	}
	return []check.Check{{
		Name: "instance view", Result: check.Warning, Detail: strings.Join(f.Registry.Publication.Warnings, "; "),
		Remedy: "the export works; consumers that read Cloud Map or its DNS do not see all of it (" + docs.URL("instance-view.md") + ")",
	}}
}

func (f *ServiceFacts) serviceStep(key mcs.Key) check.Check {
	c := check.Check{Name: "Service", Result: check.Failed}
	name, err := f.serviceName()
	switch {
	case err != nil:
		c.Detail = err.Error()
		c.Remedy = f.renameRemedy()
	case f.service == nil && name != key.Name:
		c.Detail = fmt.Sprintf("Service %s/%s does not exist, which annotation %s of the ServiceExport names", key.Namespace, name, mcs.AnnotationService)
		c.Remedy = "create the Service, or " + f.renameRemedy()
	case f.service == nil:
		c.Detail = "Service " + key.String() + " does not exist, only its ServiceExport"
		c.Remedy = "create the Service, or delete the ServiceExport: kubectl mcs unexport " + key.Name + " -n " + key.Namespace + " --context " + f.Context
	case f.service.Spec.Type == corev1.ServiceTypeExternalName:
		c.Detail = "the Service has type ExternalName and no endpoints to export"
		c.Remedy = "export a Service of type ClusterIP, NodePort or LoadBalancer"
	default:
		var ports []string
		for _, p := range f.service.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
		}
		kind := string(cmp.Or(f.service.Spec.Type, corev1.ServiceTypeClusterIP))
		if f.service.Spec.ClusterIP == corev1.ClusterIPNone {
			kind = "headless"
		}
		c.Result, c.Detail = check.OK, strings.TrimSpace(kind+" "+strings.Join(ports, " "))
		if name != key.Name {
			c.Detail = name + ": " + c.Detail
		}
	}
	return c
}

// renameRemedy is the remedy for a ServiceExport that names a Service that is not there.
func (f *ServiceFacts) renameRemedy() string {
	return fmt.Sprintf("name another Service: kubectl mcs export SERVICE --name %s -n %s --context %s", f.key.Name, f.key.Namespace, f.Context)
}

func (f *ServiceFacts) endpointsStep(key mcs.Key) check.Check {
	c := check.Check{Name: "EndpointSlices", Result: check.OK}
	ready, all := CountReady(f.slices)
	c.Detail = fmt.Sprintf("%d of %d endpoints are ready", ready, all)
	if ready == 0 {
		c.Result = check.Failed
		name, _ := f.serviceName()
		c.Remedy = fmt.Sprintf("make a pod of the Service ready: kubectl --context %s -n %s describe service %s", f.Context, key.Namespace, cmp.Or(name, key.Name))
	}
	return c
}

func (f *ServiceFacts) controllerStep() check.Check {
	c := check.Check{Name: "controller", Result: check.Failed}
	switch {
	case f.noPermission:
		c.Result, c.Detail = check.Unknown, f.controllerProblem
		c.Remedy = fmt.Sprintf("ask an administrator to run kubectl mcs diagnose %s -n %s --context %s ("+docs.URL("kubectl-mcs.md#permissions")+")", f.key.Name, f.key.Namespace, f.Context)
	case f.controller == nil:
		c.Detail = f.controllerProblem
		c.Remedy = cmp.Or(f.controllerRemedy, fmt.Sprintf("run kubectl mcs check --context %s, and kubectl --context %[1]s -n %s get pods", f.Context, f.controllerNamespace))
	case !f.controller.Leader:
		c.Detail, c.Remedy = status.NoLeader, "run kubectl mcs check --wait 1m --context "+f.Context
	case f.controller.Identity == nil:
		c.Detail, c.Remedy = f.controller.Unanswered(), joinRemedy(f.Context)
	case !f.controller.Synced:
		c.Detail, c.Remedy = f.controller.Unanswered(), "run kubectl mcs check --context "+f.Context
	case f.controller.ReadProblem != "" || f.controller.WriteProblem != "":
		c.Result, c.Remedy = check.Warning, "run kubectl mcs check --context "+f.Context
		c.Detail = "the registry is failing, so imports and exports stay as they are: " + cmp.Or(f.controller.ReadProblem, f.controller.WriteProblem)
	default:
		c.Result = check.OK
		c.Detail = fmt.Sprintf("%s, cluster %s of clusterset %s", f.controller.Version, f.controller.Identity.ClusterID, f.controller.Identity.ClusterSetID)
	}
	return c
}

func (f *ServiceFacts) exportStep() check.Check {
	c := check.Check{Name: "ServiceExport", Result: check.Failed}
	conditions := f.export.Status.Conditions
	valid := meta.FindStatusCondition(conditions, string(mcsv1beta1.ServiceExportConditionValid))
	readiness := meta.FindStatusCondition(conditions, string(mcsv1beta1.ServiceExportConditionReady))
	switch {
	case valid == nil:
		c.Detail = "no controller has set its conditions"
		c.Remedy = "check that the controller runs and can read ServiceExports: kubectl mcs check --context " + f.Context
	case valid.Status != metav1.ConditionTrue && isValid(f.export):
		c.Result, c.Detail = check.Warning, "exported, but not valid: "+conditionText(valid)
		c.Remedy = "see reason " + valid.Reason + " in " + docs.URL("reference/conditions.md")
	case valid.Status != metav1.ConditionTrue:
		c.Detail = "not valid: " + conditionText(valid)
		c.Remedy = "see reason " + valid.Reason + " in " + docs.URL("reference/conditions.md")
	case readiness == nil || readiness.Status != metav1.ConditionTrue:
		c.Detail = "not exported: " + conditionText(readiness)
		c.Remedy = f.exportRemedy(readiness)
	default:
		c.Result, c.Detail = check.OK, "valid and "+f.describeExport()
	}
	return c
}

// describeExport returns to which clusters the service is exported, and how much of it is drained.
func (f *ServiceFacts) describeExport() string {
	text := "exported"
	if c := meta.FindStatusCondition(f.export.Status.Conditions, mcs.ConditionRecipients); c != nil && c.Status == metav1.ConditionTrue {
		text = c.Message
	}
	if f.Registry != nil && f.Registry.Own != nil && f.Registry.Own.Drain != "" {
		text += "; drained: " + string(f.Registry.Own.Drain)
	}
	return text
}

// conditionText returns the reason and message of a condition.
func conditionText(c *metav1.Condition) string {
	if c == nil {
		return "the controller has not set the condition"
	}
	return c.Reason + ": " + c.Message
}

func (f *ServiceFacts) exportRemedy(readiness *metav1.Condition) string {
	switch {
	case readiness == nil || readiness.Reason == string(mcsv1beta1.ServiceExportReasonPending):
		return "this takes one or two seconds; if it continues, run kubectl mcs status --context " + f.Context
	case strings.Contains(readiness.Message, "is already used by another cluster"):
		return "give one of the two clusters another ID: kubectl mcs join --context " + f.Context + " --cluster-id=… --clusterset-id=… --force"
	}
	return "see reason " + readiness.Reason + " in " + docs.URL("reference/conditions.md")
}

func (f *ServiceFacts) publicationStep() check.Check {
	c := check.Check{Name: "registry", Result: check.OK, Detail: "has the export of this cluster"}
	switch {
	case f.Registry == nil:
		c.Result, c.Detail = check.Unknown, f.unread()
	case f.Registry.Publication == nil:
		c.Result, c.Detail = check.Failed, "the controller does not export the service"
		c.Remedy = "see the conditions of the ServiceExport, and " + logsCommand(f.Context, f.controllerNamespace)
	case f.Registry.Publication.State != "Exported":
		c.Result, c.Detail = check.Failed, "the export is not written: "+cmp.Or(f.Registry.Publication.Problem, f.Registry.Publication.State)
		c.Remedy = "run kubectl mcs check --context " + f.Context
	}
	return c
}

func (f *ServiceFacts) conflictStep() check.Check {
	c := check.Check{Name: "conflicts", Result: check.OK, Detail: "none"}
	conflict := meta.FindStatusCondition(f.export.Status.Conditions, string(mcsv1beta1.ServiceExportConditionConflict))
	switch {
	case conflict == nil:
		c.Result, c.Detail = check.Unknown, conditionText(conflict)
	case conflict.Status == metav1.ConditionTrue:
		c.Result, c.Detail = check.Warning, conditionText(conflict)
		c.Remedy = "make the exported Services equal in these properties; until then the oldest export wins (" + docs.URL("api.md") + ")"
	}
	return c
}

func (f *ServiceFacts) permissionsStep() check.Check {
	return f.permissions.check(f.Context, f.controller, f.plugin)
}

// importSteps returns the steps of a cluster that imports the service from exporters.
func (f *ServiceFacts) importSteps(key mcs.Key, exporters []string, all []ServiceFacts) []check.Check {
	var steps []check.Check
	if !f.hasNamespace {
		return []check.Check{{
			Name: "namespace", Result: check.Failed, Detail: "namespace " + key.Namespace + " does not exist, so services are not imported into it",
			Remedy: "run kubectl --context " + f.Context + " create namespace " + key.Namespace,
		}}
	}
	if f.export == nil { // otherwise the export phase has these steps
		steps = append(steps, f.permissionsStep(), f.controllerStep())
	}
	if notFor := f.notFor(); len(notFor) > 0 {
		exporters = subtract(exporters, notFor)
		steps = append(steps, check.Check{Name: "recipients", Result: check.OK, Detail: "for other clusters than this one: the exports of " + strings.Join(notFor, ", ")})
		if len(exporters) == 0 {
			return steps
		}
	}
	if f.Registry != nil && f.Registry.NotImported != "" {
		return append(steps, check.Check{
			Name: "namespace", Result: check.Failed, Detail: f.Registry.NotImported,
			Remedy: "move the service to another namespace, or let the administrator of " + f.Context + " list this one (" + docs.URL("install.md#namespaces-that-export-and-import") + ")",
		})
	}
	return slices.Concat(steps, f.importedSteps(exporters, all))
}

// importedSteps returns the steps from the registry to a connection.
func (f *ServiceFacts) importedSteps(exporters []string, all []ServiceFacts) (steps []check.Check) {
	if f.Registry != nil && f.Registry.Mapped != nil {
		steps = append(steps, f.mappedStep())
	}
	steps = append(steps, f.registryStep(exporters), f.importStep(exporters))
	if f.Import != nil && f.Import.Spec.Type != mcsv1beta1.Headless {
		steps = append(steps, f.derivedServiceStep())
	}
	steps = append(steps, f.selectionSteps()...)
	steps = append(steps, f.importedSlicesSteps(exporters, all)...)
	steps = append(steps, f.trafficPolicySteps()...)
	steps = append(steps, f.coreDNSStep())
	if f.probe != nil || f.probeProblem != "" {
		steps = append(steps, f.dnsAnswerStep(), f.connectionStep())
	}
	return steps
}

// selectionSteps describe which clusters are in use, and why.
func (f *ServiceFacts) selectionSteps() (steps []check.Check) {
	if drained := f.trueCondition(mcs.ConditionDrained); drained != nil {
		steps = append(steps, check.Check{Name: "drain", Result: check.OK, Detail: drained.Message})
	}
	if selection := f.trueCondition(mcs.ConditionClusterSelection); selection != nil {
		steps = append(steps, check.Check{Name: "cluster selection", Result: check.OK, Detail: selection.Message})
	}
	return steps
}

// mappedStep describes the service of AWS Cloud Map that is mapped to the service in this cluster.
func (f *ServiceFacts) mappedStep() check.Check {
	m := f.Registry.Mapped
	c := check.Check{Name: "mapped service", Result: check.OK, Detail: fmt.Sprintf("service %s in %s of AWS Cloud Map", m.Service, m.Namespace)}
	if m.ReadAge != nil {
		c.Detail += fmt.Sprintf(", read %s ago: %d instances", time.Duration(*m.ReadAge*float64(time.Second)).Round(time.Second), m.Instances)
	}
	switch {
	case m.ReadAge == nil && len(m.Problems) == 0:
		c.Result, c.Detail, c.Remedy = check.Failed, c.Detail+", not read yet", "this takes a few seconds after a start: run this command again"
	case m.ReadAge == nil:
		c.Result = check.Failed
	case len(m.Problems) > 0:
		c.Result = check.Warning
	}
	if len(m.Problems) > 0 {
		c.Detail += "; " + strings.Join(check.Summarize(m.Problems, 3), "; ")
		c.Remedy = "correct the file of --cloud-map-services, the instances, or the controller's role (" + docs.URL("ecs-ec2-lambda.md#failures") + ")"
	}
	return c
}

// trueCondition returns a condition of the import if it is True: one that shows which clusters are
// in use, and why.
func (f *ServiceFacts) trueCondition(kind string) *metav1.Condition {
	if f.Import == nil || !meta.IsStatusConditionTrue(f.Import.Status.Conditions, kind) {
		return nil
	}
	return meta.FindStatusCondition(f.Import.Status.Conditions, kind)
}

// registryStep compares the exports that the controller has read with the exporters.
func (f *ServiceFacts) registryStep(exporters []string) check.Check {
	c := check.Check{Name: "registry", Result: check.OK}
	if f.Registry == nil {
		c.Result, c.Detail = check.Unknown, f.unread()
		return c
	}
	var read []string
	if f.Registry.Own != nil {
		read = append(read, f.ClusterID())
	}
	for _, exp := range f.Registry.Exports {
		read = append(read, exp.Cluster)
	}
	read = append(read, f.Registry.Ignored...)
	slices.Sort(read)
	missing, stale := subtract(exporters, read), f.Registry.Stale
	if m := f.Registry.Mapped; m != nil { // mappedStep has it
		stale = subtract(stale, []string{m.ClusterID})
	}
	c.Detail = "has exports of " + cmp.Or(strings.Join(read, ", "), "no cluster")
	switch {
	case len(f.Registry.Unknown) > 0:
		c.Result = check.Failed
		c.Detail += "; exports of " + strings.Join(f.Registry.Unknown, ", ") + " cannot be read"
		c.Remedy = "find the reason: kubectl mcs status --context " + f.Context
	case len(missing) > 0:
		c.Result = check.Failed
		c.Detail += ", not of " + strings.Join(missing, ", ")
		c.Remedy = "check that all clusters have the same clusterset ID, registry, account and Region: kubectl mcs status with all contexts"
	case len(f.Registry.Refused) > 0:
		c.Result = check.Warning
		c.Detail += "; refused: " + f.refused("")
		c.Remedy = refusedRemedy
	case len(stale) > 0:
		c.Result = check.Warning
		c.Detail += "; stale: " + strings.Join(stale, ", ")
		c.Remedy = "run kubectl mcs check in the stale clusters: their controllers send no heartbeat (" + docs.URL("stale-clusters.md") + ")"
	}
	return c
}

// notFor returns the clusters whose exports are for other clusters than this one.
func (f *ServiceFacts) notFor() []string {
	if f.Registry == nil {
		return nil
	}
	return f.Registry.NotFor
}

var refusedRemedy = "if this is not intended, change the export or the import policy (" + docs.URL("security/import-policy.md") + ")"

// refused returns the parts of the exports of a cluster, "" for all clusters, that this cluster
// refuses.
func (f *ServiceFacts) refused(cluster string) string {
	if f.Registry == nil {
		return ""
	}
	var list []string
	for _, r := range f.Registry.Refused {
		if cluster == "" || r.Cluster == cluster {
			list = append(list, r.Message)
		}
	}
	return strings.Join(check.Summarize(list, 3), "; ")
}

// subtract returns the items of list that are not in other.
func subtract(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(item string) bool { return slices.Contains(other, item) })
}

func (f *ServiceFacts) importStep(exporters []string) check.Check {
	c := check.Check{Name: "ServiceImport", Result: check.Failed}
	if f.Import == nil {
		c.Detail = "does not exist"
		if f.derived != nil && plan.IsHeld(f.derived) {
			c.Detail += "; Service " + f.derived.Name + " holds its IP " + f.derived.Spec.ClusterIP + " since " + f.derived.Annotations[plan.AnnotationHeldSince]
		}
		c.Remedy = "repair the failed steps above, and check whether the namespace is excluded from imports: " + docs.URL("install.md#namespaces-that-export-and-import")
		if failure := f.failure(); failure != "" {
			c.Detail, c.Remedy = c.Detail+"; "+failure, "see events and conditions in "+docs.URL("reference/conditions.md")
		}
		if refused := f.refused(""); refused != "" {
			c.Detail, c.Remedy = c.Detail+"; refused: "+refused, refusedRemedy
		}
		if f.Registry == nil && f.failure() == "" {
			c.Result, c.Detail, c.Remedy = check.Unknown, c.Detail+"; only the controller knows whether a cluster exports the service to this one", ""
		}
		return c
	}
	names := session.SourceClusters(f.Import)
	missing := subtract(exporters, names)
	// registryStep has them
	missing = slices.DeleteFunc(missing, func(cluster string) bool { return f.refused(cluster) != "" })
	readiness := meta.FindStatusCondition(f.Import.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady))
	switch {
	case f.Import.Labels[plan.LabelAppManagedBy] != plan.ManagedBy:
		c.Detail = "not managed by this controller: label " + plan.LabelAppManagedBy + " is " + strconv.Quote(f.Import.Labels[plan.LabelAppManagedBy])
		c.Remedy = "another MCS implementation imports this service: delete its ServiceImport if this controller is to import it"
	case readiness != nil && readiness.Status != metav1.ConditionTrue:
		c.Detail, c.Remedy = "not ready: "+conditionText(readiness), "see reason "+readiness.Reason+" in "+docs.URL("reference/conditions.md")
	case len(missing) > 0:
		c.Detail = "its status lists " + cmp.Or(strings.Join(names, ", "), "no cluster") + ", not " + strings.Join(missing, ", ")
		c.Remedy = "repair the failed steps above, or see " + logsCommand(f.Context, f.controllerNamespace)
	default:
		c.Result = check.OK
		c.Detail = strings.TrimSpace(fmt.Sprintf("%s %s from %s", f.Import.Spec.Type, strings.Join(f.Import.Spec.IPs, " "), strings.Join(names, ", ")))
	}
	return c
}

func (f *ServiceFacts) derivedServiceStep() check.Check {
	c := check.Check{Name: "derived Service", Result: check.Failed}
	logs := logsCommand(f.Context, f.controllerNamespace)
	switch {
	case f.derived == nil:
		c.Detail, c.Remedy = "does not exist", "check whether a quota or an admission webhook rejects Services in this namespace: "+logs
	case f.derived.Labels[plan.LabelAppManagedBy] != plan.ManagedBy:
		c.Detail = "its label " + plan.LabelAppManagedBy + " is " + strconv.Quote(f.derived.Labels[plan.LabelAppManagedBy]) + ": another tool changed Service " + f.derived.Name
		c.Remedy = "the controller restores it within seconds; if the other tool changes it again, exclude Services with label " + mcsv1beta1.LabelServiceName + " there"
	case !slices.Contains(f.Import.Spec.IPs, f.derived.Spec.ClusterIP):
		c.Detail = fmt.Sprintf("its IP %s differs from the ServiceImport's %s", f.derived.Spec.ClusterIP, strings.Join(f.Import.Spec.IPs, " "))
		c.Remedy = "the controller updates the ServiceImport within seconds; if it does not, see " + logs
	default:
		c.Result, c.Detail = check.OK, f.derived.Name+" "+f.derived.Spec.ClusterIP
	}
	return c
}

func (f *ServiceFacts) coreDNSStep() check.Check {
	c := check.Check{Name: "CoreDNS", Result: check.OK}
	switch {
	case f.dns == nil:
		c.Result, c.Detail, c.Remedy = check.Unknown, f.dnsProblem, "see "+docs.URL("dns.md")
	case f.dns.State != coredns.Enabled:
		c.Result, c.Detail = check.Failed, coredns.Zone+" is not enabled"
		if f.dns.State == coredns.Partial {
			c.Detail = coredns.Zone + " is partially enabled"
		}
		enable := f.dns.EnableRemedy(f.Context)
		c.Remedy = enable
		for _, found := range f.dns.Checks {
			if found.IsFailure() && found.Remedy != "" && found.Remedy != enable {
				c.Remedy = found.Detail + ": " + found.Remedy
			}
		}
	default:
		c.Detail = coredns.Zone + " is enabled"
	}
	return c
}

func (f *ServiceFacts) dnsAnswerStep() check.Check {
	c := check.Check{Name: "DNS answer", Result: check.OK}
	switch {
	case f.probe == nil:
		c.Result, c.Detail = check.Unknown, f.probeProblem
	case f.probe.LookupProblem != "":
		c.Result, c.Detail = check.Failed, f.probe.Name+": "+f.probe.LookupProblem
		c.Remedy = "run kubectl mcs dns status --context " + f.Context + "; CoreDNS caches negative answers for some seconds"
	case f.compareAnswer() != "":
		c.Result, c.Detail = check.Failed, f.compareAnswer()
		c.Remedy = "run this command again after 30 s, when cached answers have expired; if it still fails, another component answers for " + coredns.Zone
	default:
		c.Detail = f.probe.Name + " resolves to " + strings.Join(f.probe.Addresses, " ")
	}
	return c
}

// connectionResults are the connections of a probe by their results: addresses, with the reasons of
// those that failed.
type connectionResults struct {
	accepted, ipProblems, endpointProblems []string
	// notAllowed are the endpoints that NetworkPolicies do not let the controller connect to.
	notAllowed []string
}

func (f *ServiceFacts) connectionResults() (r connectionResults) {
	for _, conn := range f.probe.Connections {
		switch {
		case conn.Problem == "":
			r.accepted = append(r.accepted, conn.Address)
		case !isToEndpoint(conn):
			r.ipProblems = append(r.ipProblems, conn.Address+": "+conn.Problem)
		case !f.egress.allows(conn.Address, f.isOwn(conn.Cluster)):
			r.notAllowed = append(r.notAllowed, fmt.Sprintf("%s of %s", conn.Address, conn.Cluster))
		default:
			r.endpointProblems = append(r.endpointProblems, fmt.Sprintf("%s of %s: %s", conn.Address, conn.Cluster, conn.Problem))
		}
	}
	return r
}

// isOwn reports whether an ID is that of the cluster.
func (f *ServiceFacts) isOwn(clusterID string) bool {
	return f.controller != nil && f.controller.Identity != nil && f.controller.Identity.ClusterID == clusterID
}

func (f *ServiceFacts) connectionStep() check.Check {
	c := check.Check{Name: "connection", Result: check.OK}
	if f.probe == nil {
		c.Result, c.Detail = check.Unknown, f.probeProblem
		return c
	}
	r := f.connectionResults()
	switch {
	case len(r.endpointProblems) > 0:
		c.Result, c.Detail = check.Failed, strings.Join(r.endpointProblems, "; ")
		c.Remedy = "pods of " + f.Context + " cannot reach the endpoints: check routes between the pod networks, security groups, NetworkPolicies, and that the application listens; " + networkPolicyRemedy
	case len(r.notAllowed) > 0:
		// Where kube-proxy routes the clusterset IP, the policy applies to the endpoint behind it.
		c.Result = check.Unknown
		c.Detail = fmt.Sprintf("NetworkPolicies do not allow the controller to connect to %s, which says nothing about other pods (%s)", strings.Join(r.notAllowed, ", "), strings.Join(f.egress.names(), ", "))
		c.Remedy = "to test it, connect from a client's pod, or allow the controller the ports of the endpoints (networkPolicy.probeTo of the chart): " + docs.URL("install.md#network-policy")
	case len(r.ipProblems) > 0 && f.isLocalOnly():
		c.Result, c.Detail = check.Unknown, strings.Join(r.ipProblems, "; ")+": with internalTrafficPolicy Local, only clients on nodes with an endpoint are connected"
	case len(r.ipProblems) > 0:
		c.Result, c.Detail = check.Failed, strings.Join(r.ipProblems, "; ")
		c.Remedy = "the endpoints accept connections, the clusterset IP does not: check kube-proxy or its replacement in " + f.Context + "; " + networkPolicyRemedy
	case len(r.accepted) == 0:
		c.Result, c.Detail = check.Unknown, "the service has no TCP endpoint to test"
	default:
		c.Detail = "accepted by " + strings.Join(r.accepted, ", ")
	}
	return c
}
