// Package drain has the commands drain and undrain.
package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// Commands returns the commands drain and undrain.
func Commands(s *session.Session) []*cobra.Command {
	return []*cobra.Command{drainCommand(s), undrainCommand(s)}
}

// importerWait is the time in which importers normally stop using a drained cluster, with a margin
// for a throttled registry.
const importerWait = 30 * time.Second

// steps is the maximum number of steps of a drain over a time.
const steps = 10

// options are the flags of drain.
type options struct {
	part      string
	force     bool
	over      time.Duration
	importers []string
	wait      time.Duration
}

// drain returns the drain that the options request.
func (o options) drain() (mcs.Drain, error) {
	d, err := mcs.ParseDrain(o.part)
	switch {
	case err != nil || d == mcs.DrainForced || d == "":
		return "", session.Usagef("reading --part: %q is not a percentage between 1%% and 100%%", o.part)
	case len(o.importers) > 0 && d != mcs.DrainAll:
		return "", session.Usagef("--importers waits until a cluster uses none of the endpoints, and with --part it uses some: leave out one of the two")
	case o.force && d != mcs.DrainAll:
		return "", session.Usagef("--force drains all endpoints: leave out --part")
	case o.force:
		return mcs.DrainForced, nil
	}
	return d, nil
}

func drainCommand(s *session.Session) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "drain [SERVICE]",
		Short: "Make the other clusters stop using the endpoints of a cluster",
		Long: "Makes the other clusters stop using the endpoints of all exports of a cluster, or of one service. Exports, clusterset IPs and\n" +
			"names stay, and established connections do too. The last ready endpoints of a port or an IP family stay in use unless\n" +
			"--force is given; the command lists their services. With --importers it waits until these clusters do not use the drained\n" +
			"endpoints. Exit code 3 if one still does after --wait.",
		Example: "  kubectl mcs drain --context cls1 --importers cls2,cls3\n  kubectl mcs drain web -n shop --context cls1 --over 10m",
		Args:    validateArgs, ValidArgsFunction: s.CompleteServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := o.drain()
			if err != nil {
				return err
			}
			t, err := newTarget(s, args)
			if err != nil {
				return err
			}
			return t.drain(cmd.Context(), s, o, d)
		},
	}
	s.AddNamespaceFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.part, "part", string(mcs.DrainAll), "part of the ready endpoints that the other clusters do not use, from 1% to 100%")
	flags.BoolVar(&o.force, "force", false, "drain the last endpoints too: services that no other cluster serves fail")
	flags.DurationVar(&o.over, "over", 0, "drain in ten steps over this time, beginning at the current drain")
	flags.StringSliceVar(&o.importers, "importers", nil, "contexts of other clusters, to wait until they do not use the drained endpoints; not with --part")
	flags.DurationVar(&o.wait, "wait", importerWait, "how long to wait for --importers")
	return cmd
}

func undrainCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "undrain [SERVICE]",
		Short: "Make the other clusters use the endpoints of a cluster again",
		Long:  "Undoes kubectl mcs drain, for all exports of a cluster or for one service.",
		Args:  validateArgs, ValidArgsFunction: s.CompleteServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := newTarget(s, args)
			if err != nil {
				return err
			}
			if err := t.annotate(cmd.Context(), ""); err != nil {
				return err
			}
			s.Printf("%s: %s is not drained", t.cluster.Context, t)
			return nil
		},
	}
	s.AddNamespaceFlag(cmd)
	return cmd
}

// validateArgs refuses a namespace without a Service: it would mean the whole cluster.
func validateArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && cmd.Flags().Changed("namespace") {
		return fmt.Errorf("%s without a Service is about the whole cluster: leave out --namespace, or name the Service", cmd.CommandPath())
	}
	return cobra.MaximumNArgs(1)(cmd, args)
}

// A target is the object of a drain: a cluster, or one of its exports.
type target struct {
	cluster *session.Cluster
	key     mcs.Key // zero for the cluster
}

func newTarget(s *session.Session, args []string) (target, error) {
	k, err := s.OneCluster()
	if err != nil || len(args) == 0 {
		return target{cluster: k}, err
	}
	namespace, err := s.Namespace()
	return target{cluster: k, key: mcs.Key{Namespace: namespace, Name: args[0]}}, err
}

func (t target) isCluster() bool { return t.key == (mcs.Key{}) }

// String returns a name of the target for messages.
func (t target) String() string {
	if t.isCluster() {
		return "the cluster"
	}
	return "service " + t.key.String()
}

// object returns the object whose annotation drains the target, and its name for messages.
func (t target) object() (client.Object, string) {
	if t.isCluster() {
		return &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: aboutv1beta1.ClusterIDProperty}}, "ClusterProperty " + aboutv1beta1.ClusterIDProperty
	}
	return &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: t.key.Namespace, Name: t.key.Name}}, "ServiceExport " + t.key.String()
}

// annotate sets the drain of the target, "" for none.
func (t target) annotate(ctx context.Context, d mcs.Drain) error {
	c, err := t.cluster.Objects()
	if err != nil {
		return err
	}
	change, err := annotationPatch(d)
	if err != nil {
		return fmt.Errorf("writing the annotation: %w", err)
	}
	object, name := t.object()
	if err := c.Patch(ctx, object, client.RawPatch(types.MergePatchType, change), client.FieldOwner(names.Plugin)); err != nil {
		return t.objectError("writing", name, err)
	}
	return nil
}

// annotationPatch returns the merge patch that sets a drain, "" for none. A controller of an
// earlier version reads the deprecated key only.
func annotationPatch(d mcs.Drain) ([]byte, error) {
	var value any = string(d)
	if d == "" {
		value = nil
	}
	annotations := map[string]any{mcs.AnnotationDrain: value, mcs.DeprecatedKey(mcs.AnnotationDrain): value}
	return json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

// currentDrain returns the drain of the target's annotation. One that is not valid is none.
func (t target) currentDrain(ctx context.Context) (mcs.Drain, error) {
	c, err := t.cluster.Objects()
	if err != nil {
		return "", err
	}
	object, name := t.object()
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return "", t.objectError("reading", name, err)
	}
	_, text, _ := mcs.Annotation(object.GetAnnotations(), mcs.AnnotationDrain)
	return mcs.Properties{mcs.PropertyDrain: text}.Drain(), nil
}

// objectError describes an error of reading or writing the object of the target.
func (t target) objectError(action, name string, err error) error {
	switch {
	case session.IsNotFound(err) && t.isCluster():
		return fmt.Errorf("%s does not exist: the cluster joins a clusterset with kubectl mcs join; if flags of the controller set its ID, create "+
			"ClusterProperty %s with the value %s instead", name, mcs.PropertyDrain, mcs.DrainAll)
	case session.IsNotFound(err):
		return fmt.Errorf("%s does not exist: the service is not exported by this cluster", name)
	}
	return fmt.Errorf("%s %s: %w", action, name, err)
}

// drain drains the target and reports the services whose endpoints stay in use.
func (t target) drain(ctx context.Context, s *session.Session, o options, d mcs.Drain) error {
	kept, clusterID, err := t.predictKept(ctx, s, d)
	if err != nil {
		s.Printf("%s: failed to list the services that no other cluster serves: %v", t.cluster.Context, err)
	}
	if o.over > 0 {
		if err := t.drainInSteps(ctx, s, o.over, d); err != nil {
			return err
		}
	}
	if err := t.annotate(ctx, d); err != nil {
		return err
	}
	s.Printf("%s: %s is drained by %s", t.cluster.Context, t, describe(d))
	if len(kept) > 0 {
		s.Printf("%s: the endpoints of %s stay in use: no other cluster has ready ones for each port. Export from another cluster first, or use --force",
			t.cluster.Context, strings.Join(check.Summarize(kept, 10), ", "))
	}
	if len(o.importers) == 0 {
		return nil
	}
	if clusterID == "" {
		return errors.New("waiting for --importers: the controller of the drained cluster did not respond, so its ID is unknown")
	}
	return t.waitForImporters(ctx, s, o, clusterID, kept)
}

// drainInSteps increases the current drain of the target up to the last step before d.
func (t target) drainInSteps(ctx context.Context, s *session.Session, over time.Duration, d mcs.Drain) error {
	current, err := t.currentDrain(ctx)
	if err != nil {
		return err
	}
	missing := d.Percent() - current.Percent()
	n := min(steps, missing)
	for step := int32(1); step < n; step++ {
		part := mcs.Drain(mcs.FormatPercentage(current.Percent() + missing*step/n))
		if err := t.annotate(ctx, part); err != nil {
			return err
		}
		s.Printf("%s: %s is drained by %s", t.cluster.Context, t, part)
		if err := sleep(ctx, over/time.Duration(n-1)); err != nil {
			return fmt.Errorf("the drain is not complete, run the command again or kubectl mcs undrain: %w", err)
		}
	}
	return nil
}

func describe(d mcs.Drain) string {
	if d == mcs.DrainForced {
		return "100%, the last endpoints too"
	}
	return string(d)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// predictKept returns the services whose endpoints stay in use, computed from the exports that the
// controller knows, and the cluster's ID.
func (t target) predictKept(ctx context.Context, s *session.Session, d mcs.Drain) (kept []string, clusterID string, err error) {
	controller, err := session.QueryController[status.Status](ctx, s, t.cluster, status.PathStatus)
	if err != nil {
		return nil, "", err
	}
	if controller.Identity == nil {
		return nil, "", errors.New("the cluster is not a member of a clusterset: " + controller.Problem)
	}
	services, err := session.QueryController[[]status.Service](ctx, s, t.cluster, status.PathServices)
	if err != nil {
		return nil, "", err
	}
	properties := map[string]mcs.Properties{}
	for _, m := range controller.Members {
		properties[m.ClusterID] = mcs.Properties{mcs.PropertyDrain: string(m.Drain)}
	}
	for _, service := range services {
		if service.Own != nil && (t.isCluster() || service.Key == t.key) && keepsEndpoints(service, properties, d) {
			kept = append(kept, service.Key.String())
		}
	}
	return kept, controller.Identity.ClusterID, nil
}

// keepsEndpoints reports whether endpoints of the own export stay in use in an importer despite the
// drain. Exports with recipients do not count as replacements: this cluster may see them, but not
// each importer does.
func keepsEndpoints(service status.Service, properties map[string]mcs.Properties, d mcs.Drain) bool {
	exports := slices.DeleteFunc(slices.Clone(service.Exports), func(e mcs.Export) bool { return e.Recipients != "" })
	exports = append(exports, *service.Own)
	drains := mcs.Drains(exports, properties, "")
	drains[service.Own.Cluster] = d
	choice := mcs.Merge(exports).Choose(mcs.Candidates{Exports: exports, Reserve: service.Stale, Drains: drains})
	return slices.ContainsFunc(choice.Drained, func(e mcs.DrainedExport) bool { return e.Cluster == service.Own.Cluster && e.Kept })
}

// waitForImporters waits until the importers use none of the cluster's endpoints, but those that
// are kept.
func (t target) waitForImporters(ctx context.Context, s *session.Session, o options, clusterID string, kept []string) error {
	importers, err := s.Connect(o.importers)
	if err != nil {
		return err
	}
	incomplete := false
	for _, k := range importers {
		var used []string
		err := k.Poll(ctx, o.wait, func() (bool, error) {
			used, err = t.usedBy(ctx, k, clusterID, kept)
			return len(used) == 0, err
		})
		switch {
		case err == nil:
			s.Printf("%s: does not use the drained endpoints", k.Context)
		case wait.Interrupted(err):
			incomplete = true
			s.Printf("%s: still uses endpoints of %s: run kubectl mcs diagnose there", k.Context, strings.Join(check.Summarize(used, 10), ", "))
		default:
			return fmt.Errorf("%s: waiting until it does not use the endpoints: %w", k.Context, err)
		}
	}
	if incomplete {
		return session.ErrIncomplete
	}
	return nil
}

// usedBy returns the services of which an importer uses ready or serving endpoints of the cluster.
// Importers keep the other ones of a service that no cluster serves.
func (t target) usedBy(ctx context.Context, k *session.Cluster, clusterID string, kept []string) (used []string, err error) {
	var imported discoveryv1.EndpointSliceList
	labels := client.MatchingLabels{plan.LabelManagedBy: plan.ManagedBy, mcsv1beta1.LabelSourceCluster: clusterID}
	if err := k.List(ctx, t.key.Namespace, &imported, labels); err != nil {
		return nil, fmt.Errorf("listing EndpointSlices: %w", err)
	}
	for _, slice := range imported.Items {
		key := mcs.Key{Namespace: slice.Namespace, Name: slice.Labels[mcsv1beta1.LabelServiceName]}
		if slices.ContainsFunc(slice.Endpoints, isUsable) && (t.isCluster() || key == t.key) && !slices.Contains(kept, key.String()) {
			used = append(used, key.String())
		}
	}
	slices.Sort(used)
	return slices.Compact(used), nil
}

// isUsable reports whether clients can be sent to an endpoint.
func isUsable(e discoveryv1.Endpoint) bool {
	return ptr.Deref(e.Conditions.Ready, true) || ptr.Deref(e.Conditions.Serving, false)
}
