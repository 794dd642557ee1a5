package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// fieldManager is this plugin in the managedFields of what it applies.
const fieldManager = names.Plugin

// installWait covers pulling the image and the Deployment's first readiness.
const installWait = 2 * time.Minute

// installOptions are the flags of install.
type installOptions struct {
	installation
	dryRun bool
	wait   time.Duration
}

func (a *app) installCommand() *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install [-- CONTROLLER FLAGS]",
		Short: "Install or upgrade the controller and its CRDs",
		Long: "Applies the manifests of deploy/base in the cluster of each context and waits until the controller is available. What comes\n" +
			"after -- is for the controller itself (docs/reference/flags.md). CRDs that are there in a newer release stay as they are.\n" +
			"The cluster takes part in a clusterset once it has an identity: kubectl mcs join.",
		Example: "  kubectl mcs install --context cls1,cls2 \\\n" +
			"    --service-account-annotation eks.amazonaws.com/role-arn=arn:aws:iam::111122223333:role/mcs -- --aws-region=eu-west-1\n" +
			"  kubectl mcs install --dry-run > mcs.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at > 0 || at < 0 && len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: flags of the controller come after --", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := config.Parse(args); err != nil {
				return usageError{fmt.Errorf("reading the controller's flags: %w", err)}
			}
			o.args, o.namespace = args, a.controllerNamespace
			return a.install(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.image, "image", "", "the controller's image; the release's when empty")
	flags.IntVar(&o.replicas, "replicas", 1, "pods of the controller: one works, the others stand by")
	flags.StringToStringVar(&o.annotations, "service-account-annotation", nil, "annotation of the controller's ServiceAccount, as name=value")
	flags.StringVar(&o.secret, "env-secret", "", "Secret with environment variables for the controller, such as AWS_ACCESS_KEY_ID")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the manifests and change nothing")
	flags.DurationVar(&o.wait, "wait", installWait, "how long to wait until the controller is available; 0 does not wait")
	return cmd
}

func (a *app) install(ctx context.Context, o installOptions) error {
	objects, err := manifests(o.installation)
	if err != nil {
		return err
	}
	if o.dryRun {
		return a.printManifests(objects)
	}
	clusters, err := a.clusters()
	if err != nil {
		return err
	}
	errs := make([]error, len(clusters))
	for i, k := range clusters {
		errs[i] = a.installIn(ctx, k, objects, o.wait)
	}
	return joinContexts(clusters, errs)
}

func (a *app) printManifests(objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		if _, err := fmt.Fprintln(a.Out, "---"); err != nil {
			return err
		}
		if err := printYAML(a.Out, o.Object); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) installIn(ctx context.Context, k *cluster, objects []*unstructured.Unstructured, timeout time.Duration) error {
	installed, err := installedCRDs(ctx, k)
	if err != nil {
		return err
	}
	c, err := k.objects()
	if err != nil {
		return err
	}
	objects, left := withoutNewer(objects, installed)
	for _, o := range left {
		a.say("%s: %s stays: %s is newer than ours", k.context, named(o), installed[o.GetName()])
	}
	for _, o := range objects {
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner(fieldManager), client.ForceOwnership); err != nil {
			return fmt.Errorf("applying %s: %w", named(o), err)
		}
		a.say("%s: %s applied", k.context, named(o))
	}
	if timeout <= 0 {
		return nil
	}
	if err := a.awaitController(ctx, k, timeout); err != nil {
		return err
	}
	a.say("%s: the controller is available; next: kubectl mcs dns enable, kubectl mcs join", k.context)
	return nil
}

// awaitController waits until every pod of the controller is updated and available.
func (a *app) awaitController(ctx context.Context, k *cluster, timeout time.Duration) error {
	var d appsv1.Deployment
	err := poll(ctx, k, timeout, func() (bool, error) {
		there, err := find(ctx, k, a.controllerNamespace, managerName, &d)
		return there && rolledOut(&d), err
	})
	if err == nil || !wait.Interrupted(err) {
		return err
	}
	return fmt.Errorf("waiting for the controller: after %s %d of %d pods are updated and available; see kubectl --context %s -n %s describe deployment %s",
		timeout, min(d.Status.UpdatedReplicas, d.Status.AvailableReplicas), d.Status.Replicas, k.context, a.controllerNamespace, managerName)
}
