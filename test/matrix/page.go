package main

import (
	"fmt"
	"slices"
	"strings"
)

const introduction = `# Versions

For operators: the versions that the controller was run with, two clusters in each clusterset, on the [testbed](../testbed/README.md). [install.md](install.md#versions) has the requirements.
` + "`make matrix`" + ` writes this page from [versions.json](versions.json), which has the dates; ` + "`ROWS=3,4`" + ` runs some rows again.

| Kubernetes | CoreDNS | kube-proxy | MCS API | passed scenarios |
| --- | --- | --- | --- | --- |
`

const notes = `
A cell has the value of both clusters, or those of the first and the second. MCS API has the versions that the CRDs serve, all being v1alpha1 and v1beta1. With v1beta1 alone,
` + "`kubectl mcs dns enable`" + ` refuses, and the scenarios with names are left out. The scenarios are clusterset IP, readiness of a pod, restart of both controllers, DNS over IPv4 and IPv6, and
headless Services.
`

// windows is what no run shows.
const windows = `
## Windows nodes

No run has Windows nodes. By reading kube-proxy 1.37.2, clients on Windows nodes reach a clusterset IP if all endpoints of the port, in all clusters, listen on one number, with an older
kube-proxy that of the Service's port ([kubernetes #132646](https://github.com/kubernetes/kubernetes/issues/132646)). DNS names and headless services do not depend on kube-proxy. Pods on
Windows nodes can be exported as any others. The controller's image is for Linux.
`

// render returns the page.
func render(runs []Run) string {
	var b strings.Builder
	b.WriteString(introduction)
	for _, r := range runs {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n",
			pair(r, func(c Running) string { return c.Kubernetes }),
			pair(r, func(c Running) string { return c.CoreDNS }),
			pair(r, func(c Running) string { return c.ProxyMode }),
			pair(r, servedCRDs), passed(r))
	}
	b.WriteString(notes)
	b.WriteString(windows)
	return b.String()
}

// servedCRDs returns the versions of the MCS API that a cluster serves.
func servedCRDs(c Running) string {
	if len(c.CRDs) > 1 {
		return all
	}
	return strings.Join(c.CRDs, "")
}

// pair returns a property of both clusters, once if it is the same.
func pair(r Run, property func(Running) string) string {
	var out []string
	for _, c := range r.Clusters {
		out = append(out, property(c))
	}
	return strings.Join(slices.Compact(out), ", ")
}

// passed returns the names of the scenarios that passed, and the tests that failed.
func passed(r Run) string {
	var out []string
	of := 0
	for _, s := range scenarios {
		if s.name == "" {
			continue
		}
		of++
		if slices.Contains(r.Passed, s.test) {
			out = append(out, s.name)
		}
	}
	text := strings.Join(out, "; ")
	if len(out) == of {
		text = all
	}
	if !r.OK() {
		text += "; failed: " + strings.Join(r.Failed, ", ")
	}
	return text
}
