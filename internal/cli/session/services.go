package session

import (
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// RequireService validates the arguments of a command that takes the name of one Service.
func RequireService(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return fmt.Errorf("%s requires the name of one Service, got %d arguments: set the namespace with -n", cmd.CommandPath(), len(args))
}

// CompleteServices completes the name of a Service in the namespace.
func (s *Session) CompleteServices(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	clusters, namespace, err := s.ClustersAndNamespace(false)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var services corev1.ServiceList
	if err := clusters[0].List(cmd.Context(), namespace, &services); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, svc := range services.Items {
		names = append(names, svc.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
