package session

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// isLocal is the annotation of commands that are about no cluster.
const isLocal = "isLocal"

// Local marks a command that is about no cluster.
func Local(cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[isLocal] = "true"
	return cmd
}

const namespaceFlag = "namespace"

// AddNamespaceFlag adds the flag --namespace to a command about objects of one namespace. All other
// commands refuse it.
func (s *Session) AddNamespaceFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.namespace, namespaceFlag, "n", "", "namespace (default: that of the context, the first one of several)")
}

// Namespace returns the namespace given by --namespace, or that of the context.
func (s *Session) Namespace() (string, error) {
	if s.namespace != "" {
		return s.namespace, nil
	}
	namespace, err := s.ContextNamespace()
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return namespace, nil
}

// isClusterWide reports whether a command is about the whole cluster.
func isClusterWide(cmd *cobra.Command) bool {
	return cmd.Annotations[isLocal] == "" && cmd.Flags().Lookup(namespaceFlag) == nil
}

// flagError returns the error for a flag that cannot be parsed.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && (unknown.GetSpecifiedName() == namespaceFlag || unknown.GetSpecifiedName() == "n") && isClusterWide(cmd) {
		return Usagef("%s is about the whole cluster and takes no --namespace; --controller-namespace is that of the controller", cmd.CommandPath())
	}
	return UsageError{err}
}

// printUsage prints how to use a command. Flags of kubectl are left out.
func (s *Session) printUsage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n  %s COMMAND", cmd.CommandPath())
	} else {
		fmt.Fprintf(&b, "\n  %s", cmd.UseLine())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\n\nExamples:\n%s", cmd.Example)
	}
	for i, c := range cmd.Commands() {
		if i == 0 {
			b.WriteString("\n\nCommands:")
		}
		if c.IsAvailableCommand() || c.Name() == "help" {
			fmt.Fprintf(&b, "\n  %-*s %s", cmd.Commands()[0].NamePadding(), c.Name(), c.Short)
		}
	}
	global := s.withoutKubectl(cmd.Root().PersistentFlags())
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if cmd.Root().PersistentFlags().Lookup(f.Name) == nil {
			own.AddFlag(f)
		}
	})
	fmt.Fprintf(&b, "\n\nFlags:\n%s\nFlags of every command:\n%s\n", own.FlagUsages(), global.FlagUsages())
	if isClusterWide(cmd) {
		b.WriteString("The command is about the whole cluster and takes no --namespace. ")
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\"%s COMMAND --help\" describes a command. ", cmd.CommandPath())
	}
	fmt.Fprintf(&b, "\"%s options\" lists the flags of kubectl.\n", cmd.Root().CommandPath())
	_, err := fmt.Fprint(cmd.OutOrStdout(), b.String())
	return err
}

// withoutKubectl returns the flags that kubectl does not have.
func (s *Session) withoutKubectl(flags *pflag.FlagSet) *pflag.FlagSet {
	rest := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.VisitAll(func(f *pflag.Flag) {
		if s.KubectlFlags == nil || s.KubectlFlags.Lookup(f.Name) == nil {
			rest.AddFlag(f)
		}
	})
	return rest
}
