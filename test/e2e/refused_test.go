package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// TestRefusedWrites: a quota or an admission policy that refuses one object keeps no other one from
// being written and removed, and users see the refusal. It costs about 20 s beside other scenarios.
func TestRefusedWrites(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	t.Run("a quota of EndpointSlices", func(t *testing.T) {
		t.Parallel()
		refusesSlices(t, cls1, cls2)
	})
	t.Run("a policy for Services", func(t *testing.T) {
		t.Parallel()
		refusesServices(t, cls1, cls2)
	})
	t.Run("a quota of ServiceImports", func(t *testing.T) {
		t.Parallel()
		ns := namespace(t, cls1, cls2)
		create(t, cls2, quota(ns, "count/serviceimports.multicluster.x-k8s.io", 0))
		exportByHand(t, cls1, ns, "web", "10.11.9.1")
		eventually(t, soon, func() error { return hasEvent(t.Context(), cls2, ns, "web", "ImportFailed", "exceeded quota") })
		says(t, 3, "check --context cls1,cls2", ns+"/web", "exceeded quota")
		kubectl(t, cls2, "-n", ns, "delete", "resourcequota", "none")
		eventually(t, started, func() error { return exporters(t.Context(), cls2, ns, "web", "cls1") })
	})
	t.Run("a quota of Services and a held IP", func(t *testing.T) {
		t.Parallel()
		ns := namespace(t, cls1, cls2)
		one := exportByHand(t, cls1, ns, "one", "10.11.9.1")
		eventually(t, started, func() error { _, err := importIP(t.Context(), cls2, ns, "one"); return err })
		remove(t, cls1, one)
		eventually(t, soon, func() error { return noImport(t.Context(), cls2, ns, "one") })
		// A quota that is younger than the Service counts it for sure: the controller of quotas may
		// overwrite the use that an admission has added by a sum of before it.
		create(t, cls2, quota(ns, "services", 1))
		eventually(t, soon, func() error { return quotaCounts(t, cls2, ns, 1) })
		exportByHand(t, cls1, ns, "two", "10.11.9.2")
		eventually(t, started, func() error { _, err := importIP(t.Context(), cls2, ns, "two"); return err })
		eventually(t, soon, func() error {
			return hasEvent(t.Context(), cls2, ns, "one", "ClusterSetIPReleased", "because the Service of import "+ns+"/two could not be created")
		})
	})
}

// refusesSlices: the importer has room for no more EndpointSlices. Endpoints that ended leave, and
// new ones arrive in the slices that exist.
func refusesSlices(t *testing.T, cls1, cls2 cluster) {
	ns := namespace(t, cls1, cls2)
	exportByHand(t, cls2, ns, "web", "10.12.9.1")
	eventually(t, started, func() error { return importedAre(t.Context(), cls2, ns, "web", "cls2", "10.12.9.1") })
	// the user's own, and the imported one
	create(t, cls2, quota(ns, "count/endpointslices.discovery.k8s.io", 2))
	eventually(t, soon, func() error { return quotaCounts(t, cls2, ns, 2) })
	exportByHand(t, cls1, ns, "web", "10.11.9.1")
	eventually(t, soon, func() error { return hasEvent(t.Context(), cls2, ns, "web", "ImportFailed", "exceeded quota") })
	own := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web-by-hand"}}
	change(t, cls2, own, func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "10.12.9.2" })
	eventually(t, soon, func() error { return importedAre(t.Context(), cls2, ns, "web", "cls2", "10.12.9.2") })
	kubectl(t, cls2, "-n", ns, "delete", "resourcequota", "none")
	eventually(t, started, func() error { return importedAre(t.Context(), cls2, ns, "web", "cls1", "10.11.9.1") })
}

// refusesServices: a policy that derived Services do not satisfy, and that is younger than they
// are, does not keep an import from ending.
func refusesServices(t *testing.T, cls1, cls2 cluster) {
	ns := namespace(t, cls1, cls2)
	first := exportByHand(t, cls1, ns, "web", "10.11.9.1")
	second := exportByHand(t, cls2, ns, "web", "10.12.9.1")
	eventually(t, started, func() error { return exporters(t.Context(), cls2, ns, "web", "cls1", "cls2") })
	apply(t, cls2, strings.ReplaceAll(ownerPolicy, "NAMESPACE", ns))
	defer kubectl(t, cls2, "delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", ns)
	eventually(t, soon, func() error {
		out, err := suite.Kubectl(t.Context(), cls2.name, "-n", ns, "create", "service", "clusterip", "probe", "--tcp=80", "--dry-run=server")
		if err == nil || !strings.Contains(out+err.Error(), "every Service has label owner") {
			return fmt.Errorf("the policy is not in use yet: %s %w", out, err)
		}
		return nil
	})
	remove(t, cls1, first)
	remove(t, cls2, second)
	eventually(t, soon, func() error { return noImport(t.Context(), cls2, ns, "web") })
	eventually(t, soon, func() error { return noDerivedService(t.Context(), cls2, ns, "web") })
}

// ownerPolicy requires a label of each Service.
const ownerPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NAMESPACE}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [services]}]
  validations: [{expression: "has(object.metadata.labels) && 'owner' in object.metadata.labels", message: every Service has label owner}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NAMESPACE}
spec:
  policyName: NAMESPACE
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}
`

// exportByHand exports a Service with one endpoint that no pod has.
func exportByHand(t *testing.T, c cluster, ns, name, address string) *mcsv1beta1.ServiceExport {
	t.Helper()
	svc := service(ns, name)
	create(t, c, svc)
	create(t, c, endpoints(ns, name, name+"-by-hand", svc.Spec.Ports, endpoint(address, "")))
	return export(t, c, ns, name)
}

// quota is a ResourceQuota named "none".
func quota(ns string, name corev1.ResourceName, n int64) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "none"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{name: *resource.NewQuantity(n, resource.DecimalSI)}}}
}

// quotaCounts returns an error unless the quota counts n objects.
func quotaCounts(t *testing.T, c cluster, ns string, n int) error {
	used := kubectl(t, c, "-n", ns, "get", "resourcequota", "none", "-o", "jsonpath={.status.used}")
	if !strings.Contains(used, fmt.Sprintf("%q", fmt.Sprint(n))) {
		return fmt.Errorf("the quota does not count %d objects yet: %s", n, used)
	}
	return nil
}

// importedAre returns an error unless the endpoints of a source cluster are these.
func importedAre(ctx context.Context, c cluster, ns, name, source string, want ...string) error {
	got, err := imported(ctx, c, ns, name, source, true)
	if err == nil && strings.Join(got, ",") != strings.Join(want, ",") {
		err = fmt.Errorf("%s has imported %v of %s, want %v", c.name, got, source, want)
	}
	return err
}

// hasEvent returns an error unless there is an event about the object of a name with a text in its
// note.
func hasEvent(ctx context.Context, c cluster, ns, name, reason, text string) error {
	var list eventsv1.EventList
	if err := c.List(ctx, &list, client.InNamespace(ns)); err != nil {
		return err
	}
	for _, e := range list.Items {
		if e.Regarding.Name == name && e.Reason == reason && strings.Contains(e.Note, text) {
			return nil
		}
	}
	return fmt.Errorf("%s: no event %s about %s/%s with %q among %d events", c.name, reason, ns, name, text, len(list.Items))
}
