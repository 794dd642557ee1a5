package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestNothingIsLeftOutInSilence: copied labels do not end an export; what is not exported, or not
// reached, is on the objects and in diagnose.
func TestNothingIsLeftOutInSilence(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, web(ns, "web", 1))
	export(t, cls1, ns, "web")
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 1) })
	diagnose := func(name string) string { return "diagnose " + name + " -n " + ns + " --context cls1,cls2 --no-probe" }

	t.Run("a label of the Service", func(t *testing.T) {
		kubectl(t, cls1, "-n", ns, "label", "service", "web", mcsv1beta1.LabelServiceName+"=other", mcsv1beta1.LabelSourceCluster+"=cls9")
		eventually(t, soon, func() error {
			slices := kubectl(t, cls1, "-n", ns, "get", "endpointslices", "-l", mcsv1beta1.LabelServiceName+"=other,"+discoveryv1.LabelServiceName+"=web", "-o", "name")
			if slices == "" {
				return fmt.Errorf("Kubernetes has not copied the label yet")
			}
			return nil
		})
		// a change after the copy arrives
		kubectl(t, cls1, "-n", ns, "scale", "deployment", "web", "--replicas=2")
		eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 2) })
		says(t, 0, diagnose("web"), "exported 2 of 2 endpoints", "No step failed")
	})
	t.Run("slices that are not exported", func(t *testing.T) { leavesOutSlices(t, cls1, ns, diagnose("byhand")) })
	t.Run("a ServiceExport that a finalizer keeps", func(t *testing.T) {
		svc := service(ns, "kept")
		create(t, cls1, svc)
		e := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "kept", Finalizers: []string{"example.com/keep"}}}
		create(t, cls1, e)
		eventually(t, soon, func() error { return exported(t.Context(), cls1, ns, "kept") })
		remove(t, cls1, e)
		eventually(t, soon, func() error {
			return condition(t.Context(), cls1, ns, "kept", "Ready", metav1.ConditionFalse, "Pending", "is being deleted")
		})
		eventually(t, soon, func() error { return noImport(t.Context(), cls2, ns, "kept") })
		change(t, cls1, e, func(e *mcsv1beta1.ServiceExport) { e.Finalizers = nil })
	})
	t.Run("a derived Service", func(t *testing.T) {
		derived := mcs.DerivedName(mcs.Key{Namespace: ns, Name: "web"})
		export(t, cls2, ns, derived)
		eventually(t, soon, func() error {
			return condition(t.Context(), cls2, ns, derived, "Valid", metav1.ConditionFalse, "InvalidServiceType", "derived Service of ServiceImport web")
		})
	})
	t.Run("local traffic", func(t *testing.T) {
		kubectl(t, cls1, "-n", ns, "patch", "service", "web", "-p", `{"spec":{"internalTrafficPolicy":"Local"}}`)
		eventually(t, soon, func() error {
			return importSays(t.Context(), cls2, ns, "web", "no endpoint of this cluster is ready, so they reach none")
		})
		eventually(t, soon, func() error {
			return importSays(t.Context(), cls1, ns, "web", "clients reach only the endpoints on their own node")
		})
		says(t, 3, diagnose("web"), "Failed in cls2 at traffic policy", "PreferSameNode")
	})
}

// leavesOutSlices exports a Service of which no endpoint can be exported, and metadata that is too
// long.
func leavesOutSlices(t *testing.T, c cluster, ns, diagnose string) {
	svc := service(ns, "byhand")
	create(t, c, svc)
	create(t, c, endpoints(ns, "byhand", "other-port", []corev1.ServicePort{{Name: "web", Port: 80}}, endpoint("10.11.9.1", ""), endpoint("10.11.9.2", "")))
	fqdns := endpoints(ns, "byhand", "fqdns", svc.Spec.Ports, endpoint("10.11.9.3", ""))
	fqdns.AddressType, fqdns.Endpoints[0].Addresses = discoveryv1.AddressTypeFQDN, []string{"www.example.com"}
	create(t, c, fqdns)
	create(t, c, &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "byhand"},
		Spec: mcsv1beta1.ServiceExportSpec{ExportedAnnotations: map[string]string{"note": strings.Repeat("x", 5000)}}})
	for _, text := range []string{"endpoints of EndpointSlice other-port: none of its ports", "endpoints of EndpointSlice fqdns: its endpoints are host names", `annotation "note": there are more than`} {
		eventually(t, soon, func() error {
			return condition(t.Context(), c, ns, "byhand", "Ready", metav1.ConditionTrue, "Exported", text)
		})
	}
	says(t, 3, diagnose, "exported 0 of 3 endpoints", "1 of EndpointSlice fqdns", "2 of EndpointSlice other-port")
}

// importSays returns an error unless the condition Ready of a ServiceImport is True with a text in
// its message.
func importSays(ctx context.Context, c cluster, ns, name, text string) error {
	imp, err := serviceImport(ctx, c, ns, name)
	if err != nil {
		return err
	}
	ready := meta.FindStatusCondition(imp.Status.Conditions, "Ready")
	if ready == nil || ready.Status != metav1.ConditionTrue || !strings.Contains(ready.Message, text) {
		return fmt.Errorf("%s: condition %+v, want True with %q", c.name, ready, text)
	}
	return nil
}
