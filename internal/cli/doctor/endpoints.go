package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// This file compares the endpoints of a service along their way: the slices of the Service, the
// export, the imported slices, DNS. An endpoint that is missing at a step, or is there after it has
// left, is a failure of that step unless a state of the clusterset explains it.

const (
	stepExported = "exported slices"
	stepImported = "imported slices"
	// settleRemedy is for a difference that a change in progress also makes.
	settleRemedy = "changes take one or two seconds: run this command again; if it stays, see "
)

// isUnsettled reports whether the diagnosis failed at a step that a change in progress may explain.
func (d Diagnosis) isUnsettled() bool {
	return d.Failure != nil && (d.Failure.Name == stepExported || d.Failure.Name == stepImported) && strings.HasPrefix(d.Failure.Remedy, settleRemedy)
}

// addressSet are addresses of endpoints.
type addressSet map[string]bool

// minus returns the addresses, sorted, that o does not have.
func (a addressSet) minus(o addressSet) (out []string) {
	for _, address := range slices.Sorted(maps.Keys(a)) {
		if !o[address] {
			out = append(out, address)
		}
	}
	return out
}

// readyIn returns the ready addresses in slices.
func readyIn(list []discoveryv1.EndpointSlice) addressSet {
	out := addressSet{}
	for _, s := range list {
		for _, e := range s.Endpoints {
			if (e.Conditions.Ready == nil || *e.Conditions.Ready) && len(e.Addresses) > 0 {
				out[canonicalAddress(e.Addresses[0])] = true
			}
		}
	}
	return out
}

// canonicalAddress returns the one text of an IP address.
func canonicalAddress(text string) string {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Unmap().String()
	}
	return text
}

// readyOf returns the ready addresses of backends.
func readyOf(backends []mcs.Backends) addressSet {
	out := addressSet{}
	for _, b := range backends {
		for _, e := range b.Endpoints {
			if e.Ready {
				out[e.Address.String()] = true
			}
		}
	}
	return out
}

// exportedSteps compares the endpoints of the Service with its export, and lists everything else
// that is not exported.
func (f *ServiceFacts) exportedSteps() (steps []check.Check) {
	if f.Registry == nil || f.Registry.Own == nil {
		return nil
	}
	left, own := f.Registry.LeftOut, f.Registry.Own
	c := check.Check{Name: stepExported, Result: check.OK, Detail: fmt.Sprintf("exported %d of %d endpoints", own.EndpointCount(), own.EndpointCount()+left.Endpoints())}
	if text := left.DescribeEndpoints(); text != "" {
		c.Detail += ": " + text
	}
	missing := readyIn(f.slices).minus(readyOf(own.Backends))
	switch {
	case left.Unintended().Endpoints() > 0:
		c.Result = check.Failed
		c.Remedy = "correct these EndpointSlices, their pods or the ports of the Service: " + docs.URL("troubleshooting.md#some-endpoints-are-missing")
	case left.Endpoints() == 0 && len(missing) > 0:
		c.Result = check.Failed
		c.Detail += fmt.Sprintf("; %d ready ones are not exported as ready: %s", len(missing), strings.Join(check.Summarize(missing, 3), ", "))
		c.Remedy = settleRemedy + logsCommand(f.Context, f.controllerNamespace)
	}
	steps = append(steps, c)
	if other := left.Other().Summary(); other != "" {
		steps = append(steps, check.Check{
			Name: "left out", Result: check.Warning, Detail: other,
			Remedy: "the endpoints are exported; if the rest is needed in the other clusters, correct it: " + docs.URL("reference/conditions.md#left-out"),
		})
	}
	return steps
}

// exportOf returns the export of a cluster: as its own controller has it if its context is given,
// else as this cluster has read it. It is nil if neither is known.
func (f *ServiceFacts) exportOf(id string, all []ServiceFacts) *mcs.Export {
	for i := range all {
		if all[i].ClusterID() == id && all[i].Registry != nil && all[i].Registry.Own != nil {
			return all[i].Registry.Own
		}
	}
	if f.Registry == nil {
		return nil
	}
	if i := slices.IndexFunc(f.Registry.Exports, func(e mcs.Export) bool { return e.Cluster == id }); i >= 0 {
		return &f.Registry.Exports[i]
	}
	return nil
}

// wanted returns the ready addresses of an export that the import is to have, and why it does not
// have the others: a clusterset IP leads to endpoints of its ports and families only.
func (f *ServiceFacts) wanted(exp mcs.Export) (want addressSet, why string) {
	all := readyOf(exp.Backends)
	if f.Import == nil || f.Import.Spec.Type == mcsv1beta1.Headless {
		return all, ""
	}
	want = readyOf(plan.MergedFromServiceImport(f.Import, []mcs.Export{exp}).Backends(exp))
	var reasons []string
	if n := len(all) - len(want); n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d in %s listen on no port of the import: see the conflicts", n, exp.Cluster))
	}
	families := map[bool]bool{}
	for _, ip := range f.Import.Spec.IPs {
		if address, err := netip.ParseAddr(ip); err == nil {
			families[address.Is4()] = true
		}
	}
	before := len(want)
	maps.DeleteFunc(want, func(text string, _ bool) bool {
		address, err := netip.ParseAddr(text)
		return err == nil && len(families) > 0 && !families[address.Is4()]
	})
	if n := before - len(want); n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d in %s have an IP family that the import does not have", n, exp.Cluster))
	}
	return want, strings.Join(reasons, ", ")
}

// importedSlicesSteps returns no step if it is unknown whether the service is to be imported.
func (f *ServiceFacts) importedSlicesSteps(exporters []string, all []ServiceFacts) []check.Check {
	if f.Import == nil && f.Registry == nil {
		return nil
	}
	return []check.Check{f.importedSlicesStep(exporters, all)}
}

// importedSlicesStep compares the imported slices with the exports.
func (f *ServiceFacts) importedSlicesStep(exporters []string, all []ServiceFacts) check.Check {
	c := check.Check{Name: stepImported, Result: check.OK}
	sources := groupBySource(f.ImportedSlices)
	var parts []string
	total := 0
	for _, id := range exporters {
		ready, count := CountReady(sources[id])
		total += ready
		text := fmt.Sprintf("%d of %d endpoints from %s are ready", ready, count, id)
		if exp := f.exportOf(id, all); exp != nil {
			difference, isFailure := f.compareImport(*exp, sources[id])
			text += difference
			switch {
			case isFailure && f.Registry == nil: // the controller may have a reason
				c.Result = check.Unknown
				text += "; only the controller knows why"
			case isFailure:
				c.Result = check.Failed
				c.Remedy = settleRemedy + logsCommand(f.Context, f.controllerNamespace)
			}
		}
		parts = append(parts, text)
	}
	c.Detail = strings.Join(parts, ", ")
	if total == 0 && c.Result != check.Failed {
		c.Result = check.Failed
		c.Detail = cmp.Or(c.Detail, "no endpoints")
		c.Remedy = "repair the failed steps above; if none failed, make an endpoint ready in an exporting cluster"
	}
	return c
}

// compareImport returns how the imported slices of a cluster differ from its export, "" if they do
// not, and whether nothing explains it.
func (f *ServiceFacts) compareImport(exp mcs.Export, imported []discoveryv1.EndpointSlice) (text string, isFailure bool) {
	want, why := f.wanted(exp)
	have := readyIn(imported)
	missing, extra := want.minus(have), have.minus(want)
	if why != "" {
		text = " (" + why + ")"
	}
	if len(missing)+len(extra) == 0 {
		return text, false
	}
	if reason := f.explain(exp.Cluster, len(extra) > 0); reason != "" {
		return fmt.Sprintf("%s (%d in %s: %s)", text, len(want), exp.Cluster, reason), false
	}
	text += fmt.Sprintf(" (%d in %s)", len(want), exp.Cluster)
	here := cmp.Or(f.ClusterID(), f.Context)
	if len(missing) > 0 {
		text += fmt.Sprintf(": %s has %d of %d ready endpoints of %s, without %s", here, len(want)-len(missing), len(want), exp.Cluster, strings.Join(check.Summarize(missing, 3), ", "))
	}
	if len(extra) > 0 {
		text += fmt.Sprintf(": %s has %d endpoints that are not ready in %s: %s", here, len(extra), exp.Cluster, strings.Join(check.Summarize(extra, 3), ", "))
	}
	if failure := f.failure(); failure != "" {
		text += "; " + failure
	}
	return text, true
}

// explain returns the state of the clusterset for which this cluster does not use endpoints of
// another one, "" if there is none. Only a cluster without heartbeats explains endpoints that it
// does not have any more.
func (f *ServiceFacts) explain(id string, hasExtra bool) string {
	var stale []string
	if f.Registry != nil {
		stale = f.Registry.Stale
	}
	switch {
	case slices.Contains(stale, id), slices.Contains(plan.StaleClusters(f.Import), id):
		return id + " is stale (" + docs.URL("stale-clusters.md") + ")"
	case hasExtra:
		return ""
	case f.refused(id) != "":
		return "refused: " + f.refused(id)
	case slices.Contains(plan.UnreachableClusters(f.Import), id):
		return id + " cannot be reached (" + docs.URL("stale-clusters.md#path-health") + ")"
	case f.overBudget(id):
		return "the exports of " + id + " are over budget (" + docs.URL("operations.md#budgets") + ")"
	case f.names(mcs.ConditionDrained, id):
		return "the others are not in use, see drain"
	case f.trueCondition(mcs.ConditionClusterSelection) != nil:
		return "the others are not in use, see cluster selection"
	}
	return ""
}

// names reports whether a condition of the import is True and names a cluster, or has not the room
// for all names.
func (f *ServiceFacts) names(kind, id string) bool {
	c := f.trueCondition(kind)
	return c != nil && (regexp.MustCompile(`(^|[^a-z0-9-])`+regexp.QuoteMeta(id)+`($|[^a-z0-9-])`).MatchString(c.Message) || strings.Contains(c.Message, " more"))
}

// overBudget reports whether exports of a cluster exceed the budgets of this one.
func (f *ServiceFacts) overBudget(id string) bool {
	return f.controller != nil && slices.ContainsFunc(f.controller.Members, func(m status.Member) bool { return m.ClusterID == id && len(m.OverBudget) > 0 })
}

// failure returns why the objects of the import cannot be written, as the controller reports it or
// else the last warning about the ServiceImport, "" if nothing is known.
func (f *ServiceFacts) failure() string {
	if f.controller != nil {
		for _, p := range f.controller.Imports {
			if p.Key == f.key {
				return p.Reason + ": " + p.Message
			}
		}
	}
	return f.warning
}

// trafficPolicySteps describe internalTrafficPolicy Local, with which the clusterset IP leads to
// endpoints on the client's node only.
func (f *ServiceFacts) trafficPolicySteps() []check.Check {
	if !f.isLocalOnly() {
		return nil
	}
	c := check.Check{Name: "traffic policy", Result: check.OK, Detail: "internalTrafficPolicy is Local: clients reach only the endpoints on their own node"}
	if ready, _ := CountReady(groupBySource(f.ImportedSlices)[f.ClusterID()]); ready == 0 && f.ClusterID() != "" {
		c.Result = check.Failed
		c.Detail += ", and no endpoint of this cluster is ready: they reach none"
		c.Remedy = "set trafficDistribution: PreferSameNode instead of internalTrafficPolicy: Local on the exported Services, or export ready pods from this cluster (" + docs.URL("topology.md") + ")"
	}
	return []check.Check{c}
}

func (f *ServiceFacts) isLocalOnly() bool {
	return f.Import != nil && f.Import.Spec.Type != mcsv1beta1.Headless && f.Import.Spec.InternalTrafficPolicy != nil &&
		*f.Import.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
}

// compareAnswer returns how the DNS answer differs from the import, "" if it does not: a headless
// service has its ready endpoints, another one its clusterset IPs.
func (f *ServiceFacts) compareAnswer() string {
	if f.Import == nil {
		return ""
	}
	have, want := addressSet{}, addressSet{}
	for _, address := range f.probe.Addresses {
		have[canonicalAddress(address)] = true
	}
	what := "endpoints"
	if f.Import.Spec.Type == mcsv1beta1.Headless {
		want = readyIn(f.ImportedSlices)
	} else {
		what = "clusterset IPs"
		for _, ip := range f.Import.Spec.IPs {
			want[canonicalAddress(ip)] = true
		}
	}
	missing, extra := want.minus(have), have.minus(want)
	if len(missing)+len(extra) == 0 {
		return ""
	}
	text := fmt.Sprintf("%s resolves to %d of %d %s", f.probe.Name, len(want)-len(missing), len(want), what)
	if len(missing) > 0 {
		text += ", without " + strings.Join(check.Summarize(missing, 3), " ")
	}
	if len(extra) > 0 {
		text += ", and to " + strings.Join(check.Summarize(extra, 3), " ") + ", which the import does not have"
	}
	return text
}
