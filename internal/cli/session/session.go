// Package session is shared by the commands of kubectl-mcs: the kubeconfig contexts and their
// clusters, requests to the controller through port-forward, exit codes and output. The packages of
// the commands import it; it imports none of them.
package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// The exit codes of every command.
const (
	ExitOK         = 0 // the command succeeded and all checks passed
	ExitError      = 1 // the command failed; standard error has the reason and what to do
	ExitUsage      = 2 // invalid command line
	ExitIncomplete = 3 // the command ran, but checks failed or manual action is required
)

// An exitCode ends the program with that code and without an error message.
type exitCode int

// ErrIncomplete makes the program exit with ExitIncomplete. The command has printed the reason
// already.
var ErrIncomplete error = exitCode(ExitIncomplete)

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

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
	// Namespace returns the namespace given by -n, or that of the context.
	Namespace func() (string, error)
	// ContextNames returns the contexts of the kubeconfig, for completion.
	ContextNames func() []string

	// Contexts and ControllerNamespace are the values of the flags.
	Contexts            []string
	ControllerNamespace string
}

// Run executes root with the arguments and returns the exit code.
func (s *Session) Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var code exitCode
	if err == nil {
		return ExitOK
	}
	if errors.As(err, &code) {
		return int(code)
	}
	_, _ = fmt.Fprintf(s.ErrOut, "Error: %s\n", PrintableLines(err.Error()))
	var usage UsageError
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
			"Exit codes: 0 success, 1 error, 2 invalid usage, 3 checks failed or manual action required.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl mcs"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.SetIn(s.In)
	cmd.SetOut(s.Out)
	cmd.SetErr(s.ErrOut)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return UsageError{err} })
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
	cmd.AddCommand(commands...)
	markArgumentErrors(cmd)
	return cmd
}

// markArgumentErrors makes invalid arguments of cmd and its subcommands usage errors.
func markArgumentErrors(cmd *cobra.Command) {
	if validate := cmd.Args; validate != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := validate(cmd, args); err != nil {
				return UsageError{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		markArgumentErrors(sub)
	}
}
