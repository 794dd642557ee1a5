package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// forgetWait covers several intervals at which the controller reads requests, 5 s, and a change of
// the leader.
const forgetWait = 30 * time.Second

// forgetOptions are the flags of forget.
type forgetOptions struct {
	clusterID  string
	force, yes bool
	wait       time.Duration
}

func forgetCommand(s *session.Session) *cobra.Command {
	var o forgetOptions
	cmd := &cobra.Command{
		Use:   "forget CLUSTER",
		Short: "End the imports of a cluster that no longer exists",
		Long: "Ends the imports from a cluster that was destroyed without leaving its clusterset, in the cluster of each context. Nothing else\n" +
			"ends them: without heartbeats a cluster becomes stale, and its ServiceImports stay. A cluster that sends heartbeats is forgotten only\n" +
			"with --force. A forgotten cluster is imported again as soon as it writes to the registry. Asks for confirmation.",
		Example: "  kubectl mcs forget cls3 --context cls1,cls2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mcs.ValidateClusterID(args[0]); err != nil {
				return session.Usagef("reading the ID of the cluster: %w", err)
			}
			o.clusterID = args[0]
			clusters, err := s.Clusters()
			if err != nil {
				return err
			}
			return runForget(cmd.Context(), s, clusters, o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.force, "force", false, "also forget a cluster that has heartbeats")
	flags.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	flags.DurationVar(&o.wait, "wait", forgetWait, "how long to wait until the controllers have forgotten the cluster; 0 does not wait")
	return cmd
}

func runForget(ctx context.Context, s *session.Session, clusters []*session.Cluster, o forgetOptions) error {
	clusterSets, errs := make([]string, len(clusters)), make([]error, len(clusters))
	for i, k := range clusters {
		clusterSets[i], errs[i] = planForget(ctx, s, k, o)
	}
	if err := session.JoinErrors(clusters, errs); err != nil {
		return err
	}
	if !o.yes && !s.Confirm("Forget cluster %s in these clusters?", o.clusterID) {
		return errors.New("not confirmed: nothing was changed")
	}
	for i, k := range clusters {
		errs[i] = forget(ctx, s, k, clusterSets[i], o)
	}
	return session.JoinErrors(clusters, errs)
}

// planForget prints which imports end in a cluster, and returns its clusterset. It returns an error
// if the cluster must not be forgotten.
func planForget(ctx context.Context, s *session.Session, k *session.Cluster, o forgetOptions) (string, error) {
	st, err := readMember(ctx, s, k, "forgetting cluster "+o.clusterID)
	switch {
	case err != nil:
		return "", err
	case st.Identity.ClusterID == o.clusterID:
		return "", errors.New("the cluster cannot forget itself: to leave the clusterset, run kubectl mcs leave")
	}
	i := slices.IndexFunc(st.Members, func(m status.Member) bool { return m.ClusterID == o.clusterID })
	if i >= 0 && !st.Members[i].Stale && !o.force {
		age := time.Duration(st.Members[i].HeartbeatAge * float64(time.Second)).Round(time.Second)
		return "", fmt.Errorf("cluster %s is live: its last heartbeat was %s ago. To remove it from the clusterset, run kubectl mcs leave there; "+
			"to forget it nevertheless, use --force", o.clusterID, age)
	}
	return st.Identity.ClusterSetID, printImports(ctx, s, k, o.clusterID)
}

// printImports prints which services a cluster imports from the cluster with the ID.
func printImports(ctx context.Context, s *session.Session, k *session.Cluster, clusterID string) error {
	imports, err := k.ListImports(ctx, "")
	if err != nil {
		return err
	}
	var all, only []string
	for i := range imports {
		sources := session.SourceClusters(&imports[i])
		if !slices.Contains(sources, clusterID) {
			continue
		}
		name := imports[i].Namespace + "/" + imports[i].Name
		all = append(all, name)
		if len(sources) == 1 {
			only = append(only, name)
		}
	}
	if len(all) == 0 {
		s.Printf("%s: no service is imported from cluster %s", k.Context, clusterID)
		return nil
	}
	s.Printf("%s: services imported from cluster %s: %s", k.Context, clusterID, abbreviate(all))
	if len(only) > 0 {
		s.Printf("%s: services imported from no other cluster, whose imports end: %s", k.Context, abbreviate(only))
	}
	return nil
}

// abbreviate returns the first names of a list.
func abbreviate(list []string) string {
	const most = 10
	slices.Sort(list)
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return strings.Join(list[:most], ", ") + fmt.Sprintf(" and %d more", len(list)-most)
}

// forget requests that the controller forgets the cluster, and waits until it has.
func forget(ctx context.Context, s *session.Session, k *session.Cluster, clusterSetID string, o forgetOptions) error {
	handled, err := sendRequest(ctx, s, k, names.ForgetKey(clusterSetID, o.clusterID), requestedAt(k, "forget"), "forgets cluster "+o.clusterID, o.wait)
	if handled {
		s.Printf("%s: cluster %s is forgotten", k.Context, o.clusterID)
	}
	return err
}
