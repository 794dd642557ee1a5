package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/crds"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

const (
	// minKubernetes is the oldest version that README.md supports.
	minKubernetes = "1.31"
	// AWS rejects requests whose time is more than 5 minutes off (Signature Version 4); failing at
	// 4 minutes leaves time to correct the clock. The measurement itself is accurate to about a
	// second.
	skewFatal, skewWarns = 4 * time.Minute, 10 * time.Second
)

// checks decides from the facts. plugin is the version of this program.
func (f *clusterFacts) checks(plugin string) []check.Check {
	if f.server == nil {
		return []check.Check{apiServerFailure(f.context, f.problem)}
	}
	out := []check.Check{
		f.serverCheck(), f.mcsCheck(), f.crdCheck(crds.Bundled()), f.aboutCheck(), f.permissions.check(f.context, f.controller, plugin), f.controllerCheck(), f.versionCheck(plugin),
	}
	out = append(out, f.metricsCheck(plugin)...)
	if f.controller != nil && f.controller.Leader { // a standby does not know these
		out = append(out, f.identityCheck(), f.clockCheck(), f.registryCheck(), f.credentialsCheck(), f.throttlingCheck(),
			f.ifRead(f.membersCheck()), f.ifRead(f.networksCheck()))
		out = append(out, f.zonesChecks()...)
		out = append(out, f.ifRead(f.signaturesCheck()))
		out = append(out, f.catalogChecks()...)
		out = append(out, f.ifRead(f.budgetsCheck()), f.ifRead(f.exportsCheck()), f.importsCheck(), f.ifRead(f.pathsCheck()))
		out = append(out, f.instanceChecks()...)
		out = append(out, f.mappedChecks()...)
		out = append(out, f.policyChecks()...)
		out = append(out, f.costChecks()...)
	}
	out = append(out, f.dnsChecks()...)
	out = append(out, f.proxyCheck(), f.connectionCheck())
	return append(out, f.networkChecks()...)
}

// apiServerFailure returns the check of an API server that does not respond.
func apiServerFailure(context, problem string) check.Check {
	return check.Check{
		Name: "API server", Result: check.Failed, Detail: problem,
		Remedy: "check the kubeconfig and the network: kubectl --context " + context + " version",
	}
}

func (f *clusterFacts) serverCheck() check.Check {
	c := check.Check{Name: "API server", Result: check.OK, Detail: "Kubernetes " + f.server.GitVersion}
	if v, err := version.ParseGeneric(f.server.GitVersion); err == nil && v.LessThan(version.MustParseGeneric(minKubernetes)) {
		c.Result = check.Warning
		c.Remedy = "upgrade the cluster: the controller supports Kubernetes " + minKubernetes + " and newer"
	}
	return c
}

func (f *clusterFacts) mcsCheck() check.Check {
	c := check.Check{Name: "MCS API", Result: check.OK, Detail: f.mcs.version.String() + " is served"}
	switch {
	case f.mcs.problem != "":
		c.Result, c.Detail = check.Unknown, f.mcs.problem
	case !f.mcs.served:
		c.Result, c.Detail = check.Failed, "ServiceExport and ServiceImport with subresource status are not served"
		c.Remedy = "install the CRDs: kubectl mcs install --context " + f.context
	}
	return c
}

func (f *clusterFacts) crdCheck(bundled crds.Release) check.Check {
	c := check.Check{Name: "CRD revision", Result: check.OK}
	switch older := f.crds.OlderThan(bundled); {
	case f.crdProblem != "":
		c.Result, c.Detail = check.Unknown, f.crdProblem
	case len(f.crds) == 0:
		c.Result, c.Detail = check.Unknown, "the CRDs are not installed"
	case len(older) > 0:
		c.Result = check.Warning
		c.Detail = strings.Join(older, ", ") + "; this plugin installs " + bundled.String()
		c.Remedy = "an older schema drops fields of newer controllers; upgrade the CRDs: kubectl mcs install --context " + f.context + " (" + docs.URL("install.md#crds") + ")"
	default:
		c.Detail = f.crds["serviceexports.multicluster.x-k8s.io"].String()
	}
	return c
}

func (f *clusterFacts) aboutCheck() check.Check {
	c := check.Check{Name: "About API", Result: check.OK, Detail: f.about.version.String() + " is served"}
	switch {
	case f.about.problem != "":
		c.Result, c.Detail = check.Unknown, f.about.problem
	case !f.about.served:
		c.Result, c.Detail = check.Warning, "ClusterProperty is not served"
		c.Remedy = "install the CRD: kubectl mcs install --context " + f.context + "; without it, set the identity with the flags --cluster-id and --clusterset-id"
	}
	return c
}

func (f *clusterFacts) controllerCheck() check.Check {
	c := check.Check{Name: "controller", Result: check.OK}
	describe := fmt.Sprintf("find the reason: kubectl --context %s -n %s describe deployment %s", f.context, f.namespace, session.ManagerName)
	switch {
	case f.controller == nil:
		var state string
		state, c.Detail, c.Remedy = session.ExplainQuery(f.controllerProblem)
		if c.Result = check.Failed; state == session.StateNoPermission {
			c.Result = check.Unknown
		}
		c.Remedy = cmp.Or(c.Remedy, "check that --status-bind-address is not 0 ("+docs.URL("kubectl-mcs.md#sources-of-the-data")+"); if it is not, "+describe)
	case !f.controller.Leader:
		c.Result, c.Detail, c.Remedy = check.Failed, status.NoLeader, "run kubectl mcs check --wait 1m --context "+f.context+"; if it continues, "+describe
	case f.replicas > 0 && f.ready < f.replicas:
		c.Result, c.Detail, c.Remedy = check.Warning, fmt.Sprintf("%d of %d replicas are ready", f.ready, f.replicas), describe
	default:
		c.Detail = "pod " + f.pod.Name + " is the leader"
	}
	if c.Result != check.OK && f.lastFailure != "" && !strings.Contains(c.Detail, f.lastFailure) {
		c.Detail += "; " + f.lastFailure
	}
	return c
}

func (f *clusterFacts) versionCheck(plugin string) check.Check {
	c := check.Check{Name: "versions", Result: check.OK}
	if f.controller == nil {
		c.Result, c.Detail = check.Unknown, "the version of the controller is not known; this plugin is "+plugin
		return c
	}
	c.Detail = "controller and plugin are " + plugin
	if f.controller.Version != plugin {
		c.Result, c.Detail = check.Warning, "the controller is "+f.controller.Version+", this plugin is "+plugin
		c.Remedy = "use the plugin of the controller's release, or upgrade the controller: kubectl mcs install --context " + f.context +
			" (one minor version of difference is supported)"
	}
	for _, m := range f.controller.Members {
		if c.Result == check.OK && !m.Mapped && m.Version != f.controller.Version {
			c.Result, c.Detail = check.Warning, fmt.Sprintf("the controller is %s in this cluster and %s in %s", f.controller.Version, m.Version, m.ClusterID)
			c.Remedy = "complete the upgrade of the clusterset: kubectl mcs install in the clusters with the older version"
		}
	}
	return c
}

func (f *clusterFacts) identityCheck() check.Check {
	id := f.controller.Identity
	if id == nil {
		return check.Check{Name: "identity", Result: check.Failed, Detail: f.controller.Problem, Remedy: joinRemedy(f.context)}
	}
	if problem := f.controller.IdentityProblem; problem != "" && f.controller.Next != nil {
		return check.Check{Name: "identity", Result: check.Warning, Detail: problem, Remedy: changeRemedy(f.context, *id, *f.controller.Next)}
	} else if problem != "" {
		return check.Check{
			Name: "identity", Result: check.Failed, Detail: problem,
			Remedy: fmt.Sprintf("to stay cluster %s of clusterset %s, run kubectl mcs join --context %s --cluster-id=%[1]s --clusterset-id=%[2]s; to leave now, run kubectl mcs leave --context %[3]s ("+docs.URL("reliability.md")+")",
				id.ClusterID, id.ClusterSetID, f.context),
		}
	}
	return check.Check{Name: "identity", Result: check.OK, Detail: fmt.Sprintf("cluster %s of clusterset %s", id.ClusterID, id.ClusterSetID)}
}

// logsCommand returns a command that prints the logs of all replicas of the controller.
func logsCommand(context, namespace string) string {
	return fmt.Sprintf("kubectl --context %s -n %s logs -l app.kubernetes.io/component=manager --prefix --tail=100", context, namespace)
}

// changeRemedy returns the actions for a cluster whose identity changes to next.
func changeRemedy(context string, id, next mcs.Identity) string {
	if id == next {
		return "wait, or remove the reason; the imports of the other clusters stay meanwhile (" + docs.URL("reliability.md") + ")"
	}
	return fmt.Sprintf("wait, or remove the reason; to stay cluster %s of clusterset %s, run kubectl mcs join --context %s --cluster-id=%[1]s --clusterset-id=%[2]s "+
		"("+docs.URL("reliability.md")+")", id.ClusterID, id.ClusterSetID, context)
}

func joinRemedy(context string) string {
	return "run kubectl mcs join --context " + context + " --cluster-id=… --clusterset-id=…"
}

func (f *clusterFacts) clockCheck() check.Check {
	skew := f.skew.Abs()
	c := check.Check{Name: "clock", Result: check.OK, Detail: "differs from this computer's clock by less than " + skewWarns.String()}
	if skew >= skewWarns {
		c.Result, c.Detail = check.Warning, "the controller's clock differs from this computer's clock by "+skew.Round(time.Second).String()
		c.Remedy = "synchronize the clocks of the nodes in " + f.context + " with NTP: AWS rejects requests that differ by more than 5 minutes, and propagation metrics are wrong"
	}
	if skew >= skewFatal {
		c.Result = check.Failed
	}
	return c
}

func (f *clusterFacts) registryCheck() check.Check {
	c := check.Check{Name: "registry", Result: check.OK, Detail: fmt.Sprintf("%s responds: %d requests in the last minute", f.controller.Registry, f.controller.Calls())}
	problem := cmp.Or(f.controller.ReadProblem, f.controller.WriteProblem)
	switch {
	case f.controller.Identity == nil:
		c.Result, c.Detail = check.Unknown, "not used until the cluster has an identity"
	case problem != "":
		c.Result, c.Detail = check.Failed, problem
		c.Remedy = "check Region, endpoint, network and credentials of the controller: " + logsCommand(f.context, f.namespace) + "; imports stay unchanged meanwhile"
	case !f.controller.Synced:
		c.Result, c.Detail = check.Failed, "the controller has not read it completely since it started"
		c.Remedy = "this takes a few seconds after a start: kubectl mcs check --wait 1m --context " + f.context
	}
	return c
}

// credentialsCheck fails if denied requests prevent the controller from reading or writing. Where
// they do not, AWS may have denied requests for a resource that was deleted: policies with
// conditions on tags do not match it any more.
func (f *clusterFacts) credentialsCheck() check.Check {
	if works := f.controller.ReadProblem == "" && f.controller.WriteProblem == ""; works && len(f.controller.InstanceWarnings) > 0 {
		return f.requestsCheck("credentials", "denied", check.Warning, "reading and writing work, the instance view may not: the check of that name has the policy that is missing ("+docs.URL("iam.md")+")")
	} else if works {
		return f.requestsCheck("credentials", "denied", check.Warning, "reading and writing work, so the requests may have been for a service that was "+
			"deleted, which AWS also denies: run this command again in a minute; if it continues, compare the policies with "+docs.URL("iam.md"))
	}
	return f.requestsCheck("credentials", "denied", check.Failed,
		"give the controller in "+f.context+" credentials with a policy that allows these operations ("+docs.URL("iam.md")+"); if they were allowed before, check that the "+
			"namespace mcs.<clusterset> and its services still exist with their tags: AWS also denies requests for deleted services")
}

func (f *clusterFacts) throttlingCheck() check.Check {
	return f.requestsCheck("throttling", "throttled", check.Warning,
		"the controller reduces its request rate automatically; if this continues, raise the quota of the account or the poll interval: "+docs.URL("reference/flags.md"))
}

// requestsCheck returns OK if no request of the last minute had the given result, else the result
// otherwise.
func (f *clusterFacts) requestsCheck(name, result string, otherwise check.Result, remedy string) check.Check {
	count := 0
	var operations []string
	for _, r := range f.controller.Requests {
		if r.Result == result {
			count += r.Count
			operations = append(operations, r.Operation)
		}
	}
	if count == 0 {
		return check.Check{Name: name, Result: check.OK, Detail: fmt.Sprintf("no request was %s in the last minute", result)}
	}
	slices.Sort(operations)
	detail := fmt.Sprintf("%d requests were %s in the last minute: %s", count, result, strings.Join(slices.Compact(operations), ", "))
	return check.Check{Name: name, Result: otherwise, Detail: detail, Remedy: remedy}
}

// ifRead returns c, a check of data that the controller reads from the registry, or a check with
// result unknown before the first read.
func (f *clusterFacts) ifRead(c check.Check) check.Check {
	if c.Result == check.OK && !f.controller.Synced {
		return check.Check{Name: c.Name, Result: check.Unknown, Detail: "the controller has not read the registry"}
	}
	return c
}

func (f *clusterFacts) membersCheck() check.Check {
	c := check.Check{Name: "members", Result: check.OK}
	var ids, stale, problems []string
	for _, m := range f.controller.Members {
		ids = append(ids, m.ClusterID)
		if m.Mapped { // mappedChecks has it
			continue
		}
		if m.Stale {
			stale = append(stale, m.ClusterID)
		}
		if !f.isOwn(m) { // exportsCheck has those of this cluster
			for _, p := range subtract(m.Problems, slices.Concat(m.Refused, m.OverBudget)) {
				problems = append(problems, m.ClusterID+": "+p)
			}
		}
	}
	c.Detail = fmt.Sprintf("%d: %s", len(ids), strings.Join(check.Summarize(ids, 8), ", "))
	switch {
	case len(stale) > 0:
		c.Result, c.Detail = check.Warning, "no heartbeat from "+strings.Join(check.Summarize(stale, 8), ", ")
		c.Remedy = "run kubectl mcs check in these clusters: their controllers may be down (" + docs.URL("stale-clusters.md") + "); " +
			"if one does not exist any more, run kubectl mcs forget " + stale[0] + " --context " + f.context
	case len(problems) > 0:
		c.Result, c.Detail = check.Warning, strings.Join(check.Summarize(problems, 3), "; ")
		c.Remedy = "run kubectl mcs check in these clusters: their records are invalid, and the last valid ones stay in use"
	}
	return c
}

// networksCheck shows the networks that the clusters announce, by which an address belongs to one
// of them.
func (f *clusterFacts) networksCheck() check.Check {
	c := check.Check{Name: "networks", Result: check.OK}
	var announced, silent, shared []string
	networks := map[string][]netip.Prefix{}
	for _, m := range f.controller.Members {
		list := mcs.Properties{mcs.PropertyNetworks: m.Networks}.Networks()
		switch {
		case m.Mapped: // it has no pods
		case len(list) == 0:
			silent = append(silent, m.ClusterID)
		default:
			networks[m.ClusterID] = list
			announced = append(announced, m.ClusterID+" "+mcs.FormatNetworks(list))
		}
	}
	for _, o := range mcs.OverlappingNetworks(networks) {
		shared = append(shared, fmt.Sprintf("%s and %s both announce %s", o.Clusters[0], o.Clusters[1], o.Network))
	}
	switch {
	case len(shared) > 0:
		c.Result, c.Detail = check.Warning, strings.Join(check.Summarize(shared, 3), "; ")
		c.Remedy = "addresses in these networks belong to the cluster with the oldest export: " +
			"correct ClusterProperty " + mcs.PropertyNetworks + ", or give the clusters different pod networks (" + docs.URL("security/import-policy.md") + ")"
	case len(silent) > 0:
		c.Result, c.Detail = check.Unknown, "the networks of the pods of "+strings.Join(check.Summarize(silent, 8), ", ")+" are not announced"
		c.Remedy = "create ClusterProperty " + mcs.PropertyNetworks + " there, so that importers can require it (" + docs.URL("security/import-policy.md") + ")"
	default:
		c.Detail = strings.Join(check.Summarize(announced, 4), "; ")
	}
	return c
}

// zonesChecks shows the IDs of the zones that the clusters announce, by which clients that prefer
// their zone find it in clusters of other AWS accounts. It is empty if no cluster announces any, as
// outside of AWS. The accounts of the clusters are not known: a zone without an ID may be another
// one than that of the same name.
func (f *clusterFacts) zonesChecks() []check.Check {
	var announced, silent, unclear []string
	zones := map[string]mcs.Zones{}
	hasIDs := false
	for _, m := range f.controller.Members {
		list := mcs.Properties{mcs.PropertyZones: m.Zones}.Zones()
		switch {
		case m.Mapped: // its file may have them
		case len(list) == 0:
			silent = append(silent, m.ClusterID)
		default:
			zones[m.ClusterID] = list
			announced = append(announced, m.ClusterID+" "+list.String())
			hasIDs = hasIDs || strings.Contains(list.String(), "=")
		}
	}
	if !hasIDs {
		return nil
	}
	for _, z := range mcs.UnknownZones(zones) {
		unclear = append(unclear, fmt.Sprintf("%s is %s, but %s of %s has no ID", z.Name, strings.Join(z.IDs, " or "), z.Name, strings.Join(check.Summarize(z.Clusters, 3), ", ")))
	}
	c := check.Check{Name: "zones", Result: check.OK, Detail: strings.Join(check.Summarize(announced, 4), "; ")}
	remedy := "label the nodes there with " + mcs.LabelZoneID + ", or create ClusterProperty " + mcs.PropertyZones +
		": in another AWS account a zone of the same name may be another one (" + docs.URL("topology.md") + ")"
	switch {
	case len(unclear) > 0:
		c.Result, c.Detail, c.Remedy = check.Warning, strings.Join(check.Summarize(unclear, 3), "; "), remedy
	case len(silent) > 0:
		c.Result, c.Detail, c.Remedy = check.Unknown, "the zones of "+strings.Join(check.Summarize(silent, 8), ", ")+" are not announced", remedy
	}
	return []check.Check{f.ifRead(c)}
}

// instanceChecks lists the exports that the instances of Cloud Map do not show as the user asked
// for. It is empty if there are none.
func (f *clusterFacts) instanceChecks() []check.Check {
	var lines []string
	for _, p := range f.controller.InstanceWarnings {
		for _, warning := range p.Warnings {
			lines = append(lines, p.Key.String()+": "+warning)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return []check.Check{{
		Name: "instance view", Result: check.Warning, Detail: strings.Join(check.Summarize(lines, 3), "; "),
		Remedy: "other clusters import these services; consumers that read Cloud Map or its DNS do not see all (" + docs.URL("instance-view.md") + ")",
	}}
}

// mappedChecks lists the problems of the services of AWS Cloud Map that --cloud-map-services maps.
// It is empty without the flag.
func (f *clusterFacts) mappedChecks() []check.Check {
	i := slices.IndexFunc(f.controller.Members, func(m status.Member) bool { return m.Mapped })
	if i < 0 {
		return nil
	}
	c := check.Check{Name: "mapped services", Result: check.OK}
	m := f.controller.Members[i]
	c.Detail = fmt.Sprintf("%d services of AWS Cloud Map, imported as those of %s", m.Exports, m.ClusterID)
	if problems := subtract(m.Problems, m.OverBudget); len(problems) > 0 {
		c.Result, c.Detail = check.Warning, strings.Join(check.Summarize(problems, 3), "; ")
		c.Remedy = "imports that exist stay: correct the file of --cloud-map-services, the instances, or the controller's role (" + docs.URL("ecs-ec2-lambda.md") + ")"
	}
	return []check.Check{f.ifRead(c)}
}

// costChecks describes AWS's bill for this cluster, as its instances and the requests of the last
// minute are. It is empty if AWS bills nothing, and for controllers that do not count their
// instances.
func (f *clusterFacts) costChecks() []check.Check {
	var use cost.Use
	for _, r := range f.controller.Requests {
		if cost.IsDiscovery(r.Operation) {
			use.Discovery += float64(r.Count)
		}
	}
	switch stored := f.controller.Stored; {
	case stored != nil:
		use.Records, use.View = stored.Records, stored.View
	case f.controller.Registry == config.RegistryCloudMap || use.Discovery == 0:
		return nil
	}
	c := check.Check{Name: "cost", Result: check.OK, Detail: use.String()}
	if use.View > 0 {
		c.Remedy = "each endpoint and port costs " + cost.Dollars(cost.PerInstance) + " because of the instance view, which --instance-view=false turns off (" + docs.URL("instance-view.md#turning-it-off") + ")"
	}
	return []check.Check{f.ifRead(c)}
}

// isOwn reports whether m is this cluster, and not another one with the same ID.
func (f *clusterFacts) isOwn(m status.Member) bool {
	id := f.controller.Identity
	return id != nil && m.ClusterID == id.ClusterID && m.UID == id.UID
}

// signaturesCheck lists the records that were refused because the cluster under whose ID they are
// did not sign them.
func (f *clusterFacts) signaturesCheck() check.Check {
	c := check.Check{Name: "signatures", Result: check.OK, Detail: "all records are signed by their clusters"}
	var refused []string
	for _, m := range f.controller.Members {
		for _, p := range m.Refused {
			refused = append(refused, m.ClusterID+": "+p)
		}
	}
	if len(refused) > 0 {
		c.Result, c.Detail = check.Warning, strings.Join(check.Summarize(refused, 3), "; ")
		c.Remedy = "these records change no import: find what writes them. If a cluster was rebuilt or has lost its key, run kubectl mcs trust; if another member writes them, remove " +
			"its rights (" + docs.URL("runbooks/CloudMapMCSRecordsRefused.md") + ")"
	}
	return c
}

// catalogChecks lists the catalogs in AWS Cloud Map that another member can write into. It is empty
// until the tags of one were read, and on other registries.
func (f *clusterFacts) catalogChecks() []check.Check {
	c := check.Check{Name: "catalogs", Result: check.OK}
	clusters := map[string][]string{}
	for _, m := range f.controller.Members {
		clusters[m.Seal] = append(clusters[m.Seal], m.ClusterID)
	}
	unsealed, unreadable, sealed := clusters[status.Unsealed], clusters[status.SealUnreadable], clusters[status.Sealed]
	switch {
	case len(unsealed) > 0:
		c.Result, c.Detail = check.Warning, "not sealed: "+strings.Join(check.Summarize(unsealed, 8), ", ")
		c.Remedy = "another member can keep their changes from arriving: remove create.json from the roles, and run, as an administrator of the AWS account, kubectl mcs registry seal --context " +
			f.context + " | sh (" + docs.URL("iam.md#sealed-and-unsealed") + ")"
	case len(unreadable) > 0:
		c.Result, c.Detail = check.Unknown, "could not be read: "+strings.Join(check.Summarize(unreadable, 8), ", ")
		c.Remedy = "allow the controller servicediscovery:ListTagsForResource and ListServices (" + docs.URL("iam.md") + "); an account that shares a namespace hides its tags"
	case len(sealed) > 0:
		c.Detail = "only its cluster can write into the catalog of each: " + strings.Join(check.Summarize(sealed, 8), ", ")
	default:
		return nil
	}
	return []check.Check{f.ifRead(c)}
}

// budgetsCheck lists what exceeds the budgets of this cluster, or the budgets that are nearly used
// up.
func (f *clusterFacts) budgetsCheck() check.Check {
	c := check.Check{Name: "budgets", Result: check.OK, Detail: "all exports of other clusters are within the budgets"}
	var over, near []string
	for _, m := range f.controller.Members {
		for _, p := range m.OverBudget {
			over = append(over, m.ClusterID+": "+p)
		}
	}
	if waiting := f.controller.OverBudget; len(waiting) > 0 {
		over = append(over, fmt.Sprintf("%d services, such as %s, are not imported: their namespace has too many imports (--budget-scale)", len(waiting), waiting[0]))
	}
	for _, b := range f.controller.Budgets {
		if b.IsNear() {
			near = append(near, b.String())
		}
	}
	if lines := append(over, near...); len(lines) > 0 {
		c.Result, c.Detail = check.Warning, strings.Join(check.Summarize(lines, 3), "; ")
		c.Remedy = "imports that exist stay; raise the budget and the memory limit, or find out why the cluster exports so much (" + docs.URL("runbooks/CloudMapMCSNearBudget.md") + ")"
	}
	return c
}

// exportsCheck checks the exports of this cluster, as its controller and those of the other
// contexts see them.
func (f *clusterFacts) exportsCheck() check.Check {
	c := check.Check{Name: "exports", Result: check.OK, Detail: "the registry has confirmed all exports of this cluster"}
	if at := f.controller.Audited; at != nil {
		c.Detail += ", as of the last audit at " + at.UTC().Format(time.RFC3339)
	}
	for _, p := range f.controller.Publications {
		if p.Problem != "" {
			return check.Check{
				Name: "exports", Result: check.Failed, Detail: p.Key.String() + " is not exported: " + p.Problem,
				Remedy: "find the reason: kubectl mcs diagnose " + p.Key.Name + " -n " + p.Key.Namespace + " --context " + f.context,
			}
		}
		c.Result, c.Detail = check.Warning, p.Key.String()+" is not in the registry yet"
		c.Remedy = "this takes one or two seconds: kubectl mcs check --wait 1m --context " + f.context
	}
	if problems := f.ownProblems(); len(problems) > 0 && c.Result == check.OK {
		c.Result, c.Detail = check.Warning, "the registry does not have all records of this cluster: "+strings.Join(check.Summarize(problems, 3), "; ")
		c.Remedy = "the controller writes them again within two minutes, and imports in other clusters stay; if it does not, see " + logsCommand(f.context, f.namespace)
	}
	return c
}

// ownProblems returns the problems of this cluster's records that its controller and those of the
// other contexts see.
func (f *clusterFacts) ownProblems() []string {
	var problems []string
	for _, m := range f.controller.Members {
		if f.isOwn(m) {
			problems = append(problems, subtract(m.Problems, m.Refused)...)
		}
	}
	for _, p := range f.seenByOthers {
		if !slices.ContainsFunc(problems, func(known string) bool { return strings.HasSuffix(p, ": "+known) }) {
			problems = append(problems, p)
		}
	}
	return problems
}

// groupPaths returns the clusters that cannot be reached, those in which there is nothing to
// connect to, those that no probe has reached yet, and those of which no endpoint answers.
func (f *clusterFacts) groupPaths() (failing, untested, unknown, blocked []string) {
	for _, p := range f.controller.Paths {
		switch {
		case p.State == status.PathUnreachable:
			failing = append(failing, p.ClusterID)
		case p.Controller.Targets+p.Endpoints.Targets == 0:
			untested = append(untested, p.ClusterID)
		case p.State != status.PathReachable && p.Controller.Reached+p.Endpoints.Reached == 0:
			unknown = append(unknown, p.ClusterID)
		case p.Endpoints.Targets > 0 && p.Endpoints.Reached == 0:
			blocked = append(blocked, p.ClusterID)
		}
	}
	return failing, untested, unknown, blocked
}

// pathsCheck checks what the probes of the controller found about the paths to the other clusters.
func (f *clusterFacts) pathsCheck() check.Check {
	c := check.Check{Name: "paths", Result: check.OK, Detail: "pods of all other clusters can be reached"}
	failing, untested, unknown, blocked := f.groupPaths()
	list := func(ids []string) string { return strings.Join(check.Summarize(ids, 8), ", ") }
	switch {
	case !f.controller.Synced:
		return f.ifRead(c)
	case f.controller.PathHealth == "":
		return check.Check{Name: "paths", Result: check.Unknown, Detail: "the controller does not test the paths to the other clusters: it is older than this plugin"}
	case f.controller.PathHealth == string(mcs.PathHealthOff):
		return check.Check{Name: "paths", Result: check.Unknown, Detail: "the paths to the other clusters are not tested: --path-health=off"}
	case len(failing) > 0:
		c.Result, c.Detail = check.Failed, "connections to pods time out: "+list(failing)
		if f.controller.FaultHere {
			c.Detail += "; that is most clusters, so the fault is probably here, and no endpoints are withdrawn"
		}
		c.Remedy = "check routes, security groups and NetworkPolicies between the clusters (" + docs.URL("runbooks/CloudMapMCSMemberUnreachable.md") + ")"
	case len(unknown) > 0:
		c.Result, c.Detail = check.Warning, "no probe has reached "+list(unknown)+" yet: if the path fails, no endpoints are withdrawn"
		c.Remedy = "open TCP 8081 between the controllers, and networkPolicy.probeTo for endpoints (" + docs.URL("stale-clusters.md#path-health") + ")"
	case len(untested) > 0:
		c.Detail = "there is nothing to connect to in " + list(untested)
	case len(blocked) > 0:
		c.Detail += "; endpoints of " + list(blocked) + " do not answer the controller (networkPolicy.probeTo)"
	case len(f.controller.Paths) == 0:
		c.Detail = "there is no other cluster"
	}
	return c
}

func (f *clusterFacts) importsCheck() check.Check {
	c := check.Check{Name: "imports", Result: check.OK, Detail: "all imports are ready"}
	if f.controller.HeldImports > 0 {
		c.Detail += fmt.Sprintf("; the IPs of %d ended imports are held (--clusterset-ip-hold)", f.controller.HeldImports)
	}
	if len(f.controller.Imports) > 0 {
		var list []string
		for _, p := range f.controller.Imports {
			list = append(list, fmt.Sprintf("%s is not ready: %s: %s", p.Key, p.Reason, p.Message))
		}
		first := f.controller.Imports[0].Key
		c.Result, c.Detail = check.Failed, strings.Join(check.Summarize(list, 3), "; ")
		c.Remedy = "find the reason: kubectl mcs diagnose " + first.Name + " -n " + first.Namespace + " --context " + f.context
	}
	return c
}

// policyChecks returns the checks of the import policy and of refusals, none if there is neither.
func (f *clusterFacts) policyChecks() []check.Check {
	var out []check.Check
	if p := f.controller.ImportPolicy; p != nil {
		c := check.Check{Name: "import policy", Result: check.OK, Detail: p.File + " is in use"}
		switch {
		case p.Problem != "" && p.Loaded.IsZero():
			c.Result, c.Detail = check.Failed, "no import begins or changes: "+p.Problem
		case p.Problem != "":
			c.Result, c.Detail = check.Failed, "the policy of "+p.Loaded.UTC().Format(time.RFC3339)+" stays in use: "+p.Problem
		}
		if c.Result != check.OK {
			c.Remedy = "correct the file, which is read again without a restart (" + docs.URL("security/import-policy.md") + ")"
		}
		out = append(out, c)
	}
	if len(f.controller.Refused) > 0 {
		var list []string
		for _, r := range f.controller.Refused {
			list = append(list, fmt.Sprintf("%s: %s", r.Key, r.Message))
		}
		out = append(out, check.Check{
			Name: "refused exports", Result: check.Warning, Detail: strings.Join(check.Summarize(list, 3), "; "),
			Remedy: "if this is not intended, change the exports or the import policy (" + docs.URL("runbooks/CloudMapMCSExportsRefused.md") + ")",
		})
	}
	return out
}

// dnsChecks returns the checks of kubectl mcs dns status, and what the controller's pod resolves.
func (f *clusterFacts) dnsChecks() []check.Check {
	if f.dns == nil {
		return append([]check.Check{{Name: "DNS", Result: check.Unknown, Detail: f.dnsProblem, Remedy: "see " + docs.URL("dns.md")}}, f.resolutionChecks()...)
	}
	if f.dns.State == coredns.Disabled {
		return []check.Check{{Name: "DNS", Result: check.Failed, Detail: coredns.Zone + " is not enabled", Remedy: f.dns.EnableRemedy(f.context)}}
	}
	out := slices.Clone(f.dns.Checks)
	for i := range out {
		out[i].Name = "DNS, " + out[i].Name
	}
	return append(out, f.resolutionChecks()...)
}

// resolutionChecks returns the check of what the DNS answers to the controller's pod, which asks
// once a minute. It is empty for a standby, and for a controller that does not ask.
func (f *clusterFacts) resolutionChecks() []check.Check {
	if f.controller == nil || f.controller.DNS == nil {
		return nil
	}
	c := check.Check{Name: "DNS, controller's pod", Result: check.OK, Detail: "it resolves names of " + coredns.Zone}
	switch resolution := f.controller.DNS; {
	case resolution.State == status.DNSNotServed:
		c.Result, c.Detail = check.Failed, resolution.Problem+" (asked at "+resolution.Checked.UTC().Format(time.RFC3339)+")"
		if f.dns != nil { // The pods of CoreDNS answer, or their check has failed.
			c.Result = check.Warning
		}
		c.Remedy = "run this command again in a minute; if it continues, see " + docs.URL("runbooks/CloudMapMCSDNSNotServed.md")
	case resolution.State != status.DNSServed:
		c.Result, c.Detail = check.Unknown, resolution.Problem
	}
	return []check.Check{c}
}

func (f *clusterFacts) proxyCheck() check.Check {
	c := check.Check{Name: "kube-proxy", Result: check.OK, Detail: fmt.Sprintf("%d of %d pods are ready", f.readyProxies, f.proxies)}
	switch {
	case f.proxyProblem != "":
		c.Result, c.Detail = check.Unknown, f.proxyProblem
	case f.proxies == 0:
		c.Result, c.Detail = check.Unknown, "DaemonSet kube-system/kube-proxy does not exist: another component routes Services"
	case f.readyProxies < f.proxies:
		c.Result = check.Warning
		c.Remedy = "nodes without a ready kube-proxy do not route Services: kubectl --context " + f.context + " -n kube-system get pods -l k8s-app=kube-proxy"
	}
	return c
}

// networkPolicyRemedy names a reason why only connections of the controller's pod fail.
var networkPolicyRemedy = "if the chart's networkPolicy.enabled is true, check that networkPolicy.probeTo includes the destination: " + docs.URL("install.md#network-policy")

// connectionCheck checks the clusterset IP of one imported service. It is conclusive only if an
// endpoint of the service accepts connections.
func (f *clusterFacts) connectionCheck() check.Check {
	c := check.Check{Name: "clusterset IP", Result: check.OK}
	switch {
	case f.controller == nil:
		return check.Check{Name: c.Name, Result: check.Unknown, Detail: "only the controller can test it: see check controller"}
	case f.probeProblem != nil:
		return check.Check{Name: c.Name, Result: check.Unknown, Detail: f.probeProblem.Error()}
	case f.probe == nil:
		return check.Check{Name: c.Name, Result: check.Unknown, Detail: "no imported service has an IP and a ready TCP endpoint to test"}
	}
	key := f.probe.Key
	var ipProblem, endpointProblem string
	endpointAccepts := false
	for _, conn := range f.probe.Connections {
		problem := fmt.Sprintf("%s of %s: %s", conn.Address, key, conn.Problem)
		switch {
		case conn.Problem == "":
			endpointAccepts = endpointAccepts || isToEndpoint(conn)
		case isToEndpoint(conn):
			endpointProblem = problem
		default:
			ipProblem = problem
		}
	}
	switch {
	case !endpointAccepts:
		c.Result, c.Detail = check.Unknown, endpointProblem+": the clusterset IP cannot be tested without an endpoint that accepts connections"
		c.Remedy = "find the reason: kubectl mcs diagnose " + key.Name + " -n " + key.Namespace + " --context " + f.context + "; " + networkPolicyRemedy
	case ipProblem != "":
		c.Result, c.Detail = check.Failed, ipProblem+", although its endpoints accept connections"
		c.Remedy = "check kube-proxy or its replacement in " + f.context + ", which routes the IP of the derived Service; " + networkPolicyRemedy
	default:
		c.Detail = "a connection to " + key.String() + " was accepted"
	}
	return c
}

func (f *clusterFacts) networkChecks() []check.Check {
	if len(f.reached) == 0 {
		return []check.Check{{Name: "pod network", Result: check.Unknown, Detail: "needs more than one context: --context cls1,cls2"}}
	}
	var out []check.Check
	for _, r := range f.reached {
		c := check.Check{Name: "pod network to " + r.context, Result: check.OK, Detail: r.address + " accepts connections"}
		switch {
		case r.unknown:
			c.Result, c.Detail = check.Unknown, r.problem
		case r.problem != "":
			c.Result, c.Detail = check.Failed, r.address+": "+r.problem
			c.Remedy = "allow traffic from pods of " + f.context + " to pods of " + r.context + ": check routes and security groups between the clusters, " +
				"and NetworkPolicies, including the controller's own (networkPolicy.podNetworks)"
		}
		out = append(out, c)
	}
	return out
}
