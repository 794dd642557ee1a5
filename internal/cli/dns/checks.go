package dns

import (
	"fmt"
	"strings"

	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// checks returns all checks. Each requires the ones before it.
func (c *coreDNS) checks(found responses) []check.Check {
	answered := found.check()
	if c.inspection.State != coredns.Enabled {
		answered.Remedy = "" // the Corefile's check has one
	}
	all := []check.Check{c.versionCheck(), c.apiCheck(), c.permissionCheck(), c.corefileCheck(), answered}
	if c.bypassed {
		all = append(all, check.Check{
			Name: "node-local cache", Result: check.Warning,
			Detail: fmt.Sprintf("ConfigMap %s/%s has no server block for %s: pods that use the cache query the upstream resolvers",
				namespace, nodeLocalName, coredns.Zone),
			Remedy: "copy its server block for the cluster domain and change the key to " + coredns.Zone + ":53 (docs/dns.md)",
		})
	}
	return all
}

// enableRemedy returns the remedy of everything that dns enable repairs.
func (c *coreDNS) enableRemedy() string { return EnableRemedy(c.context) }

// EnableRemedy returns the remedy for a cluster in which clusterset.local is not enabled.
func EnableRemedy(context string) string {
	return strings.TrimSuffix("run kubectl mcs dns enable --context "+context, " --context ")
}

func (c *coreDNS) versionCheck() check.Check {
	result := check.Check{Name: "CoreDNS version"}
	switch {
	case c.version == "":
		result.Result = check.Warning
		result.Detail = fmt.Sprintf("the tag of image %q has no version; CoreDNS %s or newer is required", c.image(), coredns.MinVersion)
		result.Remedy = "an older CoreDNS rejects the Corefile: new pods do not start, and the running ones continue to serve"
	case coredns.Supports(c.version):
		result.Result, result.Detail = check.OK, fmt.Sprintf("%s (%s or newer is required)", c.version, coredns.MinVersion)
	default:
		result.Result = check.Missing
		result.Detail = fmt.Sprintf("%s is too old to serve %s; %s or newer is required", c.version, coredns.Zone, coredns.MinVersion)
		result.Remedy = "upgrade CoreDNS (EKS: aws eks update-addon --addon-name coredns; kubeadm: upgrade the cluster or set the image), " +
			"or forward the zone to a second, newer CoreDNS: docs/dns.md#coredns-is-too-old"
	}
	return result
}

func (c *coreDNS) apiCheck() check.Check {
	if c.served {
		return check.Check{Name: "ServiceImport API", Result: check.OK, Detail: mcsv1alpha1.GroupVersion.String() + " is served"}
	}
	return check.Check{
		Name: "ServiceImport API", Result: check.Missing,
		Detail: mcsv1alpha1.GroupVersion.String() + " is not served: CoreDNS would wait for it and answer no queries",
		Remedy: strings.TrimSuffix("install the CRDs: kubectl mcs install --context "+c.context, " --context "),
	}
}

func (c *coreDNS) permissionCheck() check.Check {
	result := check.Check{Name: "permission"}
	switch c.permission {
	case granted:
		result.Result, result.Detail = check.OK, fmt.Sprintf("service account %s can list and watch ServiceImports", c.serviceAccount())
	case denied:
		result.Result, result.Remedy = check.Missing, c.enableRemedy()
		result.Detail = fmt.Sprintf("service account %s cannot list and watch ServiceImports", c.serviceAccount())
	default:
		result.Result = check.Unknown
		result.Detail = "you do not have permission to create subjectaccessreviews, which check whether CoreDNS can list and watch ServiceImports"
	}
	return result
}

func (c *coreDNS) corefileCheck() check.Check {
	result := check.Check{Name: "Corefile", Result: check.Missing}
	switch {
	case c.inspection.Obstacle != "":
		result.Detail = c.inspection.Obstacle
	case c.inspection.State == coredns.Enabled:
		result.Result, result.Detail = check.OK, "the kubernetes plugin serves "+coredns.Zone+" from ServiceImports"
	default:
		result.Detail, result.Remedy = strings.Join(c.inspection.Missing, "; "), c.enableRemedy()
	}
	return result
}

// validatePrerequisites returns an error if enabling the zone would break the cluster's DNS.
func (c *coreDNS) validatePrerequisites() error {
	for _, result := range []check.Check{c.versionCheck(), c.apiCheck()} {
		if result.IsFailure() {
			return fmt.Errorf("checking the %s: %s\n%s\nNothing was changed", result.Name, result.Detail, result.Remedy)
		}
	}
	return nil
}

// overallState returns the state of the zone in the cluster. Unknown results count as fulfilled.
func (c *coreDNS) overallState(checks []check.Check) coredns.State {
	if !check.AnyFailure(checks) {
		return c.inspection.State
	}
	if c.inspection.State == coredns.Disabled && c.permission != granted {
		return coredns.Disabled
	}
	return coredns.Partial
}

// responses counts the responses of the CoreDNS pods to queries for the zone.
type responses struct {
	pods     int    // ready pods
	answered int    // pods that answered
	err      error  // why a pod could not be queried
	skipped  string // why no pod was queried
}

// allAgree reports whether every pod answers for the zone or, with enable false, none does.
func (r responses) allAgree(enable bool) bool {
	if enable {
		return r.answered == r.pods && r.pods > 0
	}
	return r.answered == 0
}

// isComplete reports whether all pods could be queried.
func (r responses) isComplete() bool { return r.skipped == "" && r.err == nil }

// count returns the number of pods that answer, as text.
func (r responses) count() string {
	return fmt.Sprintf("%d of %d CoreDNS pods answer for %s", r.answered, r.pods, coredns.Zone)
}

// describe returns the responses as text for a user who enables or disables the zone.
func (r responses) describe(enable bool) string {
	switch {
	case r.skipped != "":
		return "responses of CoreDNS were not checked: " + r.skipped
	case r.err != nil:
		return "responses of CoreDNS could not be checked: " + r.err.Error()
	case enable:
		return r.count()
	}
	return strings.Replace(r.count(), "pods answer", "pods still answer", 1)
}

func (r responses) check() check.Check {
	result := check.Check{Name: "answers", Detail: r.count()}
	switch {
	case r.skipped != "":
		result.Result, result.Detail = check.Unknown, "not checked: "+r.skipped
	case r.err != nil:
		result.Result, result.Detail = check.Unknown, r.err.Error()
	case r.allAgree(true):
		result.Result = check.OK
	default:
		result.Result = check.Missing
		result.Remedy = "CoreDNS has not applied the Corefile, or rejected it: kubectl -n " + namespace + " logs deployment/" + name
	}
	return result
}
