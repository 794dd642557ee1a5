package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// TestImportLivesAsLongAsAnExport: it stays, with its IP, while one cluster exports the service,
// and goes everywhere with the last one.
func TestImportLivesAsLongAsAnExport(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	all := []cluster{cls1, cls2}
	first := publish(t, cls1, ns, 1, asIs)
	last := publish(t, cls2, ns, 2, asIs)
	ips := map[string]string{}
	for _, c := range all {
		eventually(t, soon, func() error { return exporters(t.Context(), c, ns, "web", "cls1", "cls2") })
		eventually(t, soon, func() (err error) { ips[c.name], err = importIP(t.Context(), c, ns, "web"); return err })
	}
	remove(t, cls1, first)
	for _, c := range all {
		eventually(t, soon, func() error { return exporters(t.Context(), c, ns, "web", "cls2") })
		if ip, err := importIP(t.Context(), c, ns, "web"); err != nil || ip != ips[c.name] {
			t.Errorf("%s: the clusterset IP is %q (%v), want still %q", c.name, ip, err, ips[c.name])
		}
		eventually(t, soon, func() error {
			got, err := imported(t.Context(), c, ns, "web", "", true)
			if d := cmp.Diff([]string{"10.12.250.1"}, got); err == nil && d != "" {
				err = fmt.Errorf("%s: imported endpoints (-want +got):\n%s", c.name, d)
			}
			return err
		})
	}
	remove(t, cls2, last)
	for _, c := range all {
		eventually(t, soon, func() error {
			return errors.Join(noImport(t.Context(), c, ns, "web"), noDerivedService(t.Context(), c, ns, "web"))
		})
		// The user's own objects stay.
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web"}, &corev1.Service{}); err != nil {
			t.Error(err)
		}
	}
}

// TestOnlyWithServiceExport: a Service of the same name is exported only by clusters that have a
// ServiceExport for it.
func TestOnlyWithServiceExport(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	create(t, cls2, service(ns, "web"))
	create(t, cls2, endpoints(ns, "web", "by-hand", service(ns, "web").Spec.Ports, endpoint("10.12.250.1", "")))
	create(t, cls2, service(ns, "private"))
	publish(t, cls1, ns, 1, asIs)
	for _, c := range []cluster{cls1, cls2} {
		eventually(t, soon, func() error { return exporters(t.Context(), c, ns, "web", "cls1") })
		eventually(t, soon, func() error {
			got, err := imported(t.Context(), c, ns, "web", "", true)
			if d := cmp.Diff([]string{"10.10.250.1"}, got); err == nil && d != "" {
				err = fmt.Errorf("%s: imported endpoints of the export from cls1 (-want +got):\n%s", c.name, d)
			}
			return err
		})
		if list, err := importedSlices(t.Context(), c, ns, "web", "cls2"); err != nil || len(list) > 0 {
			t.Errorf("%s: slices from cls2, which does not export: %v (%v)", c.name, list, err)
		}
		if err := noImport(t.Context(), c, ns, "private"); err != nil {
			t.Error(err)
		}
	}
}

// TestNodePortAndLoadBalancer: both types are exported as ClusterSetIP, and the Services do not
// change.
func TestNodePortAndLoadBalancer(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, servers(cls1, ns, "web", 1))
	startClient(t, cls2, ns)
	kinds := []corev1.ServiceType{corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer}
	made := map[corev1.ServiceType]*corev1.Service{}
	for _, kind := range kinds {
		svc := service(ns, strings.ToLower(string(kind)))
		svc.Spec.Type = kind
		svc.Spec.Selector = map[string]string{"app": "web"}
		create(t, cls1, svc)
		export(t, cls1, ns, svc.Name)
		made[kind] = svc
	}
	for _, kind := range kinds {
		svc := made[kind]
		eventually(t, started, func() error { return hasClusterSetIP(t.Context(), cls2, ns, svc.Name) })
		eventually(t, started, func() error { return answeredBy(t.Context(), cls2, ns, curl("http://"+fqdn(ns, svc.Name)), "cls1") })
		var now corev1.Service
		if err := cls1.Get(t.Context(), client.ObjectKeyFromObject(svc), &now); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(svc.Spec, now.Spec) + cmp.Diff(svc.Labels, now.Labels) + cmp.Diff(svc.Annotations, now.Annotations) +
			cmp.Diff(svc.OwnerReferences, now.OwnerReferences); d != "" {
			t.Errorf("the exported %s Service was changed (-before +after):\n%s", kind, d)
		}
		derived, err := derivedService(t.Context(), cls2, ns, svc.Name)
		if err != nil || derived.Spec.Type != corev1.ServiceTypeClusterIP || derived.Spec.Ports[0].NodePort != 0 {
			t.Errorf("the derived Service is %+v (%v), want a plain ClusterIP one", derived, err)
		}
	}
}

// TestServiceChanges: the ports and the selector of an exported Service change, and clients
// elsewhere follow.
func TestServiceChanges(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, servers(cls1, ns, "blue", 1)+"---"+servers(cls1, ns, "green", 1))
	startClient(t, cls2, ns)
	svc := service(ns, "web")
	svc.Spec.Selector = map[string]string{"app": "blue"}
	create(t, cls1, svc)
	export(t, cls1, ns, "web")
	only := func(port int, color string) error {
		got, _, err := answers(t.Context(), cls2, ns, 8, curl(fmt.Sprintf("http://%s:%d", fqdn(ns, "web"), port)))
		for pod := range got {
			if !strings.HasPrefix(pod, "cls1-"+color) {
				err = fmt.Errorf("port %d was answered by %v, want only %s", port, got, color)
			}
		}
		if err == nil && len(got) == 0 {
			err = fmt.Errorf("port %d was not answered", port)
		}
		return err
	}
	eventually(t, started, func() error { return only(80, "blue") })
	ip, err := importIP(t.Context(), cls2, ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	change(t, cls1, svc, func(svc *corev1.Service) { svc.Spec.Selector["app"] = "green" })
	eventually(t, soon, func() error { return only(80, "green") })
	change(t, cls1, svc, func(svc *corev1.Service) {
		svc.Spec.Ports = []corev1.ServicePort{{Name: "web", Port: 8080, TargetPort: intstr.FromInt32(80)}}
	})
	eventually(t, soon, func() error {
		return errors.Join(importedPorts(t.Context(), cls2, ns, "web", "web 8080/TCP"), only(8080, "green"))
	})
	if err := only(80, "green"); err == nil {
		t.Error("the port that is gone still answers")
	}
	if now, err := importIP(t.Context(), cls2, ns, "web"); err != nil || now != ip {
		t.Errorf("the clusterset IP is %q (%v), want still %q", now, err, ip)
	}
}

// TestMetadata checks that exported labels and annotations appear on the ServiceImport and are
// removed from it, that reserved ones and those of other tools have no effect, and that the
// metadata of the Service and the ServiceExport themselves is not exported.
func TestMetadata(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	own := map[string]string{"secret": "yes", "example.com/secret": "yes"}
	e := publish(t, cls1, ns, 1, func(svc *corev1.Service, e *mcsv1beta1.ServiceExport) {
		svc.Labels, svc.Annotations = own, own
		e.Labels, e.Annotations = own, own
		e.Spec.ExportedLabels = map[string]string{
			"tier": "gold", "example.com/team": "a",
			"app.kubernetes.io/managed-by":          "another-tool",
			"multicluster.kubernetes.io/anything":   "no",
			"service.kubernetes.io/headless":        "no",
			"multicluster.x-k8s.io/source-cluster":  "no",
			"multicluster.kubernetes.io/service-ip": "10.0.0.1",
		}
		e.Spec.ExportedAnnotations = map[string]string{
			"note":             "any text, with blanks",
			"example.com/note": "no",
			"multicluster.kubernetes.io/derived-service": "kubernetes",
			"multicluster.k8s.aws/derived-service":       "kubernetes",
		}
	})
	labels := map[string]string{"tier": "gold"}
	annotations := map[string]string{"note": "any text, with blanks"}
	exact := func() error {
		imp, err := serviceImport(t.Context(), cls2, ns, "web")
		if err != nil {
			return err
		}
		derived, err := derivedService(t.Context(), cls2, ns, "web")
		if err != nil {
			return err
		}
		// The controller's own metadata must be right as well.
		if by := imp.Labels["app.kubernetes.io/managed-by"]; by != "cloud-map-mcs-controller" {
			return fmt.Errorf("the import is managed by %q", by)
		}
		delete(imp.Labels, "app.kubernetes.io/managed-by")
		for _, prefix := range []string{"multicluster.kubernetes.io", "multicluster.k8s.aws"} {
			if name := imp.Annotations[prefix+"/derived-service"]; name != derived.Name {
				return fmt.Errorf("the import names the derived Service %q, it is %q", name, derived.Name)
			}
			delete(imp.Annotations, prefix+"/derived-service")
		}
		if times := imp.Annotations["multicluster.k8s.aws/export-times"]; !strings.HasPrefix(times, "cls1=") {
			return fmt.Errorf("the import has the export times %q, want one of cls1", times)
		}
		delete(imp.Annotations, "multicluster.k8s.aws/export-times")
		if left := imp.Annotations[plan.AnnotationNotImported]; left != "example.com/note,example.com/team" {
			return fmt.Errorf("the keys %q are listed as not imported", left)
		}
		delete(imp.Annotations, plan.AnnotationNotImported)
		delete(imp.Annotations, "multicluster.k8s.aws/exported-labels")
		delete(imp.Annotations, "multicluster.k8s.aws/exported-annotations")
		if d := cmp.Diff(labels, imp.Labels) + cmp.Diff(annotations, imp.Annotations); d != "" {
			return fmt.Errorf("labels and annotations of the import (-want +got):\n%s", d)
		}
		if derived.Labels["secret"]+derived.Annotations["secret"] != "" {
			return fmt.Errorf("the derived Service has labels %v and annotations %v", derived.Labels, derived.Annotations)
		}
		return nil
	}
	eventually(t, soon, exact)
	eventually(t, soon, func() error {
		events := kubectl(t, cls1, "-n", ns, "get", "events", "-o", "jsonpath={range .items[*]}{.reason} {.message}{\"\\n\"}{end}")
		if !strings.Contains(events, "PartlyExported") || !strings.Contains(events, "its prefix is reserved") {
			return fmt.Errorf("no event says that reserved keys are left out, only %s", events)
		}
		return nil
	})
	change(t, cls1, e, func(e *mcsv1beta1.ServiceExport) {
		delete(e.Spec.ExportedLabels, "tier")
		e.Spec.ExportedAnnotations = map[string]string{"note": "another", "example.com/note": "no"}
	})
	delete(labels, "tier")
	annotations["note"] = "another"
	eventually(t, soon, exact)
}

// TestStatus: the conditions have the observed generation, and the status lists both clusters;
// users can read EndpointSlices.
func TestStatus(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	e := publish(t, cls1, ns, 1, asIs)
	change(t, cls1, e, func(e *mcsv1beta1.ServiceExport) { e.Spec.ExportedLabels = map[string]string{"a": "b"} })
	eventually(t, soon, func() error {
		if err := cls1.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
			return err
		}
		got := map[string]metav1.ConditionStatus{}
		for _, c := range e.Status.Conditions {
			if c.ObservedGeneration != e.Generation {
				return fmt.Errorf("condition %s is of generation %d, the ServiceExport of %d", c.Type, c.ObservedGeneration, e.Generation)
			}
			got[c.Type] = c.Status
		}
		delete(got, mcs.ConditionImported) // depends on the reports of the other clusters
		want := map[string]metav1.ConditionStatus{"Valid": metav1.ConditionTrue, "Ready": metav1.ConditionTrue, "Conflict": metav1.ConditionFalse}
		if d := cmp.Diff(want, got); d != "" {
			return fmt.Errorf("conditions (-want +got):\n%s", d)
		}
		return nil
	})
	for _, c := range []cluster{cls1, cls2} {
		eventually(t, soon, func() error {
			imp, err := serviceImport(t.Context(), c, ns, "web")
			if err != nil {
				return err
			}
			conditions := imp.Status.Conditions
			if imp.Labels["a"] != "b" || imp.Status.EndpointSliceObjects != mcsv1beta1.EndpointSliceObjectsPresent || len(conditions) != 1 ||
				conditions[0].Type != "Ready" || conditions[0].Status != metav1.ConditionTrue || conditions[0].ObservedGeneration != imp.Generation {
				return fmt.Errorf("%s: the import of generation %d has labels %v and status %+v", c.name, imp.Generation, imp.Labels, imp.Status)
			}
			return nil
		})
	}
}

// TestEndpointSliceObjects checks labels, owner and manager of imported slices.
func TestEndpointSliceObjects(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	publish(t, cls1, ns, 1, asIs)
	publish(t, cls2, ns, 2, asIs)
	for _, c := range []cluster{cls1, cls2} {
		eventually(t, soon, func() error { return exporters(t.Context(), c, ns, "web", "cls1", "cls2") })
		eventually(t, soon, func() error { return hasClusterSetIP(t.Context(), c, ns, "web") })
		imp, err := serviceImport(t.Context(), c, ns, "web")
		if err != nil {
			t.Fatal(err)
		}
		for source, address := range map[string]string{"cls1": "10.10.250.1", "cls2": "10.12.250.1"} {
			// The controller may know of an export before it knows of its endpoints.
			eventually(t, soon, func() error {
				got, err := imported(t.Context(), c, ns, "web", source, true)
				if d := cmp.Diff([]string{address}, got); err == nil && d != "" {
					err = fmt.Errorf("%s: imported endpoints of the export from %s (-want +got):\n%s", c.name, source, d)
				}
				return err
			})
			list, err := importedSlices(t.Context(), c, ns, "web", source)
			if err != nil || len(list) != 1 {
				t.Fatalf("%s: %d slices from %s (%v), want 1", c.name, len(list), source, err)
			}
			s := list[0]
			if s.Labels["endpointslice.kubernetes.io/managed-by"] != "cloud-map-mcs-controller" ||
				len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Kind != "ServiceImport" || s.OwnerReferences[0].UID != imp.UID ||
				s.OwnerReferences[0].Controller != nil && *s.OwnerReferences[0].Controller {
				t.Errorf("%s: slice %s has labels %v and owners %+v", c.name, s.Name, s.Labels, s.OwnerReferences)
			}
		}
	}
}

// TestImportsAreTheControllersAlone: a user with edit rights in a namespace cannot write
// ServiceImports there.
func TestImportsAreTheControllersAlone(t *testing.T) {
	t.Parallel()
	cls1, _ := installed(t)
	ns := namespace(t, cls1)
	create(t, cls1, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "edit"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}}})
	may := func(verb, resource string) string {
		// exit code 1 is "no"
		out, _ := suite.Kubectl(t.Context(), cls1.name, "-n", ns, "auth", "can-i", verb, resource, "--as=alice")
		return strings.TrimSpace(out)
	}
	eventually(t, soon, func() error {
		if got := may("create", "services"); got != "yes" {
			return fmt.Errorf("may alice create Services? %q", got)
		}
		return nil
	})
	for _, verb := range []string{"create", "update", "patch", "delete"} {
		if got := may(verb, "serviceimports.multicluster.x-k8s.io"); got != "no" {
			t.Errorf("may alice %s ServiceImports? %q, want no", verb, got)
		}
	}
}
