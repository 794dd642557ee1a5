package main

import (
	"fmt"
	"strings"
)

// clusterVersions is the software of one cluster of a row. Versions are minor ones, which the
// testbed pins (testbed/programs).
type clusterVersions struct {
	Kubernetes, CoreDNS, ProxyMode string
	// CRDs is the only version of the MCS API that the cluster serves, or "all".
	CRDs string
}

func (c clusterVersions) String() string {
	return fmt.Sprintf("%s %s %s %s", c.Kubernetes, c.CoreDNS, c.ProxyMode, c.CRDs)
}

// row is a clusterset of two clusters.
type row [2]clusterVersions

func (r row) String() string { return r[0].String() + " beside " + r[1].String() }

// The versions that rows name.
const (
	oldKubernetes      = "1.31" // the oldest one that we claim: the chart's kubeVersion
	oldestSupported    = "1.35" // the oldest one that upstream supports, as of November 2026
	previousKubernetes = "1.36"
	kubernetes         = "1.37"

	oldCoreDNS = "1.12" // internal/coredns.MinVersion
	newCoreDNS = "1.15"

	iptables = "iptables" // the default of kube-proxy, also on EKS
	nftables = "nftables"

	all      = "all"
	v1alpha1 = "v1alpha1"
	v1beta1  = "v1beta1"
)

// rows are the runs of docs/versions.md.
var rows = []row{
	{{kubernetes, newCoreDNS, nftables, all}, {kubernetes, newCoreDNS, nftables, all}},
	{{kubernetes, newCoreDNS, iptables, all}, {kubernetes, oldCoreDNS, iptables, all}},
	{{kubernetes, oldCoreDNS, nftables, all}, {kubernetes, oldCoreDNS, iptables, all}},
	{{kubernetes, newCoreDNS, nftables, v1alpha1}, {kubernetes, newCoreDNS, iptables, v1alpha1}},
	{{kubernetes, newCoreDNS, nftables, v1beta1}, {kubernetes, newCoreDNS, iptables, v1beta1}},
	{{kubernetes, oldCoreDNS, iptables, v1alpha1}, {kubernetes, newCoreDNS, nftables, all}},
	{{kubernetes, newCoreDNS, iptables, v1beta1}, {kubernetes, oldCoreDNS, nftables, all}},
	{{kubernetes, newCoreDNS, nftables, v1alpha1}, {kubernetes, newCoreDNS, nftables, v1beta1}},
	{{oldKubernetes, oldCoreDNS, iptables, all}, {oldKubernetes, oldCoreDNS, iptables, all}},
	{{oldKubernetes, oldCoreDNS, iptables, all}, {kubernetes, newCoreDNS, nftables, all}},
	{{oldKubernetes, newCoreDNS, nftables, all}, {kubernetes, newCoreDNS, iptables, all}},
	{{oldKubernetes, oldCoreDNS, iptables, v1alpha1}, {kubernetes, newCoreDNS, nftables, all}},
	{{oldKubernetes, oldCoreDNS, iptables, all}, {previousKubernetes, newCoreDNS, nftables, all}},
	{{oldestSupported, newCoreDNS, iptables, all}, {oldestSupported, newCoreDNS, iptables, all}},
	{{oldestSupported, oldCoreDNS, nftables, all}, {kubernetes, newCoreDNS, iptables, all}},
}

// hasNames reports whether names of the clusterset resolve in both clusters: CoreDNS reads
// ServiceImports as v1alpha1.
func (r row) hasNames() bool { return r[0].CRDs != v1beta1 && r[1].CRDs != v1beta1 }

// scenario is a test of test/e2e, and what the table calls it.
type scenario struct {
	test, name string
	needsNames bool
}

var scenarios = []scenario{
	{"TestVersions", "", false},
	{"TestClusterSetIPConnects", "clusterset IP", false},
	{"TestReadinessFlipTravels", "readiness", false},
	{"TestBothControllersRestartDuringAChange", "restart", false},
	{"TestDualStack", "DNS, dual-stack", true},
	{"TestHeadless", "headless", true},
}

// scenarios returns the scenarios of a row.
func (r row) scenarios() []scenario {
	var out []scenario
	for _, s := range scenarios {
		if r.hasNames() || !s.needsNames {
			out = append(out, s)
		}
	}
	return out
}

// testPattern matches the tests of scenarios.
func testPattern(all []scenario) string {
	var names []string
	for _, s := range all {
		names = append(names, s.test)
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// join returns one property of both clusters, separated by commas.
func (r row) join(property func(clusterVersions) string) string {
	return property(r[0]) + "," + property(r[1])
}

// env returns the environment of the scenarios.
func (r row) env(versionsFile string) []string {
	testbed := "--dual-stack" +
		" --kubernetes " + r.join(func(c clusterVersions) string { return c.Kubernetes }) +
		" --coredns " + r.join(func(c clusterVersions) string { return c.CoreDNS }) +
		" --proxy-mode " + r.join(func(c clusterVersions) string { return c.ProxyMode })
	return []string{
		"E2E=1",
		"E2E_TESTBED=" + testbed,
		"E2E_CRDS=" + r.join(func(c clusterVersions) string { return c.CRDs }),
		"E2E_VERSIONS=" + versionsFile,
	}
}
