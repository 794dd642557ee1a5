// Package export has the commands export, unexport and release.
package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
)

// exportWait is the time in which the registry normally shows an export: the conformance suite
// allows 20 s.
const exportWait = 20 * time.Second

// Commands returns the commands export, unexport and release.
func Commands(s *session.Session) []*cobra.Command {
	return []*cobra.Command{exportCommand(s), unexportCommand(s), releaseCommand(s)}
}

func exportCommand(s *session.Session) *cobra.Command {
	var timeout time.Duration
	var name string
	cmd := &cobra.Command{
		Use:   "export SERVICE",
		Short: "Export a Service to the clusterset",
		Long: "Creates the ServiceExport of a Service in each context and waits until it is ready: the registry shows the export.\n" +
			"With --name, the clusterset has the Service under another name. A ServiceExport of that name, which exports another\n" +
			"Service until now, is changed and not withdrawn in between.\n" +
			"Exit code 3 when it is not ready within --wait.",
		Example:           "  kubectl mcs export web -n shop --context cls1,cls2\n  kubectl mcs export web-green --name web -n shop",
		Args:              session.RequireService,
		ValidArgsFunction: s.CompleteServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInEachCluster(s, func(k *session.Cluster, namespace string) error {
				return createExport(cmd.Context(), s, k, request{namespace, args[0], name}, timeout)
			})
		},
	}
	s.AddNamespaceFlag(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name of the service in the clusterset (default: that of the Service)")
	cmd.Flags().DurationVar(&timeout, "wait", exportWait, "how long to wait until the ServiceExport is ready; 0 does not wait")
	return cmd
}

func unexportCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "unexport SERVICE",
		Short:             "Stop exporting a Service to the clusterset",
		Long:              "Deletes the ServiceExport in each context. SERVICE is the name in the clusterset. The Service itself does not change.",
		Args:              session.RequireService,
		ValidArgsFunction: s.CompleteServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInEachCluster(s, func(k *session.Cluster, namespace string) error {
				return deleteExport(cmd.Context(), s, k, namespace, args[0])
			})
		},
	}
	s.AddNamespaceFlag(cmd)
	return cmd
}

// runInEachCluster runs do in every context, one after the other, and continues after an error.
func runInEachCluster(s *session.Session, do func(k *session.Cluster, namespace string) error) error {
	clusters, namespace, err := s.ClustersAndNamespace(false)
	if err != nil {
		return err
	}
	errs := make([]error, len(clusters))
	incomplete := false
	for i, k := range clusters {
		if errs[i] = do(k, namespace); errors.Is(errs[i], session.ErrIncomplete) {
			errs[i], incomplete = nil, true
		}
	}
	if err := session.JoinErrors(clusters, errs); err != nil {
		return err
	}
	if incomplete {
		return session.ErrIncomplete
	}
	return nil
}

// request is an export that the user asks for.
type request struct {
	namespace, service string
	// name is that in the clusterset, "" for that of the Service.
	name string
}

// export returns the ServiceExport of the request.
func (r request) export() *mcsv1beta1.ServiceExport {
	exp := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: cmp.Or(r.name, r.service)}}
	if exp.Name != r.service {
		exp.Annotations = map[string]string{mcs.AnnotationService: r.service}
	}
	return exp
}

func createExport(ctx context.Context, s *session.Session, k *session.Cluster, r request, timeout time.Duration) error {
	var svc corev1.Service
	exists, err := k.Find(ctx, r.namespace, r.service, &svc)
	if err != nil {
		return fmt.Errorf("reading Service %s/%s: %w", r.namespace, r.service, err)
	}
	if !exists {
		return fmt.Errorf("there is no Service %s in namespace %s: create it first, or set its namespace with -n", r.service, r.namespace)
	}
	export := r.export()
	if valid := mcs.ExportValid(export, &svc); valid.Status != metav1.ConditionTrue {
		return fmt.Errorf("exporting Service %s/%s: %s", r.namespace, r.service, valid.Message)
	}
	c, err := k.Objects()
	if err != nil {
		return err
	}
	result := "created"
	err = c.Create(ctx, export)
	switch {
	case apierrors.IsAlreadyExists(err):
		if result, err = changeExport(ctx, c, r); err != nil {
			return err
		}
	case session.IsNotFound(err):
		return errors.New("the cluster does not serve ServiceExport: install the CRDs with \"kubectl mcs install\"")
	case err != nil:
		return fmt.Errorf("creating ServiceExport %s/%s: %w", export.Namespace, export.Name, err)
	}
	s.Printf("%s: ServiceExport %s/%s %s", k.Context, export.Namespace, export.Name, result)
	if timeout <= 0 {
		return nil
	}
	return waitForExport(ctx, s, k, export, timeout)
}

// changeExport makes an existing ServiceExport export the Service of the request, and returns what
// it has done. Without a name in the request it changes nothing.
func changeExport(ctx context.Context, c client.Client, r request) (result string, err error) {
	export, want := &mcsv1beta1.ServiceExport{}, r.export()
	name := want.Namespace + "/" + want.Name
	if err := c.Get(ctx, client.ObjectKeyFromObject(want), export); err != nil {
		return "", fmt.Errorf("reading ServiceExport %s: %w", name, err)
	}
	before, invalid := mcs.ExportedService(export)
	switch {
	case invalid == nil && before == r.service:
		return "exists already", nil
	case r.name == "":
		return "", fmt.Errorf("annotation %s of ServiceExport %s names Service %s: to export Service %s instead, add --name %s",
			mcs.AnnotationService, name, export.Annotations[mcs.AnnotationService], r.service, want.Name)
	}
	patch := client.MergeFrom(export.DeepCopy())
	delete(export.Annotations, mcs.AnnotationService)
	export.Annotations = labels.Merge(export.Annotations, want.Annotations)
	if err := c.Patch(ctx, export, patch, client.FieldOwner(names.Plugin)); err != nil {
		return "", fmt.Errorf("changing ServiceExport %s: %w", name, err)
	}
	return fmt.Sprintf("exports Service %s now, before %s", r.service, cmp.Or(before, "none")), nil
}

// failedPolls is the number of polls, of a second, after which a condition Failed is an answer: the
// first retry of the controller comes after half a second, and a ServiceExport that was changed has
// the condition of before.
const failedPolls = 2

// waitForExport waits until an export is ready, or fails in two polls.
func waitForExport(ctx context.Context, s *session.Session, k *session.Cluster, export *mcsv1beta1.ServiceExport, timeout time.Duration) error {
	var readiness *metav1.Condition
	failed := 0
	err := k.Poll(ctx, timeout, func() (bool, error) {
		if _, err := k.Find(ctx, export.Namespace, export.Name, export); err != nil {
			return false, err
		}
		readiness = meta.FindStatusCondition(export.Status.Conditions, string(mcsv1beta1.ServiceExportConditionReady))
		if readiness != nil && readiness.Reason == string(mcsv1beta1.ServiceExportReasonFailed) {
			failed++
		}
		return readiness != nil && readiness.Status == metav1.ConditionTrue || failed >= failedPolls, nil
	})
	if err != nil && !wait.Interrupted(err) {
		return fmt.Errorf("waiting for ServiceExport %s/%s: %w", export.Namespace, export.Name, err)
	}
	return printReadiness(s, k, export, readiness, timeout)
}

// printReadiness prints the condition Ready of an export, nil if it has none.
func printReadiness(s *session.Session, k *session.Cluster, export *mcsv1beta1.ServiceExport, readiness *metav1.Condition, timeout time.Duration) error {
	switch {
	case readiness == nil:
		s.Printf("%s: no controller has set conditions within %s: run \"kubectl mcs check --context %[1]s\"", k.Context, timeout)
	case readiness.Status == metav1.ConditionTrue:
		s.Printf("%s: exported: %s", k.Context, readiness.Message)
		// the message is about system namespaces
		if !policy.IsSystemNamespace(export.Namespace, s.ControllerNamespace) {
			s.Printf("%s: clusters import it if they have namespace %s and import into it: \"kubectl mcs describe %s -n %[2]s --context %[1]s\" shows which, after up to 40 seconds",
				k.Context, export.Namespace, export.Name)
		}
		return nil
	default:
		s.Printf("%s: not exported: %s: %s", k.Context, readiness.Reason, readiness.Message)
		s.Printf("%s: \"kubectl mcs diagnose %s -n %s --context %[1]s\" shows the step that fails", k.Context, export.Name, export.Namespace)
	}
	return session.ErrIncomplete
}

func deleteExport(ctx context.Context, s *session.Session, k *session.Cluster, namespace, name string) error {
	c, err := k.Objects()
	if err != nil {
		return err
	}
	err = c.Delete(ctx, &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	switch {
	case session.IsNotFound(err):
		s.Printf("%s: ServiceExport %s/%s does not exist", k.Context, namespace, name)
		if others, err := k.NamesOf(ctx, namespace, name); err == nil && len(others) > 0 {
			s.Printf("%s: Service %s is exported as %s", k.Context, name, strings.Join(others, ", "))
		}
	case err != nil:
		return fmt.Errorf("deleting ServiceExport %s/%s: %w", namespace, name, err)
	default:
		s.Printf("%s: ServiceExport %s/%s deleted", k.Context, namespace, name)
	}
	return nil
}
