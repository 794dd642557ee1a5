package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// getOptions are the flags of get exports and get imports.
type getOptions struct {
	output output
	all    bool
}

func (o *getOptions) bind(cmd *cobra.Command) {
	o.output.bind(cmd)
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "of all namespaces")
}

func (a *app) getCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "get", Short: "List exports, imports or clusters of several contexts"}
	cmd.AddCommand(
		getObjects(a, "exports", "List ServiceExports and how they stand", listExports,
			[]any{"CONTEXT", "NAMESPACE", "NAME", "VALID", "READY", "CONFLICT", "AGE"}, exportRow),
		getObjects(a, "imports", "List ServiceImports and who exports them", listImports,
			[]any{"CONTEXT", "NAMESPACE", "NAME", "TYPE", "IPS", "PORTS", "CLUSTERS", "READY", "AGE"}, importRow),
		a.getClustersCommand(),
	)
	return cmd
}

// found is an object of one context.
type found[T any] struct {
	Context string `json:"context"`
	Object  T      `json:"object"`
}

// listed is what one cluster has of a kind, or why that is not known.
type listed[T any] struct {
	items []T
	err   error
}

// getObjects is the command that lists one kind of object. What one context cannot tell does not hide the others'.
func getObjects[T any](
	a *app, use, short string, read func(context.Context, *cluster, string) ([]T, error), header []any, row func(*cluster, *T, bool) []any,
) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			namespace, clusters, err := a.inNamespace(o.all)
			if err != nil {
				return err
			}
			lists := eachCluster(clusters, func(k *cluster) listed[T] {
				items, err := read(cmd.Context(), k, namespace)
				return listed[T]{items, err}
			})
			errs := make([]error, len(clusters))
			objects := []found[T]{}
			rows := [][]any{}
			for i, k := range clusters {
				errs[i] = lists[i].err
				for j := range lists[i].items {
					objects = append(objects, found[T]{k.context, lists[i].items[j]})
					rows = append(rows, row(k, &lists[i].items[j], o.output == "wide"))
				}
			}
			err = o.output.print(a.Out, objects, func(t *table, _ bool) {
				t.row(header...)
				for _, r := range rows {
					t.row(r...)
				}
			})
			if problem := joinContexts(clusters, errs); problem != nil {
				return problem
			}
			return err
		},
	}
	o.bind(cmd)
	return cmd
}

// inNamespace is the namespace that a command is about, "" for all, and the clusters.
func (a *app) inNamespace(all bool) (string, []*cluster, error) {
	clusters, err := a.clusters()
	if err != nil || all {
		return "", clusters, err
	}
	namespace, err := a.namespace()
	if err != nil {
		return "", nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return namespace, clusters, nil
}

func listExports(ctx context.Context, k *cluster, namespace string) ([]mcsv1beta1.ServiceExport, error) {
	var exports mcsv1beta1.ServiceExportList
	if err := list(ctx, k, namespace, &exports); err != nil {
		return nil, fmt.Errorf("listing ServiceExports: %w", err)
	}
	return exports.Items, nil
}

func exportRow(k *cluster, e *mcsv1beta1.ServiceExport, wide bool) []any {
	c := e.Status.Conditions
	return []any{
		k.context, e.Namespace, e.Name, condition(c, string(mcsv1beta1.ServiceExportConditionValid), wide),
		condition(c, string(mcsv1beta1.ServiceExportConditionReady), wide), condition(c, string(mcsv1beta1.ServiceExportConditionConflict), wide),
		age(e.CreationTimestamp.Time, k.now()),
	}
}

func listImports(ctx context.Context, k *cluster, namespace string) ([]mcsv1beta1.ServiceImport, error) {
	var imports mcsv1beta1.ServiceImportList
	if err := list(ctx, k, namespace, &imports); err != nil {
		return nil, fmt.Errorf("listing ServiceImports: %w", err)
	}
	return imports.Items, nil
}

func importRow(k *cluster, i *mcsv1beta1.ServiceImport, wide bool) []any {
	return []any{
		k.context, i.Namespace, i.Name, i.Spec.Type, strings.Join(i.Spec.IPs, ","), importPorts(i), strings.Join(exporting(i), ","),
		condition(i.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady), wide), age(i.CreationTimestamp.Time, k.now()),
	}
}

func importPorts(i *mcsv1beta1.ServiceImport) string {
	var ports []string
	for _, p := range i.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	return strings.Join(ports, ",")
}

// exporting are the clusters that an import names as its exporters, sorted.
func exporting(i *mcsv1beta1.ServiceImport) []string {
	var ids []string
	for _, c := range i.Status.Clusters {
		ids = append(ids, c.Cluster)
	}
	slices.Sort(ids)
	return ids
}

// condition is a condition as a cell: its status, the reason when it is not True, and everything when wide.
func condition(list []metav1.Condition, kind string, wide bool) string {
	c := meta.FindStatusCondition(list, kind)
	switch {
	case c == nil:
		return ""
	case wide:
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	case c.Status == metav1.ConditionTrue && c.Type != string(mcsv1beta1.ServiceExportConditionConflict),
		c.Status == metav1.ConditionFalse && c.Type == string(mcsv1beta1.ServiceExportConditionConflict):
		return string(c.Status)
	}
	return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
}

func (a *app) getClustersCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "List the members of the clusterset",
		Long:  "Lists the members of the clusterset as the controllers of the contexts see them together, and which context leads to each.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := a.clusters()
			if err != nil {
				return err
			}
			sights := a.sights(cmd.Context(), clusters)
			members := uniteMembers(sights)
			err = o.print(a.Out, members, func(t *table, wide bool) {
				header := []any{"CLUSTERSET", "CLUSTER", "CONTEXT", "VERSION", "HEARTBEAT", "EXPORTS", "ENDPOINTS", "STATE"}
				if wide {
					header = append(header, "UID")
				}
				t.row(header...)
				for _, m := range members {
					row := []any{m.ClusterSetID, m.ClusterID, m.Context, m.Version, heartbeat(m.Member), m.Exports, m.Endpoints, memberState(m.Member)}
					if wide {
						row = append(row, m.UID)
					}
					t.row(row...)
				}
			})
			if err != nil {
				return err
			}
			return unseen(sights)
		},
	}
	o.bind(cmd)
	return cmd
}

// unseen is an error when a controller could not be asked.
func unseen(sights []sight) error {
	for _, s := range sights {
		if s.Status == nil {
			return fmt.Errorf("%s: %s", s.Context, s.Problem)
		}
	}
	return nil
}
