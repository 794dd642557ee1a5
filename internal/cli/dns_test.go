package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/golden"
)

const stockCorefile = `.:53 {
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
    }
    forward . /etc/resolv.conf
    cache 30
    reload
}
`

// A world is a cluster with a stock CoreDNS that works: its pods answer what the Corefile says, once they are restarted.
type world struct {
	kube       *fake.Clientset
	deployment *appsv1.Deployment
	config     *corev1.ConfigMap
	more       []runtime.Object

	noCRDs, noReviews, noPortForward bool
	askError                         error
	deaf                             bool   // the pods never take a Corefile up
	running                          string // the Corefile the pods run with
	controllerMayNot                 string // the resource that the controller may not use; "*" is all
}

func newWorld() *world {
	replicas, labels := int32(2), map[string]string{"k8s-app": "kube-dns"}
	return &world{
		deployment: &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns", Generation: 1, Labels: map[string]string{}},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas,
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: new(intstr.FromInt32(1))}},
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					ServiceAccountName: "coredns",
					Containers:         []corev1.Container{{Name: "coredns", Image: "registry.k8s.io/coredns/coredns:v1.15.0"}},
				}},
			},
			Status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2},
		},
		config: &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns", Labels: map[string]string{}},
			Data:       map[string]string{"Corefile": stockCorefile, "NodeHosts": "untouched"},
		},
		more: []runtime.Object{pod("coredns-1", corev1.ConditionTrue), pod("coredns-2", corev1.ConditionTrue), pod("coredns-starting", corev1.ConditionFalse)},
	}
}

func pod(name string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"k8s-app": "kube-dns"}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// start makes the API server of the world: a fake clientset with an authorizer and with CRDs.
func (w *world) start() {
	w.kube = fake.NewClientset(append([]runtime.Object{w.deployment, w.config}, w.more...)...)
	w.running = w.config.Data["Corefile"]
	if !w.noCRDs {
		w.kube.Resources = []*metav1.APIResourceList{{
			GroupVersion: "multicluster.x-k8s.io/v1alpha1", APIResources: []metav1.APIResource{{Name: "serviceimports"}},
		}}
	}
	w.kube.PrependReactor("create", "subjectaccessreviews", w.review)
	w.kube.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: !w.noPortForward}}, nil
	})
	w.kube.PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !w.deaf {
			w.running = w.corefile()
		}
		return false, nil, nil
	})
}

// review grants what a ClusterRole bound to CoreDNS's service account grants.
func (w *world) review(action clienttesting.Action) (bool, runtime.Object, error) {
	if w.noReviews {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "subjectaccessreviews"}, "", errors.New("no"))
	}
	review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
	if review.Spec.User == "system:serviceaccount:"+defaultNamespace+":"+managerName {
		review.Status.Allowed = w.controllerMayNot != "*" && review.Spec.ResourceAttributes.Resource != w.controllerMayNot
		return true, review, nil
	}
	_, roleErr := w.kube.Tracker().Get(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "", coredns.RoleName)
	binding, bindingErr := w.kube.Tracker().Get(rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), "", coredns.RoleName)
	review.Status.Allowed = roleErr == nil && bindingErr == nil &&
		review.Spec.User == "system:serviceaccount:kube-system:"+binding.(*rbacv1.ClusterRoleBinding).Subjects[0].Name
	return true, review, nil
}

func (w *world) corefile() string {
	config, err := w.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("configmaps"), "kube-system", "coredns")
	if err != nil {
		return err.Error()
	}
	return config.(*corev1.ConfigMap).Data["Corefile"]
}

func (w *world) ask(context.Context, *corev1.Pod) (bool, error) {
	found, err := coredns.Inspect(w.running, "")
	return found.State == coredns.Enabled, errors.Join(err, w.askError)
}

// writes lists what a command changed, reviews left out.
func (w *world) writes() string {
	var out strings.Builder
	for _, action := range w.kube.Actions() {
		resource := action.GetResource().Resource
		if verb := action.GetVerb(); verb != "get" && verb != "list" && !strings.HasSuffix(resource, "reviews") {
			fmt.Fprintf(&out, "~ %s %s\n", verb, resource)
		}
	}
	w.kube.ClearActions()
	return out.String()
}

// run types one command and returns what a user sees: standard output, standard error after "! ", writes after "~ ".
func (w *world) run(t *testing.T, line string) string {
	t.Helper()
	clusters := map[string]*cluster{"": {
		kube: w.kube, ask: w.ask, now: func() time.Time { return time.Unix(0, 0) }, poll: time.Millisecond,
	}}
	transcript, code := runIn(t, clusters, line)
	return fmt.Sprintf("%s%s[exit %d]\n\n", transcript, w.writes(), code)
}

// runIn types one command where the contexts of a kubeconfig lead to clusters, "" being the current one, and returns what a
// user sees, standard error after "! ", and the exit code.
func runIn(t *testing.T, clusters map[string]*cluster, line string) (string, int) {
	t.Helper()
	var out, errOut bytes.Buffer
	a := &app{
		IOStreams:    genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut},
		version:      "v1.2.3",
		namespace:    func() (string, error) { return "demo", nil },
		contextNames: func() []string { return slices.Sorted(maps.Keys(clusters)) },
		connect: func(contexts []string) ([]*cluster, error) {
			if len(contexts) == 0 {
				contexts = []string{""}
			}
			var chosen []*cluster
			for _, name := range contexts {
				if clusters[name] == nil {
					return nil, fmt.Errorf("context %q does not exist", name)
				}
				chosen = append(chosen, clusters[name])
			}
			return chosen, nil
		},
	}
	args := strings.Fields(line)
	if strings.HasSuffix(line, " ") { // completion of a new word
		args = append(args, "")
	}
	code := a.run(t.Context(), a.root(), args)
	var transcript strings.Builder
	fmt.Fprintf(&transcript, "$ kubectl mcs %s\n%s", line, out.String())
	for l := range strings.Lines(errOut.String()) {
		transcript.WriteString("! " + l)
	}
	return transcript.String(), code
}

// Every scenario is a terminal session, kept in testdata/<name>.txt.
func TestSessions(t *testing.T) {
	for _, tt := range []struct {
		name     string
		setup    func(*world)
		commands []string
	}{
		{name: "enable-disable", commands: []string{
			"version", "dns status", "dns enable --dry-run", "dns enable", "dns enable", "dns status", "dns status -o json",
			"dns disable --dry-run", "dns disable", "dns disable", "dns status",
		}},
		{name: "too-old", setup: image("602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/coredns:v1.11.4-eksbuild.2"), commands: []string{
			"dns enable --force", "dns status",
		}},
		{name: "unknown-version", setup: image("example.com/dns/coredns@sha256:0123"), commands: []string{"dns enable", "dns status"}},
		{name: "no-crds", setup: func(w *world) { w.noCRDs = true }, commands: []string{"dns enable", "dns status"}},
		{name: "no-coredns", setup: func(w *world) { w.deployment.Name = "kube-dns" }, commands: []string{"dns enable", "dns status"}},
		{name: "no-corefile", setup: func(w *world) { delete(w.config.Data, "Corefile") }, commands: []string{"dns enable"}},
		{name: "other-implementation", setup: corefile(stockCorefile + "clusterset.local:53 {\n    forward . 10.0.0.9\n}\n"), commands: []string{
			"dns enable", "dns status", "dns disable",
		}},
		{name: "partly", setup: corefile(strings.Replace(stockCorefile, "cluster.local", "cluster.local clusterset.local", 1)), commands: []string{
			"dns status", "dns enable", "dns status",
		}},
		{name: "eks", setup: onEKS, commands: []string{"dns enable", "dns status", "dns enable --force", "dns disable", "dns disable --force"}},
		{name: "no-restart", setup: func(w *world) { w.deaf = true }, commands: []string{"dns enable --no-restart --wait 20ms", "dns enable --no-restart --wait 0s"}},
		{name: "no-restart-no-reload", setup: corefile(strings.Replace(stockCorefile, "    reload\n", "", 1)), commands: []string{
			"dns enable --no-restart",
			"dns enable", // sees that CoreDNS never took it up
		}},
		{name: "stuck", setup: func(w *world) { w.deployment.Status.UpdatedReplicas = 1 }, commands: []string{"dns enable --wait 20ms"}},
		{name: "not-allowed-to-look", setup: func(w *world) { w.noReviews, w.noPortForward = true, true }, commands: []string{"dns enable", "dns status"}},
		{name: "unreachable-pods", setup: func(w *world) { w.askError = errors.New("no route") }, commands: []string{"dns enable --wait 20ms", "dns status"}},
		{name: "foreign-role", setup: func(w *world) {
			w.more = append(w.more, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: coredns.RoleName}})
		}, commands: []string{"dns enable", "dns disable"}},
		{name: "drifted-role", setup: func(w *world) {
			role, binding := coredns.Role(), coredns.Binding("kube-system", "other")
			role.Rules = nil
			w.more = append(w.more, role, binding)
		}, commands: []string{"dns enable"}},
		{name: "warnings", setup: warnings, commands: []string{"dns enable", "dns status"}},
		{name: "usage", commands: []string{"dns status -o yaml", "dns enable now", "dns enable --cluster-domain corp.example"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			if tt.setup != nil {
				tt.setup(w)
			}
			w.start()
			var got strings.Builder
			for _, line := range tt.commands {
				got.WriteString(w.run(t, line))
			}
			golden.Check(t, filepath.Join("testdata", tt.name+".txt"), got.String())
		})
	}
}

// enableDNS makes clusterset.local enabled before the commands begin.
func enableDNS(w *world) {
	enabled, err := coredns.Enable(w.config.Data["Corefile"], "")
	if err != nil {
		panic(err)
	}
	w.config.Data["Corefile"] = enabled
	w.more = append(w.more, coredns.Role(), coredns.Binding("kube-system", "coredns"))
}

func image(ref string) func(*world) {
	return func(w *world) { w.deployment.Spec.Template.Spec.Containers[0].Image = ref }
}

func corefile(text string) func(*world) {
	return func(w *world) { w.config.Data["Corefile"] = text }
}

func onEKS(w *world) { w.deployment.Labels["eks.amazonaws.com/component"] = "coredns" }

func warnings(w *world) {
	*w.deployment.Spec.Replicas = 1
	w.deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
	w.config.Annotations = map[string]string{"objectset.rio.cattle.io/owner-gvk": "k3s.cattle.io/v1, Kind=Addon"}
	w.more = append(w.more, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "node-local-dns"},
		Data:       map[string]string{"Corefile": "cluster.local:53 {\n    forward . 172.20.0.10\n}\n"},
	})
}

// Enabling and disabling leave the ConfigMap as it was, its other keys included.
func TestDisableRestoresTheConfigMap(t *testing.T) {
	w := newWorld()
	w.start()
	w.run(t, "dns enable")
	if w.corefile() == stockCorefile {
		t.Fatal("enable left the Corefile as it was")
	}
	w.run(t, "dns disable")
	after, err := w.kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "coredns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(newWorld().config.Data, after.Data); diff != "" {
		t.Errorf("ConfigMap after enable and disable (-before +after):\n%s", diff)
	}
}

// Somebody else's write between our read and our write is kept: the edit is made again on top of it.
func TestConcurrentEdit(t *testing.T) {
	w := newWorld()
	w.start()
	const theirs = "# somebody was here\n" + stockCorefile
	conflicts := 0
	w.kube.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts > 1 {
			return false, nil, nil
		}
		changed := newWorld().config
		changed.Data["Corefile"] = theirs
		if err := w.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "kube-system"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "coredns", errors.New("changed"))
	})
	w.run(t, "dns enable")
	want, err := coredns.Enable(theirs, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, w.corefile()); diff != "" {
		t.Errorf("Corefile (-want +got):\n%s", diff)
	}
}

func TestMainHelpNeedsNoCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	for _, args := range [][]string{{"--help"}, {"dns", "enable", "--help"}, {"version"}} {
		if code := Main(t.Context(), args, "v1", genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.Discard}); code != ExitOK {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
}
