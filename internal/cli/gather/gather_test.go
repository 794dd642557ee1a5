package gather

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// secrets are texts with secrets, by the secret.
var secrets = map[string]string{
	"AKIAIOSFODNN7EXAMPLE":                     "access key AKIAIOSFODNN7EXAMPLE is not valid",
	"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKE1": "signed with wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKE1",
	"hunter1":      "dial https://user:hunter1@etcd.example.com:2379: refused",
	"hunter2":      "etcd-password=hunter2",
	"FwoGZXIvYXdz": "X-Amz-Security-Token=FwoGZXIvYXdz&X-Amz-Date=1",
	"abc123.def":   "Authorization: Bearer abc123.def",
	"c2lnbmF0dXJl": "token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2lnbmF0dXJl",
	"MHcCAQEEIB":   "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIB\n-----END EC PRIVATE KEY-----",
}

// allSecrets returns all texts with secrets, and a word that stays.
func allSecrets() string {
	var texts []string
	for _, text := range secrets {
		texts = append(texts, text)
	}
	slices.Sort(texts)
	// YAML breaks a line after 80 characters: between a name and its value, without care
	long := "a line " + strings.Repeat("x ", 30) + "and password: long-line-secret"
	return "begin\n" + strings.Join(texts, "\n") + "\n" + long + "\nend"
}

// withSecrets puts secrets into everything that gather reads.
func withSecrets(clusters clitest.Clusters) {
	clitest.ExportWeb(clusters)
	c, text := clusters["cls1"], allSecrets()
	meta := func(name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: session.DefaultNamespace, Name: name, Labels: labels, Annotations: map[string]string{"note": text, annotationApplied: "applied-secret"},
		}
	}
	container := corev1.Container{
		Name: "manager", Args: []string{text}, Env: []corev1.EnvVar{{Name: "HARMLESS", Value: "env-secret"}, {Name: "TEXT", Value: text}},
	}
	deployment := clitest.ControllerDeployment(2)
	deployment.ObjectMeta = meta(deployment.Name, nil)
	deployment.Spec.Template.Spec.Containers = []corev1.Container{container}
	pod := clitest.ControllerPod("manager-abc", "10.1.0.9")
	c.Remove(pod)
	pod.ObjectMeta = meta(pod.Name, session.ManagerLabels())
	pod.Spec.Containers = []corev1.Container{container}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "manager", RestartCount: 1, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: text}},
	}}
	product := map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	c.Add(deployment, pod,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: session.DefaultNamespace, Name: "cloud-map-mcs-controller"}, Data: map[string][]byte{"key": []byte("secret-content")}},
		&corev1.ConfigMap{ObjectMeta: meta("config", nil), Data: map[string]string{"key": "config-content"}},
		&mcsv1beta1.ServiceExport{ObjectMeta: meta("a", nil), Status: mcsv1beta1.ServiceExportStatus{Conditions: []metav1.Condition{{Type: "Ready", Message: text}}}},
		&mcsv1beta1.ServiceImport{ObjectMeta: meta("a", product)},
		&corev1.Service{ObjectMeta: meta("imported-a", product)},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "service-of-a-user"}},
		&discoveryv1.EndpointSlice{ObjectMeta: meta("imported-a-1", map[string]string{plan.LabelManagedBy: plan.ManagedBy}), AddressType: discoveryv1.AddressTypeIPv4},
		&corev1.Event{ObjectMeta: meta("event-of-a-pod", nil), Message: text},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "event-of-an-export"}, Message: text, InvolvedObject: corev1.ObjectReference{APIVersion: "multicluster.x-k8s.io/v1beta1"}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "event-of-a-user"}},
	)
	c.ControllerStatus.ReadProblem = text
	c.ServiceList[0].Publication.Problem = text
	c.Metrics = "go_goroutines 7\nx{text=\"" + strings.ReplaceAll(text, "\n", `\n`) + "\"} 1\n"
}

// writeLogs makes the containers of a cluster have the text as log.
func writeLogs(k *clitest.Cluster, text string) {
	k.CoreDNS.Kube.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.GetSubresource() == "log", &runtime.Unknown{Raw: []byte(text)}, nil
	})
}

// run runs gather and returns its output, and the files by name.
func run(t *testing.T, connections map[string]*session.Cluster, line string) (string, map[string]string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.tar.gz")
	commands := func(s *session.Session) []*cobra.Command { return []*cobra.Command{Command(s)} }
	out, code := clitest.Run(t, commands, connections, line+" --file "+file)
	if code != session.ExitOK {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	if again, code := clitest.Run(t, commands, connections, line+" --file "+file); code != session.ExitError || !strings.Contains(again, "file exists") {
		t.Errorf("the archive is replaced, exit code %d:\n%s", code, again)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	return strings.ReplaceAll(out, file, "FILE"), readArchive(t, file)
}

func readArchive(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	compressed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(compressed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, "report/")] = string(text)
	}
}

// TestGather_HasNoSecrets puts secrets into every source and searches the archive.
func TestGather_HasNoSecrets(t *testing.T) {
	clusters := clitest.NewClusters()
	withSecrets(clusters)
	connections := clusters.Start(t)
	writeLogs(clusters["cls1"], "Starting controller\n"+allSecrets())
	out, files := run(t, connections, "gather --context cls1,cls2")
	if !strings.Contains(out, "Wrote FILE with") {
		t.Errorf("output:\n%s", out)
	}
	others := []string{"long-line-secret", "secret-content", "config-content", "applied-secret", "env-secret", "service-of-a-user", "event-of-a-user"}
	for file, text := range files {
		for secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s", file, secret)
			}
		}
		for _, other := range others {
			if strings.Contains(text, other) {
				t.Errorf("%s has %s", file, other)
			}
		}
	}
	// What is not secret stays, after the secrets too: each source was read.
	for file, want := range map[string]string{
		"plugin-version.txt":                                    clitest.Version,
		"cls1/kubernetes-version.txt":                           "v1.37.2",
		"cls1/clusterproperties.yaml":                           "value: cls1",
		"cls1/serviceexports.yaml":                              "end",
		"cls1/serviceimports.yaml":                              "name: web",
		"cls1/services.yaml":                                    "name: imported-a",
		"cls1/endpointslices.yaml":                              "name: imported-a-1",
		"cls1/events.yaml":                                      "event-of-an-export",
		"cls1/controller/events.yaml":                           "event-of-a-pod",
		"cls1/controller/deployment.yaml":                       "name: HARMLESS",
		"cls1/controller/lease.yaml":                            "holderIdentity: manager-abc_0123",
		"cls1/controller/pods.yaml":                             "restartCount: 1",
		"cls1/controller/logs/manager-abc-manager.log":          "Starting controller",
		"cls1/controller/logs/manager-abc-manager-previous.log": "end",
		"cls1/controller/status.json":                           `"readProblem"`,
		"cls1/controller/registry.json":                         `"cluster": "cls1"`,
		"cls1/controller/metrics.txt":                           "go_goroutines 7",
		"cls2/serviceimports.yaml":                              "name: web",
		"INDEX.txt":                                             "cls2/controller/deployment.yaml: does not exist\n",
	} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s lacks %q:\n%.500s", file, want, files[file])
		}
	}
}

// A reader may list pods only.
type reader struct{ client.Client }

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no access"))
}

func (r reader) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if _, ok := into.(*corev1.PodList); ok {
		return r.Client.List(ctx, into, opts...)
	}
	return forbidden()
}

func (reader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return forbidden()
}

// TestGather_WithPartialRights: what could not be read is listed with the reason, also where no
// controller responds.
func TestGather_WithPartialRights(t *testing.T) {
	clusters := clitest.NewClusters()
	clusters["cls2"].Unreachable = true
	connections := clusters.Start(t)
	all := connections["cls1"].Objects
	connections["cls1"].Objects = func() (client.Client, error) {
		c, err := all()
		return reader{c}, err
	}
	out, files := run(t, connections, "gather --context cls1,cls2")
	if !strings.Contains(out, "parts could not be read: INDEX.txt in the archive has the reasons.") {
		t.Errorf("output:\n%s", out)
	}
	index := files[indexFile]
	for _, want := range []string{
		"Could not be read:\n", "cls1/serviceexports.yaml: no permission to list things in the whole cluster\n",
		"cls1/controller/status.json: reading the controller's Lease: no permission to get things in namespace cloud-map-mcs-system\n",
		"cls2/controller/metrics.txt: querying /metrics of pod cloud-map-mcs-system/manager-abc: connection refused\n", "\nFiles:\n", "cls1/controller/pods.yaml: ",
	} {
		if !strings.Contains(index, want) {
			t.Errorf("the index lacks %q:\n%s", want, index)
		}
	}
	var names []string
	for file := range files {
		if strings.HasPrefix(file, "cls1/") {
			names = append(names, file)
		}
	}
	slices.Sort(names)
	if d := cmp.Diff([]string{"cls1/controller/pods.yaml", "cls1/kubernetes-version.txt"}, names); d != "" {
		t.Error(d)
	}
}

func TestFolderOf(t *testing.T) {
	for context, want := range map[string]string{
		"cls1": "cls1", "arn:aws:eks:eu-west-1:1234:cluster/a": "arn_aws_eks_eu-west-1_1234_cluster_a", "..": "context", "../x": "_x", "": "context",
	} {
		if got := folderOf(context); got != want {
			t.Errorf("%q: %q, want %q", context, got, want)
		}
	}
}
