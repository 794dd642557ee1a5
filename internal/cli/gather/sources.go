package gather

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/redact"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// maxLogLines limits the log of a container. 70 busy minutes are 245 lines.
const maxLogLines = 20000

// gatherCluster reads everything of one cluster.
func gatherCluster(ctx context.Context, s *session.Session, k *session.Cluster) []entry {
	entries := []entry{kubernetesVersion(k)}
	add := func(e ...entry) { entries = append(entries, e...) }
	list := func(file, namespace string, into client.ObjectList, opts ...client.ListOption) {
		add(newEntry(file, into, k.List(ctx, namespace, into, opts...)))
	}
	list("clusterproperties.yaml", "", &aboutv1beta1.ClusterPropertyList{})
	list("serviceexports.yaml", "", &mcsv1beta1.ServiceExportList{})
	list("serviceimports.yaml", "", &mcsv1beta1.ServiceImportList{})
	list("services.yaml", "", &corev1.ServiceList{}, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy})
	list("endpointslices.yaml", "", &discoveryv1.EndpointSliceList{}, client.MatchingLabels{plan.LabelManagedBy: plan.ManagedBy})

	own := s.ControllerNamespace
	add(object(ctx, k, "controller/deployment.yaml", own, session.ManagerName, &appsv1.Deployment{}))
	add(object(ctx, k, "controller/lease.yaml", own, session.LeaseName, &coordinationv1.Lease{}))
	list("controller/replicasets.yaml", own, &appsv1.ReplicaSetList{}, session.ManagerLabels())
	list("controller/events.yaml", own, &corev1.EventList{})
	var pods corev1.PodList
	err := k.List(ctx, own, &pods, session.ManagerLabels())
	for _, pod := range pods.Items {
		add(logs(ctx, k, pod)...)
	}
	add(newEntry("controller/pods.yaml", &pods, err), events(ctx, k))
	metrics, err := session.ReadController(ctx, s, k, status.PathMetrics)
	add(response(ctx, s, k, "controller/status.json", status.PathStatus), response(ctx, s, k, "controller/registry.json", status.PathServices),
		entry{file: "controller/metrics.txt", text: string(metrics), problem: textOf(err)})
	slices.SortStableFunc(entries, func(a, b entry) int { return strings.Compare(a.file, b.file) })
	return entries
}

func kubernetesVersion(k *session.Cluster) entry {
	e := entry{file: "kubernetes-version.txt"}
	version, err := k.Kube.Discovery().ServerVersion()
	if err != nil {
		e.problem = err.Error()
		return e
	}
	e.text = version.GitVersion + "\n"
	return e
}

// response reads a response in JSON of the controller.
func response(ctx context.Context, s *session.Session, k *session.Cluster, file, path string) entry {
	value, err := session.QueryController[any](ctx, s, k, path)
	var text bytes.Buffer
	if err == nil {
		err = session.PrintJSON(&text, redact.Value(value))
	}
	return entry{file: file, text: text.String(), problem: textOf(err)}
}

// object reads one object.
func object(ctx context.Context, k *session.Cluster, file, namespace, name string, into client.Object) entry {
	exists, err := k.Find(ctx, namespace, name, into)
	if err == nil && !exists {
		return entry{file: file, problem: "does not exist"}
	}
	return newEntry(file, into, err)
}

// events reads the events about ServiceExports and ServiceImports in all namespaces.
func events(ctx context.Context, k *session.Cluster) entry {
	var all corev1.EventList
	err := k.List(ctx, "", &all)
	all.Items = slices.DeleteFunc(all.Items, func(e corev1.Event) bool {
		return !strings.HasPrefix(e.InvolvedObject.APIVersion, mcsv1beta1.GroupName+"/")
	})
	return newEntry("events.yaml", &all, err)
}

// logs reads the logs of the containers of a pod, those before the last restart too.
func logs(ctx context.Context, k *session.Cluster, pod corev1.Pod) (entries []entry) {
	for _, c := range pod.Spec.Containers {
		read := func(file string, previous bool) {
			text, err := k.Kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
				Container: c.Name, Previous: previous, Timestamps: true, TailLines: ptr.To[int64](maxLogLines),
			}).DoRaw(ctx)
			entries = append(entries, entry{file: fmt.Sprintf("controller/logs/%s-%s%s.log", pod.Name, c.Name, file), text: string(text), problem: textOf(err)})
		}
		read("", false)
		if slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name && s.RestartCount > 0 }) {
			read("-previous", true)
		}
	}
	return entries
}

// newEntry returns an object or a list as YAML, without secrets.
func newEntry(file string, content runtime.Object, err error) entry {
	if err != nil {
		return entry{file: file, problem: err.Error()}
	}
	if meta.IsListType(content) {
		err = meta.EachListItem(content, func(item runtime.Object) error {
			clean(item)
			return nil
		})
	} else {
		clean(content)
	}
	var fields map[string]any
	if err == nil {
		fields, err = runtime.DefaultUnstructuredConverter.ToUnstructured(content)
	}
	var text bytes.Buffer
	if err == nil {
		// YAML breaks long lines, so the texts are redacted before.
		err = session.PrintYAML(&text, redact.Value(fields))
	}
	return entry{file: file, text: text.String(), problem: textOf(err)}
}

// annotationApplied is a copy of an object, which may have values that the object does not have any
// more.
const annotationApplied = "kubectl.kubernetes.io/last-applied-configuration"

// clean removes what does not help from an object, and the secrets whose places are known.
func clean(content runtime.Object) {
	if o, err := meta.Accessor(content); err == nil {
		o.SetManagedFields(nil)
		annotations := o.GetAnnotations()
		delete(annotations, annotationApplied)
		o.SetAnnotations(annotations)
	}
	switch o := content.(type) {
	case *corev1.Pod:
		cleanPod(&o.Spec)
	case *appsv1.Deployment:
		cleanPod(&o.Spec.Template.Spec)
	case *appsv1.ReplicaSet:
		cleanPod(&o.Spec.Template.Spec)
	}
}

// cleanPod removes the values of environment variables.
func cleanPod(spec *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			for j := range containers[i].Env {
				if containers[i].Env[j].Value != "" {
					containers[i].Env[j].Value = "…"
				}
			}
		}
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
