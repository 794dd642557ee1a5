package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func leaveCommand(s *session.Session) *cobra.Command {
	var yes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Remove a cluster from its clusterset",
		Long: "Requests that the controller withdraws all exports of this cluster from the registry, waits until it has, and deletes the two\n" +
			"ClusterProperties. Services that the cluster has imported do not change. Asks for confirmation. Without a controller, the\n" +
			"exports stay in the registry, and the exit code is 3. It is 3 too if namespaces or services stay in AWS Cloud Map that the\n" +
			"controller could not delete: the command prints those that delete them.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := s.OneCluster()
			if err != nil {
				return err
			}
			if !yes && !s.Confirm("Remove the cluster of context %s from its clusterset? The other clusters remove its endpoints.", k.Context) {
				return errors.New("not confirmed: nothing was changed")
			}
			left, err := leaveClusterSet(cmd.Context(), s, k, timeout)
			return cmp.Or(err, incompleteIf(left))
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().DurationVar(&timeout, "wait", leaveWait, "how long to wait until the cluster has left; 0 does not wait")
	return cmd
}

// leaveWait covers the attempt of the controller, which waits up to 10 minutes for AWS Cloud Map to
// delete what the cluster created, and the time in which a record of a previous process must not
// change.
const leaveWait = 15 * time.Minute

// printLeftovers prints the resources that stay in the registry, with the commands that delete
// them.
func printLeftovers(s *session.Session, k *session.Cluster, left []status.Leftover) {
	for _, l := range left {
		by := ""
		if l.IsProtected {
			by = " by an administrator, or with the stack that created it"
		}
		s.Printf("%s: %s stays: %s", k.Context, l.Resource, l.Reason)
		s.Printf("%s: to be deleted%s: %s", k.Context, by, l.Command)
	}
}

// incompleteIf returns ErrIncomplete if a resource stays that the controller could have deleted.
func incompleteIf(left []status.Leftover) error {
	if slices.ContainsFunc(left, func(l status.Leftover) bool { return !l.IsProtected }) {
		return session.ErrIncomplete
	}
	return nil
}

// leaveClusterSet requests that the controller leaves, waits until it has, and deletes the
// identity. It returns what stays in the registry.
func leaveClusterSet(ctx context.Context, s *session.Session, k *session.Cluster, timeout time.Duration) ([]status.Leftover, error) {
	identities, err := readIdentities(ctx, s, k)
	if err != nil {
		return nil, err
	}
	_, leaderErr := s.Leader(ctx, k)
	if leaderErr == nil && timeout > 0 {
		// The identity may be that of flags.
		if st, err := session.QueryController[status.Status](ctx, s, k, status.PathStatus); err == nil && st.Identity != nil {
			identities = append(identities, mcs.Identity{ClusterSetID: st.Identity.ClusterSetID, ClusterID: st.Identity.ClusterID})
		}
	}
	if err := requestLeave(ctx, s, k, identities); err != nil {
		return nil, err
	}
	if leaderErr != nil {
		return nil, leaveWithoutController(ctx, s, k, identities, leaderErr)
	}
	if timeout <= 0 {
		return nil, deleteProperties(ctx, s, k)
	}
	progress := newProgress(k.Now, func(line string) { s.Progressf("%s: %s", k.Context, line) })
	st, err := waitForStatus(ctx, s, k, timeout, progress.hasLeft)
	if err != nil {
		return nil, fmt.Errorf("waiting until the cluster has left: %w; the controller continues, and this command can be repeated", err)
	}
	if err := deleteProperties(ctx, s, k); err != nil {
		return nil, err
	}
	s.Printf("%s: the cluster is not a member of a clusterset: its exports are withdrawn", k.Context)
	printLeftovers(s, k, st.Leftovers)
	return st.Leftovers, waitForRequests(ctx, s, k, identities)
}

// requestWait covers two intervals at which the controller reads requests.
const requestWait = 10 * time.Second

// waitForRequests waits until the controller has deleted the requests to leave, as it does when the
// cluster has no identity any more, so that it can be uninstalled then. It keeps those of an
// identity that flags set.
func waitForRequests(ctx context.Context, s *session.Session, k *session.Cluster, identities []mcs.Identity) error {
	pending := func() (string, error) {
		data, err := readRequests(ctx, s, k)
		for _, i := range identities {
			if _, ok := data[names.LeaveKey(i.ClusterSetID, i.ClusterID)]; ok {
				return names.LeaveKey(i.ClusterSetID, i.ClusterID), err
			}
		}
		return "", err
	}
	var key string
	err := k.Poll(ctx, requestWait, func() (done bool, err error) {
		key, err = pending()
		return key == "", err
	})
	if err != nil && wait.Interrupted(err) {
		s.Printf("%s: flags of the controller still set the identity. The cluster joins again after kubectl mcs join, or when key %s of ConfigMap %s/%s is deleted",
			k.Context, key, s.ControllerNamespace, names.IdentityConfigMap)
		return nil
	}
	return err
}

func hasLeft(st *status.Status) bool { return st.Leader && st.Identity == nil && len(st.Leaving) == 0 }

// progressInterval is the interval at which leave reports what it waits for.
const progressInterval = 5 * time.Second

// leaveProgress reports what leave waits for.
type leaveProgress struct {
	now       func() time.Time
	report    func(line string)
	began, at time.Time
}

func newProgress(now func() time.Time, report func(line string)) *leaveProgress {
	return &leaveProgress{now: now, report: report, began: now(), at: now().Add(progressInterval)}
}

// hasLeft reports whether the cluster has left, and reports at intervals why it has not.
func (p *leaveProgress) hasLeft(st *status.Status) bool {
	if hasLeft(st) {
		return true
	}
	if now := p.now(); !now.Before(p.at) {
		p.at = now.Add(progressInterval)
		p.report(fmt.Sprintf("waiting for %s: %s", now.Sub(p.began).Round(time.Second), describeLeaving(st)))
	}
	return false
}

// describeLeaving returns why a cluster has not left yet.
func describeLeaving(st *status.Status) string {
	switch {
	case !st.Leader:
		return status.NoLeader
	case st.Identity != nil:
		return "the controller has not begun to leave yet"
	}
	return "the controller withdraws the exports, and waits until the registry shows that the cluster has left"
}

// requestLeave requests that the controller leaves under the identities, and does not join under
// them again.
func requestLeave(ctx context.Context, s *session.Session, k *session.Cluster, identities []mcs.Identity) error {
	if len(identities) == 0 {
		s.Printf("%s: the cluster has no identity", k.Context)
		return nil
	}
	requests := map[string]any{}
	for _, i := range identities {
		requests[names.LeaveKey(i.ClusterSetID, i.ClusterID)] = requestedAt(k, "leave")
	}
	if err := writeRequests(ctx, s, k, requests); err != nil {
		return err
	}
	for i, identity := range identities {
		if !slices.Contains(identities[:i], identity) {
			s.Printf("%s: requested that the controller leaves clusterset %s as %s", k.Context, identity.ClusterSetID, identity.ClusterID)
		}
	}
	return nil
}

// leaveWithoutController deletes the identity of a cluster without a running controller, and
// reports what stays in the registry.
func leaveWithoutController(ctx context.Context, s *session.Session, k *session.Cluster, identities []mcs.Identity, reason error) error {
	if err := deleteProperties(ctx, s, k); err != nil || len(identities) == 0 {
		return err
	}
	s.Printf("%s: no controller can leave: %v", k.Context, reason)
	for i, identity := range identities {
		if !slices.Contains(identities[:i], identity) {
			s.Printf("%s: the exports of %s stay in the registry of clusterset %s until a controller runs in this cluster. Without one, the other clusters "+
				"keep the imports: end them with kubectl mcs forget %s in each of them", k.Context, identity.ClusterID, identity.ClusterSetID, identity.ClusterID)
		}
	}
	return session.ErrIncomplete
}

// deleteProperties deletes the ClusterProperties with the cluster's identity.
func deleteProperties(ctx context.Context, s *session.Session, k *session.Cluster) error {
	c, err := k.Objects()
	if err != nil {
		return err
	}
	for _, name := range []string{aboutv1beta1.ClusterIDProperty, aboutv1beta1.ClusterSetIDProperty} {
		err := c.Delete(ctx, &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err != nil && !session.IsNotFound(err) {
			return fmt.Errorf("deleting ClusterProperty %s: %w", name, err)
		}
		if err == nil {
			s.Printf("%s: ClusterProperty %s deleted", k.Context, name)
		}
	}
	return nil
}
