package tutorial

import "github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"

// onRegistry has the parts of the walk-through that depend on the registry. In commands, CLS stands
// for the name of the cluster.
type onRegistry struct {
	// name is printed; overlay is installed.
	name, overlay string
	installNote   string
	install       []Command
	// uninstall removes the other objects of install.
	uninstall []Command
	// members, withdrawn and left check the registry: both clusters are there, the export is gone,
	// the clusters have left.
	members, withdrawn, left Command
	// seeRegistry is step 6.
	seeRegistry Step
	// stays is a sentence about what stays in the registry.
	stays string
	// introduction is a paragraph of the page.
	introduction string
}

var registries = map[string]onRegistry{clusterset.CloudMap: cloudMap(), clusterset.Etcd: etcd()}

// Install returns the command lines that install the product in a cluster; CLS stands for the
// cluster.
func Install(registry string) []string { return lines(registries[registry].install) }

// Uninstall returns the command lines that remove what Install made outside the cluster.
func Uninstall(registry string) []string { return lines(registries[registry].uninstall) }

func lines(commands []Command) []string {
	var out []string
	for _, c := range commands {
		out = append(out, c.Line)
	}
	return out
}

// AWS returns a command line of the AWS CLI for cloudmap-local.
func AWS(args string) string {
	return "aws servicediscovery --endpoint-url " + clusterset.Endpoint + " " + args
}

func cloudMap() onRegistry {
	return onRegistry{
		name:    "Cloud Map",
		overlay: "deploy/overlays/local",
		installNote: "`deploy/overlays/local` is `deploy/base` with the address of cloudmap-local. The Secret has the key of an IAM user with the " +
			"[policies](iam.md) of the cluster. `make demo` has created the namespace `mcs.demo-set` in Cloud Map with a catalog for each cluster, " +
			"as CloudFormation does [on EKS](eks.md#3-permissions).",
		install: []Command{
			run("kubectl --context CLS apply -f deploy/manager/namespace.yaml"),
			run("kubectl --context CLS -n cloud-map-mcs-system create secret generic aws-credentials --from-env-file=bin/aws/CLS.env"),
			run("kubectl --context CLS apply -k deploy/crds"),
			run("kubectl --context CLS apply -k deploy/overlays/local").first(3),
		},
		members:   wait(AWS("discover-instances --namespace-name mcs.demo-set --service-name members --query 'Instances[].InstanceId' --output text"), soon, contains("cls1", "cls2")),
		withdrawn: wait(AWS("list-services --query \"Services[?Name=='nginx-hello']\" --output text"), soon, lacks("nginx-hello")),
		left:      wait(AWS("list-services --query 'Services[?InstanceCount>`0`].Name' --output text"), soon, lacks("catalog.", "members")),
		seeRegistry: Step{6, "See it in Cloud Map",
			"The [instance view](instance-view.md) has one instance for each endpoint. The clusters themselves read `catalog.cls1` in `mcs.demo-set`.",
			[]Command{
				wait(AWS("list-namespaces --query \"Namespaces[?Name=='demo']\""), soon, contains(`"Name": "demo"`, `"Type": "HTTP"`, `"HttpName": "demo"`)).tested(),
				wait(AWS("list-services --query \"Services[?Name=='nginx-hello']\""), soon, contains(`"Name": "nginx-hello"`)),
				wait(AWS("discover-instances --namespace-name demo --service-name nginx-hello"), soon, instances(3)).first(26),
			}},
		stays: "The services that the administrator created stay, without instances.",
		introduction: "Cloud Map is [cloudmap-local](cloudmap-local.md); against AWS the commands are the same without `--endpoint-url`.\n\n" +
			"`make demo RECORD=docs/walk-through.md` writes this page.\n",
	}
}

func etcd() onRegistry {
	const keys = "etcdctl get --prefix --keys-only /mcs/demo-set/"
	return onRegistry{
		name:    "etcd",
		overlay: "deploy/overlays/local-etcd",
		installNote: "`add-cluster` makes an etcd user who may read the clusterset and write what is the cluster's own ([etcd.md](etcd.md)). " +
			"`deploy/overlays/local-etcd` is `deploy/base` with the address of the demo's etcd.",
		install: []Command{
			run("deploy/etcd/add-cluster demo-set CLS > bin/etcd/CLS.password"),
			run("kubectl --context CLS apply -f deploy/manager/namespace.yaml"),
			run("kubectl --context CLS -n cloud-map-mcs-system create secret generic etcd-client --from-literal=username=demo-set.CLS --from-file=password=bin/etcd/CLS.password --from-file=bin/etcd/ca.crt"),
			run("kubectl --context CLS apply -k deploy/crds"),
			run("kubectl --context CLS apply -k deploy/overlays/local-etcd").first(3),
		},
		uninstall: []Command{run("deploy/etcd/remove-cluster demo-set CLS").check(matches(`keys removed: [01]\b`))},
		members:   wait(keys+" | grep alive", soon, contains("/mcs/demo-set/cls1/alive", "/mcs/demo-set/cls2/alive")),
		withdrawn: wait(keys, soon, lacks("nginx-hello")),
		left:      wait(keys, soon, lacks("/exports/", "/alive")), // the farewell stays for a week
		seeRegistry: Step{6, "See it in etcd",
			"One key per export, in an encoding of its own; `member` says who the cluster is, and `alive` goes when its controller is gone for long.",
			[]Command{
				wait(keys, soon, contains("/mcs/demo-set/cls1/exports/demo/nginx-hello")),
				wait("etcdctl get /mcs/demo-set/cls1/member --print-value-only", soon, contains(`"clusterID":"cls1"`, `"clusterSetID":"demo-set"`, `"beat":`)),
			}},
		stays: "Its farewell stays for a week.",
		introduction: "The registry is an etcd with TLS, in which each cluster is a user of its own ([etcd.md](etcd.md)).\n\n" +
			"`make demo REGISTRY=etcd RECORD=FILE` writes this page again.\n",
	}
}
