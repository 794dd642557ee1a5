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
	flags := genericclioptions.NewConfigFlags(false) // without cache: the context changes
	s := &session.Session{IOStreams: streams, Version: version}
	s.Connect = func(contexts []string) ([]*session.Cluster, error) { return session.Connect(flags, contexts) }
	s.Namespace = func() (string, error) {
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
	root := s.Root(commands(s)...)
	chosen := flags.Context
	flags.Context = nil // replaced by --context of Root, which takes several values
	flags.AddFlags(root.PersistentFlags())
	flags.Context = chosen
	return s.Run(ctx, root, args)
}

// commands returns the commands below the root.
func commands(s *session.Session) []*cobra.Command {
	return slices.Concat(install.Commands(s), show.Commands(s), export.Commands(s), drain.Commands(s), doctor.Commands(s),
		[]*cobra.Command{dns.Command(s), ui.Command(s), gather.Command(s), versionCommand(s)})
}

func versionCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of the plugin",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(s.Out, "kubectl-mcs %s\n", s.Version)
			return err
		},
	}
}
