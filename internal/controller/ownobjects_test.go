package controller

import (
	"context"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// ownLabels is the label of the controller's Services, ServiceImports and ServiceExports,
// ownSliceLabels that of its EndpointSlices.
var (
	ownLabels      = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	ownSliceLabels = map[string]string{plan.LabelManagedBy: plan.ManagedBy}
)

// asController returns a client with the controller's ServiceAccount and all permissions of RBAC
// for the kinds of the policy, so that a refusal comes from the policy.
func (k *cluster) asController(t *testing.T) client.Client {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"", "discovery.k8s.io", "multicluster.x-k8s.io", "coordination.k8s.io", "about.k8s.io"}, Verbs: []string{"*"},
		Resources: []string{
			"services", "endpointslices", "serviceimports", "serviceexports", "serviceimports/status", "serviceexports/status", "services/status", "clusterproperties",
		},
	}}}
	k.create(t, role)
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: controllerUser}}}
	k.create(t, binding)
	t.Cleanup(func() {
		for _, obj := range []client.Object{binding, role} {
			if err := k.admin.Delete(context.Background(), obj); err != nil {
				t.Error(err)
			}
		}
	})
	c, err := client.New(k.cfg, client.Options{Scheme: k.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newObjects returns one object of each kind that the policy covers, with labels. If own is set,
// they are as the controller writes them, name being that of the derived Service.
func newObjects(namespace, name string, own bool, labels map[string]string) []client.Object {
	meta := func(mark map[string]string) metav1.ObjectMeta {
		all := maps.Clone(labels)
		if all == nil {
			all = map[string]string{}
		}
		if own {
			maps.Copy(all, mark)
		}
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: all}
	}
	port := int32(80)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta(ownSliceLabels), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}
	export := &mcsv1beta1.ServiceExport{ObjectMeta: meta(ownLabels)}
	if own {
		slice.Name, slice.Labels[discoveryv1.LabelServiceName] = name+"-cls1-ipv4-0", name
		export.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name, UID: "1"}}
	}
	return []client.Object{
		&corev1.Service{ObjectMeta: meta(ownLabels), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}}},
		slice,
		&mcsv1beta1.ServiceImport{ObjectMeta: meta(ownLabels), Spec: mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.ClusterSetIP, Ports: []mcsv1beta1.ServicePort{{Port: port}}}},
		export,
	}
}

func kindOf(obj client.Object) string {
	switch obj.(type) {
	case *corev1.Service:
		return "Service"
	case *discoveryv1.EndpointSlice:
		return "EndpointSlice"
	case *mcsv1beta1.ServiceImport:
		return "ServiceImport"
	}
	return "ServiceExport"
}

// wantPolicy fails the test unless err is a refusal by the policy, or nil if the request is
// allowed.
func wantPolicy(t *testing.T, what string, err error, allowed bool) {
	t.Helper()
	refused := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cloud-map-mcs-controller-own-objects")
	if allowed && err != nil || !allowed && !refused {
		t.Errorf("%s: error %v, want it allowed: %t", what, err, allowed)
	}
}

// TestPolicyRefusesObjectsOfOthers: with the token of the controller's ServiceAccount, objects of
// others cannot be changed, deleted or taken, and no object without the label can be created.
func TestPolicyRefusesObjectsOfOthers(t *testing.T) {
	k, _ := twoClusters(t)
	controller := k.asController(t)
	key := newKey("others")
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	foreign := newObjects(key.Namespace, "foreign", false, map[string]string{plan.LabelAppManagedBy: "Helm", plan.LabelManagedBy: "endpointslice-controller.k8s.io"})
	for _, obj := range append(newObjects(key.Namespace, "theirs", false, nil), foreign...) {
		t.Run(kindOf(obj)+" "+obj.GetName(), func(t *testing.T) {
			fresh := obj.DeepCopyObject().(client.Object)
			wantPolicy(t, "creating without the label", controller.Create(t.Context(), fresh), false)
			k.create(t, obj)
			change := func(edit func(client.Object)) client.Object {
				changed := obj.DeepCopyObject().(client.Object)
				edit(changed)
				return changed
			}
			wantPolicy(t, "changing", controller.Update(t.Context(), change(func(o client.Object) { o.SetAnnotations(map[string]string{"a": "b"}) })), false)
			wantPolicy(t, "taking", controller.Update(t.Context(), change(func(o client.Object) {
				labels := maps.Clone(ownLabels)
				maps.Copy(labels, ownSliceLabels)
				o.SetLabels(labels)
			})), false)
			wantPolicy(t, "removing the labels", controller.Update(t.Context(), change(func(o client.Object) { o.SetLabels(nil); o.SetFinalizers([]string{"example.com/x"}) })), false)
			wantPolicy(t, "patching", controller.Patch(t.Context(), obj.DeepCopyObject().(client.Object),
				client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"a":"b"}}}`))), false)
			wantPolicy(t, "deleting", controller.Delete(t.Context(), obj), false)
			wantPolicy(t, "deleting all", controller.DeleteAllOf(t.Context(), obj, client.InNamespace(key.Namespace)), false)
			k.delete(t, obj)
		})
	}
	kubernetes := &corev1.Service{}
	if err := k.admin.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, kubernetes); err != nil {
		t.Fatal(err)
	}
	wantPolicy(t, "deleting default/kubernetes", controller.Delete(t.Context(), kubernetes), false)
}

// TestPolicyAllowsOwnObjects: objects with the label and a derived name can be created, changed and
// deleted, as long as they keep the label.
func TestPolicyAllowsOwnObjects(t *testing.T) {
	k, _ := twoClusters(t)
	controller := k.asController(t)
	key := newKey("own")
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	for _, obj := range newObjects(key.Namespace, mcs.DerivedName(key), true, nil) {
		t.Run(kindOf(obj), func(t *testing.T) {
			wantPolicy(t, "creating", controller.Create(t.Context(), obj), true)
			obj.SetAnnotations(map[string]string{"a": "b"})
			wantPolicy(t, "changing", controller.Update(t.Context(), obj), true)
			without := obj.DeepCopyObject().(client.Object)
			without.SetLabels(map[string]string{"other": "label", discoveryv1.LabelServiceName: obj.GetLabels()[discoveryv1.LabelServiceName]})
			without.SetAnnotations(nil)
			wantPolicy(t, "removing the label", controller.Update(t.Context(), without), false)
			wantPolicy(t, "deleting", controller.Delete(t.Context(), obj), true)
		})
	}
}

// TestPolicyRestrictsServices: a Service with external IPs or another type takes traffic of others.
func TestPolicyRestrictsServices(t *testing.T) {
	k, _ := twoClusters(t)
	controller := k.asController(t)
	key := newKey("services")
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	tests := map[string]struct {
		edit    func(*corev1.ServiceSpec)
		allowed bool
	}{
		"ClusterIP":    {func(*corev1.ServiceSpec) {}, true},
		"external IPs": {func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.1"} }, false},
		"LoadBalancer": {func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }, false},
		"NodePort":     {func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }, false},
		"ExternalName": {func(s *corev1.ServiceSpec) { s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "example.com" }, false},
		"selector":     {func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "web"} }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			svc := newObjects(key.Namespace, "imported-aaaaaaaaaa", true, nil)[0].(*corev1.Service)
			tt.edit(&svc.Spec)
			wantPolicy(t, "creating", controller.Create(t.Context(), svc, client.DryRunAll), tt.allowed)
			existing := newObjects(key.Namespace, "imported-aaaaaaaaaa", true, nil)[0].(*corev1.Service)
			k.create(t, existing)
			defer k.delete(t, existing)
			changed := existing.DeepCopy()
			tt.edit(&changed.Spec)
			wantPolicy(t, "changing", controller.Update(t.Context(), changed, client.DryRunAll), tt.allowed)
		})
	}
	// External IPs that an administrator added stay.
	svc := newObjects(key.Namespace, "imported-bbbbbbbbbb", true, nil)[0].(*corev1.Service)
	svc.Spec.ExternalIPs = []string{"192.0.2.1"}
	k.create(t, svc)
	svc.Annotations = map[string]string{"a": "b"}
	wantPolicy(t, "changing a Service with external IPs of an administrator", controller.Update(t.Context(), svc), true)
}

// TestPolicyAllowsRepairs: the controller restores the label on its own objects, and on those of
// the legacy controller that it takes over.
func TestPolicyAllowsRepairs(t *testing.T) {
	k, _ := twoClusters(t)
	controller := k.asController(t)
	key := newKey("repairs")
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	derived := mcs.DerivedName(key)
	tests := map[string]struct {
		kind, name          string
		labels, annotations map[string]string
		allowed             bool
		// deleted reports whether the controller may delete the object, which is not to be labeled.
		deleted bool
	}{
		"derived Service":                         {kind: "Service", name: derived, labels: map[string]string{mcsv1beta1.LabelServiceName: key.Name}, allowed: true},
		"held Service":                            {kind: "Service", name: derived, annotations: map[string]string{plan.AnnotationHeldSince: "2026-01-01T00:00:00Z"}, allowed: true},
		"Service with the name of a derived one":  {kind: "Service", name: derived},
		"Service with the label of a derived one": {kind: "Service", name: "web", labels: map[string]string{mcsv1beta1.LabelServiceName: key.Name}},
		"imported slice":                          {kind: "EndpointSlice", name: derived + "-cls2-ipv4-0", allowed: true},
		"imported slice of an earlier version":    {kind: "EndpointSlice", name: mcs.ShortDerivedName(key) + "-cls2-ipv4-0", allowed: true},
		"Service of an earlier version":           {kind: "Service", name: mcs.ShortDerivedName(key), labels: map[string]string{mcsv1beta1.LabelServiceName: key.Name}, allowed: true},
		"slice of the legacy controller":          {kind: "EndpointSlice", name: "imported-abc", labels: map[string]string{plan.LabelManagedBy: "aws-cloud-map-mcs-controller-for-k8s"}, deleted: true},
		"slice of Kubernetes":                     {kind: "EndpointSlice", name: "web-x2vqz", labels: map[string]string{plan.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		"ServiceImport":                           {kind: "ServiceImport", name: "web", annotations: map[string]string{plan.AnnotationDerivedService: derived}, allowed: true},
		"legacy ServiceImport":                    {kind: "ServiceImport", name: "web", annotations: map[string]string{plan.AnnotationDerivedServiceAWS: `[{"cluster":"a","derived-service":"imported-0123456789"}]`}, allowed: true},
		"ServiceImport of another implementation": {kind: "ServiceImport", name: "web", annotations: map[string]string{plan.AnnotationDerivedService: "derived-web"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, obj := range newObjects(key.Namespace, tt.name, false, tt.labels) {
				if kindOf(obj) != tt.kind {
					continue
				}
				obj.SetAnnotations(tt.annotations)
				k.create(t, obj)
				defer k.delete(t, obj)
				without := obj.DeepCopyObject().(client.Object)
				without.SetFinalizers([]string{"example.com/x"})
				wantPolicy(t, "changing without the label", controller.Update(t.Context(), without, client.DryRunAll), false)
				labeled := obj.DeepCopyObject().(client.Object)
				labels := maps.Clone(ownLabels)
				maps.Copy(labels, ownSliceLabels)
				labels[discoveryv1.LabelServiceName] = derived
				labeled.SetLabels(labels)
				wantPolicy(t, "labeling", controller.Update(t.Context(), labeled, client.DryRunAll), tt.allowed)
				wantPolicy(t, "deleting", controller.Delete(t.Context(), obj, client.DryRunAll), tt.allowed || tt.deleted)
			}
		})
	}
}

// TestPolicyOfServiceExports: the controller writes their status, removes the finalizer of the
// legacy controller, and nothing else.
func TestPolicyOfServiceExports(t *testing.T) {
	const finalizer = "multicluster.k8s.aws/service-export-finalizer"
	k, _ := twoClusters(t)
	controller := k.asController(t)
	key := newKey("exports")
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	exp := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Finalizers: []string{"example.com/keep", finalizer}}}
	k.create(t, exp)
	exp.Status.Conditions = []metav1.Condition{{Type: "Valid", Status: "True", Reason: "Valid", LastTransitionTime: metav1.Now()}}
	wantPolicy(t, "writing the status", controller.Status().Update(t.Context(), exp), true)
	edits := map[string]struct {
		edit    func(*mcsv1beta1.ServiceExport)
		allowed bool
	}{
		"the legacy finalizer":     {func(e *mcsv1beta1.ServiceExport) { e.Finalizers = []string{"example.com/keep"} }, true},
		"another finalizer":        {func(e *mcsv1beta1.ServiceExport) { e.Finalizers = []string{finalizer} }, false},
		"the finalizer and labels": {func(e *mcsv1beta1.ServiceExport) { e.Finalizers, e.Labels = []string{"example.com/keep"}, ownLabels }, false},
		"the finalizer and the spec": {func(e *mcsv1beta1.ServiceExport) {
			e.Finalizers, e.Spec.ExportedLabels = []string{"example.com/keep"}, ownLabels
		}, false},
		"the finalizer and annotation": {func(e *mcsv1beta1.ServiceExport) {
			e.Finalizers, e.Annotations = []string{"example.com/keep"}, ownLabels
		}, false},
		"a new finalizer": {func(e *mcsv1beta1.ServiceExport) { e.Finalizers = append(e.Finalizers, "example.com/new") }, false},
	}
	for name, tt := range edits {
		t.Run(name, func(t *testing.T) {
			changed := exp.DeepCopy()
			tt.edit(changed)
			wantPolicy(t, "changing", controller.Patch(t.Context(), changed, client.MergeFrom(exp), client.DryRunAll), tt.allowed)
		})
	}
	wantPolicy(t, "deleting", controller.Delete(t.Context(), exp, client.DryRunAll), false)
	exp.Finalizers = nil
	if err := k.admin.Update(t.Context(), exp); err != nil {
		t.Fatal(err)
	}
}

// TestPolicyConcernsTheControllerOnly: other users, such as the garbage collector, keep their
// permissions.
func TestPolicyConcernsTheControllerOnly(t *testing.T) {
	k, _ := twoClusters(t)
	key := newKey("users")
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	for _, user := range []string{
		"system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccount:shop:other", "cloud-map-mcs-controller-manager",
		"system:serviceaccount:shop:not-cloud-map-mcs-controller-manager", "system:serviceaccount:shop:cloud-map-mcs-controller-manager-2",
	} {
		cfg := *k.env.Config
		cfg.Impersonate.UserName, cfg.Impersonate.Groups = user, []string{"system:masters"}
		c, err := client.New(&cfg, client.Options{Scheme: k.admin.Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		for _, obj := range newObjects(key.Namespace, "theirs", false, nil) {
			wantPolicy(t, user+" creates a "+kindOf(obj), c.Create(t.Context(), obj, client.DryRunAll), true)
		}
	}
}

// TestPolicyOfClusterProperties: the controller writes those of the Region and the zone with its
// label, and none that a user has written or that identifies the cluster.
func TestPolicyOfClusterProperties(t *testing.T) {
	k, _ := twoClusters(t)
	controller := k.asController(t)
	for name, tt := range map[string]struct {
		labels  map[string]string
		allowed bool
	}{
		mcs.PropertyRegion:                {ownLabels, true},
		mcs.PropertyZone:                  {nil, false},
		mcs.PropertyNetworks:              {ownLabels, false},
		aboutv1beta1.ClusterIDProperty:    {ownLabels, false},
		aboutv1beta1.ClusterSetIDProperty: {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			property := func() *aboutv1beta1.ClusterProperty {
				return &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: tt.labels}, Spec: aboutv1beta1.ClusterPropertySpec{Value: "a"}}
			}
			wantPolicy(t, "creating", controller.Create(t.Context(), property(), client.DryRunAll), tt.allowed)
			existing := property()
			k.create(t, existing)
			defer k.delete(t, existing)
			changed := existing.DeepCopy()
			changed.Labels, changed.Spec.Value = ownLabels, "b"
			wantPolicy(t, "changing", controller.Update(t.Context(), changed, client.DryRunAll), tt.allowed)
			changed.Labels = nil
			wantPolicy(t, "removing the label", controller.Update(t.Context(), changed, client.DryRunAll), false)
			wantPolicy(t, "deleting", controller.Delete(t.Context(), existing.DeepCopy(), client.DryRunAll), tt.allowed)
		})
	}
}
