package cli

import (
	"fmt"
	"strings"

	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// A result is how one check came out.
type result string

const (
	passed  result = "ok"
	failed  result = "missing"
	warned  result = "warning"
	skipped result = "unknown"
	broken  result = "failed"
)

// A check is one thing clusterset.local needs.
type check struct {
	Name   string `json:"name"`
	Result result `json:"result"`
	Detail string `json:"detail"`
	// Hint says what to do; empty when there is nothing to do.
	Hint string `json:"hint,omitempty"`
}

const runEnable = "run: kubectl mcs dns enable"

// checks lists them in the order in which they must hold.
func (c *coreDNS) checks(asked answers) []check {
	answered := asked.check()
	if c.inspection.State != coredns.Enabled {
		answered.Hint = "" // the Corefile's own says it
	}
	all := []check{c.versionCheck(), c.apiCheck(), c.permissionCheck(), c.corefileCheck(), answered}
	if c.bypassed {
		all = append(all, check{
			Name: "node-local cache", Result: warned,
			Detail: fmt.Sprintf("ConfigMap %s/%s has no server block for %s, so pods that use the cache ask the upstream resolvers",
				coreDNSNamespace, nodeLocalName, coredns.Zone),
			Hint: "copy its server block for the cluster domain and name it " + coredns.Zone + ":53 (docs/dns.md)",
		})
	}
	return all
}

func (c *coreDNS) versionCheck() check {
	found := check{Name: "CoreDNS version"}
	switch {
	case c.version == "":
		found.Result = warned
		found.Detail = fmt.Sprintf("the image %q does not tell the version; %s or newer is needed", c.image(), coredns.MinVersion)
		found.Hint = "an older CoreDNS refuses the Corefile: its new pods do not start, the running ones go on"
	case coredns.Supports(c.version):
		found.Result, found.Detail = passed, fmt.Sprintf("%s (%s or newer is needed)", c.version, coredns.MinVersion)
	default:
		found.Result = failed
		found.Detail = fmt.Sprintf("%s is too old: its kubernetes plugin cannot serve %s; %s or newer is needed", c.version, coredns.Zone, coredns.MinVersion)
		found.Hint = "upgrade CoreDNS (EKS: aws eks update-addon --addon-name coredns; kubeadm: upgrade the cluster or set the image), " +
			"or forward the zone to a newer CoreDNS beside it: docs/dns.md#coredns-is-too-old"
	}
	return found
}

func (c *coreDNS) apiCheck() check {
	if c.served {
		return check{Name: "ServiceImport API", Result: passed, Detail: mcsv1alpha1.GroupVersion.String() + " is served"}
	}
	return check{
		Name: "ServiceImport API", Result: failed,
		Detail: mcsv1alpha1.GroupVersion.String() + " is not served: CoreDNS waits for it and answers nothing meanwhile",
		Hint:   "install the controller's CRDs first: kubectl apply -k deploy/crds",
	}
}

func (c *coreDNS) permissionCheck() check {
	found := check{Name: "permission"}
	switch c.permission {
	case granted:
		found.Result, found.Detail = passed, fmt.Sprintf("service account %s may list and watch ServiceImports", c.serviceAccount())
	case denied:
		found.Result, found.Hint = failed, runEnable
		found.Detail = fmt.Sprintf("service account %s may not list and watch ServiceImports", c.serviceAccount())
	default:
		found.Result = skipped
		found.Detail = "you may not create subjectaccessreviews, so it is not known whether CoreDNS may list and watch ServiceImports"
	}
	return found
}

func (c *coreDNS) corefileCheck() check {
	found := check{Name: "Corefile", Result: failed}
	switch {
	case c.inspection.Obstacle != "":
		found.Detail = c.inspection.Obstacle
	case c.inspection.State == coredns.Enabled:
		found.Result, found.Detail = passed, "the kubernetes plugin serves "+coredns.Zone+" from ServiceImports"
	default:
		found.Detail, found.Hint = strings.Join(c.inspection.Missing, "; "), runEnable
	}
	return found
}

// blocker is the first reason not to touch the cluster, or nil. Enabling anyway would take the cluster's DNS down.
func (c *coreDNS) blocker() error {
	for _, found := range []check{c.versionCheck(), c.apiCheck()} {
		if found.Result == failed {
			return fmt.Errorf("checking the %s: %s\n%s\nNothing was changed", found.Name, found.Detail, found.Hint)
		}
	}
	return nil
}

// overall sums the checks up: what cannot be known does not count against it.
func overall(c *coreDNS, checks []check) coredns.State {
	for _, found := range checks {
		if found.Result == failed {
			if c.inspection.State == coredns.Disabled && c.permission != granted {
				return coredns.Disabled
			}
			return coredns.Partly
		}
	}
	return c.inspection.State
}

// answers is what the CoreDNS pods said when asked for a name in the zone.
type answers struct {
	pods    int   // pods that are ready
	yes     int   // pods that answered
	problem error // why some pod could not be asked
	skipped string
}

func (a answers) check() check {
	found := check{Name: "answers", Detail: fmt.Sprintf("%d of %d CoreDNS pods answer for %s", a.yes, a.pods, coredns.Zone)}
	switch {
	case a.skipped != "":
		found.Result, found.Detail = skipped, "not asked: "+a.skipped
	case a.problem != nil:
		found.Result, found.Detail = skipped, a.problem.Error()
	case a.agree(true):
		found.Result = passed
	default:
		found.Result = failed
		found.Hint = "CoreDNS has not taken the Corefile up yet, or could not: kubectl -n " + coreDNSNamespace + " logs deployment/" + coreDNSName
	}
	return found
}
