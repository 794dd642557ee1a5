package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// membershipWait covers a claim of an ID that another cluster used until now (a minute), and a removal with retries.
const membershipWait = 90 * time.Second

// joinOptions are the flags of join.
type joinOptions struct {
	clusterID, clusterSetID string
	force                   bool
	wait                    time.Duration
}

func (a *app) joinCommand() *cobra.Command {
	var o joinOptions
	cmd := &cobra.Command{
		Use:   "join --cluster-id=ID --clusterset-id=ID",
		Short: "Make a cluster a member of a clusterset",
		Long: "Writes the two ClusterProperties that say who the cluster is, and waits until it is a member. An identity that the cluster\n" +
			"has already is changed with --force only: what it exports moves to the new identity then.",
		Example: "  kubectl mcs join --context cls1 --cluster-id=cls1 --clusterset-id=production",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for flag, id := range map[string]string{"cluster-id": o.clusterID, "clusterset-id": o.clusterSetID} {
				if err := mcs.ValidateClusterID(id); err != nil {
					return usagef("reading --%s: %w", flag, err)
				}
			}
			k, err := a.oneCluster()
			if err != nil {
				return err
			}
			return a.join(cmd.Context(), k, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.clusterID, "cluster-id", "", "the cluster's ID, unique in the clusterset: a DNS label")
	flags.StringVar(&o.clusterSetID, "clusterset-id", "", "the clusterset's ID, the same in all its clusters: a DNS label")
	flags.BoolVar(&o.force, "force", false, "change an identity that is there already")
	flags.DurationVar(&o.wait, "wait", membershipWait, "how long to wait until it is a member; 0 does not wait")
	return cmd
}

func (a *app) join(ctx context.Context, k *cluster, o joinOptions) error {
	wanted := []struct{ name, value string }{
		{aboutv1beta1.ClusterIDProperty, o.clusterID}, {aboutv1beta1.ClusterSetIDProperty, o.clusterSetID},
	}
	have := map[string]string{}
	for _, w := range wanted {
		var property aboutv1beta1.ClusterProperty
		if _, err := find(ctx, k, "", w.name, &property); err != nil {
			return fmt.Errorf("reading ClusterProperty %s: %w", w.name, err)
		}
		have[w.name] = property.Spec.Value
		if v := property.Spec.Value; v != "" && v != w.value && !o.force {
			return fmt.Errorf("ClusterProperty %s is %q already: leave that clusterset first (kubectl mcs leave), or change it with --force", w.name, v)
		}
	}
	c, err := k.objects()
	if err != nil {
		return err
	}
	for _, w := range wanted {
		if have[w.name] == w.value {
			a.say("%s: ClusterProperty %s is %s already", k.context, w.name, w.value)
			continue
		}
		if err := setProperty(ctx, c, w.name, w.value); err != nil {
			return err
		}
		a.say("%s: ClusterProperty %s is %s", k.context, w.name, w.value)
	}
	if o.wait <= 0 {
		return nil
	}
	return a.awaitMember(ctx, k, o)
}

func setProperty(ctx context.Context, c client.Client, name, value string) error {
	property := &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: aboutv1beta1.ClusterPropertySpec{Value: value}}
	err := c.Create(ctx, property)
	if apierrors.IsAlreadyExists(err) {
		if err = c.Get(ctx, client.ObjectKeyFromObject(property), property); err == nil {
			property.Spec.Value = value
			err = c.Update(ctx, property)
		}
	}
	if absent(err) {
		return errors.New("the cluster does not know ClusterProperties: install the CRDs with \"kubectl mcs install\"")
	}
	if err != nil {
		return fmt.Errorf("writing ClusterProperty %s: %w", name, err)
	}
	return nil
}

// awaitMember waits until the registry shows the cluster as a member, and no longer than until it is known that another
// cluster has its ID.
func (a *app) awaitMember(ctx context.Context, k *cluster, o joinOptions) error {
	said, err := a.awaitStatus(ctx, k, o.wait, func(s *status.Status) bool {
		return isMember(s, o) || hasIdentity(s, o) && s.WriteProblem != ""
	})
	switch {
	case err != nil:
		return fmt.Errorf("waiting until the cluster is a member: %w", err)
	case isMember(said, o):
		a.say("%s: cluster %s is a member of clusterset %s, one of %d", k.context, o.clusterID, o.clusterSetID, len(said.Members))
		return nil
	}
	return fmt.Errorf("the cluster does not become a member: %s", said.WriteProblem)
}

func hasIdentity(s *status.Status, o joinOptions) bool {
	return s.Identity != nil && s.Identity.ClusterID == o.clusterID && s.Identity.ClusterSetID == o.clusterSetID
}

func isMember(s *status.Status, o joinOptions) bool {
	if !hasIdentity(s, o) || !s.Synced {
		return false
	}
	for _, m := range s.Members {
		if isOwn(s, m) {
			return s.WriteProblem == ""
		}
	}
	return false
}

// awaitStatus waits until what the controller says is met, and returns what it said last.
func (a *app) awaitStatus(ctx context.Context, k *cluster, timeout time.Duration, met func(*status.Status) bool) (*status.Status, error) {
	var said status.Status
	var problem error
	err := poll(ctx, k, timeout, func() (bool, error) {
		said, problem = askController[status.Status](ctx, a, k, status.PathStatus)
		return problem == nil && met(&said), nil
	})
	if err == nil {
		return &said, nil
	}
	if problem == nil {
		problem = errors.New(strings.Join(append(troubles([]sight{{Context: k.context, Status: &said}}), "see kubectl mcs status"), "; "))
	}
	return nil, fmt.Errorf("not within %s: %w", timeout, problem)
}

func (a *app) leaveCommand() *cobra.Command {
	var yes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Take a cluster out of its clusterset",
		Long: "Deletes the two ClusterProperties. The controller then takes all that this cluster exports out of the registry; what the\n" +
			"cluster has imported stays as it is. Asks first.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := a.oneCluster()
			if err != nil {
				return err
			}
			if !yes && !a.confirmed("Take the cluster of context %s out of its clusterset? The others lose its endpoints.", k.context) {
				return errors.New("nothing was changed")
			}
			return a.leave(cmd.Context(), k, timeout)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().DurationVar(&timeout, "wait", membershipWait, "how long to wait until it has left; 0 does not wait")
	return cmd
}

func (a *app) leave(ctx context.Context, k *cluster, timeout time.Duration) error {
	deleted, err := a.deleteProperties(ctx, k)
	if err != nil {
		return err
	}
	if !deleted {
		a.say("%s: there are no ClusterProperties of a clusterset", k.context)
	}
	if timeout <= 0 {
		return nil
	}
	said, err := a.awaitStatus(ctx, k, timeout, func(s *status.Status) bool {
		return s.Leader && len(s.Leaving) == 0 && (s.Identity == nil || !deleted)
	})
	if err != nil {
		return fmt.Errorf("waiting until the cluster has left: %w", err)
	}
	if said.Identity != nil {
		return fmt.Errorf("the cluster is still %s of clusterset %s: its identity comes from the controller's flags --cluster-id and --clusterset-id",
			said.Identity.ClusterID, said.Identity.ClusterSetID)
	}
	a.say("%s: the cluster is in no clusterset: %s", k.context, said.Problem)
	return nil
}

// deleteProperties takes the cluster's identity away, and says whether there was one.
func (a *app) deleteProperties(ctx context.Context, k *cluster) (deleted bool, err error) {
	c, err := k.objects()
	if err != nil {
		return false, err
	}
	for _, name := range []string{aboutv1beta1.ClusterIDProperty, aboutv1beta1.ClusterSetIDProperty} {
		err := c.Delete(ctx, &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err != nil && !absent(err) {
			return deleted, fmt.Errorf("deleting ClusterProperty %s: %w", name, err)
		}
		if err == nil {
			deleted = true
			a.say("%s: ClusterProperty %s deleted", k.context, name)
		}
	}
	return deleted, nil
}

// confirmed asks a yes-or-no question. Anything but yes is no, the end of the input too.
func (a *app) confirmed(format string, args ...any) bool {
	_, _ = fmt.Fprintf(a.ErrOut, format+" [yes/no] ", args...)
	answer, _ := bufio.NewReader(a.In).ReadString('\n')
	if !strings.HasSuffix(answer, "\n") {
		_, _ = fmt.Fprintln(a.ErrOut)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "yes" || answer == "y"
}
