package show

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// sealScript is the script of registry seal, for the IDs of a clusterset and of its clusters. The
// controllers write into the services by these names and tags (docs/iam.md).
const sealScript = `# Seals clusterset %[1]s: only the cluster in the tag catalog-of can write into a catalog, and no cluster creates services. It creates the resources that are missing.
# Run it in sh with the rights of an administrator of the AWS account, in the Region of the registry. It may run again at any time.
set -eu # with JSON, the CLI applies the query to all pages at once
tags="Key=managed-by,Value=cloud-map-mcs-controller Key=clusterset,Value=%[1]s"
list() { found=$(aws servicediscovery "$@" --output json) && echo "$found" | tr -d '"'; }
namespace() { list list-namespaces --filters Name=NAME,Values=mcs.%[1]s --query 'Namespaces[0].Arn'; }
arn_of() { list list-services --filters Name=NAMESPACE_ID,Values="$ns" --query "Services[?Name=='$1'].Arn | [0]"; }
seal() { # NAME TAG...
  name=$1
  arn=$(arn_of "$name")
  shift
  if [ "$arn" = null ]; then
    aws servicediscovery create-service --name "$name" --namespace-id "$ns" --tags $tags "$@" > /dev/null
  else
    aws servicediscovery tag-resource --resource-arn "$arn" --tags $tags "$@"
  fi
}
arn=$(namespace)
if [ "$arn" = null ]; then
  aws servicediscovery create-http-namespace --name mcs.%[1]s --tags $tags Key=part,Value=control Key=sealed,Value=true > /dev/null
  while arn=$(namespace); [ "$arn" = null ]; do sleep 2; done
else
  aws servicediscovery tag-resource --resource-arn "$arn" --tags $tags Key=part,Value=control Key=sealed,Value=true
fi
ns=${arn##*/}
seal members Key=part,Value=members
for cluster in %[2]s; do
  seal "catalog.$cluster" Key=part,Value=catalog Key=cluster,Value="$cluster" Key=catalog-of,Value="$cluster"
done
`

func sealCommand(s *session.Session) *cobra.Command {
	clusterSetID := ""
	cmd := &cobra.Command{
		Use:   "seal [CLUSTER...]",
		Short: "Print the AWS commands that keep each cluster off the catalogs of the others",
		Long: "Prints a shell script with commands of the AWS CLI. It gives the catalog of each cluster of the clusterset the tag catalog-of, with which\n" +
			"only that cluster can write into the catalog, restores the other tags, and creates what is missing. Name clusters that have not joined yet.\n" +
			"With --clusterset-id it asks no controller: name all clusters, before the first one joins.\n" +
			"Remove create.json from the roles of the clusters first, and run it while their controllers run (" + docs.URL("iam.md") + "). Nothing is changed before\n" +
			"you run the script.",
		Example: "  kubectl mcs registry seal | sh\n  kubectl mcs registry seal cls3 > seal.sh\n  kubectl mcs registry seal --clusterset-id=set1 cls1 cls2 | sh",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkSealArgs(clusterSetID, args); err != nil {
				return session.Usagef("%w", err)
			}
			id, clusters := clusterSetID, args
			if id == "" {
				k, err := s.OneCluster()
				if err != nil {
					return err
				}
				st, err := session.QueryController[status.Status](cmd.Context(), s, k, status.PathStatus)
				if err != nil {
					return err
				}
				if id, clusters, err = membersToSeal(&st, args); err != nil {
					return err
				}
			}
			_, err := fmt.Fprint(s.Out, sealFor(id, clusters))
			return err
		},
	}
	cmd.Flags().StringVar(&clusterSetID, "clusterset-id", "", "clusterset whose clusters are those that you name (default: the clusterset of the cluster, with its members)")
	return cmd
}

// checkSealArgs returns an error if the IDs that a user types make no script.
func checkSealArgs(clusterSetID string, clusters []string) error {
	if clusterSetID != "" {
		if err := mcs.ValidateClusterID(clusterSetID); err != nil {
			return fmt.Errorf("reading --clusterset-id: %w", err)
		}
		if len(clusters) == 0 {
			return errors.New("name the clusters: with --clusterset-id no controller is asked for them")
		}
	}
	for _, id := range clusters {
		if err := mcs.ValidateClusterID(id); err != nil {
			return fmt.Errorf("reading the ID of a cluster: %w", err)
		}
	}
	return nil
}

// membersToSeal returns the clusterset and its members on AWS Cloud Map, and further clusters.
func membersToSeal(st *status.Status, further []string) (clusterSetID string, clusters []string, err error) {
	switch {
	case !st.Leader:
		return "", nil, fmt.Errorf("listing the clusters: %s", status.NoLeader)
	case st.Identity == nil:
		return "", nil, fmt.Errorf("listing the clusters: %s", st.Problem)
	case st.Registry != "cloudmap":
		return "", nil, fmt.Errorf("the registry is %s: only catalogs of AWS Cloud Map are sealed; etcd has a user for each cluster ("+docs.URL("etcd.md")+")", st.Registry)
	}
	clusters = slices.Clone(further)
	for _, m := range st.Members {
		// a cluster with the legacy controller has no key, and no catalog
		if !m.Mapped && m.Key != "" {
			clusters = append(clusters, m.ClusterID)
		}
	}
	for _, id := range append([]string{st.Identity.ClusterSetID}, clusters...) {
		// The shell would run any other ID, and other clusters choose theirs.
		if err := mcs.ValidateClusterID(id); err != nil {
			return "", nil, fmt.Errorf("reading the status of the controller: %w", err)
		}
	}
	return st.Identity.ClusterSetID, clusters, nil
}

// sealFor returns the script for a clusterset and its clusters. The IDs are valid.
func sealFor(clusterSetID string, clusters []string) string {
	clusters = slices.Compact(slices.Sorted(slices.Values(clusters)))
	return fmt.Sprintf(sealScript, clusterSetID, strings.Join(clusters, " "))
}
