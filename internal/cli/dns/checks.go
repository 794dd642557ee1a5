package dns

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// checks returns all checks. Each requires the ones before it.
func (c *coreDNS) checks(found responses) []check.Check {
	answers := found.check()
	if c.inspection.State != coredns.Enabled {
		answers.Remedy = "" // the remedy of corefileCheck comes first
	}
	return append([]check.Check{c.versionCheck(), c.apiCheck(), c.permissionCheck(), c.corefileCheck(), answers}, c.cacheChecks()...)
}

// cacheChecks returns a warning if a node-local DNS cache bypasses CoreDNS.
func (c *coreDNS) cacheChecks() []check.Check {
	if c.bypassed == "" {
		return nil
	}
	return []check.Check{{
		Name: "node-local cache", Result: check.Warning,
		Detail: fmt.Sprintf("ConfigMap %s/%s has no server block for %s: pods that use the cache query the upstream resolvers",
			namespace, c.bypassed, coredns.Zone),
		Remedy: "copy its server block for the cluster domain and change the key to " + coredns.Zone + ":53 (" + docs.URL("dns.md") + ")",
	}}
}

// enableRemedy returns the remedy of everything that dns enable repairs.
func (c *coreDNS) enableRemedy() string { return EnableRemedy(c.context) }

// EnableRemedy returns the remedy for a cluster in which clusterset.local is not enabled.
func EnableRemedy(context string) string {
	return strings.TrimSuffix("run kubectl mcs dns enable --context "+context, " --context ")
}

// BesideRemedy returns the remedy for a cluster whose own CoreDNS cannot serve clusterset.local.
func BesideRemedy(context string) string {
	return strings.TrimSuffix("run kubectl mcs dns enable --beside --context "+context, " --context ")
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
		result.Remedy = "upgrade CoreDNS (EKS 1.33 and newer: aws eks update-addon --addon-name coredns; kubeadm: upgrade the cluster or set the image), " +
			"or deploy a newer CoreDNS beside it: " + BesideRemedy(c.context)
	}
	return result
}

func (c *coreDNS) apiCheck() check.Check { return apiCheck(c.context, c.served) }

// apiCheck checks the version of ServiceImport that CoreDNS watches, up to 1.15.0. served are the
// versions that the API server serves.
func apiCheck(context string, served []string) check.Check {
	watched := mcsv1alpha1.GroupVersion
	result := check.Check{Name: "ServiceImport API", Result: check.OK, Detail: watched.String() + " is served"}
	if slices.Contains(served, watched.Version) {
		return result
	}
	const effect = ": CoreDNS would wait for it and answer no queries"
	install := strings.TrimSuffix("kubectl mcs install --context "+context, " --context ")
	result.Result, result.Detail, result.Remedy = check.Missing, watched.String()+" is not served"+effect, "install the CRDs: "+install
	if len(served) > 0 {
		result.Detail = fmt.Sprintf("%s is not served, only %s%s", watched, strings.Join(served, ", "), effect)
		result.Remedy = "replace the CRDs by some that serve both versions: " + install + " does so unless they are newer than its own (" + docs.URL("install.md#crds") + ")"
	}
	return result
}

func (c *coreDNS) permissionCheck() check.Check {
	return permissionCheck(c.permission, c.serviceAccount(), c.enableRemedy())
}

func permissionCheck(p permission, serviceAccount, remedy string) check.Check {
	result := check.Check{Name: "permission"}
	switch p {
	case granted:
		result.Result, result.Detail = check.OK, fmt.Sprintf("service account %s can list and watch ServiceImports", serviceAccount)
	case denied:
		result.Result, result.Remedy = check.Missing, remedy
		result.Detail = fmt.Sprintf("service account %s cannot list and watch ServiceImports", serviceAccount)
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

// validateOwn returns an error if the cluster's own CoreDNS cannot serve the zone.
func (d *clusterDNS) validateOwn() error {
	switch {
	case d.usesBeside():
		return fmt.Errorf("enabling %s: a CoreDNS beside the cluster's own serves it: run \"kubectl mcs dns disable\" first, "+
			"or \"kubectl mcs dns enable --beside\" to update it", coredns.Zone)
	case d.own == nil:
		return errNoCoreDNS
	}
	return d.own.validatePrerequisites()
}

// overallState returns the state of the zone in the cluster. A check whose result is unknown counts
// as passed.
func (c *coreDNS) overallState(checks []check.Check) coredns.State {
	if !check.AnyFailure(checks) {
		return c.inspection.State
	}
	if c.inspection.State == coredns.Disabled && c.permission != granted {
		return coredns.Disabled
	}
	return coredns.Partial
}

// responses counts the responses of the pods of a DNS server to queries for the zone.
type responses struct {
	of       string // the name of the pods, "" for CoreDNS
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
	return fmt.Sprintf("%d of %d %s pods answer for %s", r.answered, r.pods, cmp.Or(r.of, "CoreDNS"), coredns.Zone)
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

// checks returns all checks of a cluster with a CoreDNS beside its own. Each requires the ones
// before it.
func (d *clusterDNS) checks(own, second responses) []check.Check {
	remedy := BesideRemedy(d.context)
	all := []check.Check{d.besideCheck(), apiCheck(d.context, d.served)}
	if d.beside.deployment != nil {
		answers := second.check()
		answers.Name = "answers of " + coredns.BesideName
		if answers.IsFailure() {
			answers.Remedy = fmt.Sprintf("find the reason: kubectl -n %s describe deployment %s", namespace, coredns.BesideName)
		}
		all = append(all, permissionCheck(d.beside.permission, coredns.BesideName, remedy), answers)
	}
	forwarding := d.forwardChecks(remedy)
	all = append(all, forwarding...)
	answers := own.check()
	if check.AnyFailure(forwarding) {
		answers.Remedy = "" // that of the forwarding comes first
	}
	if d.own == nil && own.isComplete() && own.pods == 0 {
		answers = check.Check{
			Name: "answers", Result: check.Unknown, Detail: "no pod of the cluster's DNS runs: pods resolve " + coredns.Zone + " by their dnsConfig",
			Remedy: "see what kubectl mcs dns enable --beside prints, and " + docs.URL("dns.md#eks-auto-mode"),
		}
	} else if d.own == nil && answers.IsFailure() {
		answers.Remedy = "configure the DNS of the cluster: " + remedy + " prints how"
	}
	all = append(all, answers)
	if d.own != nil {
		all = append(all, d.own.cacheChecks()...)
	}
	return all
}

// besideCheck checks the Deployment of the CoreDNS beside the cluster's own.
func (d *clusterDNS) besideCheck() check.Check {
	result := check.Check{Name: "CoreDNS beside", Result: check.Missing}
	if d.beside.deployment == nil {
		result.Detail = fmt.Sprintf("the cluster's DNS forwards %s to a CoreDNS that does not exist: Deployment %s/%s", coredns.Zone, namespace, coredns.BesideName)
		result.Remedy = BesideRemedy(d.context) + ", or kubectl mcs dns disable"
		return result
	}
	image := imageOf(d.beside.deployment)
	version := coredns.ImageVersion(image)
	switch {
	case d.beside.problem != "":
		result.Detail = fmt.Sprintf("a node cannot pull the image %s (%s)", image, d.beside.problem)
		result.Remedy = fmt.Sprintf("name an image of CoreDNS %s or newer that the nodes can pull: %s --image IMAGE", coredns.MinVersion, BesideRemedy(d.context))
	case version != "" && !coredns.Supports(version):
		result.Detail = fmt.Sprintf("image %s is too old to serve %s; %s or newer is required", image, coredns.Zone, coredns.MinVersion)
		result.Remedy = BesideRemedy(d.context)
	default:
		result.Result, result.Detail = check.OK, fmt.Sprintf("Deployment %s/%s with image %s", namespace, coredns.BesideName, image)
	}
	return result
}

// forwardChecks checks that the configuration of the cluster's DNS, where it can be read, has the
// IPs of the Service.
func (d *clusterDNS) forwardChecks(remedy string) []check.Check {
	if d.own == nil {
		return nil
	}
	result := check.Check{Name: "forwarding", Result: check.Missing, Remedy: remedy}
	service := fmt.Sprintf("Service %s/%s (%s)", namespace, coredns.BesideName, cmp.Or(strings.Join(d.beside.addresses, ", "), "does not exist"))
	switch {
	case !d.isForwarded():
		result.Detail = fmt.Sprintf("the cluster's CoreDNS does not forward %s to %s", coredns.Zone, service)
	case !slices.Equal(d.forwardAddresses(), d.beside.addresses):
		result.Detail = fmt.Sprintf("the cluster's CoreDNS forwards %s to %s, not to %s", coredns.Zone, strings.Join(d.forwardAddresses(), ", "), service)
	default:
		result.Result, result.Remedy = check.OK, ""
		result.Detail = fmt.Sprintf("the cluster's CoreDNS forwards %s to %s", coredns.Zone, service)
	}
	return []check.Check{result}
}
