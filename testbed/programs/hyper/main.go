// hyper: one multi-call binary with the Kubernetes control plane, node components and etcd.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	etcdmain "go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	sched "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	args := os.Args
	if name == "hyper" && len(os.Args) > 1 {
		name = os.Args[1]
		args = append([]string{os.Args[1]}, os.Args[2:]...)
	}
	os.Args = args
	var cmd *cobra.Command
	switch name {
	case "etcd":
		etcdmain.Main(args)
		return
	case "kube-apiserver", "apiserver":
		cmd = apiserver.NewAPIServerCommand()
	case "kube-controller-manager", "controller-manager":
		cmd = kcm.NewControllerManagerCommand()
	case "kube-scheduler", "scheduler":
		cmd = sched.NewSchedulerCommand()
	case "kube-proxy", "proxy":
		cmd = proxy.NewProxyCommand()
	case "kubelet":
		cmd = kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		cmd = kubectl.NewDefaultKubectlCommand()
	default:
		fmt.Fprintln(os.Stderr, "usage: hyper etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kube-proxy|kubelet|kubectl [flags]")
		os.Exit(2)
	}
	os.Exit(cli.Run(cmd))
}
