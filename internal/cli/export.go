package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// exportWait is how long the registry may take to show an export: the conformance suite allows 20 s.
const exportWait = 20 * time.Second

func (a *app) exportCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "export SERVICE",
		Short: "Export a Service to the clusterset",
		Long: "Creates the ServiceExport of a Service in each context and waits until the other clusters can see it.\n" +
			"Exit code 3 when they cannot within --wait.",
		Example:           "  kubectl mcs export web -n shop --context cls1,cls2",
		Args:              oneService,
		ValidArgsFunction: a.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.forEach(func(k *cluster, namespace string) error {
				return a.export(cmd.Context(), k, namespace, args[0], timeout)
			})
		},
	}
	cmd.Flags().DurationVar(&timeout, "wait", exportWait, "how long to wait until it is exported; 0 does not wait")
	return cmd
}

func (a *app) unexportCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "unexport SERVICE",
		Short:             "Take a Service back from the clusterset",
		Long:              "Deletes the ServiceExport of a Service in each context. The Service itself stays as it is.",
		Args:              oneService,
		ValidArgsFunction: a.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.forEach(func(k *cluster, namespace string) error { return a.unexport(cmd.Context(), k, namespace, args[0]) })
		},
	}
}

// forEach does something in every context, one after the other, and goes on when one fails.
func (a *app) forEach(do func(k *cluster, namespace string) error) error {
	namespace, clusters, err := a.inNamespace(false)
	if err != nil {
		return err
	}
	errs := make([]error, len(clusters))
	incomplete := false
	for i, k := range clusters {
		errs[i] = do(k, namespace)
		var code exitError
		if errors.As(errs[i], &code) {
			errs[i], incomplete = nil, true
		}
	}
	if err := joinContexts(clusters, errs); err != nil {
		return err
	}
	if incomplete {
		return exitError(ExitIncomplete)
	}
	return nil
}

func (a *app) export(ctx context.Context, k *cluster, namespace, name string, timeout time.Duration) error {
	there, err := find(ctx, k, namespace, name, &corev1.Service{})
	if err != nil {
		return fmt.Errorf("reading Service %s/%s: %w", namespace, name, err)
	}
	if !there {
		return fmt.Errorf("there is no Service %s in namespace %s: create it first, or name its namespace with -n", name, namespace)
	}
	c, err := k.objects()
	if err != nil {
		return err
	}
	export := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	did := "created"
	err = c.Create(ctx, export)
	switch {
	case apierrors.IsAlreadyExists(err):
		did = "is there already"
	case absent(err):
		return errors.New("the cluster does not know ServiceExports: install the CRDs with \"kubectl mcs install\"")
	case err != nil:
		return fmt.Errorf("creating ServiceExport %s/%s: %w", namespace, name, err)
	}
	a.say("%s: ServiceExport %s/%s %s", k.context, namespace, name, did)
	if timeout <= 0 {
		return nil
	}
	return a.awaitExport(ctx, k, export, timeout)
}

// awaitExport waits until an export is Ready, and no longer than until it is known that it never will be.
func (a *app) awaitExport(ctx context.Context, k *cluster, export *mcsv1beta1.ServiceExport, timeout time.Duration) error {
	var valid, readiness *metav1.Condition
	err := poll(ctx, k, timeout, func() (bool, error) {
		if _, err := find(ctx, k, export.Namespace, export.Name, export); err != nil {
			return false, err
		}
		valid = meta.FindStatusCondition(export.Status.Conditions, string(mcsv1beta1.ServiceExportConditionValid))
		readiness = meta.FindStatusCondition(export.Status.Conditions, string(mcsv1beta1.ServiceExportConditionReady))
		return readiness != nil && readiness.Status == metav1.ConditionTrue || valid != nil && valid.Status == metav1.ConditionFalse, nil
	})
	if err != nil && !wait.Interrupted(err) {
		return fmt.Errorf("waiting for ServiceExport %s/%s: %w", export.Namespace, export.Name, err)
	}
	switch {
	case readiness == nil:
		a.say("%s: no controller has looked at it within %s: see \"kubectl mcs check\"", k.context, timeout)
	case readiness.Status == metav1.ConditionTrue:
		a.say("%s: exported: %s", k.context, readiness.Message)
		return nil
	default:
		a.say("%s: not exported: %s: %s", k.context, readiness.Reason, readiness.Message)
	}
	return exitError(ExitIncomplete)
}

func (a *app) unexport(ctx context.Context, k *cluster, namespace, name string) error {
	c, err := k.objects()
	if err != nil {
		return err
	}
	err = c.Delete(ctx, &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	switch {
	case absent(err):
		a.say("%s: ServiceExport %s/%s is not there", k.context, namespace, name)
	case err != nil:
		return fmt.Errorf("deleting ServiceExport %s/%s: %w", namespace, name, err)
	default:
		a.say("%s: ServiceExport %s/%s deleted", k.context, namespace, name)
	}
	return nil
}

// say prints what was done, on standard output.
func (a *app) say(format string, args ...any) {
	_, _ = fmt.Fprintln(a.Out, printable(fmt.Sprintf(format, args...)))
}

// completeServices completes the name of a Service of the namespace.
func (a *app) completeServices(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	namespace, clusters, err := a.inNamespace(false)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var services corev1.ServiceList
	if err := list(cmd.Context(), clusters[0], namespace, &services); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, svc := range services.Items {
		names = append(names, svc.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// oneService is the argument of commands about one Service.
func oneService(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return fmt.Errorf("%s wants the name of one Service, and has %d arguments: the namespace goes to -n", cmd.CommandPath(), len(args))
}
