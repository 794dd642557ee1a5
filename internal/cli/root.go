// Package cli holds the commands of kubectl-mcs, the kubectl plugin.
//
// A command gathers what it must know of a cluster into plain data, decides with pure functions (here and in
// internal/dns), then writes and waits. Tests run whole commands against a fake clientset and compare what they print.
package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
)

// The exit codes of every command.
const (
	ExitOK         = 0 // done, or the state asked about is as it should be
	ExitError      = 1 // it did not work; standard error says why and what to do
	ExitIncomplete = 2 // it worked, but clusterset.local is not, or not wholly, enabled, or a step is left to you
)

// An exitError ends the program with a code that is not an error's.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// A cluster is what a command needs of one Kubernetes cluster.
type cluster struct {
	kube kubernetes.Interface
	ask  asker
	now  func() time.Time
	poll time.Duration // between two looks while waiting
}

// An app is the plugin with its surroundings. Commands connect when they run, so help and version need no cluster.
type app struct {
	genericiooptions.IOStreams
	version string
	connect func() (*cluster, error)
}

// Main runs the plugin with the arguments after its name and returns the exit code.
func Main(ctx context.Context, args []string, version string, streams genericiooptions.IOStreams) int {
	flags := genericclioptions.NewConfigFlags(true)
	a := &app{IOStreams: streams, version: version, connect: func() (*cluster, error) { return connect(flags) }}
	root := a.root()
	flags.AddFlags(root.PersistentFlags())
	return a.run(ctx, root, args)
}

func (a *app) run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var code exitError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &code):
		return int(code)
	default:
		_, _ = fmt.Fprintf(a.ErrOut, "Error: %v\n", err)
		return ExitError
	}
}

// root lists the commands. Each group of commands is a file with one constructor.
func (a *app) root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcs",
		Short: "Services across the clusters of a clusterset",
		Long: "kubectl mcs sets up and looks after the Cloud Map MCS Controller's clusterset.\n\n" +
			"Exit codes: 0 done, 1 error, 2 not enabled or a step is left to you.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl mcs"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.SetIn(a.In)
	cmd.SetOut(a.Out)
	cmd.SetErr(a.ErrOut)
	cmd.AddCommand(a.dnsCommand(), a.versionCommand())
	return cmd
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the plugin's version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.Out, "kubectl-mcs %s\n", a.version)
			return err
		},
	}
}

// connect reads the kubeconfig the usual way: flags, then environment, then files.
func connect(flags *genericclioptions.ConfigFlags) (*cluster, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return &cluster{kube: kube, ask: askThrough(config, kube), now: time.Now, poll: time.Second}, nil
}
