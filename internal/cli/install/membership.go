package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// membershipWait covers acquiring an ID that another cluster used until recently (a minute), and a withdrawal with retries.
const membershipWait = 90 * time.Second

// joinOptions are the flags of join.
type joinOptions struct {
	clusterID, clusterSetID string
	force                   bool
	wait                    time.Duration
}

func joinCommand(s *session.Session) *cobra.Command {
	var o joinOptions
	cmd := &cobra.Command{
		Use:   "join --cluster-id=ID --clusterset-id=ID",
		Short: "Make a cluster a member of a clusterset",
		Long: "Writes the two ClusterProperties with the identity of the cluster and waits until the cluster is a member. To change an\n" +
			"existing identity, use --force: the exports of the cluster then move to the new identity.",
		Example: "  kubectl mcs join --context cls1 --cluster-id=cls1 --clusterset-id=production",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for flag, id := range map[string]string{"cluster-id": o.clusterID, "clusterset-id": o.clusterSetID} {
				if err := mcs.ValidateClusterID(id); err != nil {
					return session.Usagef("reading --%s: %w", flag, err)
				}
			}
			k, err := s.OneCluster()
			if err != nil {
				return err
			}
			return joinClusterSet(cmd.Context(), s, k, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.clusterID, "cluster-id", "", "ID of the cluster, unique in the clusterset: a DNS label")
	flags.StringVar(&o.clusterSetID, "clusterset-id", "", "ID of the clusterset, the same in all its clusters: a DNS label")
	flags.BoolVar(&o.force, "force", false, "change an existing identity")
	flags.DurationVar(&o.wait, "wait", membershipWait, "how long to wait until the cluster is a member; 0 does not wait")
	return cmd
}

func joinClusterSet(ctx context.Context, s *session.Session, k *session.Cluster, o joinOptions) error {
	wanted := []struct{ name, value string }{
		{aboutv1beta1.ClusterIDProperty, o.clusterID}, {aboutv1beta1.ClusterSetIDProperty, o.clusterSetID},
	}
	have := map[string]string{}
	for _, w := range wanted {
		var property aboutv1beta1.ClusterProperty
		if _, err := k.Find(ctx, "", w.name, &property); err != nil {
			return fmt.Errorf("reading ClusterProperty %s: %w", w.name, err)
		}
		have[w.name] = property.Spec.Value
		if v := property.Spec.Value; v != "" && v != w.value && !o.force {
			return fmt.Errorf("changing ClusterProperty %s: the value is already %q; leave that clusterset first (kubectl mcs leave), or use --force", w.name, v)
		}
	}
	c, err := k.Objects()
	if err != nil {
		return err
	}
	for _, w := range wanted {
		if have[w.name] == w.value {
			s.Printf("%s: ClusterProperty %s is already %s", k.Context, w.name, w.value)
			continue
		}
		if err := writeProperty(ctx, c, w.name, w.value); err != nil {
			return err
		}
		s.Printf("%s: ClusterProperty %s set to %s", k.Context, w.name, w.value)
	}
	if o.wait <= 0 {
		return nil
	}
	return waitForMembership(ctx, s, k, o)
}

func writeProperty(ctx context.Context, c client.Client, name, value string) error {
	property := &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: aboutv1beta1.ClusterPropertySpec{Value: value}}
	err := c.Create(ctx, property)
	if apierrors.IsAlreadyExists(err) {
		if err = c.Get(ctx, client.ObjectKeyFromObject(property), property); err == nil {
			property.Spec.Value = value
			err = c.Update(ctx, property)
		}
	}
	if session.IsNotFound(err) {
		return errors.New("the cluster does not serve ClusterProperty: install the CRDs with \"kubectl mcs install\"")
	}
	if err != nil {
		return fmt.Errorf("writing ClusterProperty %s: %w", name, err)
	}
	return nil
}

// waitForMembership waits until the registry has the cluster as a member, or the controller reports that it cannot join.
func waitForMembership(ctx context.Context, s *session.Session, k *session.Cluster, o joinOptions) error {
	last, err := waitForStatus(ctx, s, k, o.wait, func(st *status.Status) bool {
		return isMember(st, o) || hasIdentity(st, o) && st.WriteProblem != ""
	})
	switch {
	case err != nil:
		return fmt.Errorf("waiting until the cluster is a member: %w", err)
	case isMember(last, o):
		s.Printf("%s: cluster %s is a member of clusterset %s, which has %d", k.Context, o.clusterID, o.clusterSetID, len(last.Members))
		return nil
	}
	return fmt.Errorf("joining the clusterset: %s", last.WriteProblem)
}

func hasIdentity(st *status.Status, o joinOptions) bool {
	return st.Identity != nil && st.Identity.ClusterID == o.clusterID && st.Identity.ClusterSetID == o.clusterSetID
}

func isMember(st *status.Status, o joinOptions) bool {
	return hasIdentity(st, o) && st.Synced && st.WriteProblem == "" &&
		slices.ContainsFunc(st.Members, func(m status.Member) bool { return show.IsOwnMember(st, m) })
}

// waitForStatus waits until the controller's status meets the condition, and returns the last status.
func waitForStatus(ctx context.Context, s *session.Session, k *session.Cluster, timeout time.Duration, condition func(*status.Status) bool) (*status.Status, error) {
	var last status.Status
	var queryErr error
	err := k.Poll(ctx, timeout, func() (bool, error) {
		last, queryErr = session.QueryController[status.Status](ctx, s, k, status.PathStatus)
		return queryErr == nil && condition(&last), nil
	})
	if err == nil {
		return &last, nil
	}
	if queryErr == nil {
		queryErr = errors.New(strings.Join(append(show.Problems(k.Context, &last), "run kubectl mcs status --context "+k.Context), "; "))
	}
	return nil, fmt.Errorf("timed out after %s: %w", timeout, queryErr)
}

func leaveCommand(s *session.Session) *cobra.Command {
	var yes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Remove a cluster from its clusterset",
		Long: "Deletes the two ClusterProperties. The controller then withdraws all exports of this cluster from the registry; services\n" +
			"that the cluster has imported do not change. Asks for confirmation.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := s.OneCluster()
			if err != nil {
				return err
			}
			if !yes && !s.Confirm("Remove the cluster of context %s from its clusterset? The other clusters remove its endpoints.", k.Context) {
				return errors.New("not confirmed: nothing was changed")
			}
			return leaveClusterSet(cmd.Context(), s, k, timeout)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().DurationVar(&timeout, "wait", membershipWait, "how long to wait until the cluster has left; 0 does not wait")
	return cmd
}

func leaveClusterSet(ctx context.Context, s *session.Session, k *session.Cluster, timeout time.Duration) error {
	deleted, err := deleteProperties(ctx, s, k)
	if err != nil {
		return err
	}
	if !deleted {
		s.Printf("%s: the cluster has no ClusterProperties with an identity", k.Context)
	}
	if timeout <= 0 {
		return nil
	}
	last, err := waitForStatus(ctx, s, k, timeout, func(st *status.Status) bool {
		return st.Leader && len(st.Leaving) == 0 && (st.Identity == nil || !deleted)
	})
	if err != nil {
		return fmt.Errorf("waiting until the cluster has left: %w", err)
	}
	if last.Identity != nil {
		return fmt.Errorf("the cluster is still %s of clusterset %s: the controller has its identity from the flags --cluster-id and --clusterset-id",
			last.Identity.ClusterID, last.Identity.ClusterSetID)
	}
	s.Printf("%s: the cluster is not a member of a clusterset: %s", k.Context, last.Problem)
	return nil
}

// deleteProperties deletes the cluster's identity and reports whether there was one.
func deleteProperties(ctx context.Context, s *session.Session, k *session.Cluster) (deleted bool, err error) {
	c, err := k.Objects()
	if err != nil {
		return false, err
	}
	for _, name := range []string{aboutv1beta1.ClusterIDProperty, aboutv1beta1.ClusterSetIDProperty} {
		err := c.Delete(ctx, &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err != nil && !session.IsNotFound(err) {
			return deleted, fmt.Errorf("deleting ClusterProperty %s: %w", name, err)
		}
		if err == nil {
			deleted = true
			s.Printf("%s: ClusterProperty %s deleted", k.Context, name)
		}
	}
	return deleted, nil
}
