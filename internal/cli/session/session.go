// Package session is shared by the commands of kubectl-mcs: the kubeconfig contexts and their
// clusters, requests to the controller through port-forward, exit codes and output. The packages of
// the commands import it; it imports none of them.
package session

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// The exit codes of every command.
const (
	ExitOK    = 0 // the command has succeeded, and no check failed
	ExitError = 1 // the command has failed; standard error has the reason and what to do
	ExitUsage = 2 // invalid command line
	// ExitIncomplete: the command has done its part, but a check failed, the result was not there
	// within --wait, or manual action is required.
	ExitIncomplete = 3
)

// An IncompleteError makes the program exit with ExitIncomplete. Its text is the reason.
type IncompleteError struct{ error }

// Unwrap returns the reason.
func (e IncompleteError) Unwrap() error { return e.error }

// Incompletef returns a formatted IncompleteError.
func Incompletef(format string, args ...any) error {
	return IncompleteError{fmt.Errorf(format, args...)}
}

// ErrIncomplete is an IncompleteError of a command that has printed the reason already.
var ErrIncomplete error = IncompleteError{errors.New("incomplete")}

// A UsageError reports an invalid command line.
type UsageError struct{ error }

// Unwrap returns the reason.
func (e UsageError) Unwrap() error { return e.error }

// NewUsageError returns err as a UsageError.
func NewUsageError(err error) error { return UsageError{err} }

// Usagef returns a formatted UsageError.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// A Session is one run of the plugin. Commands connect to clusters when they run, so help and
// version need no cluster.
type Session struct {
	genericiooptions.IOStreams
	// Version is the plugin's version.
	Version string
	// Connect returns the clusters of the named contexts, or of the current context when none is
	// named.
	Connect func(contexts []string) ([]*Cluster, error)
	// ContextNamespace returns the namespace of the first context.
	ContextNamespace func() (string, error)
	// ContextNames returns the contexts of the kubeconfig, for completion.
	ContextNames func() []string
	// KubectlFlags are flags of kubectl that every command takes. Only "kubectl mcs options" shows
	// them. nil is none.
	KubectlFlags *pflag.FlagSet

	// Contexts and ControllerNamespace are the values of the flags.
	Contexts            []string
	ControllerNamespace string
	// namespace is the value of --namespace, "" without it.
	namespace string
}

// Run executes root with the arguments and returns the exit code.
func (s *Session) Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var incomplete IncompleteError
	var usage UsageError
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrIncomplete):
		return ExitIncomplete
	case errors.As(err, &incomplete):
		s.Progressf("%s", err.Error())
		return ExitIncomplete
	}
	text := err.Error()
	if see := seePermissions(); IsNoPermission(err) && !strings.Contains(text, see) {
		text += ": " + see
	}
	s.Progressf("Error: %s", text)
	if errors.As(err, &usage) {
		return ExitUsage
	}
	return ExitError
}

// Root returns the root command with the given commands below it.
func (s *Session) Root(commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcs",
		Short: "Manage multi-cluster Services of a clusterset",
		Long: "Installs the Cloud Map MCS Controller, manages clusterset membership and exports, and diagnoses multi-cluster Services.\n" +
			"Most commands take several contexts: --context cls1,cls2.\n\n" +
			"Exit codes: 0 success, 1 error, 2 invalid usage, 3 a check failed, the result was not there within --wait, or manual action is required.",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl mcs"},
		// kubectl completes the commands of a plugin: docs/kubectl-mcs.md
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		SilenceErrors:     true,
		SilenceUsage:      true,
	}
	cmd.SetIn(s.In)
	cmd.SetOut(s.Out)
	cmd.SetErr(s.ErrOut)
	cmd.SetFlagErrorFunc(flagError)
	cmd.SetUsageFunc(s.printUsage)
	cmd.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "contexts" {
			name = "context"
		}
		return pflag.NormalizedName(name)
	})
	flags := cmd.PersistentFlags()
	flags.StringSliceVar(&s.Contexts, "context", nil, "kubeconfig contexts, comma-separated or repeated (default: the current context)")
	flags.StringVar(&s.ControllerNamespace, "controller-namespace", DefaultNamespace, "namespace of the controller")
	// the flag exists
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return s.ContextNames(), cobra.ShellCompDirectiveNoFileComp
	})
	if s.KubectlFlags != nil {
		flags.AddFlagSet(s.KubectlFlags)
	}
	cmd.AddCommand(commands...)
	completeCommands(cmd)
	return cmd
}

// completeCommands makes invalid arguments of cmd and its subcommands usage errors. A command that
// has subcommands only prints its help, and refuses the names of others.
func completeCommands(cmd *cobra.Command) {
	if !cmd.Runnable() {
		Local(cmd)
		cmd.Args = refuseUnknown
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if validate := cmd.Args; validate != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := validate(cmd, args); err != nil {
				return UsageError{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		completeCommands(sub)
	}
}

// refuseUnknown returns an error for the name of a command that does not exist.
func refuseUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2 // letters, as in kubectl
	text := fmt.Sprintf("unknown command %q for %q: ", args[0], cmd.CommandPath())
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return fmt.Errorf("%sdid you mean %s? See %s --help", text, strings.Join(similar, " or "), cmd.CommandPath())
	}
	return fmt.Errorf("%ssee %s --help", text, cmd.CommandPath())
}
