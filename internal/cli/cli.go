// Package cli is kubectl-mcs, the kubectl plugin. Each group of commands is a package below it.
//
// A command gathers facts about clusters into plain data, decides with pure functions (in its
// package and in internal/coredns), then writes and waits. Tests run whole commands against a fake
// clientset and compare the output.
package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/dns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/doctor"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/drain"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/export"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/gather"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/install"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/ui"
)

// Main runs the plugin with the arguments after its name and returns the exit code.
func Main(ctx context.Context, args []string, version string, streams genericiooptions.IOStreams) int {
	s, root := newProgram(version, streams)
	return s.Run(ctx, root, args)
}

// newProgram returns the root command, and the session of its commands.
func newProgram(version string, streams genericiooptions.IOStreams) (*session.Session, *cobra.Command) {
	flags := genericclioptions.NewConfigFlags(false) // without cache: the context changes
	s := &session.Session{IOStreams: streams, Version: version, KubectlFlags: pflag.NewFlagSet("kubectl", pflag.ContinueOnError)}
	s.Connect = func(contexts []string) ([]*session.Cluster, error) { return session.Connect(flags, contexts) }
	s.ContextNamespace = func() (string, error) {
		if len(s.Contexts) > 0 {
			*flags.Context = s.Contexts[0]
		}
		namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
		return namespace, err
	}
	s.ContextNames = func() []string {
		raw, err := flags.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil
		}
		return slices.Sorted(maps.Keys(raw.Contexts))
	}
	context := flags.Context
	flags.Context, flags.Namespace = nil, nil // replaced by those of Session
	flags.AddFlags(s.KubectlFlags)
	flags.Context = context
	return s, s.Root(commands(s)...)
}

// commands returns the commands below the root.
func commands(s *session.Session) []*cobra.Command {
	return slices.Concat(install.Commands(s), show.Commands(s), export.Commands(s), drain.Commands(s), doctor.Commands(s),
		[]*cobra.Command{dns.Command(s), ui.Command(s), gather.Command(s), versionCommand(s), optionsCommand(s)})
}

func optionsCommand(s *session.Session) *cobra.Command {
	return session.Local(&cobra.Command{
		Use:   "options",
		Short: "Print the flags of kubectl that every command takes",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(s.Out, "These flags of kubectl can be passed to every command:\n\n%s", s.KubectlFlags.FlagUsages())
			return err
		},
	})
}

func versionCommand(s *session.Session) *cobra.Command {
	return session.Local(&cobra.Command{
		Use:   "version",
		Short: "Print the version of the plugin",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(s.Out, "kubectl-mcs %s\n", s.Version)
			return err
		},
	})
}
