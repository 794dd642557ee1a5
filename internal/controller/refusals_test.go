package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// absent is the state of an object that does not exist.
const absent = "-"

// refusal is what an administrator forbids in one namespace.
type refusal struct {
	// resource, subresource and operation are those of the refused requests; name is the service of
	// the refused object, and cluster the source cluster of a slice. expression, if set, is a CEL
	// condition for the refused content of the object.
	resource, subresource, operation, name, cluster, expression string
	// quota is the resource of a quota without room, instead of an admission policy.
	quota corev1.ResourceName
	// failing is the service that has to report the refusal.
	failing string
	// notReady reports whether the ServiceImport has condition Ready=False while the refusal lasts.
	notReady bool
	// deviates are the objects that are not as without the refusal while it lasts.
	deviates map[string]string
}

// refusals has a case for each kind and verb that imports use, for parts of the content of an
// object, and for quotas.
var refusals = map[string]refusal{
	"Service CREATE": {resource: "services", operation: "CREATE", name: "fresh", failing: "fresh", notReady: true, deviates: map[string]string{
		"Service fresh": absent, "ServiceImport fresh": "http/80 from cls1,cls3 without IP",
	}},
	"Service UPDATE": {resource: "services", operation: "UPDATE", name: "kept", failing: "kept", notReady: true, deviates: map[string]string{"Service kept": "http/80"}},
	// The IPs of an ended import cannot be held, so the Service is deleted.
	"Service UPDATE to hold its IPs": {resource: "services", operation: "UPDATE", name: "ended", failing: "ended", deviates: map[string]string{"Service ended": absent}},
	"ServiceImport CREATE": {resource: "serviceimports", operation: "CREATE", name: "fresh", failing: "fresh", deviates: map[string]string{
		"Service fresh": absent, "ServiceImport fresh": absent, "EndpointSlice fresh cls1": absent, "EndpointSlice fresh cls3": absent,
	}},
	"ServiceImport UPDATE": {resource: "serviceimports", operation: "UPDATE", name: "kept", failing: "kept", notReady: true, deviates: map[string]string{
		"ServiceImport kept": "http/80 from cls1,cls3,cls4",
	}},
	"ServiceImport UPDATE of its status": {resource: "serviceimports", subresource: "status", operation: "UPDATE", name: "kept", failing: "kept", deviates: map[string]string{
		"ServiceImport kept": "http/80,https/443 from cls1,cls3,cls5",
	}},
	"ServiceImport DELETE": {resource: "serviceimports", operation: "DELETE", name: "ended", failing: "ended", notReady: true, deviates: map[string]string{
		"ServiceImport ended": "http/80 from ",
	}},
	"EndpointSlice CREATE of a new cluster": {resource: "endpointslices", operation: "CREATE", name: "kept", cluster: "cls4", failing: "kept", notReady: true, deviates: map[string]string{
		"EndpointSlice kept cls4": absent,
	}},
	"EndpointSlice CREATE of a new import": {resource: "endpointslices", operation: "CREATE", name: "fresh", cluster: "cls1", failing: "fresh", notReady: true, deviates: map[string]string{
		"EndpointSlice fresh cls1": absent,
	}},
	// All of its endpoints have ended: it is deleted, and created again.
	"EndpointSlice UPDATE": {resource: "endpointslices", operation: "UPDATE", name: "kept", cluster: "cls3", failing: "kept"},
	// One of its endpoints has ended, and one has not.
	"EndpointSlice UPDATE of a slice that is used": {resource: "endpointslices", operation: "UPDATE", name: "single", cluster: "cls1", failing: "single", notReady: true, deviates: map[string]string{
		"EndpointSlice single cls1": "10.1.1.1,10.1.1.9",
	}},
	"EndpointSlice DELETE": {resource: "endpointslices", operation: "DELETE", name: "kept", cluster: "cls5", failing: "kept", notReady: true, deviates: map[string]string{
		"EndpointSlice kept cls5": "",
	}},
	"EndpointSlice DELETE of an ended import": {resource: "endpointslices", operation: "DELETE", name: "ended", cluster: "cls1", failing: "ended", deviates: map[string]string{
		"EndpointSlice ended cls1": "",
	}},
	"an address": {resource: "endpointslices", operation: "UPDATE", name: "single", cluster: "cls1", failing: "single", notReady: true,
		expression: "object.endpoints.exists(e, '10.1.1.2' in e.addresses)", deviates: map[string]string{"EndpointSlice single cls1": "10.1.1.9"}},
	"a port of a slice": {resource: "endpointslices", operation: "UPDATE", name: "kept", cluster: "cls1", failing: "kept", notReady: true,
		expression: "object.ports.exists(p, p.name == 'https')", deviates: map[string]string{"EndpointSlice kept cls1": ""}},
	"a port of a Service": {resource: "services", operation: "UPDATE", name: "kept", failing: "kept", notReady: true,
		expression: "object.spec.ports.exists(p, p.name == 'https')", deviates: map[string]string{"Service kept": "http/80"}},
	"a quota of EndpointSlices": {quota: "count/endpointslices.discovery.k8s.io", failing: "kept", notReady: true, deviates: map[string]string{
		"EndpointSlice kept cls4": absent, "EndpointSlice fresh cls1": absent, "EndpointSlice fresh cls3": absent,
	}},
	"a quota of Services": {quota: "services", failing: "fresh", notReady: true, deviates: map[string]string{
		"Service fresh": absent, "ServiceImport fresh": "http/80 from cls1,cls3 without IP",
		"Service ended": absent, // the IP that it held gives way
	}},
	"a quota of ServiceImports": {quota: "count/serviceimports.multicluster.x-k8s.io", failing: "fresh", deviates: map[string]string{
		"Service fresh": absent, "ServiceImport fresh": absent, "EndpointSlice fresh cls1": absent, "EndpointSlice fresh cls3": absent,
	}},
	"nothing": {},
}

// importsAfter are the objects in a namespace after changeImports.
var importsAfter = map[string]string{
	"ServiceImport kept": "http/80,https/443 from cls1,cls3,cls4", "Service kept": "http/80,https/443",
	"EndpointSlice kept cls1": "10.1.0.2", "EndpointSlice kept cls3": "10.3.0.2", "EndpointSlice kept cls4": "10.4.0.1",
	"ServiceImport fresh": "http/80 from cls1,cls3", "Service fresh": "http/80",
	"EndpointSlice fresh cls1": "10.1.2.1", "EndpointSlice fresh cls3": "10.3.2.1",
	"ServiceImport single": "http/80 from cls1", "Service single": "http/80", "EndpointSlice single cls1": "10.1.1.2,10.1.1.9",
	"Service ended": "held",
}

// importers has members that publish the same services in every namespace.
type importers struct{ cls1, cls3, cls4, cls5 member }

func (m importers) createImports(t *testing.T, namespace string) {
	kept, single, ended := mcs.Key{Namespace: namespace, Name: "kept"}, mcs.Key{Namespace: namespace, Name: "single"}, mcs.Key{Namespace: namespace, Name: "ended"}
	m.cls1.publish(t, kept, []string{"10.1.0.1"}, madeIn2021)
	m.cls3.publish(t, kept, []string{"10.3.0.1"})
	m.cls5.publish(t, kept, []string{"10.5.0.1"})
	m.cls1.publish(t, single, []string{"10.1.1.1", "10.1.1.9"})
	m.cls1.publish(t, ended, []string{"10.1.3.1"}, madeIn2021)
	m.cls3.publish(t, ended, []string{"10.3.3.1"})
}

// changeImports creates, changes and removes imports.
func (m importers) changeImports(t *testing.T, namespace string) {
	kept, single, ended := mcs.Key{Namespace: namespace, Name: "kept"}, mcs.Key{Namespace: namespace, Name: "single"}, mcs.Key{Namespace: namespace, Name: "ended"}
	m.cls1.publish(t, kept, []string{"10.1.0.2"}, madeIn2021, func(e *mcs.Export) {
		e.Ports = append(e.Ports, mcs.Port{Name: "https", Port: 443})
		e.Backends[0].Ports = append(e.Backends[0].Ports, mcs.BackendPort{Name: "https", Port: 8443})
	})
	m.cls3.publish(t, kept, []string{"10.3.0.2"})
	m.cls4.publish(t, kept, []string{"10.4.0.1"})
	m.withdraw(t, kept, m.cls5)
	m.cls1.publish(t, single, []string{"10.1.1.2", "10.1.1.9"})
	m.withdraw(t, ended, m.cls1, m.cls3)
	fresh := mcs.Key{Namespace: namespace, Name: "fresh"}
	m.cls1.publish(t, fresh, []string{"10.1.2.1"}, madeIn2021)
	m.cls3.publish(t, fresh, []string{"10.3.2.1"})
}

func (importers) withdraw(t *testing.T, key mcs.Key, from ...member) {
	t.Helper()
	for _, m := range from {
		if err := m.reg.Withdraw(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImports_RefusedWriteAffectsOnlyItself refuses one write at a time while imports are created,
// changed and removed. All other objects are as without the refusal, users see it, and after its
// end all is as without it.
func TestImports_RefusedWriteAffectsOnlyItself(t *testing.T) {
	s := setUp(t, "refusals")
	s.runA.stopAndWait(t)
	members := importers{runMember(t, s.hub, "cls1"), runMember(t, s.hub, "cls3"), runMember(t, s.hub, "cls4"), runMember(t, s.hub, "cls5")}
	var cases []*refusedCase
	for name, c := range refusals {
		cases = append(cases, &refusedCase{refusal: c, title: name, namespace: newKey("refusal").Namespace})
	}
	// Each step is made in all namespaces at once: most of its time is waiting.
	for _, step := range []struct {
		name string
		make func(*testing.T, *cluster, importers, *refusedCase)
	}{
		{"imports begin", beginImports}, {"writes are refused", refuseWrites}, {"others are made", expectOthers}, {"the refusal ends", endRefusal}, {"all are made", expectAll},
	} {
		t.Run(step.name, func(t *testing.T) {
			for _, c := range cases {
				if c.failed {
					continue
				}
				t.Run(c.title, func(t *testing.T) {
					t.Parallel()
					t.Cleanup(func() { c.failed = t.Failed() })
					step.make(t, s.b, members, c)
				})
			}
		})
	}
}

// TestExports_RefusedStatusAffectsOnlyItself: a policy that refuses the conditions of a
// ServiceExport keeps nothing from being exported, changed and withdrawn.
func TestExports_RefusedStatusAffectsOnlyItself(t *testing.T) {
	s := setUp(t, "unwritable")
	end := s.a.installPolicyIn(t, s.key.Namespace, "request.resource.resource == 'configmaps' || request.resource.resource == 'serviceexports' && has(request.subResource)")
	slice := s.a.export(t, s.key, 1, 1)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	s.a.event(t, s.key, "StatusRefused")
	change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, 2) })
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	s.a.delete(t, controllertest.ServiceExport(s.key))
	s.b.notImported(t, s.key)
	s.a.create(t, controllertest.ServiceExport(s.key))
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	end(t)
	s.a.condition(t, s.key, "Ready=True Exported", "")
}

// TestConfigMaps_RefusedAffectNothingElse: a policy that refuses the ConfigMap of the controller
// keeps the cluster neither from joining nor from exporting, importing and withdrawing. It costs 3
// s.
func TestConfigMaps_RefusedAffectNothingElse(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("no-configmap")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	b.run(t, hub, flags("cls2"))
	options := a.identitiesOptions(t, flags("cls1"))
	end := a.installPolicyIn(t, installNamespace, "request.resource.resource == 'configmaps'")
	a.runWith(t, hubRegistry(hub), options)
	slice := a.export(t, key, 1, 1)
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	change(t, a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, 2) })
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	a.delete(t, controllertest.ServiceExport(key))
	b.notImported(t, key)
	end(t)
	a.awaitIdentities(t, "set.cls1")
}

// refusedCase is a refusal in a namespace of its own.
type refusedCase struct {
	refusal
	title, namespace string
	// end ends the refusal.
	end    func(*testing.T)
	failed bool
}

func beginImports(t *testing.T, k *cluster, members importers, c *refusedCase) {
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}})
	members.createImports(t, c.namespace)
}

func refuseWrites(t *testing.T, k *cluster, members importers, c *refusedCase) {
	eventually(t, "imports before", func() error {
		return diffImports(k.importsIn(t, c.namespace), map[string]string{
			"ServiceImport kept": "http/80 from cls1,cls3,cls5", "Service kept": "http/80",
			"EndpointSlice kept cls1": "10.1.0.1", "EndpointSlice kept cls3": "10.3.0.1", "EndpointSlice kept cls5": "10.5.0.1",
			"ServiceImport single": "http/80 from cls1", "Service single": "http/80", "EndpointSlice single cls1": "10.1.1.1,10.1.1.9",
			"ServiceImport ended": "http/80 from cls1,cls3", "Service ended": "http/80", "EndpointSlice ended cls1": "10.1.3.1", "EndpointSlice ended cls3": "10.3.3.1",
		})
	})
	c.end = k.refuse(t, c.namespace, c.refusal)
	members.changeImports(t, c.namespace)
}

// expectOthers waits until all objects but the refused one are as without the refusal, and until
// users can see it.
func expectOthers(t *testing.T, k *cluster, _ importers, c *refusedCase) {
	want := maps.Clone(importsAfter)
	maps.Copy(want, c.deviates)
	maps.DeleteFunc(want, func(_, state string) bool { return state == absent })
	eventually(t, "imports with the refusal", func() error {
		return diffImports(k.importsIn(t, c.namespace), want)
	})
	if c.failing != "" {
		k.reported(t, mcs.Key{Namespace: c.namespace, Name: c.failing}, c.refusal)
	}
}

func endRefusal(t *testing.T, _ *cluster, _ importers, c *refusedCase) { c.end(t) }

func expectAll(t *testing.T, k *cluster, _ importers, c *refusedCase) {
	want := maps.Clone(importsAfter)
	if c.deviates["Service ended"] == absent {
		delete(want, "Service ended") // it stays released
	}
	eventually(t, "imports after the refusal", func() error { return diffImports(k.importsIn(t, c.namespace), want) })
	for _, name := range []string{"kept", "fresh", "single"} {
		k.awaitImportReady(t, mcs.Key{Namespace: c.namespace, Name: name}, "True", "")
	}
	k.deleteObjects(t, c.namespace)
}

// reported waits for the event about a refused write, and for condition Ready if it lasts and can
// be written.
func (k *cluster) reported(t *testing.T, key mcs.Key, c refusal) {
	t.Helper()
	text := "refused by a test"
	if c.quota != "" {
		text = "exceeded quota"
	}
	eventually(t, "event about the refusal", func() error {
		var list eventsv1.EventList
		if err := k.admin.List(t.Context(), &list, client.InNamespace(key.Namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == key.Name && e.Regarding.Kind == "ServiceImport" && e.Reason == "ImportFailed" && strings.Contains(e.Note, text) {
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(list.Items))
	})
	if c.notReady {
		k.awaitImportReady(t, key, "False", text)
	}
}

// refuse installs the refusal in a namespace, and returns the function that ends it.
func (k *cluster) refuse(t *testing.T, namespace string, c refusal) (end func(*testing.T)) {
	t.Helper()
	switch {
	case c.quota != "":
		return k.installQuota(t, namespace, c.quota)
	case c.resource == "":
		return func(*testing.T) {}
	}
	conditions := []string{
		fmt.Sprintf("request.resource.resource == %q", c.resource), fmt.Sprintf("request.operation == %q", c.operation),
		fmt.Sprintf("(has(request.subResource) ? request.subResource : '') == %q", c.subresource),
	}
	name := mcs.DerivedName(mcs.Key{Namespace: namespace, Name: c.name})
	switch {
	case c.resource == "serviceimports":
		name = c.name
	case c.cluster != "":
		name += "-" + c.cluster
	}
	conditions = append(conditions, fmt.Sprintf("(request.operation == 'DELETE' ? oldObject : object).metadata.name.startsWith(%q)", name))
	if c.expression != "" {
		conditions = append(conditions, c.expression)
	}
	// ConfigMaps are refused too, to know whether the policy is in use.
	return k.installPolicyIn(t, namespace, fmt.Sprintf("request.resource.resource == 'configmaps' || (%s)", strings.Join(conditions, " && ")))
}

// installPolicyIn refuses the requests in a namespace that match a CEL expression, and returns the
// function that ends that.
func (k *cluster) installPolicyIn(t *testing.T, namespace, refused string) (end func(*testing.T)) {
	t.Helper()
	rule := func(group, version string, resources ...string) admissionv1.NamedRuleWithOperations {
		return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update, admissionv1.Delete},
			Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: resources},
		}}
	}
	meta := metav1.ObjectMeta{Name: namespace}
	vap := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{
			rule("", "v1", "services", "configmaps"), rule("discovery.k8s.io", "v1", "endpointslices"),
			rule("multicluster.x-k8s.io", "*", "serviceimports", "serviceimports/status", "serviceexports/status", "serviceexports"),
		}},
		Validations: []admissionv1.Validation{{Expression: fmt.Sprintf("!(%s)", refused), Message: "refused by a test"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: namespace, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}},
	}}
	k.create(t, vap)
	k.create(t, binding)
	probe := func(t *testing.T, want bool) {
		eventually(t, fmt.Sprintf("policy in use: %t", want), func() error {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "probe"}}
			if err := k.admin.Create(t.Context(), cm, client.DryRunAll); (err != nil) != want {
				return fmt.Errorf("error %w", err)
			}
			return nil
		})
	}
	probe(t, true)
	return func(t *testing.T) {
		k.delete(t, binding)
		k.delete(t, vap)
		probe(t, false)
	}
}

// installQuota installs a quota without room for another object, and returns the function that
// deletes it. Without a controller-manager the quota never has room again when an object is
// deleted.
func (k *cluster) installQuota(t *testing.T, namespace string, name corev1.ResourceName) (end func(*testing.T)) {
	t.Helper()
	hard := corev1.ResourceList{name: resource.MustParse("10")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	k.create(t, quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: hard}
	if err := k.admin.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) { k.delete(t, quota) }
}

// importsIn returns the objects of the imports in a namespace: ports, source clusters and
// addresses.
func (k *cluster) importsIn(t *testing.T, namespace string) map[string]string {
	t.Helper()
	var (
		imports  mcsv1beta1.ServiceImportList
		services corev1.ServiceList
		found    discoveryv1.EndpointSliceList
	)
	for _, list := range []client.ObjectList{&imports, &services, &found} {
		if err := k.admin.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
	}
	out := map[string]string{}
	for _, imp := range imports.Items {
		var ports, clusters []string
		for _, p := range imp.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%s/%d", p.Name, p.Port))
		}
		for _, c := range imp.Status.Clusters {
			clusters = append(clusters, c.Cluster)
		}
		state := strings.Join(ports, ",") + " from " + strings.Join(clusters, ",")
		if len(imp.Spec.IPs) == 0 {
			state += " without IP"
		}
		out["ServiceImport "+imp.Name] = state
	}
	for _, svc := range services.Items {
		var ports []string
		for _, p := range svc.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%s/%d", p.Name, p.Port))
		}
		state := strings.Join(ports, ",")
		if plan.IsHeld(&svc) {
			state = "held"
		}
		out["Service "+svc.Labels[mcsv1beta1.LabelServiceName]] = state
	}
	for _, s := range found.Items {
		var addresses []string
		for _, ep := range s.Endpoints {
			addresses = append(addresses, ep.Addresses...)
		}
		slices.Sort(addresses)
		out["EndpointSlice "+s.Labels[mcsv1beta1.LabelServiceName]+" "+s.Labels[mcsv1beta1.LabelSourceCluster]] = strings.Join(addresses, ",")
	}
	return out
}

func diffImports(got, want map[string]string) error {
	if d := cmp.Diff(want, got); d != "" {
		return fmt.Errorf("objects (-want +got):\n%s", d)
	}
	return nil
}
