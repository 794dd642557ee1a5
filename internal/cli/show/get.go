package show

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// getOptions are the flags of get exports and get imports.
type getOptions struct {
	format        session.Format
	allNamespaces bool
}

func (o *getOptions) addFlags(s *session.Session, cmd *cobra.Command) {
	s.AddNamespaceFlag(cmd)
	o.format.AddFlag(cmd)
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "list objects of all namespaces")
}

func getCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "get", Short: "List exports, imports, services or clusters of several contexts"}
	cmd.AddCommand(
		getObjectsCommand(s, "exports", "List ServiceExports with their conditions", (*session.Cluster).ListExports,
			[]any{"CONTEXT", "NAMESPACE", "NAME", "SERVICE", "VALID", "READY", "CONFLICT", "AGE"}, exportRow),
		getObjectsCommand(s, "imports", "List ServiceImports with their source clusters", (*session.Cluster).ListImports,
			[]any{"CONTEXT", "NAMESPACE", "NAME", "TYPE", "IPS", "PORTS", "CLUSTERS", "READY", "AGE"}, importRow),
		getServicesCommand(s), getClustersCommand(s),
	)
	return cmd
}

// contextObject is an object with the context of its cluster.
type contextObject[T any] struct {
	Context string `json:"context"`
	Object  T      `json:"object"`
}

// listResult has the objects of one cluster, or the error of listing them.
type listResult[T any] struct {
	items []T
	err   error
}

// getObjectsCommand returns the command that lists one kind of object. An error in one context does
// not hide the objects of the others.
func getObjectsCommand[T any](
	s *session.Session, use, short string, list func(*session.Cluster, context.Context, string) ([]T, error),
	header []any, row func(*session.Cluster, *T, bool) []any,
) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, namespace, err := s.ClustersAndNamespace(o.allNamespaces)
			if err != nil {
				return err
			}
			results := session.ForEachCluster(clusters, func(k *session.Cluster) listResult[T] {
				items, err := list(k, cmd.Context(), namespace)
				return listResult[T]{items, err}
			})
			errs := make([]error, len(clusters))
			objects := []contextObject[T]{}
			rows := [][]any{}
			for i, k := range clusters {
				errs[i] = results[i].err
				for j := range results[i].items {
					objects = append(objects, contextObject[T]{k.Context, results[i].items[j]})
					rows = append(rows, row(k, &results[i].items[j], o.format == "wide"))
				}
			}
			err = o.format.Print(s.Out, objects, func(t *session.Table, _ bool) {
				t.Row(header...)
				for _, r := range rows {
					t.Row(r...)
				}
			})
			if listErr := session.JoinErrors(clusters, errs); listErr != nil {
				return listErr
			}
			return err
		},
	}
	o.addFlags(s, cmd)
	return cmd
}

func exportRow(k *session.Cluster, e *mcsv1beta1.ServiceExport, wide bool) []any {
	c := e.Status.Conditions
	service, _ := mcs.ExportedService(e) // condition Valid has the error
	return []any{
		k.Context, e.Namespace, e.Name, service, conditionCell(c, string(mcsv1beta1.ServiceExportConditionValid), wide),
		conditionCell(c, string(mcsv1beta1.ServiceExportConditionReady), wide), conditionCell(c, string(mcsv1beta1.ServiceExportConditionConflict), wide),
		session.Age(e.CreationTimestamp.Time, k.Now()),
	}
}

func importRow(k *session.Cluster, i *mcsv1beta1.ServiceImport, wide bool) []any {
	return []any{
		k.Context, i.Namespace, i.Name, i.Spec.Type, strings.Join(i.Spec.IPs, ","), importPorts(i), strings.Join(session.SourceClusters(i), ","),
		conditionCell(i.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady), wide), session.Age(i.CreationTimestamp.Time, k.Now()),
	}
}

func importPorts(i *mcsv1beta1.ServiceImport) string {
	var ports []string
	for _, p := range i.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	return strings.Join(ports, ",")
}

// conditionCell returns the status of a condition, its reason if the status is not the normal one,
// and with wide also its message.
func conditionCell(list []metav1.Condition, kind string, wide bool) string {
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

func getClustersCommand(s *session.Session) *cobra.Command {
	var format session.Format
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "List the members of the clusterset",
		Long:  "Lists the members of the clusterset that the controllers of the contexts see, and the context of each member.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := s.Clusters()
			if err != nil {
				return err
			}
			statuses := QueryStatuses(cmd.Context(), s, clusters)
			members := MergeMembers(statuses)
			err = format.Print(s.Out, members, func(t *session.Table, wide bool) { printMergedMembers(t, members, wide) })
			if err != nil {
				return err
			}
			return firstQueryError(statuses)
		},
	}
	format.AddFlag(cmd)
	return cmd
}

func printMergedMembers(t *session.Table, members []Member, wide bool) {
	header := []any{"CLUSTERSET", "CLUSTER", "CONTEXT", "VERSION", "HEARTBEAT", "EXPORTS", "ENDPOINTS", "STATE"}
	if wide {
		header = append(header, "UID")
	}
	t.Row(header...)
	for _, m := range members {
		row := []any{m.ClusterSetID, m.ClusterID, m.Context, m.Version, heartbeatAge(m.Member), m.Exports, m.Endpoints, m.State}
		if wide {
			row = append(row, m.UID)
		}
		t.Row(row...)
	}
}

// firstQueryError returns an error if a controller could not be queried, or knows no member.
func firstQueryError(statuses []ClusterStatus) error {
	for _, c := range statuses {
		switch {
		case c.Status == nil:
			return errors.New(c.unanswered().String())
		case len(c.Status.Members) == 0:
			if problems := clusterProblems(c.Context, c.Status); len(problems) > 0 {
				return errors.New(problems[0].String())
			}
		}
	}
	return nil
}
