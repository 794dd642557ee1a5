// Hyper is that of the directory above, for Kubernetes 1.31, whose kubelet has another function.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// The programs' own main packages register these: JSON logs and the metrics of client-go and of
	// versions.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func main() {
	name := filepath.Base(os.Args[0])
	if commands[name] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	command := commands[name]
	if command == nil {
		fmt.Fprintln(os.Stderr, "usage: hyper etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kube-proxy|kubelet|kubectl [flags]")
		os.Exit(2)
	}
	os.Exit(command())
}

// commands run a program with os.Args and return its exit code.
var commands = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllers.NewControllerManagerCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              run(proxy.NewProxyCommand),
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand() }),
	"kubectl":                 run(kubectl.NewDefaultKubectlCommand),
}

func run(newCommand func() *cobra.Command) func() int {
	return func() int { return cli.Run(newCommand()) }
}
