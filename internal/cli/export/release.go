package export

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func releaseCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release SERVICE",
		Short: "Release the clusterset IPs that an ended import holds",
		Long: "Deletes the Service that holds the clusterset IPs of an ended import in each context (--clusterset-ip-hold). If the service is\n" +
			"exported again, it gets other IPs. \"kubectl mcs status -o wide\" lists the IPs that are held. An import that is in use is not\n" +
			"changed.",
		Example: "  kubectl mcs release web -n shop --context cls1,cls2",
		Args:    session.RequireService,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInEachCluster(s, func(k *session.Cluster, namespace string) error {
				return releaseIPs(cmd.Context(), s, k, namespace, args[0])
			})
		},
	}
	s.AddNamespaceFlag(cmd)
	return cmd
}

// releaseIPs deletes the Services that hold the IPs of an ended import.
func releaseIPs(ctx context.Context, s *session.Session, k *session.Cluster, namespace, name string) error {
	var found corev1.ServiceList
	labels := client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: name}
	if err := k.List(ctx, namespace, &found, labels); err != nil {
		return fmt.Errorf("listing the Services of import %s/%s: %w", namespace, name, err)
	}
	c, err := k.Objects()
	if err != nil {
		return err
	}
	released := 0
	for i := range found.Items {
		svc := &found.Items[i]
		if !plan.IsHeld(svc) {
			continue
		}
		// The controller may have taken it into use again since it was read.
		unchanged := client.Preconditions(metav1.Preconditions{UID: &svc.UID, ResourceVersion: &svc.ResourceVersion})
		if err := c.Delete(ctx, svc, unchanged); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting Service %s/%s, which holds the IPs of %s: %w", svc.Namespace, svc.Name, name, err)
		}
		released++
		s.Printf("%s: released clusterset IP %s of the ended import %s/%s", k.Context, strings.Join(svc.Spec.ClusterIPs, ","), namespace, name)
	}
	if released == 0 {
		s.Printf("%s: no IP of %s/%s is held", k.Context, namespace, name)
	}
	return nil
}
