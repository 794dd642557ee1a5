package tutorial

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

const (
	ordersName = "orders.demo.svc.clusterset.local"
	// digAt asks the DNS server of cloudmap-local, which is not at port 53.
	digAt = "dig @172.30.0.1 -p 8053 +short "
	// sdk sets the endpoint for programs with an AWS SDK.
	sdk = "AWS_ENDPOINT_URL=" + clusterset.Endpoint + " "
	// outside is the consumer outside of Kubernetes.
	outside = sdk + "bin/consumer -dns " + clusterset.DNSAddress + " "
)

// ECSIntroduction is the beginning of the recorded page of ECS.
const ECSIntroduction = "# The walk-through with services of ECS\n\nThe steps of `make demo-aws` with their real output. Cloud Map and the resolver of the VPC are cloudmap-local.\n"

// ECSCleanUp is the first step that cleans up.
const ECSCleanUp = 9

// ECSPolicies are the policies of deploy/iam, beside those of every cluster, that the clusters need
// for ECS.
var ECSPolicies = []string{"instance-dns", "instance-health", "mapped-services"}

// ECS returns the walk-through of `make demo-aws`: services of ECS in the clusters, and services of
// the clusters outside of Kubernetes.
func ECS() []Step {
	return []Step{
		{1, "Install the controller with services in, and DNS records and health out",
			"`samples/ecs` adds three flags to the overlay of the [walk-through](walk-through.md), and the file of `--cloud-map-services`. The clusters' IAM users have the policies " +
				"`instance-dns`, `instance-health` and `mapped-services` of [iam.md](iam.md) too.",
			append([]Command{
				run("cat samples/ecs/services.yaml"),
				run("grep 'value: --' samples/ecs/kustomization.yaml").check(contains("--cloud-map-services=", "--instance-dns-vpc=", "--unready-instances=unhealthy")),
			}, append(both(
				run("kubectl --context CLS apply -f deploy/manager/namespace.yaml"),
				run("kubectl --context CLS -n cloud-map-mcs-system create secret generic aws-credentials --from-env-file=bin/aws/CLS.env"),
				run("kubectl --context CLS apply -k deploy/crds"),
				run("kubectl --context CLS apply -k samples/ecs | grep -E '^(deployment|configmap)'"),
				run("kubectl --context CLS apply -f samples/clusterproperty-CLS.yaml"),
			), both(
				wait("kubectl --context CLS -n cloud-map-mcs-system wait deployment/cloud-map-mcs-controller-manager --for=condition=Available --timeout=5s", started, contains("condition met")),
				run("kubectl mcs dns enable --context CLS 2>&1 | tail -n 1"),
				run("kubectl --context CLS create namespace demo"),
			)...)...)},
		{2, "Start two tasks of ECS",
			"[samples/ecs/provider](../samples/ecs/provider/main.go) registers itself with the AWS SDK, as ECS does it for a task in bridge network mode: the address of its host, a port of its own, SRV records, and a " +
				"custom health check. Both tasks are processes of the machine that the clusters run on; its routes stand for those of the VPC.",
			[]Command{
				run("go build -o bin/ ./samples/ecs/..."),
				run(AWS("create-private-dns-namespace --name apps.internal --vpc vpc-0123456789abcdef0 --query OperationId --output text")),
				run(startTask(1)),
				wait("cat bin/orders-1.log", soon, contains("registered 172.30.0.1:9001 in orders")),
				run(startTask(2)),
				wait("cat bin/orders-2.log", soon, contains("registered 172.30.0.1:9002 in orders")),
				wait(AWS("discover-instances --namespace-name apps.internal --service-name orders --query 'Instances[].Attributes.[AWS_INSTANCE_IPV4,AWS_INSTANCE_PORT,ECS_SERVICE_NAME]' --output text"), soon,
					matches(`(?m)^172\.30\.0\.1\s+9001\s+orders$`, `(?m)^172\.30\.0\.1\s+9002\s+orders$`)),
			}},
		{3, "Use the service from pods",
			"The mapping makes it a ServiceImport with a clusterset IP in each cluster. The pods connect to the tasks directly.",
			append(both(
				run("kubectl --context CLS apply -f samples/client-hello.yaml"),
				wait("kubectl --context CLS -n demo get serviceimport orders", soon, matches(`orders\s+ClusterSetIP\s+\["172\.20\.`)),
				wait("kubectl --context CLS -n demo wait pod/client-hello --for=condition=Ready --timeout=5s", started, contains("condition met")),
				wait(answers("CLS", ordersName, 20), soon, tasks("9001", "9002")),
			),
				run("kubectl mcs status --context cls2 | grep cloud-map").check(contains("cloud-map")),
			)},
		{4, "A task becomes unhealthy and recovers, another one ends",
			"ECS reports the result of a container's health check with UpdateInstanceCustomHealthStatus, and deregisters a task before it ends. SIGUSR1 and SIGTERM stand for these events: " +
				"no request fails.",
			[]Command{
				run("kill -USR1 $(cat bin/orders-1.pid)"),
				wait("tail -n 1 bin/orders-1.log", soon, contains("172.30.0.1:9001 is UNHEALTHY")),
				wait(answers("cls2", ordersName, 20), soon, tasks("9002")),
				run("kill -USR1 $(cat bin/orders-1.pid)"),
				wait("tail -n 1 bin/orders-1.log", soon, contains("172.30.0.1:9001 is HEALTHY")),
				run("kill $(cat bin/orders-2.pid)"),
				wait("tail -n 1 bin/orders-2.log", soon, contains("deregistered 172.30.0.1:9002")),
				wait(answers("cls2", ordersName, 20), soon, tasks("9001")),
			}},
		{5, "Export Services from both clusters, with DNS records",
			"The annotation asks for records, and the controller creates `demo` as a private DNS namespace of the VPC. `web` has one port, and `web-ports` two ([samples/ecs/web.yaml](../samples/ecs/web.yaml)).",
			append(append(both(
				run("kubectl --context CLS annotate namespace demo cloud-map-mcs.github.io/instance-dns=auto"),
				run("kubectl --context CLS apply -f samples/ecs/web.yaml"),
			), both(
				wait("kubectl --context CLS -n demo rollout status deployment/web --timeout=5s | tail -n 1", started, contains("successfully rolled out")),
			)...),
				wait(digAt+"web.demo | sort", soon, addressesIn(2, 2)),
				wait(digAt+"web-ports.demo SRV | sort", soon, counts("SRV records by port", regexp.MustCompile(`(?m)^\d+ \d+ (\d+) tcp-10_\d+_\d+_\d+-\d+\.web-ports\.demo\.$`), map[string]int{"80": 4, "8080": 4})),
			)},
		{6, "Use them outside of Kubernetes",
			"[samples/ecs/consumer](../samples/ecs/consumer/main.go) finds the endpoints in three ways and sends a request to each: by addresses, by SRV records, and by DiscoverInstances. In a VPC it needs no `-dns`: the resolver " +
				"of the VPC answers. It needs routes to the pods, as clusters do.",
			[]Command{
				run(outside + "address web.demo 80").check(endpointsIn(2, 2)),
				run(outside + "srv web-ports.demo").check(endpointsIn(4, 4)),
				wait(outside+"discover demo web", soon, endpointsIn(2, 2)),
			}},
		{7, "A pod becomes unready, the Deployment scales",
			"Only ready pods are in DNS and among the healthy instances. The pod of cls1 fails its readiness probe after the request, until the second one.",
			[]Command{
				run("kubectl --context cls1 -n demo get pods -l app=web -o jsonpath='{.items[0].status.podIP}' | tee bin/pod-ip"),
				run("kubectl --context cls1 -n demo exec client-hello -- curl -s -X POST http://$(cat bin/pod-ip)/ready?ok=false"),
				wait(digAt+"web.demo | sort", soon, addressesIn(1, 2)),
				wait(outside+"discover demo web", soon, endpointsIn(1, 2)),
				run(AWS("discover-instances --namespace-name demo --service-name web --health-status ALL --query 'Instances[].[Attributes.AWS_INSTANCE_IPV4,HealthStatus]' --output text")).
					check(counts("instances by health", regexp.MustCompile(`(?m)\s(HEALTHY|UNHEALTHY)$`), map[string]int{"HEALTHY": 3, "UNHEALTHY": 1})),
				run("kubectl --context cls1 -n demo exec client-hello -- curl -s -X POST http://$(cat bin/pod-ip)/ready?ok=true"),
				run("kubectl --context cls2 -n demo scale deployment/web --replicas=3"),
				wait(digAt+"web.demo | sort", soon, addressesIn(2, 3)),
				wait(outside+"discover demo web", soon, endpointsIn(2, 3)),
			}},
		{8, "Drain a cluster",
			"The instances of a drained cluster are unhealthy, so consumers outside of Kubernetes leave it as the other clusters do ([topology.md](topology.md#drain)).",
			[]Command{
				run("kubectl mcs drain --context cls1"),
				wait(outside+"address web.demo 80", soon, endpointsIn(0, 3)),
				wait(outside+"discover demo web", soon, endpointsIn(0, 3)),
				run("kubectl mcs undrain --context cls1"),
				wait(outside+"address web.demo 80", soon, endpointsIn(2, 3)),
			}},
		{9, "Take everything away",
			"The instances, services and namespaces that the controller wrote go with the exports. Those of the tasks are ours to delete.",
			append(append(append(both(
				run("kubectl --context CLS -n demo delete serviceexports --all"),
			),
				wait(AWS("list-namespaces --query 'Namespaces[].Name' --output text"), soon, lacks("demo\n", "demo\t")),
				run("kill $(cat bin/orders-1.pid)"),
				wait("tail -n 1 bin/orders-1.log", soon, contains("deregistered 172.30.0.1:9001")),
				run(deleteNamed("service", "Services", "orders")),
				run(deleteNamed("namespace", "Namespaces", "apps.internal")+" --query OperationId --output text"),
			), both(
				run("kubectl --context CLS delete namespace demo --wait=false"),
				run("kubectl mcs leave --yes --context CLS 2>&1 | tail -n 1"),
				run("kubectl mcs dns disable --context CLS 2>&1 | tail -n 1"),
				run("kubectl --context CLS delete -k samples/ecs --wait=false | grep -E '^(deployment|configmap)'"),
				run("kubectl --context CLS delete -k deploy/crds --wait=false"),
			)...), both(
				wait("kubectl --context CLS get namespaces,crds,clusterroles,clusterrolebindings -o name | grep -v -e system: -e kube-", started, lacks("demo", "cloud-map", "multicluster", "about.k8s.io")),
			)...)},
	}
}

// startTask starts a task in the background, as a process of the testbed, which ends with it.
func startTask(n int) string {
	return fmt.Sprintf("%stestbed run -- bin/provider -namespace apps.internal -service orders -address 172.30.0.1:900%[2]d > bin/orders-%[2]d.log 2>&1 & echo $! > bin/orders-%[2]d.pid", sdk, n)
}

// deleteNamed deletes what has the name in a list of Cloud Map.
func deleteNamed(kind, list, name string) string {
	return AWS("delete-" + kind + " --id $(" + AWS("list-"+strings.ToLower(list)+" --query \""+list+"[?Name=='"+name+"'].Id\" --output text") + ")")
}

// tasks checks that the responses come from the tasks with these ports, and that no request failed,
// which is a line without text.
func tasks(ports ...string) func(string) error {
	want := map[string]int{}
	for _, port := range ports {
		want[port] = 1
	}
	return counts("tasks that answer, by port", regexp.MustCompile(`(?m)^ *\d+ (?:Server address: 172\.30\.0\.1:(\d+) Server name: orders)? *$`), want)
}

// addressesIn checks an answer of dig with so many addresses of cls1 and cls2.
func addressesIn(cls1, cls2 int) func(string) error {
	return counts("addresses by network", regexp.MustCompile(`(?m)^(10\.\d+)\.\d+\.\d+$`), perNetwork(cls1, cls2))
}

// endpointsIn checks that so many endpoints of cls1 and cls2 answer the consumer.
func endpointsIn(cls1, cls2 int) func(string) error {
	return counts("endpoints that answer, by network", regexp.MustCompile(`(?m)^(10\.\d+)\.\d+\.\d+:\d+ answers: web-`), perNetwork(cls1, cls2))
}

func perNetwork(cls1, cls2 int) map[string]int {
	want := map[string]int{"10.12": cls2}
	if cls1 > 0 {
		want["10.10"] = cls1
	}
	return want
}
