package cli

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
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// uninstallOptions are the flags of uninstall.
type uninstallOptions struct {
	crds, dryRun, yes bool
	wait              time.Duration
}

func (a *app) uninstallCommand() *cobra.Command {
	var o uninstallOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the controller and all that it made",
		Long: "Takes the cluster out of its clusterset, takes back what dns enable did, and deletes the controller with all ServiceImports,\n" +
			"derived Services and EndpointSlices that it made. ServiceExports are yours and stay; so do the CRDs unless --crds is given,\n" +
			"with which all ServiceExports and other implementations' ServiceImports go too. Asks first.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.wait <= 0 {
				return usagef("reading --wait: it takes some time to leave: %s is not enough", o.wait)
			}
			k, err := a.oneCluster()
			if err != nil {
				return err
			}
			return a.uninstall(cmd.Context(), k, o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.crds, "crds", false, "delete the CRDs as well, and with them all their objects")
	flags.BoolVar(&o.dryRun, "dry-run", false, "say what would be deleted and change nothing")
	flags.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	flags.DurationVar(&o.wait, "wait", membershipWait, "how long to wait until the cluster has left its clusterset")
	return cmd
}

// A removal is what uninstall is going to delete.
type removal struct {
	runs      bool // the controller runs, so that it can leave
	dns       bool // clusterset.local is enabled, at least in part
	made      []client.Object
	installed []*unstructured.Unstructured
}

func (a *app) uninstall(ctx context.Context, k *cluster, o uninstallOptions) error {
	r, err := a.gatherRemoval(ctx, k, o)
	if err != nil {
		return err
	}
	for _, line := range r.lines() {
		a.say("%s: %s", k.context, line)
	}
	if o.dryRun {
		return nil
	}
	if !o.yes && !a.confirmed("Remove all this from the cluster of context %s?", k.context) {
		return errors.New("nothing was changed")
	}
	return a.remove(ctx, k, r, o)
}

func (a *app) gatherRemoval(ctx context.Context, k *cluster, o uninstallOptions) (removal, error) {
	var r removal
	objects, err := manifests(installation{namespace: a.controllerNamespace, replicas: 1})
	if err != nil {
		return r, err
	}
	for _, object := range reversed(objects) {
		if isCRD(object) && !o.crds {
			continue
		}
		there := &metav1.PartialObjectMetadata{}
		there.SetGroupVersionKind(object.GroupVersionKind())
		found, err := find(ctx, k, object.GetNamespace(), object.GetName(), there)
		if err != nil {
			return r, fmt.Errorf("looking for %s: %w", named(object), err)
		}
		if found {
			r.installed = append(r.installed, object)
		}
	}
	if r.made, err = madeByUs(ctx, k); err != nil {
		return r, err
	}
	if status, err := inspectDNS(ctx, k, ""); err == nil {
		r.dns = status.State != coredns.Disabled
	}
	_, err = a.leader(ctx, k)
	r.runs = err == nil
	return r, nil
}

// madeByUs are the objects with our managed-by label: those that the controller made in users' namespaces.
func madeByUs(ctx context.Context, k *cluster) ([]client.Object, error) {
	var imported discoveryv1.EndpointSliceList
	if err := list(ctx, k, "", &imported, client.MatchingLabels{plan.LabelManagedBy: plan.ManagedBy}); err != nil {
		return nil, fmt.Errorf("listing EndpointSlices: %w", err)
	}
	ours := client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}
	var services corev1.ServiceList
	if err := list(ctx, k, "", &services, ours); err != nil {
		return nil, fmt.Errorf("listing Services: %w", err)
	}
	var imports mcsv1beta1.ServiceImportList
	if err := list(ctx, k, "", &imports, ours); err != nil && !absent(err) {
		return nil, fmt.Errorf("listing ServiceImports: %w", err)
	}
	var made []client.Object
	for i := range imports.Items {
		made = append(made, &imports.Items[i])
	}
	for i := range services.Items {
		made = append(made, &services.Items[i])
	}
	for i := range imported.Items {
		made = append(made, &imported.Items[i])
	}
	return made, nil
}

// lines say what is going to happen.
func (r removal) lines() []string {
	var lines []string
	switch {
	case r.runs:
		lines = append(lines, "leaves its clusterset: its exports are taken out of the registry")
	case len(r.installed) > 0:
		lines = append(lines, "cannot leave its clusterset, because no controller runs: the others keep its exports until it counts as stale")
	}
	if r.dns {
		lines = append(lines, coredns.Zone+" is disabled in CoreDNS")
	}
	counts := map[string]int{}
	for _, o := range r.made {
		switch o.(type) {
		case *mcsv1beta1.ServiceImport:
			counts["ServiceImports"]++
		case *corev1.Service:
			counts["derived Services"]++
		default:
			counts["imported EndpointSlices"]++
		}
	}
	for _, kind := range []string{"ServiceImports", "derived Services", "imported EndpointSlices"} {
		if counts[kind] > 0 {
			lines = append(lines, fmt.Sprintf("%d %s are deleted", counts[kind], kind))
		}
	}
	for _, o := range r.installed {
		lines = append(lines, named(o)+" is deleted")
	}
	if len(lines) == 0 {
		lines = append(lines, "nothing of the controller is here")
	}
	return lines
}

// remove leaves the clusterset while the controller runs, stops it, and then deletes what it made and itself.
func (a *app) remove(ctx context.Context, k *cluster, r removal, o uninstallOptions) error {
	if r.runs {
		if err := a.leave(ctx, k, o.wait); err != nil {
			return fmt.Errorf("%w\nThe controller goes on running, so that it can take this cluster out of the registry. To remove it all the same, delete "+
				"Deployment %s/%s and run this again: the other clusters then keep this one's endpoints until it counts as stale", err, a.controllerNamespace, managerName)
		}
	}
	if r.dns {
		if err := a.disableDNSIn(ctx, k, dnsOptions{wait: dnsWait}); err != nil {
			return err
		}
	}
	if err := stopController(ctx, k, r.installed); err != nil {
		return err
	}
	objects := r.made
	for _, object := range r.installed {
		objects = append(objects, object.DeepCopy())
	}
	c, err := k.objects()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := c.Delete(ctx, object); err != nil && !absent(err) {
			return fmt.Errorf("deleting %T %s/%s: %w", object, object.GetNamespace(), object.GetName(), err)
		}
	}
	a.say("%s: done", k.context)
	return nil
}

// stopController deletes the controller's Deployment, if it is among the objects, and waits until its pods are gone, so that
// nothing makes anew what is deleted next.
func stopController(ctx context.Context, k *cluster, objects []*unstructured.Unstructured) error {
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	if i < 0 {
		return nil
	}
	deployment := objects[i].DeepCopy()
	c, err := k.objects()
	if err != nil {
		return err
	}
	err = c.Delete(ctx, deployment, client.PropagationPolicy(metav1.DeletePropagationForeground))
	if err != nil && !absent(err) {
		return fmt.Errorf("deleting %s: %w", named(deployment), err)
	}
	err = poll(ctx, k, installWait, func() (bool, error) {
		there, err := find(ctx, k, deployment.GetNamespace(), deployment.GetName(), &appsv1.Deployment{})
		return !there, err
	})
	if err != nil {
		return fmt.Errorf("waiting until %s is gone: %w", named(deployment), err)
	}
	return nil
}
