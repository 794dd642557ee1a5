package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// testTeams checks what users may do who have only a role of Kubernetes in one namespace. The
// controller's manifests are installed.
func testTeams(t *testing.T, kube kubernetes.Interface, kubeconfig string) {
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
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "shop-" + role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: role + "er"}},
		}
		if _, err := kube.RbacV1().RoleBindings("shop").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
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

	aggregate(t, kube)
	run("export web -n blog --wait 0s", session.ExitOK, "ServiceExport blog/web created")
	for _, user := range []string{"viewer", "editer", "adminer"} {
		as := " --as " + user
		run("get exports -n shop"+as, session.ExitOK, "CONTEXT")
		run("get imports -n shop"+as, session.ExitOK, "CONTEXT")
		run("get exports -n blog"+as, session.ExitError, "forbidden")
		run("get imports -n blog"+as, session.ExitError, "forbidden")
		run("export web -n shop --wait 0s"+as, session.ExitError, "forbidden")
	}

	run("install --wait 0s --edit-role", session.ExitOK, "ClusterRole cloud-map-mcs-controller-edit applied")
	aggregate(t, kube)
	run("export web -n shop --wait 0s --as viewer", session.ExitError, "forbidden")
	for _, user := range []string{"editer", "adminer"} {
		as := " --as " + user
		run("export web -n shop --wait 0s"+as, session.ExitOK, "ServiceExport shop/web created")
		run("unexport web -n shop"+as, session.ExitOK, "ServiceExport shop/web deleted")
		run("export web -n blog --wait 0s"+as, session.ExitError, "forbidden")
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
