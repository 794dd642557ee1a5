package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// webImport returns the ServiceImport of merged() with IP 172.20.0.9.
func webImport(edits ...func(*mcsv1beta1.ServiceImport)) *mcsv1beta1.ServiceImport {
	imp := &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: "web",
			Labels: map[string]string{"app.kubernetes.io/managed-by": "cloud-map-mcs-controller"},
			Annotations: map[string]string{
				"multicluster.kubernetes.io/derived-service": derived, "multicluster.k8s.aws/derived-service": derived,
			},
		},
		Spec: mcsv1beta1.ServiceImportSpec{
			Type:            mcsv1beta1.ClusterSetIP,
			Ports:           []mcsv1beta1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
			IPs:             []string{"172.20.0.9"},
			IPFamilies:      []corev1.IPFamily{v4},
			SessionAffinity: corev1.ServiceAffinityNone,
		},
	}
	for _, edit := range edits {
		edit(imp)
	}
	return imp
}

func TestServiceImport(t *testing.T) {
	headless := func(m *mcs.Merged) { m.Type, m.Ports = mcsv1beta1.Headless, nil }
	ip := []string{"172.20.0.9"}
	tests := []struct {
		name     string
		merged   mcs.Merged
		existing *mcsv1beta1.ServiceImport
		ips      []string
		families []corev1.IPFamily
		stale    []string
		want     *mcsv1beta1.ServiceImport
	}{
		{
			name: "new, without IP yet", merged: merged(),
			want: webImport(func(i *mcsv1beta1.ServiceImport) { i.Spec.IPs = nil }),
		},
		{name: "with its IP", merged: merged(), ips: ip, families: []corev1.IPFamily{v4}, want: webImport()},
		{name: "nothing to do", merged: merged(), existing: webImport(), ips: ip, families: []corev1.IPFamily{v4}, want: webImport()},
		{
			name: "all merged properties",
			merged: merged(func(m *mcs.Merged) {
				m.Ports[0].AppProtocol = "http"
				m.SessionAffinity = corev1.ServiceAffinityClientIP
				m.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10)}}
				m.InternalTrafficPolicy, m.TrafficDistribution = "Local", "PreferSameZone"
				m.IPFamilies = []corev1.IPFamily{v4, v6}
				m.Labels, m.Annotations = map[string]string{"team": "a", "x": ""}, map[string]string{"note": "b"}
			}),
			ips: []string{"fd00::9", "172.20.0.9", "172.20.0.10"}, families: []corev1.IPFamily{v6, v4},
			want: webImport(func(i *mcsv1beta1.ServiceImport) {
				i.Labels["team"], i.Labels["x"], i.Annotations["note"] = "a", "", "b"
				i.Annotations["multicluster.k8s.aws/exported-labels"] = "team,x"
				i.Annotations["multicluster.k8s.aws/exported-annotations"] = "note"
				i.Spec.Ports[0].AppProtocol = ptr.To("http")
				i.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				i.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10)}}
				i.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
				i.Spec.TrafficDistribution = ptr.To("PreferSameZone")
				i.Spec.IPs, i.Spec.IPFamilies = []string{"fd00::9", "172.20.0.9"}, []corev1.IPFamily{v6, v4}
			}),
		},
		{
			name: "metadata of others stays, metadata that is no longer exported goes", merged: merged(func(m *mcs.Merged) { m.Labels = map[string]string{"team": "b"} }),
			existing: webImport(func(i *mcsv1beta1.ServiceImport) {
				i.ResourceVersion, i.OwnerReferences = "7", []metav1.OwnerReference{{Name: "other"}}
				i.Labels["theirs"], i.Labels["team"], i.Labels["gone"] = "1", "a", "1"
				i.Annotations["theirs"], i.Annotations["gone"] = "1", "1"
				i.Annotations["multicluster.k8s.aws/exported-labels"] = "gone,team"
				i.Annotations["multicluster.k8s.aws/exported-annotations"] = "gone"
				i.Status.Clusters = []mcsv1beta1.ClusterStatus{{Cluster: "cls1"}}
				i.Spec.TrafficDistribution = ptr.To("PreferSameZone")
			}),
			ips: ip,
			want: webImport(func(i *mcsv1beta1.ServiceImport) {
				i.ResourceVersion, i.OwnerReferences = "7", []metav1.OwnerReference{{Name: "other"}}
				i.Labels["theirs"], i.Labels["team"] = "1", "b"
				i.Annotations["theirs"] = "1"
				i.Annotations["multicluster.k8s.aws/exported-labels"] = "team"
				i.Status.Clusters = []mcsv1beta1.ClusterStatus{{Cluster: "cls1"}}
			}),
		},
		{
			name: "stale clusters", merged: merged(), ips: ip, families: []corev1.IPFamily{v4}, stale: []string{"cls1", "cls3"},
			want: webImport(func(i *mcsv1beta1.ServiceImport) { i.Annotations["multicluster.k8s.aws/stale-clusters"] = "cls1,cls3" }),
		},
		{
			name: "no stale clusters any more", merged: merged(), ips: ip, families: []corev1.IPFamily{v4},
			existing: webImport(func(i *mcsv1beta1.ServiceImport) { i.Annotations["multicluster.k8s.aws/stale-clusters"] = "cls1,cls3" }),
			want:     webImport(),
		},
		{
			name: "turned headless", merged: merged(headless), existing: webImport(), ips: ip,
			want: webImport(func(i *mcsv1beta1.ServiceImport) {
				i.Annotations = map[string]string{}
				i.Spec.Type, i.Spec.IPs, i.Spec.Ports = mcsv1beta1.Headless, nil, []mcsv1beta1.ServicePort{}
			}),
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			before := tc.existing.DeepCopy()
			got := ServiceImport(tc.merged, tc.existing, derived, tc.ips, tc.families, tc.stale)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ServiceImport (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.existing); diff != "" {
				t.Errorf("the existing one was changed (-before +after):\n%s", diff)
			}
			again := ServiceImport(tc.merged, got, derived, tc.ips, tc.families, tc.stale)
			if !apiequality.Semantic.DeepEqual(got, again) {
				t.Errorf("the next reconcile has another result:\n%s", cmp.Diff(got, again))
			}
			if diff := cmp.Diff(tc.stale, StaleClusters(got)); diff != "" {
				t.Errorf("stale clusters (-want +got):\n%s", diff)
			}
			if got.Spec.Ports == nil {
				t.Error("spec.ports is null, which the API refuses")
			}
		})
	}
}

func TestServiceImportStatus(t *testing.T) {
	before, now := metav1.NewTime(start), metav1.NewTime(start.Add(60e9))
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", Message: "m"}
	m := merged(func(m *mcs.Merged) { m.Clusters = []string{"cls1", "cls3"} })
	imp := webImport(func(i *mcsv1beta1.ServiceImport) {
		i.Generation = 4
		i.Status = mcsv1beta1.ServiceImportStatus{
			Clusters:   []mcsv1beta1.ClusterStatus{{Cluster: "cls0"}, {Cluster: "cls2"}, {Cluster: "cls3"}},
			Conditions: []metav1.Condition{{Type: "Theirs"}, {Type: "Ready", Status: "True", Reason: "Old", LastTransitionTime: before}},
		}
	})
	want := mcsv1beta1.ServiceImportStatus{
		EndpointSliceObjects: mcsv1beta1.EndpointSliceObjectsPresent,
		Clusters:             []mcsv1beta1.ClusterStatus{{Cluster: "cls1"}, {Cluster: "cls2"}, {Cluster: "cls3"}},
		Conditions: []metav1.Condition{
			{Type: "Theirs"},
			{Type: "Ready", Status: "True", Reason: "Ready", Message: "m", ObservedGeneration: 4, LastTransitionTime: before},
		},
	}
	unchanged := imp.DeepCopy()
	got := ServiceImportStatus(imp, m, []string{"cls2", "cls9"}, ready, now)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(unchanged, imp); diff != "" {
		t.Errorf("the ServiceImport was changed (-before +after):\n%s", diff)
	}
	imp.Status = got
	if diff := cmp.Diff(got, ServiceImportStatus(imp, m, []string{"cls2"}, ready, now)); diff != "" {
		t.Errorf("the next reconcile has another result:\n%s", diff)
	}
}

func TestServiceImportStatus_SetsTransitionTime(t *testing.T) {
	before, now := metav1.NewTime(start), metav1.NewTime(start.Add(60e9))
	imp := webImport(func(i *mcsv1beta1.ServiceImport) {
		i.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Pending", LastTransitionTime: before}}
	})
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", Message: "m"}
	got := ServiceImportStatus(imp, merged(), nil, ready, now)
	if at := got.Conditions[0].LastTransitionTime; !at.Equal(&now) {
		t.Errorf("the condition changed at %v, want %v", at, now)
	}
}

// Condition Stale appears with the first stale cluster, stays from then on, and does not change
// while the staleness is unknown.
func TestServiceImportStatusStale(t *testing.T) {
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", Message: "m"}
	rule := mcs.StaleRule{Policy: mcs.StaleWithdraw, After: 120e9}
	none := mcs.ImportStale(nil, rule)
	some := mcs.ImportStale([]mcs.StaleExport{{Cluster: "cls1"}}, rule)
	imp, now := webImport(), metav1.NewTime(start)
	for i, step := range []struct {
		condition *metav1.Condition
		want      string
	}{{nil, ""}, {&none, ""}, {&some, "True Withdrawn"}, {&some, "True Withdrawn"}, {nil, "True Withdrawn"}, {&none, "False NoneStale"}, {nil, "False NoneStale"}} {
		imp.Status = ServiceImportStatus(imp, merged(), nil, ready, now, step.condition)
		got := ""
		for _, c := range imp.Status.Conditions {
			if c.Type == mcs.ConditionStale {
				got = string(c.Status) + " " + c.Reason
				if c.LastTransitionTime.IsZero() {
					t.Errorf("step %d: the condition has no time", i)
				}
			}
		}
		if got != step.want {
			t.Errorf("step %d: condition %q, want %q", i, got, step.want)
		}
	}
	if none.LastTransitionTime != (metav1.Time{}) {
		t.Error("the condition that was passed was changed")
	}
}

func TestIsManaged(t *testing.T) {
	label := func(k, v string) metav1.ObjectMeta { return metav1.ObjectMeta{Labels: map[string]string{k: v}} }
	for name, tc := range map[string]struct {
		obj  metav1.Object
		want bool
	}{
		"import":                   {&mcsv1beta1.ServiceImport{ObjectMeta: label(LabelAppManagedBy, ManagedBy)}, true},
		"service":                  {&corev1.Service{ObjectMeta: label(LabelAppManagedBy, ManagedBy)}, true},
		"slice":                    {&discoveryv1.EndpointSlice{ObjectMeta: label(LabelManagedBy, ManagedBy)}, true},
		"slice, wrong label":       {&discoveryv1.EndpointSlice{ObjectMeta: label(LabelAppManagedBy, ManagedBy)}, false},
		"another's import":         {&mcsv1beta1.ServiceImport{ObjectMeta: label(LabelAppManagedBy, "lighthouse")}, false},
		"unlabelled":               {&mcsv1beta1.ServiceImport{}, false},
		"of the legacy controller": {&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationDerivedServiceAWS: "x"}}}, false},
	} {
		if got := IsManaged(tc.obj); got != tc.want {
			t.Errorf("IsManaged(%s) = %t, want %t", name, got, tc.want)
		}
	}
}

func TestSetNotImported(t *testing.T) {
	imp := &mcsv1beta1.ServiceImport{}
	var keys []string
	for i := range 22 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	for _, tt := range []struct {
		keys []string
		want string
	}{{keys[:2], "k0,k1"}, {keys, strings.Join(keys[:20], ",") + " and 2 more"}, {nil, ""}} {
		SetNotImported(imp, tt.keys)
		if got := imp.Annotations[AnnotationNotImported]; got != tt.want {
			t.Errorf("%d keys: %q, want %q", len(tt.keys), got, tt.want)
		}
	}
	if len(imp.Annotations) > 0 {
		t.Errorf("annotations %v are left", imp.Annotations)
	}
}
