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
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// membershipWait covers acquiring an ID that another cluster used until recently (a minute), and a
// withdrawal with retries.
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
	if err := writeRequests(ctx, s, k, map[string]any{names.LeaveKey(o.clusterSetID, o.clusterID): nil}); err != nil {
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

// waitForMembership waits until the registry has the cluster as a member, or the controller reports
// that it cannot join.
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
	return fmt.Errorf("joining the clusterset: %s", session.Printable(last.WriteProblem))
}

func hasIdentity(st *status.Status, o joinOptions) bool {
	return st.Identity != nil && st.Identity.ClusterID == o.clusterID && st.Identity.ClusterSetID == o.clusterSetID
}

func isMember(st *status.Status, o joinOptions) bool {
	return hasIdentity(st, o) && st.Synced && st.WriteProblem == "" &&
		slices.ContainsFunc(st.Members, func(m status.Member) bool { return show.IsOwnMember(st, m) })
}

// waitForStatus waits until the controller's status meets the condition, and returns the last
// status.
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
	if !wait.Interrupted(err) {
		return nil, err
	}
	if queryErr == nil {
		queryErr = errors.New(strings.Join(append(show.Problems(k.Context, &last), "run kubectl mcs status --context "+k.Context), "; "))
	}
	return nil, session.Incompletef("timed out after %s: %w", timeout, queryErr)
}
