// Package tutorial has the user's walk-through as data: the commands that a user types, step by
// step, and checks of their output. `make demo` prints it as it happens; the e2e suite runs the
// same steps.
package tutorial

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Step is one step of the walk-through.
type Step struct {
	Number int
	Title  string
	// Note is an explanation for the page, in Markdown.
	Note     string
	Commands []Command
}

// Command is one command line with a check of its output.
type Command struct {
	// Line is run by bash, in the repository's folder.
	Line string
	// Within repeats the command until it succeeds and Check passes, for at most this long; 0 runs
	// it once.
	Within time.Duration
	// Check returns an error if the output is wrong; nil accepts all output of a successful
	// command.
	Check func(output string) error
	// Fails: the command must fail.
	Fails bool

	// beside is the cluster of a command that runs beside those of other clusters: the commands
	// of a cluster one after the other, those of different clusters at once. The next command
	// without it waits for them all.
	beside string
	// again: the command repeats another one, such as that of another cluster, and is left out of
	// pages.
	again bool
	// shown is the number of lines of output that pages have; 0 is all.
	shown int
}

// Slower returns the step with time limits that are longer by a factor.
func (s Step) Slower(factor int) Step {
	s.Commands = slices.Clone(s.Commands)
	for i := range s.Commands {
		s.Commands[i].Within *= time.Duration(factor)
	}
	return s
}

const (
	// soon is the time limit for anything that the controller does: 20 s, as in the conformance
	// suite of mcs-api.
	soon = 20 * time.Second
	// removed is the time limit for the end of an import: a controller withdraws no export in the
	// first 30 s after it has got its ID, because another process may hold that.
	removed = soon + 30*time.Second
	// started is the time that Kubernetes may take to start pods.
	started = 90 * time.Second

	name    = "nginx-hello.demo.svc.clusterset.local"
	setName = "nginx-set.demo.svc.clusterset.local"
)

// Steps returns the walk-through on a registry with so many clusters. Those beyond cls2 use the
// service, and export nothing.
func Steps(registry string, clusters int) []Step {
	r := registries[registry]
	var all []string
	for i := range clusters {
		all = append(all, fmt.Sprintf("cls%d", i+1))
	}
	further := all[2:]
	return []Step{
		{1, "Install the controller in both clusters",
			r.installNote + " The controller is Available before the cluster has an identity.",
			each(all, append(r.install,
				wait("kubectl --context CLS -n cloud-map-mcs-system wait deployment/cloud-map-mcs-controller-manager --for=condition=Available --timeout=5s", started, contains("condition met")),
			)...)},
		{2, "Make clusterset.local resolvable in both",
			"This needs CoreDNS 1.12.2 or newer ([dns.md](dns.md)).",
			atOnce(all,
				run("kubectl mcs dns enable --context CLS"),
			)},
		{3, "Give each cluster its identity",
			"Two ClusterProperties have the ID of the cluster and that of the clusterset. Each cluster then finds the other in the registry.",
			slices.Concat(both(
				run("kubectl --context CLS apply -f samples/clusterproperty-CLS.yaml"),
			), []Command{
				r.members,
				memberOf("cls1", "cls2").tested(), memberOf("cls2", "cls1").tested(),
			}, each(further,
				run("kubectl mcs join --context CLS --cluster-id=CLS --clusterset-id=demo-set"),
			))},
		{4, "Create namespace demo in both; a Deployment and a Service in cls1",
			"The namespace must exist in every cluster that imports.",
			append(each(all,
				run("kubectl --context CLS create namespace demo"),
			),
				run("kubectl --context cls1 apply -f samples/nginx-deployment.yaml -f samples/nginx-service.yaml"),
				wait("kubectl --context cls1 -n demo rollout status deployment/nginx-demo --timeout=5s", started, contains("successfully rolled out")),
			)},
		{5, "Export the Service from cls1",
			"`Ready=True (Exported)` means that the registry has shown the export to the controller.",
			[]Command{
				run("kubectl --context cls1 apply -f samples/nginx-serviceexport.yaml"),
				wait(conditions("cls1"), soon, contains("Valid=True (Valid)", "Ready=True (Exported)", "Conflict=False (NoConflicts)")),
			}},
		r.seeRegistry,
		{7, "Look at the ServiceImport in cls2",
			"The IP is from cls2's own service CIDR. It stays for the life of the import.",
			[]Command{
				wait("kubectl --context cls2 -n demo get serviceimports nginx-hello -o yaml", soon, matches(
					`type: ClusterSetIP`, `(?m)^  ips:\n  - 172\.20\.\d+\.\d+$`, `port: 80\n\s+protocol: TCP`,
					`multicluster.k8s.aws/derived-service: imported-[a-z0-9]{20}`, `- cluster: cls1`, `endpointSliceObjects: Present`,
					`reason: Ready\n\s+status: "True"\n\s+type: Ready`)),
			}},
		{8, "Look at the imported EndpointSlice in cls2",
			"One set of slices per source cluster, with that cluster's pods.",
			[]Command{
				wait("kubectl --context cls2 -n demo get endpointslices", soon, matches(`imported-\S+\s+IPv4\s+80\s+10\.10\.\d+\.\d+,10\.10\.\d+\.\d+,10\.10\.\d+\.\d+`)),
			}},
		{9, "Use it from a pod in cls2",
			"The name resolves to the clusterset IP. kube-proxy sends each connection directly to one of cls1's pods.",
			[]Command{
				run("kubectl --context cls2 apply -f samples/client-hello.yaml"),
				wait("kubectl --context cls2 -n demo wait pod/client-hello --for=condition=Ready --timeout=5s", started, contains("condition met")),
				wait(lookup("cls2", name), soon, matches(`Address:\s+172\.20\.\d+\.\d+`)),
				run("kubectl --context cls2 -n demo exec client-hello -- curl -s " + name),
				wait(curls("cls2", 24), soon, answersFrom(map[string]int{"10.10": 3})),
			}},
		{10, "The same name from cls1: exporting clusters import as well",
			"A cluster that exports a service imports it too.",
			[]Command{
				run("kubectl --context cls1 apply -f samples/client-hello.yaml"),
				wait("kubectl --context cls1 -n demo wait pod/client-hello --for=condition=Ready --timeout=5s", started, contains("condition met")).tested(),
				wait(lookup("cls1", name), soon, matches(`Address:\s+172\.20\.\d+\.\d+`)),
				wait(curls("cls1", 24), soon, answersFrom(map[string]int{"10.10": 3})).tested(),
			}},
		{11, "Export it from cls2 too: both clusters' pods answer in both, same IP as before",
			"The service has the endpoints of both clusters.",
			append([]Command{
				run("kubectl --context cls2 -n demo get serviceimport nginx-hello -o jsonpath='{.spec.ips[0]}' | tee bin/clusterset-ip"),
				run("kubectl --context cls2 apply -f samples/nginx-deployment.yaml -f samples/nginx-service.yaml -f samples/nginx-serviceexport.yaml"),
				wait("kubectl --context cls2 -n demo rollout status deployment/nginx-demo --timeout=5s", started, contains("successfully rolled out")),
				wait(conditions("cls2"), soon, contains("Ready=True (Exported)", "Conflict=False (NoConflicts)")),
				wait(curls("cls1", 60), soon, answersFrom(map[string]int{"10.10": 3, "10.12": 3})),
				wait(curls("cls2", 60), soon, answersFrom(map[string]int{"10.10": 3, "10.12": 3})).tested(),
				run("kubectl --context cls2 -n demo get serviceimport nginx-hello -o jsonpath='{.spec.ips[0]}' | diff - bin/clusterset-ip && echo the clusterset IP is still $(cat bin/clusterset-ip)"),
			}, each(further,
				run("kubectl --context CLS apply -f samples/client-hello.yaml"),
				wait("kubectl --context CLS -n demo wait pod/client-hello --for=condition=Ready --timeout=5s", started, contains("condition met")),
				wait(lookup("CLS", name), soon, matches(`Address:\s+172\.20\.\d+\.\d+`)),
				wait(curls("CLS", 60), soon, answersFrom(map[string]int{"10.10": 3, "10.12": 3})),
			)...)},
		{12, "Export something else under the same name from cls2: a conflict that the oldest export decides",
			"The clusters disagree about session affinity. Both ServiceExports report it and name the cluster that decides. Traffic is not affected.",
			append([]Command{
				run("kubectl --context cls2 -n demo patch service nginx-hello -p '{\"spec\":{\"sessionAffinity\":\"ClientIP\"}}'"),
				wait(conditions("cls2"), soon, contains("Valid=True (Valid)", "Conflict=True (SessionAffinityConflict)")),
				wait(conditions("cls1"), soon, contains("Valid=True (Valid)", "Conflict=True (SessionAffinityConflict)")),
				run("kubectl --context cls2 -n demo get serviceexport nginx-hello -o jsonpath='{.status.conditions[?(@.type==\"Conflict\")].message}{\"\\n\"}'").check(contains("cls1", "cls2")),
				run("kubectl --context cls2 -n demo get serviceimport nginx-hello -o jsonpath='{.spec.sessionAffinity}{\"\\n\"}'").check(contains("None")).tested(),
				wait(curls("cls2", 60), soon, answersFrom(map[string]int{"10.10": 3, "10.12": 3})).tested(),
				run("kubectl --context cls2 -n demo patch service nginx-hello -p '{\"spec\":{\"sessionAffinity\":\"None\"}}'"),
			}, both(
				wait(conditions("CLS"), soon, contains("Conflict=False (NoConflicts)")).tested(),
			)...)},
		{13, "Export a headless Service of a StatefulSet from both: each pod has a name in the clusterset",
			"`<hostname>.<cluster>.<service>.<namespace>.svc.clusterset.local` is one pod; without hostname and cluster the name has all ready pods.",
			append(append(both(
				run("kubectl --context CLS apply -f samples/nginx-statefulset.yaml -f samples/nginx-set-serviceexport.yaml"),
			), both(
				wait("kubectl --context CLS -n demo rollout status statefulset/nginx-set --timeout=5s", started, nil),
			)...),
				wait(lookup("cls2", "nginx-set-0.cls1."+setName), soon, matches(`Address:\s+10\.10\.\d+\.\d+`)),
				wait(lookup("cls1", "nginx-set-1.cls2."+setName), soon, matches(`Address:\s+10\.12\.\d+\.\d+`)).tested(),
				wait(lookup("cls2", setName), soon, addresses(map[string]int{"10.10": 2, "10.12": 2})),
				run("kubectl --context cls2 -n demo exec client-hello -- curl -s nginx-set-1.cls1."+setName).check(contains("Server name: nginx-set-1")).tested(),
			)},
		{14, "Delete the ServiceExports: the imports go, and nothing else",
			"An import ends when no cluster exports the service. A derived Service without endpoints reserves the clusterset IP for an hour (`--clusterset-ip-hold`).",
			append(both(
				run("kubectl --context CLS -n demo delete serviceexports nginx-hello nginx-set"),
			), append(both(
				wait("kubectl --context CLS -n demo get serviceimports,endpointslices", removed, lacks("imported-", "serviceimport")),
				run("kubectl --context CLS -n demo get services").check(matches(`imported-\S+\s+ClusterIP\s+172\.20\.`)),
				wait("kubectl --context CLS -n demo exec client-hello -- nslookup "+name, soon, nil).fails("NXDOMAIN"),
				run("kubectl --context CLS -n demo exec client-hello -- curl -s nginx-hello.demo.svc.cluster.local").tested(),
			),
				r.withdrawn,
			)...)},
		{15, "Uninstall: leave the clusterset, undo DNS, delete the product; namespaces delete without hanging",
			"`kubectl mcs leave` withdraws the exports and deletes the ClusterProperties. With the CRDs, all ServiceExports and ServiceImports of the cluster are deleted. " + r.stays,
			append(each(all,
				run("kubectl mcs leave --yes --context CLS"),
			), append([]Command{
				r.left,
			}, atOnce(all, append(r.uninstall,
				run("kubectl mcs dns disable --context CLS"),
				run("kubectl --context CLS delete -k "+r.overlay+" --timeout=60s").first(3),
				run("kubectl --context CLS delete -k deploy/crds --timeout=60s"),
				run("kubectl --context CLS delete namespace demo --timeout=60s"),
				run("kubectl --context CLS get namespaces,crds,clusterroles,clusterrolebindings -o name | grep -v system:").check(lacks("cloud-map", "multicluster", "about.k8s.io")).tested(),
			)...)...)...)},
	}
}

func run(line string) Command { return Command{Line: line} }

func wait(line string, within time.Duration, check func(string) error) Command {
	return Command{Line: line, Within: within, Check: check}
}

func (c Command) check(f func(string) error) Command { c.Check = f; return c }

// tested leaves the command out of pages: it tests more of what they show already.
func (c Command) tested() Command { c.again = true; return c }

// first leaves the lines of output after the first n out of pages.
func (c Command) first(n int) Command { c.shown = n; return c }

func (c Command) fails(with string) Command {
	c.Fails, c.Check = true, contains(with)
	return c
}

// both repeats commands for cls1 and cls2; CLS stands for the cluster.
func both(commands ...Command) []Command { return each([]string{"cls1", "cls2"}, commands...) }

// each repeats commands for clusters.
func each(clusters []string, commands ...Command) []Command {
	var out []Command
	for i, cluster := range clusters {
		for _, c := range commands {
			c.Line, c.again = strings.ReplaceAll(c.Line, "CLS", cluster), c.again || i > 0
			out = append(out, c)
		}
	}
	return out
}

// atOnce is each for commands that do not depend on other clusters.
func atOnce(clusters []string, commands ...Command) []Command {
	var out []Command
	for i, cluster := range clusters {
		for _, c := range each([]string{cluster}, commands...) {
			c.beside, c.again = cluster, c.again || i > 0
			out = append(out, c)
		}
	}
	return out
}

func memberOf(cluster, other string) Command {
	return wait("kubectl --context "+cluster+" -n cloud-map-mcs-system logs -l app.kubernetes.io/component=manager --tail=-1 | grep 'Member joined.*"+other+"'", soon, contains(other))
}

func conditions(cluster string) string {
	return "kubectl --context " + cluster + ` -n demo get serviceexport nginx-hello -o jsonpath='{range .status.conditions[*]}{.type}={.status} ({.reason}){"\n"}{end}'`
}

func lookup(cluster, name string) string {
	return "kubectl --context " + cluster + " -n demo exec client-hello -- nslookup " + name
}

func curls(cluster string, n int) string { return answers(cluster, name, n) }

// answers counts the servers that answer n requests of the client pod.
func answers(cluster, name string, n int) string {
	return fmt.Sprintf("kubectl --context %s -n demo exec client-hello -- sh -c 'for i in $(seq %d); do curl -s -m 5 %s | grep ^Server | tr \"\\n\" \" \"; echo; done' | sort | uniq -c", cluster, n, name)
}

func contains(want ...string) func(string) error {
	return func(out string) error {
		for _, w := range want {
			if !strings.Contains(out, w) {
				return fmt.Errorf("the output has no %q", w)
			}
		}
		return nil
	}
}

func lacks(unwanted ...string) func(string) error {
	return func(out string) error {
		for _, w := range unwanted {
			if strings.Contains(out, w) {
				return fmt.Errorf("the output still has %q", w)
			}
		}
		return nil
	}
}

func matches(want ...string) func(string) error {
	return func(out string) error {
		for _, w := range want {
			if !regexp.MustCompile(w).MatchString(out) {
				return fmt.Errorf("the output does not match %s", w)
			}
		}
		return nil
	}
}

// instances checks that there are n instances with the attributes of the legacy controller.
func instances(n int) func(string) error {
	id := regexp.MustCompile(`"InstanceId": "tcp-10_10_\d+_\d+-80"`)
	return func(out string) error {
		if got := len(id.FindAllString(out, -1)); got != n {
			return fmt.Errorf("the output has %d instances tcp-10_10_…-80, want %d", got, n)
		}
		return matches(`"AWS_INSTANCE_IPV4": "10\.10\.`, `"AWS_INSTANCE_PORT": "80"`, `"ENDPOINT_PORT_NAME": ""`, `"ENDPOINT_PROTOCOL": "TCP"`,
			`"SERVICE_PORT": "80"`, `"SERVICE_PORT_NAME": ""`, `"SERVICE_PROTOCOL": "TCP"`, `"SERVICE_TARGET_PORT": "80"`, `"CLUSTER_ID": "cls1"`,
			`"CLUSTERSET_ID": "demo-set"`, `"SERVICE_TYPE": "ClusterSetIP"`, `"SERVICE_EXPORT_CREATION_TIMESTAMP": "\d{13}"`, `"READY": "true"`,
			`"NODENAME": "`, `"K8S_CONTROLLER": "cloud-map-mcs-controller `)(out)
	}
}

// answersFrom checks that the responses come from this number of servers in each pod network.
func answersFrom(want map[string]int) func(string) error {
	return counts("servers that answer, by network", regexp.MustCompile(`Server address: (\d+\.\d+)\.\d+\.\d+:80 Server name: \S+`), want)
}

// addresses accepts an answer of nslookup with so many addresses of each network.
func addresses(want map[string]int) func(string) error {
	return counts("addresses by network", regexp.MustCompile(`(?m)^Address:\s+(\d+\.\d+)\.\d+\.\d+$`), want)
}

// counts accepts output in which line matches so many times for each text of its group.
func counts(subject string, line *regexp.Regexp, want map[string]int) func(string) error {
	return func(out string) error {
		got := map[string]int{}
		for _, m := range line.FindAllStringSubmatch(out, -1) {
			got[m[1]]++
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("%s: %v, want %v", subject, got, want)
		}
		return nil
	}
}
