// Hyper is all of Kubernetes and etcd in one binary, which acts as the program it is called as
// (through a symbolic link) or as its first argument names. One binary links once and is 150 MB;
// seven would be 600 MB and link seven times.
package main

import (
	"context"
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
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 run(kubectl.NewDefaultKubectlCommand),
}

func run(newCommand func() *cobra.Command) func() int {
	return func() int { return cli.Run(newCommand()) }
}
