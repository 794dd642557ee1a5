package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func (a *app) registryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Show what the registry holds, decoded",
		Long: "Shows the registry as the controller of one cluster has read and decoded it. What that cluster exports itself, under own,\n" +
			"is what it has published last: ask another cluster for what the registry shows of it.",
	}
	cmd.AddCommand(
		registryRead(a, "dump", "Show every service of the clusterset", cobra.NoArgs, func(ctx context.Context, k *cluster, _ []string) ([]status.Service, error) {
			return askController[[]status.Service](ctx, a, k, status.PathServices)
		}),
		registryRead(a, "get SERVICE", "Show one service", oneService, func(ctx context.Context, k *cluster, args []string) (status.Service, error) {
			namespace, err := a.namespace()
			if err != nil {
				return status.Service{}, err
			}
			return askController[status.Service](ctx, a, k, status.ServicePath(mcs.Key{Namespace: namespace, Name: args[0]}))
		}),
	)
	return cmd
}

// registryRead is a command that prints what it reads as YAML or JSON.
func registryRead[T any](a *app, use, short string, args cobra.PositionalArgs, read func(context.Context, *cluster, []string) (T, error)) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := a.oneCluster()
			if err != nil {
				return err
			}
			value, err := read(cmd.Context(), k, args)
			if err != nil {
				return err
			}
			return o.print(a.Out, value, nil)
		},
	}
	outputFlag(cmd, (*string)(&o), "yaml", "json")
	return cmd
}
