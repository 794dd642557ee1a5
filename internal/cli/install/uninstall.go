package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/dns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// uninstallOptions are the flags of uninstall.
type uninstallOptions struct {
	crds, dryRun, yes bool
	wait              time.Duration
}

func uninstallCommand(s *session.Session) *cobra.Command {
	var o uninstallOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the controller and all objects that it created",
		Long: "Removes the cluster from its clusterset, undoes dns enable, and deletes the controller and the ServiceImports, derived\n" +
			"Services, EndpointSlices and ClusterProperties that it created. Keeps ServiceExports and CRDs. With --crds it also\n" +
			"deletes the CRDs, and with them all ServiceExports and the ServiceImports of other implementations. Asks for confirmation.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.wait <= 0 {
				return session.Usagef("reading --wait: leaving the clusterset takes some time, so %s is too short", o.wait)
			}
			k, err := s.OneCluster()
			if err != nil {
				return err
			}
			return runUninstall(cmd.Context(), s, k, o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.crds, "crds", false, "also delete the CRDs and all their objects")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print what would be deleted without changing anything")
	flags.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	flags.DurationVar(&o.wait, "wait", leaveWait, "how long to wait until the cluster has left its clusterset")
	return cmd
}

// A removal has the objects that uninstall deletes.
type removal struct {
	hasController bool // a controller runs and can withdraw the exports
	hasDNS        bool // clusterset.local is enabled, at least partially
	managed       []client.Object
	installed     []*unstructured.Unstructured
}

func runUninstall(ctx context.Context, s *session.Session, k *session.Cluster, o uninstallOptions) error {
	r, err := planRemoval(ctx, s, k, o)
	if err != nil {
		return err
	}
	for _, line := range r.lines() {
		s.Printf("%s: %s", k.Context, line)
	}
	if o.dryRun {
		return nil
	}
	if !o.yes && !s.Confirm("Remove these objects from the cluster of context %s?", k.Context) {
		return errors.New("not confirmed: nothing was changed")
	}
	return r.execute(ctx, s, k, o)
}

func planRemoval(ctx context.Context, s *session.Session, k *session.Cluster, o uninstallOptions) (removal, error) {
	var r removal
	objects, err := renderManifests(installation{namespace: s.ControllerNamespace, replicas: 1, editRole: true})
	if err != nil {
		return r, err
	}
	for _, object := range reversed(objects) {
		if isCRD(object) && !o.crds {
			continue
		}
		metadata := &metav1.PartialObjectMetadata{}
		metadata.SetGroupVersionKind(object.GroupVersionKind())
		exists, err := k.Find(ctx, object.GetNamespace(), object.GetName(), metadata)
		if err != nil {
			return r, fmt.Errorf("reading %s: %w", session.ObjectName(object), err)
		}
		if exists {
			r.installed = append(r.installed, object)
		}
	}
	if r.managed, err = listManagedObjects(ctx, k); err != nil {
		return r, err
	}
	if status, err := dns.ReadStatus(ctx, k); err == nil {
		r.hasDNS = status.State != coredns.Disabled
	}
	_, err = s.Leader(ctx, k)
	r.hasController = err == nil
	return r, nil
}

// listManagedObjects returns the objects with the controller's managed-by label, which it created
// in users' namespaces, and the ClusterProperties that it has derived.
func listManagedObjects(ctx context.Context, k *session.Cluster) ([]client.Object, error) {
	var imported discoveryv1.EndpointSliceList
	if err := k.List(ctx, "", &imported, client.MatchingLabels{plan.LabelManagedBy: plan.ManagedBy}); err != nil {
		return nil, fmt.Errorf("listing EndpointSlices: %w", err)
	}
	managedBy := client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}
	var services corev1.ServiceList
	if err := k.List(ctx, "", &services, managedBy); err != nil {
		return nil, fmt.Errorf("listing Services: %w", err)
	}
	var imports mcsv1beta1.ServiceImportList
	if err := k.List(ctx, "", &imports, managedBy); err != nil && !session.IsNotFound(err) {
		return nil, fmt.Errorf("listing ServiceImports: %w", err)
	}
	var properties aboutv1beta1.ClusterPropertyList
	if err := k.List(ctx, "", &properties, managedBy); err != nil && !session.IsNotFound(err) {
		return nil, fmt.Errorf("listing ClusterProperties: %w", err)
	}
	var managed []client.Object
	for i := range properties.Items {
		if plan.IsDerivedProperty(&properties.Items[i]) {
			managed = append(managed, &properties.Items[i])
		}
	}
	for i := range imports.Items {
		managed = append(managed, &imports.Items[i])
	}
	for i := range services.Items {
		managed = append(managed, &services.Items[i])
	}
	for i := range imported.Items {
		managed = append(managed, &imported.Items[i])
	}
	return managed, nil
}

// lines returns the effects of the removal, one line each.
func (r removal) lines() []string {
	var lines []string
	switch {
	case r.hasController:
		lines = append(lines, "the cluster leaves its clusterset: its exports are withdrawn from the registry")
	case len(r.installed) > 0:
		lines = append(lines, "the cluster cannot leave its clusterset, because no controller runs: the other clusters keep its imports until kubectl mcs forget")
	}
	if r.hasDNS {
		lines = append(lines, coredns.Zone+" is disabled in CoreDNS")
	}
	counts := map[string]int{}
	for _, o := range r.managed {
		switch o.(type) {
		case *mcsv1beta1.ServiceImport:
			counts["ServiceImports"]++
		case *corev1.Service:
			counts["derived Services"]++
		case *aboutv1beta1.ClusterProperty:
			counts["derived ClusterProperties"]++
		default:
			counts["imported EndpointSlices"]++
		}
	}
	for _, kind := range []string{"ServiceImports", "derived Services", "imported EndpointSlices", "derived ClusterProperties"} {
		if counts[kind] > 0 {
			lines = append(lines, fmt.Sprintf("%d %s are deleted", counts[kind], kind))
		}
	}
	for _, o := range r.installed {
		lines = append(lines, session.ObjectName(o)+" is deleted")
	}
	if len(lines) == 0 {
		lines = append(lines, "nothing to remove: the controller is not installed")
	}
	return lines
}

// execute leaves the clusterset while the controller runs, stops the controller, and deletes the
// objects that it created, then those of the installation.
func (r removal) execute(ctx context.Context, s *session.Session, k *session.Cluster, o uninstallOptions) error {
	var left []status.Leftover
	if r.hasController {
		var err error
		if left, err = leaveClusterSet(ctx, s, k, o.wait); err != nil {
			return fmt.Errorf("%w\nThe controller was not removed, so that it can withdraw the exports of this cluster. To remove it anyway, delete "+
				"Deployment %s/%s and run this command again: the other clusters then keep the imports from this cluster until kubectl mcs forget",
				err, s.ControllerNamespace, session.ManagerName)
		}
	}
	if r.hasDNS {
		if err := dns.Disable(ctx, s, k); err != nil {
			return err
		}
	}
	if err := stopController(ctx, k, r.installed); err != nil {
		return err
	}
	objects := r.managed
	for _, object := range r.installed {
		objects = append(objects, object.DeepCopy())
	}
	c, err := k.Objects()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := c.Delete(ctx, object); err != nil && !session.IsNotFound(err) {
			return fmt.Errorf("deleting %T %s/%s: %w", object, object.GetNamespace(), object.GetName(), err)
		}
	}
	s.Printf("%s: uninstalled", k.Context)
	return incompleteIf(left)
}

// stopController deletes the controller's Deployment, if it is among the objects, and waits until
// its pods are deleted, so that it does not recreate the objects that are deleted next.
func stopController(ctx context.Context, k *session.Cluster, objects []*unstructured.Unstructured) error {
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	if i < 0 {
		return nil
	}
	deployment := objects[i].DeepCopy()
	c, err := k.Objects()
	if err != nil {
		return err
	}
	err = c.Delete(ctx, deployment, client.PropagationPolicy(metav1.DeletePropagationForeground))
	if err != nil && !session.IsNotFound(err) {
		return fmt.Errorf("deleting %s: %w", session.ObjectName(deployment), err)
	}
	err = k.Poll(ctx, installWait, func() (bool, error) {
		exists, err := k.Find(ctx, deployment.GetNamespace(), deployment.GetName(), &appsv1.Deployment{})
		return !exists, err
	})
	switch {
	case err == nil:
		return nil
	case wait.Interrupted(err):
		return session.Incompletef("waiting until %s is deleted: it still exists after %s; run this command again", session.ObjectName(deployment), installWait)
	}
	return fmt.Errorf("waiting until %s is deleted: %w", session.ObjectName(deployment), err)
}
