package legacy

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func legacyImport(annotation string) *mcsv1beta1.ServiceImport {
	return &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{
		Namespace: "demo", Name: "web", UID: "imp", Annotations: map[string]string{plan.AnnotationDerivedServiceAWS: annotation},
	}}
}

func TestDerivedName(t *testing.T) {
	// As in the legacy controller's own tests (utils_test.go, TestCreateDerivedServiceAnnotation).
	for cluster, want := range map[string]string{"test-mcs-clusterid-1": "imported-vm6pdvp7di", "test-mcs-clusterid-2": "imported-i8hm9c3um2"} {
		if got := derivedName(mcs.Key{Namespace: "http-ns-name", Name: "svc-name"}, cluster); got != want {
			t.Errorf("derivedName for %s = %q, want %q", cluster, got, want)
		}
	}
}

func TestIsServiceImport(t *testing.T) {
	key := mcs.Key{Namespace: "demo", Name: "web"}
	one, two, early := derivedName(key, "cls1"), derivedName(key, "cls2"), derivedName(key, "")
	tests := []struct {
		name       string
		annotation string
		ours       bool
		want       bool
	}{
		{name: "one source cluster", annotation: `[{"cluster":"cls1","derived-service":"` + one + `"}]`, want: true},
		{name: "two source clusters", annotation: `[{"cluster":"cls1","derived-service":"` + one + `"},{"cluster":"cls2","derived-service":"` + two + `"}]`, want: true},
		{name: "an early version", annotation: early, want: true},
		{name: "already taken over", annotation: early, ours: true},
		{name: "no annotation"},
		{name: "empty list", annotation: `[]`},
		{name: "invalid JSON", annotation: `[{`},
		{name: "a name that the legacy controller does not use", annotation: `[{"cluster":"cls1","derived-service":"` + two + `"}]`},
		{name: "one of two names is not used by the legacy controller", annotation: `[{"cluster":"cls1","derived-service":"` + one + `"},{"cluster":"cls2","derived-service":"mine"}]`},
		{name: "annotation of another controller", annotation: "derived-web"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			imp := legacyImport(tt.annotation)
			if tt.ours {
				imp.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
			}
			if got := IsServiceImport(imp); got != tt.want {
				t.Errorf("IsServiceImport = %v", got)
			}
		})
	}
	if IsServiceImport(nil) {
		t.Error("nil is reported as a ServiceImport of the legacy controller")
	}
}

func TestChooseDerived(t *testing.T) {
	key := mcs.Key{Namespace: "demo", Name: "web"}
	standardName, early := mcs.DerivedName(key), derivedName(key, "")
	svc := func(name string, edits ...func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "demo", Name: name, CreationTimestamp: metav1.Unix(1000, 0),
				Labels:          map[string]string{mcsv1beta1.LabelServiceName: "web"},
				OwnerReferences: []metav1.OwnerReference{{Kind: "ServiceImport", Name: "web", UID: "imp"}},
			},
			Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"},
		}
		for _, edit := range edits {
			edit(s)
		}
		return s
	}
	old := func(cluster string, edits ...func(*corev1.Service)) *corev1.Service {
		s := svc(derivedName(key, cluster), edits...)
		s.Labels[mcsv1beta1.LabelSourceCluster] = cluster
		return s
	}
	ours := func(s *corev1.Service) { s.Labels[plan.LabelAppManagedBy] = plan.ManagedBy }
	retires := func(s *corev1.Service) { s.Annotations = map[string]string{AnnotationRetires: "2026-11-21T09:00:00Z"} }
	headless := func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }
	younger := func(s *corev1.Service) { s.CreationTimestamp = metav1.Unix(2000, 0) }
	ofPreviousImport := func(s *corev1.Service) { s.OwnerReferences[0].UID = "earlier" }
	imp := legacyImport("")
	named := func(name string) *mcsv1beta1.ServiceImport {
		imp := legacyImport("")
		imp.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
		imp.Annotations[plan.AnnotationDerivedService] = name
		return imp
	}
	tests := []struct {
		name            string
		imp             *mcsv1beta1.ServiceImport
		standard        *corev1.Service
		candidates      []*corev1.Service
		noTakeover      bool
		want            string
		wantService     bool
		wantForeign     bool
		wantSuperfluous []string
	}{
		{name: "no Services", want: standardName},
		{name: "managed by this controller", imp: named(standardName), standard: svc(standardName, ours), candidates: []*corev1.Service{svc(standardName, ours)}, want: standardName, wantService: true},
		{name: "a Service of another owner", imp: imp, standard: svc(standardName), want: standardName, wantService: true, wantForeign: true},
		{name: "a Service of another owner, no import yet", standard: svc(standardName), want: standardName, wantService: true, wantForeign: true},
		{name: "a Service of the legacy controller", imp: imp, candidates: []*corev1.Service{old("cls1")}, want: derivedName(key, "cls1"), wantService: true},
		{name: "a Service of an early version", imp: imp, candidates: []*corev1.Service{svc(early)}, want: early, wantService: true},
		{name: "without the flag for takeover", imp: imp, candidates: []*corev1.Service{old("cls1")}, noTakeover: true, want: standardName},
		{
			name: "several Services: the oldest is kept", imp: imp, candidates: []*corev1.Service{old("cls1", younger), old("cls2"), old("cls3", younger)},
			want: derivedName(key, "cls2"), wantService: true, wantSuperfluous: []string{derivedName(key, "cls1"), derivedName(key, "cls3")},
		},
		{name: "a Service of a previous import with the same name", imp: imp, candidates: []*corev1.Service{old("cls1", ofPreviousImport)}, want: standardName},
		{name: "a Service with the label, but another name", imp: imp, candidates: []*corev1.Service{svc("mine")}, want: standardName},
		{
			name: "a headless Service has no IP to keep", imp: imp, candidates: []*corev1.Service{old("cls1", headless)},
			want: standardName, wantSuperfluous: []string{derivedName(key, "cls1")},
		},
		{
			name: "after takeover: the Service that the import names", imp: named(derivedName(key, "cls1")),
			candidates: []*corev1.Service{old("cls1", ours, younger), old("cls2", ours, retires)},
			want:       derivedName(key, "cls1"), wantService: true, wantSuperfluous: []string{derivedName(key, "cls2")},
		},
		{
			name: "after takeover, without the flag", imp: named(derivedName(key, "cls1")), noTakeover: true,
			candidates: []*corev1.Service{old("cls1", ours), old("cls2", ours, retires)},
			want:       derivedName(key, "cls1"), wantService: true, wantSuperfluous: []string{derivedName(key, "cls2")},
		},
		{
			name: "a previous process ended between the writes of import and Service", imp: named(derivedName(key, "cls1")),
			candidates: []*corev1.Service{old("cls1", younger), old("cls2")},
			want:       derivedName(key, "cls1"), wantService: true, wantSuperfluous: []string{derivedName(key, "cls2")},
		},
		{
			name: "the kept Service was deleted", imp: named(derivedName(key, "cls1")), candidates: []*corev1.Service{old("cls2", ours, retires)},
			want: standardName, wantSuperfluous: []string{derivedName(key, "cls2")},
		},
		{
			name: "the standard Service exists too", imp: named(derivedName(key, "cls1")), standard: svc(standardName, ours), candidates: []*corev1.Service{old("cls1", ours)},
			want: derivedName(key, "cls1"), wantService: true, wantSuperfluous: []string{standardName},
		},
		{
			name: "the standard Service is in use", imp: named(standardName), standard: svc(standardName, ours), candidates: []*corev1.Service{old("cls1")},
			want: standardName, wantService: true, wantSuperfluous: []string{derivedName(key, "cls1")},
		},
		{name: "the annotation names a Service of the user", imp: named("users"), candidates: []*corev1.Service{svc("users", ours)}, want: standardName},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			slices.Reverse(tt.candidates) // the order is undefined
			got := ChooseDerived(key, tt.imp, tt.standard, tt.candidates, !tt.noTakeover)
			var superfluous []string
			for _, s := range got.Superfluous {
				superfluous = append(superfluous, s.Name)
			}
			slices.Sort(tt.wantSuperfluous)
			if got.Name != tt.want || (got.Service != nil) != tt.wantService || got.Foreign != tt.wantForeign || !slices.Equal(superfluous, tt.wantSuperfluous) {
				t.Errorf("got %s (exists %v, foreign %v), superfluous %v; want %s (exists %v, foreign %v), superfluous %v",
					got.Name, got.Service != nil, got.Foreign, superfluous, tt.want, tt.wantService, tt.wantForeign, tt.wantSuperfluous)
			}
			if got.Service != nil && got.Service.Name != got.Name {
				t.Errorf("the Service is %s, the name %s", got.Service.Name, got.Name)
			}
		})
	}
}

func TestRetire(t *testing.T) {
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	const drain = 2 * time.Minute
	tests := []struct {
		name, clusterIP, annotation string
		wantAt                      time.Time
		wantDelete                  bool
	}{
		{name: "no time set", clusterIP: "10.0.0.1", wantAt: now.Add(drain)},
		{name: "time in a minute", clusterIP: "10.0.0.1", annotation: "2026-11-21T09:01:00Z", wantAt: now.Add(time.Minute)},
		{name: "time reached", clusterIP: "10.0.0.1", annotation: "2026-11-21T09:00:00Z", wantAt: now, wantDelete: true},
		{name: "time passed long ago", clusterIP: "10.0.0.1", annotation: "2026-11-20T09:00:00Z", wantAt: now.Add(-24 * time.Hour), wantDelete: true},
		{name: "invalid time", clusterIP: "10.0.0.1", annotation: "tomorrow", wantAt: now.Add(drain)},
		{name: "time in a hundred years", clusterIP: "10.0.0.1", annotation: "2126-11-21T09:00:00Z", wantAt: now.Add(drain)},
		{name: "headless", clusterIP: corev1.ClusterIPNone, wantAt: now, wantDelete: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: map[string]string{"a": "b"}}, Spec: corev1.ServiceSpec{ClusterIP: tt.clusterIP}}
			if tt.annotation != "" {
				svc.Annotations = map[string]string{AnnotationRetires: tt.annotation}
			}
			before := svc.DeepCopy()
			updated, at, isDue := Retire(svc, now, drain)
			if isDue != tt.wantDelete || !at.Equal(tt.wantAt) {
				t.Errorf("at %v, delete %v; want %v, %v", at, isDue, tt.wantAt, tt.wantDelete)
			}
			if !isDue && (!plan.IsManaged(updated) || updated.Annotations[AnnotationRetires] != tt.wantAt.Format(time.RFC3339) || updated.Labels["a"] != "b") {
				t.Errorf("the Service becomes %+v", updated.ObjectMeta)
			}
			if diff := cmp.Diff(before, svc); diff != "" {
				t.Errorf("the argument was changed:\n%s", diff)
			}
		})
	}
}

func TestIsEndpointSlice(t *testing.T) {
	labels := map[string]string{plan.LabelManagedBy: ControllerName, mcsv1beta1.LabelServiceName: "web", mcsv1beta1.LabelSourceCluster: "cls1"}
	if !IsEndpointSlice(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: labels}}) {
		t.Error("a slice of the legacy controller is not recognized")
	}
	for key, value := range map[string]string{plan.LabelManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: "", mcsv1beta1.LabelSourceCluster: ""} {
		changed := maps.Clone(labels)
		changed[key] = value
		if IsEndpointSlice(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: changed}}) {
			t.Errorf("a slice with %s=%q is reported as one of the legacy controller", key, value)
		}
	}
}

// After takeover, all objects of an import use the name of the legacy derived Service.
func TestTakeover_KeepsDerivedName(t *testing.T) {
	e := webExport("cls1", "10.10.0.1")
	m := mcs.Merge([]mcs.Export{e})
	existing := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "imported-old"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
	}
	owner := metav1.OwnerReference{Kind: "ServiceImport", Name: m.Key.Name, UID: "imp"}
	svc := plan.DerivedService(m, &owner, existing, nil)
	if svc.Name != "imported-old" || svc.Spec.ClusterIP != "10.0.0.1" || !plan.IsManaged(svc) || plan.MustReplace(existing, svc) {
		t.Errorf("the Service becomes %+v", svc)
	}
	imp := plan.ServiceImport(m, legacyImport(derivedName(m.Key, "")), svc.Name, svc.Spec.ClusterIPs, svc.Spec.IPFamilies, nil)
	for _, a := range []string{plan.AnnotationDerivedService, plan.AnnotationDerivedServiceAWS} {
		if imp.Annotations[a] != "imported-old" {
			t.Errorf("annotation %s is %q", a, imp.Annotations[a])
		}
	}
	if !slices.Equal(imp.Spec.IPs, []string{"10.0.0.1"}) || !plan.IsManaged(imp) || imp.UID != "imp" {
		t.Errorf("the ServiceImport becomes %+v", imp)
	}
	changes := plan.Slices(plan.SliceInput{Key: m.Key, Merged: m, Exports: []mcs.Export{e}, Derived: svc.Name, Owner: owner, Families: svc.Spec.IPFamilies})
	for _, s := range changes.Create {
		if s.Labels[discoveryv1.LabelServiceName] != "imported-old" {
			t.Errorf("slice %s is of Service %q", s.Name, s.Labels[discoveryv1.LabelServiceName])
		}
	}
	if len(changes.Create) == 0 {
		t.Error("no slices were planned")
	}
}
