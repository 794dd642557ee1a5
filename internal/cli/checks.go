package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

const (
	// minKubernetes is what README.md promises to work with.
	minKubernetes = "1.31"
	// AWS refuses requests whose time is more than 5 minutes off (Signature Version 4); a controller within 4 still has time to
	// be told. Below a second nobody can tell from here.
	skewFatal, skewWarns = 4 * time.Minute, 10 * time.Second
)

// checks decides. plugin is this program's version.
func (f *clusterFacts) checks(plugin string) []check {
	if f.server == nil {
		return []check{{Name: "API server", Result: broken, Detail: f.problem, Hint: "see that kubectl --context " + f.context + " works"}}
	}
	out := []check{f.serverCheck(), f.mcsCheck(), f.crdCheck(ourCRDs()), f.aboutCheck(), f.permissions.check(), f.runningCheck(), f.versionCheck(plugin)}
	if f.controller != nil {
		out = append(out, f.identityCheck(), f.clockCheck(), f.registryCheck(), f.credentialsCheck(), f.throttlingCheck(), f.membersCheck(), f.publishedCheck())
	}
	out = append(out, f.dnsChecks()...)
	out = append(out, f.proxyCheck(), f.connectionCheck())
	return append(out, f.networkChecks()...)
}

func (f *clusterFacts) serverCheck() check {
	c := check{Name: "API server", Result: passed, Detail: "Kubernetes " + f.server.GitVersion}
	if v, err := version.ParseGeneric(f.server.GitVersion); err == nil && v.LessThan(version.MustParseGeneric(minKubernetes)) {
		c.Result = warned
		c.Hint = "the controller is made for " + minKubernetes + " and newer"
	}
	return c
}

func (f *clusterFacts) mcsCheck() check {
	c := check{Name: "MCS API", Result: passed, Detail: f.mcs.version.String() + " is served"}
	switch {
	case f.mcs.problem != "":
		c.Result, c.Detail = skipped, f.mcs.problem
	case !f.mcs.served:
		c.Result, c.Detail = broken, "ServiceExport and ServiceImport with their status are not served"
		c.Hint = "install the CRDs: kubectl mcs install --context " + f.context
	}
	return c
}

func (f *clusterFacts) crdCheck(ours crdRelease) check {
	c := check{Name: "CRD revision", Result: passed}
	switch older := f.olderCRDs(ours); {
	case f.crdProblem != "":
		c.Result, c.Detail = skipped, f.crdProblem
	case len(f.crds) == 0:
		c.Result, c.Detail = skipped, "there are no CRDs to look at"
	case len(older) > 0:
		c.Result = warned
		c.Detail = strings.Join(older, ", ") + "; this plugin brings " + ours.String()
		c.Hint = "an older schema drops fields that newer controllers write: kubectl mcs install brings the newer ones (docs/install.md#crds)"
	default:
		c.Detail = f.crds[crdNames[0]].String()
	}
	return c
}

// compareReleases is -1, 0 or 1; what cannot be read is not older.
func compareReleases(a, b crdRelease) int {
	va, errA := version.ParseSemantic(a.release)
	vb, errB := version.ParseSemantic(b.release)
	if errA != nil || errB != nil {
		return 0
	}
	switch {
	case va.LessThan(vb):
		return -1
	case vb.LessThan(va):
		return 1
	}
	ra, _ := strconv.Atoi(a.revision)
	rb, _ := strconv.Atoi(b.revision)
	return cmp.Compare(ra, rb)
}

func (f *clusterFacts) aboutCheck() check {
	c := check{Name: "About API", Result: passed, Detail: f.about.version.String() + " is served"}
	switch {
	case f.about.problem != "":
		c.Result, c.Detail = skipped, f.about.problem
	case !f.about.served:
		c.Result, c.Detail = warned, "ClusterProperty is not served"
		c.Hint = "the identity can then come from the flags --cluster-id and --clusterset-id only: kubectl mcs install brings the CRD"
	}
	return c
}

func (f *clusterFacts) runningCheck() check {
	c := check{Name: "controller", Result: passed}
	hint := fmt.Sprintf("see kubectl --context %s -n %s describe deployment %s", f.context, f.home, managerName)
	switch {
	case f.pod == nil:
		c.Result, c.Detail, c.Hint = broken, f.podProblem, hint
	case f.controller == nil:
		c.Result, c.Detail = broken, f.statusProblem
		c.Hint = "it takes the right to port-forward to its pods, and a controller with --status-bind-address (docs/kubectl-mcs.md)"
	case f.replicas > 0 && f.ready < f.replicas:
		c.Result, c.Detail, c.Hint = warned, fmt.Sprintf("%d of %d replicas are ready", f.ready, f.replicas), hint
	default:
		c.Detail = "pod " + f.pod.Name + " leads"
	}
	return c
}

func (f *clusterFacts) versionCheck(plugin string) check {
	c := check{Name: "versions", Result: passed}
	if f.controller == nil {
		c.Result, c.Detail = skipped, "the controller could not be asked; this plugin is "+plugin
		return c
	}
	c.Detail = "controller and plugin are " + plugin
	if f.controller.Version != plugin {
		c.Result, c.Detail = warned, "the controller is "+f.controller.Version+", this plugin "+plugin
		c.Hint = "they understand each other over one minor version: use the plugin of the controller's release"
	}
	for _, m := range f.controller.Members {
		if c.Result == passed && m.Version != f.controller.Version {
			c.Result, c.Detail = warned, fmt.Sprintf("the controller is %s here and %s in %s", f.controller.Version, m.Version, m.ClusterID)
			c.Hint = "clusters can be upgraded one by one: finish it when you can"
		}
	}
	return c
}

func (f *clusterFacts) identityCheck() check {
	id := f.controller.Identity
	if id == nil {
		return check{
			Name: "identity", Result: broken, Detail: f.controller.Problem,
			Hint: "run: kubectl mcs join --context " + f.context + " --cluster-id=… --clusterset-id=…",
		}
	}
	return check{Name: "identity", Result: passed, Detail: "cluster " + id.ClusterID + " of clusterset " + id.ClusterSetID}
}

func (f *clusterFacts) clockCheck() check {
	skew := f.skew.Abs()
	c := check{Name: "clock", Result: passed, Detail: "within " + skewWarns.String() + " of this computer's"}
	if skew >= skewWarns {
		c.Result, c.Detail = warned, "it is "+skew.Round(time.Second).String()+" off this computer's"
		c.Hint = "set the nodes' clocks by NTP: metrics of propagation are wrong otherwise, and AWS refuses requests from 5 minutes on"
	}
	if skew >= skewFatal {
		c.Result = broken
	}
	return c
}

func (f *clusterFacts) registryCheck() check {
	c := check{Name: "registry", Result: passed, Detail: fmt.Sprintf("%s answers: %d calls in the last minute", f.controller.Registry, f.controller.Calls())}
	problem := cmp.Or(f.controller.ReadProblem, f.controller.WriteProblem)
	switch {
	case f.controller.Identity == nil:
		c.Result, c.Detail = skipped, "it is not used before the cluster has an identity"
	case problem != "":
		c.Result, c.Detail = broken, problem
		c.Hint = "what is imported stays as it is meanwhile; see that Region, endpoint, network and credentials are right"
	case !f.controller.Synced:
		c.Result, c.Detail = broken, "it has not been read yet"
		c.Hint = "it takes a moment after a start: --wait 1m"
	}
	return c
}

func (f *clusterFacts) credentialsCheck() check {
	return f.callsCheck("credentials", "denied", broken,
		"see that the controller has credentials, and a policy that allows these operations: docs/iam.md")
}

func (f *clusterFacts) throttlingCheck() check {
	return f.callsCheck("throttling", "throttled", warned,
		"the controller slows down by itself; if it goes on, raise the account's quota or poll less often: docs/reference/flags.md")
}

// callsCheck is passed when no call of the last minute ended so.
func (f *clusterFacts) callsCheck(name, ended string, otherwise result, hint string) check {
	count := 0
	var operations []string
	for _, r := range f.controller.Requests {
		if r.Result == ended {
			count += r.Count
			operations = mergeStrings(operations, []string{r.Operation})
		}
	}
	if count == 0 {
		return check{Name: name, Result: passed, Detail: fmt.Sprintf("no call was %s in the last minute", ended)}
	}
	detail := fmt.Sprintf("%d calls were %s in the last minute: %s", count, ended, strings.Join(operations, ", "))
	return check{Name: name, Result: otherwise, Detail: detail, Hint: hint}
}

func (f *clusterFacts) membersCheck() check {
	c := check{Name: "members", Result: passed}
	var ids, stale, wrong []string
	for _, m := range f.controller.Members {
		ids = append(ids, m.ClusterID)
		if m.Stale {
			stale = append(stale, m.ClusterID)
		}
		for _, p := range m.Problems {
			wrong = append(wrong, m.ClusterID+": "+p)
		}
	}
	c.Detail = fmt.Sprintf("%d: %s", len(ids), strings.Join(shorten(ids, 8), ", "))
	switch {
	case len(stale) > 0:
		c.Result, c.Detail = warned, "no sign of life from "+strings.Join(shorten(stale, 8), ", ")
		c.Hint = "see whether their controllers run: docs/stale-clusters.md"
	case len(wrong) > 0:
		c.Result, c.Detail = warned, strings.Join(shorten(wrong, 3), "; ")
		c.Hint = "these clusters' records cannot be used as they are; what was read of them before stays"
	}
	return c
}

func (f *clusterFacts) publishedCheck() check {
	c := check{Name: "exports", Result: passed, Detail: "all of this cluster's exports are in the registry"}
	for _, p := range f.controller.Publications {
		if p.Problem != "" {
			return check{Name: "exports", Result: broken, Detail: p.Key.String() + " is not exported: " + p.Problem, Hint: "run: kubectl mcs status --context " + f.context}
		}
		c.Result, c.Detail = warned, p.Key.String()+" is not in the registry yet"
		c.Hint = "it takes a second or two"
	}
	return c
}

// dnsChecks are those of kubectl mcs dns status.
func (f *clusterFacts) dnsChecks() []check {
	if f.dns == nil {
		return []check{{Name: "DNS", Result: skipped, Detail: f.dnsProblem, Hint: "see docs/dns.md"}}
	}
	if f.dns.State == coredns.Disabled {
		return []check{{Name: "DNS", Result: broken, Detail: coredns.Zone + " is not enabled", Hint: "run: kubectl mcs dns enable --context " + f.context}}
	}
	out := slices.Clone(f.dns.Checks)
	for i := range out {
		out[i].Name = "DNS, " + out[i].Name
	}
	return out
}

func (f *clusterFacts) proxyCheck() check {
	c := check{Name: "kube-proxy", Result: passed, Detail: fmt.Sprintf("%d of %d pods are ready", f.readyProxies, f.proxies)}
	switch {
	case f.proxies == 0:
		c.Result, c.Detail = skipped, "there is no DaemonSet kube-system/kube-proxy: something else routes Services here"
	case f.readyProxies < f.proxies:
		c.Result = warned
		c.Hint = "nodes without it do not route Services: see kubectl --context " + f.context + " -n kube-system get pods"
	}
	return c
}

// ownPolicy is why a connection of the controller's pod may fail that works for others.
const ownPolicy = "the controller's own NetworkPolicy (the chart's networkPolicy.enabled) lets out only what networkPolicy.probeTo lists: docs/install.md"

// connectionCheck is about one imported service. Its clusterset IP can be judged only where an endpoint accepts connections itself.
func (f *clusterFacts) connectionCheck() check {
	c := check{Name: "clusterset IP", Result: passed}
	if f.tried == nil {
		c.Result, c.Detail = skipped, "there is no imported service with an IP and a ready TCP endpoint to try it with"
		return c
	}
	var toIP, toPods string
	answers := false
	for _, conn := range f.tried.Connections {
		problem := fmt.Sprintf("%s of %s: %s", conn.Address, f.tried.Key, conn.Problem)
		switch {
		case conn.Problem == "":
			answers = answers || toEndpoint(conn)
		case toEndpoint(conn):
			toPods = problem
		default:
			toIP = problem
		}
	}
	switch {
	case !answers:
		c.Result, c.Detail = skipped, toPods+", so its IP cannot be judged"
		c.Hint = "see where it stops: kubectl mcs diagnose " + f.tried.Key.Name + " -n " + f.tried.Key.Namespace + " --context " + f.context + "; " + ownPolicy
	case toIP != "":
		c.Result, c.Detail = broken, toIP+", though its endpoints answer"
		c.Hint = "kube-proxy, or what takes its place, does not route the derived Service's IP; or " + ownPolicy
	default:
		c.Detail = "a connection to " + f.tried.Key.String() + " was accepted"
	}
	return c
}

func (f *clusterFacts) networkChecks() []check {
	if len(f.reached) == 0 {
		return []check{{Name: "pod network", Result: skipped, Detail: "name further contexts to see whether pods reach each other"}}
	}
	var out []check
	for _, r := range f.reached {
		c := check{Name: "pod network to " + r.context, Result: passed, Detail: r.address + " answers"}
		switch {
		case r.unknown:
			c.Result, c.Detail = skipped, r.problem
		case r.problem != "":
			c.Result, c.Detail = broken, r.address+": "+r.problem
			c.Hint = "pods must reach pods of other clusters directly: see routes and security groups between the clusters, and NetworkPolicies, the controller's own (networkPolicy.podNetworks) among them"
		}
		out = append(out, c)
	}
	return out
}
