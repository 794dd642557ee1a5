package show

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func registryCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Show the contents of the registry, decoded",
		Long: "Shows the registry as the controller of one cluster has read and decoded it. The field own is the export that this cluster\n" +
			"published last; to see what the registry has of it, query another cluster.",
	}
	get := registryReadCommand(s, "get SERVICE", "Show one service", session.RequireService, func(ctx context.Context, k *session.Cluster, args []string) (status.Service, error) {
		namespace, err := s.Namespace()
		if err != nil {
			return status.Service{}, err
		}
		return session.QueryController[status.Service](ctx, s, k, status.ServicePath(mcs.Key{Namespace: namespace, Name: args[0]}))
	})
	s.AddNamespaceFlag(get)
	cmd.AddCommand(
		sealCommand(s), get,
		registryReadCommand(s, "dump", "Show all services of the clusterset", cobra.NoArgs, func(ctx context.Context, k *session.Cluster, _ []string) ([]status.Service, error) {
			return session.QueryController[[]status.Service](ctx, s, k, status.PathServices)
		}),
	)
	return cmd
}

// registryReadCommand returns a command that prints the result of read as YAML or JSON.
func registryReadCommand[T any](
	s *session.Session, use, short string, args cobra.PositionalArgs, read func(context.Context, *session.Cluster, []string) (T, error),
) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := s.OneCluster()
			if err != nil {
				return err
			}
			value, err := read(cmd.Context(), k, args)
			if err != nil {
				return err
			}
			return session.Format(format).Print(s.Out, value, nil)
		},
	}
	session.AddOutputFlag(cmd, &format, "yaml", "json")
	return cmd
}
