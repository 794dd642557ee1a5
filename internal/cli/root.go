// Package cli holds the commands of kubectl-mcs, the kubectl plugin.
//
// A command gathers what it must know of a cluster into plain data, decides with pure functions (here and in
// internal/coredns), then writes and waits. Tests run whole commands against a fake clientset and compare what they print.
package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// The exit codes of every command.
const (
	ExitOK         = 0 // done, or all that was looked at is as it should be
	ExitError      = 1 // it did not work; standard error says why and what to do
	ExitUsage      = 2 // the command line is wrong
	ExitIncomplete = 3 // it worked, but something is not as it should be, or a step is left to you
)

// An exitError ends the program with a code that is not an error's.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// A usageError is a command line that cannot be obeyed.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// An app is the plugin with its surroundings. Commands connect when they run, so help and version need no cluster.
type app struct {
	genericiooptions.IOStreams
	version string
	// connect gives the clusters of the contexts that were named, or the current context's.
	connect func(contexts []string) ([]*cluster, error)
	// namespace is the one that the command is about.
	namespace func() (string, error)

	// contextNames are those of the kubeconfig, for completion.
	contextNames func() []string

	contexts            []string
	controllerNamespace string
}

// Main runs the plugin with the arguments after its name and returns the exit code.
func Main(ctx context.Context, args []string, version string, streams genericiooptions.IOStreams) int {
	flags := genericclioptions.NewConfigFlags(false) // not cached: the context changes
	a := &app{IOStreams: streams, version: version}
	a.connect = func(contexts []string) ([]*cluster, error) { return connect(flags, contexts) }
	a.namespace = func() (string, error) {
		if len(a.contexts) > 0 {
			*flags.Context = a.contexts[0]
		}
		namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
		return namespace, err
	}
	a.contextNames = func() []string {
		raw, err := flags.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil
		}
		return slices.Sorted(maps.Keys(raw.Contexts))
	}
	root := a.root()
	chosen := flags.Context
	flags.Context = nil // ours can be given several times
	flags.AddFlags(root.PersistentFlags())
	flags.Context = chosen
	return a.run(ctx, root, args)
}

func (a *app) run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var code exitError
	var usage usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(a.ErrOut, "Error: %v\n", err)
		return ExitUsage
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
		Long: "kubectl mcs sets up and looks after the Cloud Map MCS Controller's clusterset.\n" +
			"Commands about the clusterset take several contexts: --context cls1,cls2.\n\n" +
			"Exit codes: 0 done and all is well, 1 error, 2 wrong usage, 3 something is not as it should be or a step is left to you.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl mcs"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.SetIn(a.In)
	cmd.SetOut(a.Out)
	cmd.SetErr(a.ErrOut)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "contexts" {
			name = "context"
		}
		return pflag.NormalizedName(name)
	})
	flags := cmd.PersistentFlags()
	flags.StringSliceVar(&a.contexts, "context", nil, "contexts of the kubeconfig, one or several; the current one when empty")
	flags.StringVar(&a.controllerNamespace, "controller-namespace", defaultNamespace, "namespace that the controller is installed in")
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { // the flag is there
		return a.contextNames(), cobra.ShellCompDirectiveNoFileComp
	})
	cmd.AddCommand(a.commands()...)
	usageOfArguments(cmd)
	return cmd
}

// commands are those of the top level. Each is, or begins, a file.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.installCommand(), a.uninstallCommand(), a.joinCommand(), a.leaveCommand(),
		a.statusCommand(), a.getCommand(), a.exportCommand(), a.unexportCommand(), a.describeCommand(), a.diagnoseCommand(), a.checkCommand(), a.registryCommand(), a.graphCommand(),
		a.dnsCommand(), a.versionCommand(),
	}
}

// usageOfArguments makes wrong arguments of cmd and the commands below it wrong usage.
func usageOfArguments(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		usageOfArguments(sub)
	}
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
