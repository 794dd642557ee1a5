package awsprobe

import (
	"fmt"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
)

// Assumption is a belief about AWS Cloud Map that the product relies on.
type Assumption struct {
	// Text is the belief, Where the part of the product that relies on it.
	Text, Where string
	Evidence    cloudmaplocal.Evidence
	// Source is where the evidence is from.
	Source string
	// Probe is the number of the probe that checks it, 0 if none does. Switch is the behavior of
	// cloudmap-local, if any.
	Probe  int
	Switch string
	// Seen are the reports that confirm or refute it, as "as assumed, 2026-12-01, eu-central-1".
	Seen []string
}

// Assumptions are all of them, by probe. A report of cloudmap-probe adds to Seen.
var Assumptions = []Assumption{
	{
		Text: "DiscoverInstances and DiscoverInstancesRevision have hosts with the prefix `data-`, and other hosts answer `UnknownOperationException`", Where: "client, `--aws-endpoint`",
		Evidence: cloudmaplocal.Documented, Source: "SDK 1.40.2; the answer: cognitect-labs/aws-api#175", Probe: 1, Switch: "strictHosts",
	},
	{
		Text: "ListNamespaces accepts the filter `RESOURCE_OWNER` in all partitions", Where: "every list of namespaces",
		Evidence: cloudmaplocal.Documented, Source: "API reference, also in China", Probe: 1, Switch: "refuseOwnerFilter",
	},
	{
		Text: "A second CreateHttpNamespace gets DuplicateRequest while the first is in progress", Where: "clusters that join together",
		Evidence: cloudmaplocal.Observed, Source: "aws-cdk#25554", Probe: 2,
	},
	{
		Text: "An HTTP namespace takes some seconds, two minutes at most", Where: "joining",
		Evidence: cloudmaplocal.Observed, Source: "the legacy controller: 0.25 s; Terraform's tests: 120 s", Probe: 2, Switch: "operationDelay",
	},
	{
		Text: "The HttpName is the name, unless another namespace has it", Where: "policies that name `mcs.<clusterset>`, mapped services",
		Evidence: cloudmaplocal.Observed, Source: "aws-cdk#25616; whether a deleted namespace counts is not known", Probe: 2, Switch: "httpNameSuffix",
	},
	{
		Text: "An instance can be registered in a service that was just created", Where: "exports",
		Evidence: cloudmaplocal.Unknown, Probe: 3,
	},
	{
		Text: "Reads are half a second late", Where: "none: simulated with reads up to 90 s late", Evidence: cloudmaplocal.Unknown, Probe: 3, Switch: "consistencyDelay",
	},
	{
		Text: "Several instances that were written together may show in any order", Where: "pages in parts", Evidence: cloudmaplocal.Unknown, Probe: 3, Switch: "consistencySpread",
	},
	{
		Text: "RegisterInstance with the ID of an instance replaces its attributes", Where: "all records",
		Evidence: cloudmaplocal.Documented, Source: "API reference; that omitted attributes go is implied by Terraform", Probe: 4,
	},
	{
		Text: "An attribute with an empty value is kept", Where: "instance view", Evidence: cloudmaplocal.Observed, Source: "output of the legacy controller", Probe: 4,
	},
	{
		Text: "5,000 characters and 30 attributes of an instance, all ASCII characters that have a picture", Where: "parts of pages",
		Evidence: cloudmaplocal.Documented, Source: "API model", Probe: 4,
	},
	{
		Text: "Revisions only grow, and fit into 63 bits", Where: "legacy import, mapped services",
		Evidence: cloudmaplocal.Documented, Source: "\"increasing\"; AWS's tutorial shows 71462688285136850", Probe: 4, Switch: "revisionBase",
	},
	{
		Text: "Each registration changes the revision", Where: "none: the legacy import rereads every 30 s", Evidence: cloudmaplocal.Unknown, Probe: 4, Switch: "revisionOn",
	},
	{
		Text: "DuplicateRequest while a registration of the same instance is in progress", Where: "writer",
		Evidence: cloudmaplocal.Observed, Source: "external-dns#5134", Probe: 5,
	},
	{
		Text: "RegisterInstance in a service that does not exist gets ServiceNotFound", Where: "writer: a deleted catalog",
		Evidence: cloudmaplocal.Unknown, Source: "aws-app-mesh-controller-for-k8s PR 119 saw an operation that fails", Probe: 5, Switch: "missingService",
	},
	{
		Text: "DeregisterInstance of an instance that does not exist gets InstanceNotFound", Where: "writer", Evidence: cloudmaplocal.Documented, Source: "API reference", Probe: 5,
	},
	{
		Text: "One answer of DiscoverInstances has up to 1,000 instances of 5,000 characters", Where: "members, pages",
		Evidence: cloudmaplocal.Unknown, Source: "the number is documented, the size not", Probe: 6, Switch: "maxAnswerBytes",
	},
	{
		Text: "QueryParameters select all instances that match", Where: "pages", Evidence: cloudmaplocal.Documented, Source: "API reference", Probe: 6,
	},
	{
		Text: "ListServices has InstanceCount", Where: "mapped services of ECS that scale",
		Evidence: cloudmaplocal.Unknown, Source: "documented, but absent in the only real answer that was found", Probe: 6, Switch: "instanceCount",
	},
	{
		Text: "Rates: DiscoverInstances 1,000/s, DiscoverInstancesRevision 3,000/s", Where: "client-side limits", Evidence: cloudmaplocal.Documented, Source: "Developer Guide",
	},
	{
		Text: "Rates: ListNamespaces 0.5/s, ListServices 2/s, ListInstances and GetService 50/s, writes 50/s", Where: "client-side limits",
		Evidence: cloudmaplocal.Observed, Source: "AWS's own controller, external-dns#2505 and #2507; the rest is not known", Probe: 7,
	},
	{
		Text: "A throttled request gets ThrottlingException, RequestLimitExceeded from Discover operations", Where: "client", Evidence: cloudmaplocal.Observed, Source: "aws-cloud-map-mcs-controller-for-k8s#128", Probe: 7,
	},
	{
		Text: "A custom health shows after 30 s, and a new instance is HEALTHY", Where: "instance view with health",
		Evidence: cloudmaplocal.Documented, Source: "containers-roadmap#449", Probe: 8, Switch: "healthDelay",
	},
	{
		Text: "A custom health may be kept or reset when the instance is registered again", Where: "none: the view sets it again", Evidence: cloudmaplocal.Unknown, Probe: 8, Switch: "healthOnReregister",
	},
	{
		Text: "Policies see the tags of a new resource at once", Where: "none: simulated with tags 60 s late", Evidence: cloudmaplocal.Unknown, Probe: 9, Switch: "tagsVisibleAfter",
	},
	{
		Text: "Tags and NamespaceName decide in policies as the Service Authorization Reference says", Where: "deploy/iam",
		Evidence: cloudmaplocal.Documented, Source: "Service Authorization Reference; external-dns#4745 has such a policy", Probe: 9,
	},
	{
		Text: "CreateService is checked on the namespace and on `service/*`", Where: "create.json", Evidence: cloudmaplocal.Documented, Source: "Service Authorization Reference; blocks the first cluster if it is different", Probe: 9,
	},
	{
		Text: "RegisterInstance in an HTTP service needs no rights in Route 53 and EC2", Where: "cluster.json",
		Evidence: cloudmaplocal.Unknown, Source: "the permissions page makes no distinction", Probe: 9,
	},
	{
		Text: "A private namespace takes about a minute", Where: "instance view with DNS", Evidence: cloudmaplocal.Observed, Source: "Terraform", Probe: 10,
	},
	{
		Text: "Without rights in Route 53 the operation fails, and not the request", Where: "errors of the instance view", Evidence: cloudmaplocal.Unknown, Probe: 10, Switch: "denyAtOnce",
	},
	{
		Text: "Resources in shared namespaces can not be tagged", Where: "shared namespaces",
		Evidence: cloudmaplocal.Documented, Source: "Developer Guide, Sharing namespaces; cloudformation-coverage-roadmap#2472", Probe: 11, Switch: "shareAllowsTags",
	},
	{
		Text: "Shared resources are found by ARN and OwnerAccount alone", Where: "shared namespaces",
		Evidence: cloudmaplocal.Observed, Source: "terraform-provider-aws#48378, opentelemetry-collector-contrib PR 47895", Probe: 11,
	},
	{
		Text: "A service without instances, and a namespace without services, can be deleted within two minutes", Where: "leaving, uninstalling",
		Evidence: cloudmaplocal.Unknown, Source: "Terraform retries for two minutes, its sweep took 43 s", Probe: 12, Switch: "inUseFor",
	},
	{
		Text: "Two clusters join, export, change and leave, and nothing stays", Where: "all", Evidence: cloudmaplocal.Unknown, Source: "never run on AWS", Probe: 12,
	},
	{
		Text: "$0.10 for an instance a month, $1.00 for a million requests", Where: "cost.md", Evidence: cloudmaplocal.Observed, Source: "price list of 2025-08-01",
	},
}

// AssumptionTable returns for the documentation the assumptions that AWS does not document, without
// their sources.
func AssumptionTable() string {
	rows := []string{"| assumption | where it matters | state | probe |", "| --- | --- | --- | --- |"}
	for _, a := range Assumptions {
		if a.Evidence == cloudmaplocal.Documented && len(a.Seen) == 0 {
			continue
		}
		state := string(a.Evidence)
		if len(a.Seen) > 0 {
			state = "**seen**: " + strings.Join(a.Seen, "; ")
		}
		number := "none"
		if a.Probe > 0 {
			number = fmt.Sprint(a.Probe)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s |", a.Text, a.Where, state, number))
	}
	return strings.Join(rows, "\n")
}

// ProbeTable returns the probes for the documentation.
func ProbeTable() string {
	rows := []string{"| probe | about | needs |", "| --- | --- | --- |"}
	for _, p := range probes {
		needs := ""
		if p.missing != nil {
			needs = "`" + p.missing(Options{}) + "`"
		}
		rows = append(rows, fmt.Sprintf("| %d | %s | %s |", p.number, p.name, needs))
	}
	return strings.Join(rows, "\n")
}

// CostSummary returns what a run without options costs, for the documentation.
func CostSummary() string {
	chosen, _ := Options{}.choose()
	return costOf(chosen)
}
