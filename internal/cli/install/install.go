// Package install has the commands that change a whole cluster: install, uninstall, join,
// leave, forget and trust.
package install

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/crds"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped/servicesfile"
)

// fieldManager is the name of this plugin in the managedFields of the objects that it applies.
const fieldManager = names.Plugin

// installWait covers pulling the image and the first readiness of the Deployment.
const installWait = 2 * time.Minute

// Commands returns the commands of this package.
func Commands(s *session.Session) []*cobra.Command {
	return []*cobra.Command{installCommand(s), uninstallCommand(s), joinCommand(s), leaveCommand(s), forgetCommand(s), trustCommand(s)}
}

// installOptions are the flags of install.
type installOptions struct {
	installation
	dryRun bool
	wait   time.Duration
	// cost describes AWS's bill for a cluster, "" if there is none.
	cost string
}

func installCommand(s *session.Session) *cobra.Command {
	var o installOptions
	paths := map[mountedFile]*string{}
	cmd := &cobra.Command{
		Use:   "install [-- CONTROLLER FLAGS]",
		Short: "Install or upgrade the controller and its CRDs",
		Long: "Applies the manifests of deploy/crds and deploy/base in the cluster of each context and waits until the controller is available. Flags\n" +
			"after -- are passed to the controller (" + docs.URL("reference/flags.md") + "). Installed CRDs of a newer release are kept.\n" +
			"A cluster becomes a member of a clusterset when it has an identity: kubectl mcs join.",
		Example: "  kubectl mcs install --context cls1,cls2 \\\n" +
			"    --service-account-annotation eks.amazonaws.com/role-arn=arn:aws:iam::111122223333:role/mcs -- --aws-region=eu-west-1\n" +
			"  kubectl mcs install --dry-run > mcs.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at > 0 || at < 0 && len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: write flags of the controller after --", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := config.Parse(args)
			if err != nil {
				return session.Usagef("reading the controller's flags: %w", err)
			}
			o.args, o.namespace = args, s.ControllerNamespace
			if o.files, err = readFiles(paths); err != nil {
				return err
			}
			_, mapped := o.files[servicesFile]
			o.cost = forecast(options, mapped)
			return runInstall(cmd.Context(), s, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.image, "image", "", "image of the controller (default: that of the release; "+docs.URL("install.md#image")+" says how to make one)")
	flags.IntVar(&o.replicas, "replicas", 2, "number of controller pods: one is the leader, the others are standbys")
	flags.StringToStringVar(&o.annotations, "service-account-annotation", nil, "annotation of the controller's ServiceAccount, as name=value")
	paths[policyFile] = flags.String("import-policy-file", "", "file with the import policy, which becomes a ConfigMap ("+docs.URL("security/import-policy.md")+"); it can be changed there without a restart")
	paths[servicesFile] = flags.String("cloud-map-services-file", "", "file with the services of AWS Cloud Map to import, which becomes a ConfigMap ("+docs.URL("ecs-ec2-lambda.md")+"); it can be changed there without a restart")
	flags.StringVar(&o.secret, "env-secret", "", "Secret with environment variables for the controller, such as AWS_ACCESS_KEY_ID")
	flags.BoolVar(&o.editRole, "edit-role", false, "let users with the ClusterRole edit or admin in a namespace export its Services ("+docs.URL("install.md#roles-for-teams")+")")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the manifests without changing anything")
	flags.DurationVar(&o.wait, "wait", installWait, "how long to wait until the controller is available; 0 does not wait")
	return cmd
}

// parsers check the content of the mounted files.
var parsers = map[mountedFile]func([]byte) error{
	policyFile:   func(text []byte) error { _, err := policy.Parse(text); return err },
	servicesFile: func(text []byte) error { _, err := servicesfile.Parse(text); return err },
}

// readFiles returns the content of the files that have a path.
func readFiles(paths map[mountedFile]*string) (map[mountedFile]string, error) {
	files := map[mountedFile]string{}
	for _, f := range mountedFiles {
		path := paths[f]
		if path == nil || *path == "" {
			continue
		}
		text, err := os.ReadFile(*path) //nolint:gosec // the user names the file
		if err != nil {
			return nil, session.Usagef("reading --%s-file: %w", f.name, err)
		}
		if err := parsers[f](text); err != nil {
			return nil, session.Usagef("--%s-file=%s: %w", f.name, *path, err)
		}
		files[f] = string(text)
	}
	return files, nil
}

func runInstall(ctx context.Context, s *session.Session, o installOptions) error {
	objects, err := renderManifests(o.installation)
	if err != nil {
		return err
	}
	if o.dryRun {
		return s.PrintManifests(objects)
	}
	clusters, err := s.Clusters()
	if err != nil {
		return err
	}
	errs := make([]error, len(clusters))
	for i, k := range clusters {
		if errs[i] = checkFilesKept(ctx, k, o.installation); errs[i] == nil {
			errs[i] = installInCluster(ctx, s, k, objects, o.wait)
		}
	}
	if o.cost != "" && slices.Contains(errs, nil) {
		s.Printf("cost: %s", o.cost)
	}
	return session.JoinErrors(clusters, errs)
}

// checkFilesKept returns an error if the cluster has a mounted file that the installation would put
// out of use.
func checkFilesKept(ctx context.Context, k *session.Cluster, i installation) error {
	for _, f := range mountedFiles {
		if _, ok := i.files[f]; ok {
			continue
		}
		exists, err := k.Find(ctx, i.namespace, f.configMap(), &corev1.ConfigMap{})
		if err != nil {
			return err
		}
		if exists {
			return session.Usagef("ConfigMap %s/%s has a file of --%s, which would not be used any more: set --%[3]s-file, or delete the ConfigMap first",
				i.namespace, f.configMap(), f.name)
		}
	}
	return nil
}

func installInCluster(ctx context.Context, s *session.Session, k *session.Cluster, objects []*unstructured.Unstructured, timeout time.Duration) error {
	installed, err := crds.ReadInstalled(ctx, k)
	if err != nil {
		return err
	}
	c, err := k.Objects()
	if err != nil {
		return err
	}
	objects, kept := splitNewerCRDs(objects, installed)
	for _, o := range kept {
		s.Printf("%s: %s kept: the installed %s is newer", k.Context, session.ObjectName(o), installed[o.GetName()])
	}
	for _, o := range objects {
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner(fieldManager), client.ForceOwnership); err != nil {
			return fmt.Errorf("applying %s: %w", session.ObjectName(o), err)
		}
		s.Printf("%s: %s applied", k.Context, session.ObjectName(o))
	}
	if timeout <= 0 {
		return nil
	}
	if err := waitForController(ctx, s, k, timeout); err != nil {
		return err
	}
	s.Printf("%s: the controller is available; next: kubectl mcs dns enable, kubectl mcs join", k.Context)
	return nil
}

// waitForController waits until all pods of the controller are updated and available, or the nodes
// cannot pull their image.
func waitForController(ctx context.Context, s *session.Session, k *session.Cluster, timeout time.Duration) error {
	var d appsv1.Deployment
	err := k.Poll(ctx, timeout, func() (bool, error) {
		exists, err := k.Find(ctx, s.ControllerNamespace, session.ManagerName, &d)
		if err != nil || !exists {
			return false, err
		}
		if session.IsRolledOut(&d) {
			return true, nil
		}
		image := d.Spec.Template.Spec.Containers[0].Image
		problem, err := k.ImageProblem(ctx, &d, session.ManagerLabels(), image)
		if err != nil {
			return false, err
		}
		if problem != "" {
			return false, fmt.Errorf("waiting for the controller: a node cannot pull the image %s (%s)\n"+
				"  install with --image and an image that the nodes can pull: "+docs.URL("install.md#image")+" says how to make one\n"+
				"  if it exists by now: kubectl --context %s -n %s rollout restart deployment %s",
				image, problem, k.Context, s.ControllerNamespace, session.ManagerName)
		}
		return false, nil
	})
	if err == nil || !wait.Interrupted(err) {
		return err
	}
	return session.Incompletef("waiting for the controller: after %s %d of %d pods are updated and available; find the reason: kubectl --context %s -n %s describe deployment %s",
		timeout, min(d.Status.UpdatedReplicas, d.Status.AvailableReplicas), d.Status.Replicas, k.Context, s.ControllerNamespace, session.ManagerName)
}
