package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
)

// testTeams checks what users may do who have only a role of Kubernetes in one namespace. The
// controller's manifests are installed.
func testTeams(t *testing.T, config *rest.Config, kube kubernetes.Interface, kubeconfig string) {
	for _, ns := range []string{"shop", "blog"} {
		if _, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		if _, err := kube.CoreV1().Services(ns).Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, role := range []string{"view", "edit", "admin"} {
		bind(t, kube, "shop", "ClusterRole", role, role+"er")
	}
	run := func(line string, wantCode int, want ...string) {
		t.Helper()
		var out bytes.Buffer
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}
		code := Main(t.Context(), append([]string{"--kubeconfig=" + kubeconfig}, strings.Fields(line)...), "v1.2.3", streams)
		if code != wantCode {
			t.Errorf("%s: exit code %d, want %d", line, code, wantCode)
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%s does not print %q:\n%s", line, text, out.String())
			}
		}
	}

	testForward(t, kube, run)
	aggregate(t, kube)
	run("export web -n blog --wait 0s", session.ExitOK, "ServiceExport blog/web created")
	for _, user := range []string{"viewer", "editer", "adminer"} {
		as := " --as " + user
		run("get exports -n shop"+as, session.ExitOK, "CONTEXT")
		run("get imports -n shop"+as, session.ExitOK, "CONTEXT")
		run("get exports -n blog"+as, session.ExitError, "no permission to list serviceexports.multicluster.x-k8s.io in namespace blog")
		run("get imports -n blog"+as, session.ExitError, "no permission to list serviceimports.multicluster.x-k8s.io in namespace blog")
		run("export web -n shop --wait 0s"+as, session.ExitError, "forbidden")
	}

	importWeb(t, config)
	run("get services -n shop --as viewer", session.ExitOK, "shop        web    ClusterSetIP   80/TCP   cls9          unknown       1           1       ready",
		"no permission to list pods in namespace cloud-map-mcs-system")
	run("get services -A --as viewer", session.ExitError, "no permission to list serviceexports.multicluster.x-k8s.io in the whole cluster")
	run("describe web -n shop --as viewer", session.ExitIncomplete, "cls9          unknown   unknown", "ClusterSetIP 10.96.9.9 from cls9")
	run("diagnose web -n shop --as viewer", session.ExitIncomplete, "no permission to list pods", "1 of 1 endpoints from cls9 are ready",
		"CoreDNS           unknown   reading the Deployment of CoreDNS: no permission to get deployments.apps in namespace kube-system",
		"Failed in envtest at derived Service: does not exist")
	run("diagnose web -n blog --as viewer", session.ExitIncomplete, "no permission to get serviceexports.multicluster.x-k8s.io in namespace blog", "role view")

	run("install --wait 0s --edit-role", session.ExitOK, "ClusterRole cloud-map-mcs-controller-edit applied")
	aggregate(t, kube)
	run("export web -n shop --wait 0s --as viewer", session.ExitError, "forbidden")
	for _, user := range []string{"editer", "adminer"} {
		as := " --as " + user
		run("export web -n shop --wait 0s"+as, session.ExitOK, "ServiceExport shop/web created")
		run("unexport web -n shop"+as, session.ExitOK, "ServiceExport shop/web deleted")
		run("export web -n blog --wait 0s"+as, session.ExitError, "no permission to get services in namespace blog")
		for verb, want := range map[string]bool{"list": true, "create": false, "update": false, "patch": false, "delete": false} {
			review, err := kube.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "shop", Group: "multicluster.x-k8s.io", Resource: "serviceimports", Verb: verb},
			}}, metav1.CreateOptions{})
			if err != nil || review.Status.Allowed != want {
				t.Errorf("%s may %s ServiceImports: %t (%v), want %t", user, verb, review.Status.Allowed, err, want)
			}
		}
	}
}

// importWeb creates the objects of an import of shop/web, without its derived Service.
func importWeb(t *testing.T, config *rest.Config) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := discoveryv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	served.AddMCS(scheme, schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"})
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	imp := &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}},
		Spec: mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.96.9.9"}, Ports: []mcsv1beta1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	slice := clitest.Slice("imported-1", map[string]string{
		plan.LabelManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: "web", mcsv1beta1.LabelSourceCluster: "cls9",
	})
	slice.Namespace, slice.Endpoints = "shop", slice.Endpoints[:1]
	for _, o := range []client.Object{imp, slice} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	imp.Status = mcsv1beta1.ServiceImportStatus{Clusters: []mcsv1beta1.ClusterStatus{{Cluster: "cls9"}}, Conditions: []metav1.Condition{
		{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.Now()},
	}}
	if err := c.Status().Update(t.Context(), imp); err != nil {
		t.Fatal(err)
	}
}

// testForward checks what a user sees who may not port-forward to the controller.
func testForward(t *testing.T, kube kubernetes.Interface, run func(line string, wantCode int, want ...string)) {
	t.Helper()
	pod := clitest.ControllerPod("manager-abc", "10.1.0.9")
	pod.Namespace = "blog" // admits pods of every kind
	pod.Spec.Containers = []corev1.Container{{Name: "manager", Image: "x"}}
	pod, err := kube.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status = clitest.ControllerPod("", "10.1.0.9").Status
	if _, err := kube.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get"}},
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "lister"}, Rules: rules}
	if _, err := kube.RbacV1().Roles(pod.Namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bind(t, kube, pod.Namespace, "Role", "lister", "lister")
	run("status --controller-namespace blog --as lister", session.ExitIncomplete, "no permission to create pods/portforward in namespace blog")
	run("status --as viewer", session.ExitIncomplete, "no permission to list pods in namespace cloud-map-mcs-system")
}

// bind binds a role to a user in a namespace.
func bind(t *testing.T, kube kubernetes.Interface, namespace, kind, role, user string) {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := kube.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// aggregate adds the rules of the labelled ClusterRoles to view, edit and admin, as Kubernetes'
// controller manager does, which does not run here.
func aggregate(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	roles := kube.RbacV1().ClusterRoles()
	all, err := roles.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"view", "edit", "admin"} { // each selects the one before it
		role, err := roles.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		role.Rules = nil
		for i, source := range all.Items {
			for _, s := range role.AggregationRule.ClusterRoleSelectors {
				selector, err := metav1.LabelSelectorAsSelector(&s)
				if err != nil {
					t.Fatal(err)
				}
				if source.Name != name && selector.Matches(labels.Set(source.Labels)) {
					role.Rules = append(role.Rules, all.Items[i].Rules...)
				}
			}
		}
		if role, err = roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		all.Items[slices.IndexFunc(all.Items, func(r rbacv1.ClusterRole) bool { return r.Name == name })] = *role
	}
}
