package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

var ownedKey = mcs.Key{Namespace: "demo", Name: "web"}

func TestIsDerivedService(t *testing.T) {
	owners := []metav1.OwnerReference{{APIVersion: "multicluster.x-k8s.io/v1alpha1", Kind: "ServiceImport", Name: "web"}}
	tests := []struct {
		name string
		meta metav1.ObjectMeta
		want bool
	}{
		{"our label", metav1.ObjectMeta{Name: "imported-taken-over", Labels: map[string]string{LabelAppManagedBy: ManagedBy}}, true},
		{"another label, our ServiceImport as the owner", metav1.ObjectMeta{Name: mcs.DerivedName(ownedKey), Labels: map[string]string{LabelAppManagedBy: "foo"}, OwnerReferences: owners}, true},
		{"no label and owner, held", metav1.ObjectMeta{Name: mcs.DerivedName(ownedKey), Annotations: map[string]string{AnnotationHeldSince: ""}}, true},
		{"only the service's label", metav1.ObjectMeta{Name: mcs.DerivedName(ownedKey), Labels: map[string]string{mcsv1beta1.LabelServiceName: "web"}}, true},
		{"only the name", metav1.ObjectMeta{Name: mcs.DerivedName(ownedKey)}, false},
		{"a ServiceImport as the owner, another name", metav1.ObjectMeta{Name: "web", OwnerReferences: owners}, false},
		{"the name and another owner", metav1.ObjectMeta{Name: mcs.DerivedName(ownedKey), OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ServiceImport", Name: "web"}}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := IsDerivedService(ownedKey, &corev1.Service{ObjectMeta: tt.meta}); got != tt.want {
				t.Errorf("it is a derived Service: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestNamesWithOneHash: two services of one namespace have the same short derived name. Objects
// with it belong to the one that their label tells, else their owner, whatever else another client
// writes there.
func TestNamesWithOneHash(t *testing.T) {
	one, two := mcs.Key{Namespace: "shop", Name: "sf21a8f"}, mcs.Key{Namespace: "shop", Name: "s1e37560"}
	short := mcs.ShortDerivedName(one)
	if short != mcs.ShortDerivedName(two) || mcs.DerivedName(one) == mcs.DerivedName(two) {
		t.Fatal("the short names differ, or the long ones do not")
	}
	owner := func(name string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "multicluster.x-k8s.io/v1beta1", Kind: "ServiceImport", Name: name}
	}
	tests := []struct {
		name, object, label string
		owners              []metav1.OwnerReference
		ofOne, ofTwo        bool
	}{
		{"the label of one", short, one.Name, nil, true, false},
		{"the label of two", short, two.Name, nil, false, true},
		{"the label of one, both owners", short, one.Name, []metav1.OwnerReference{owner(two.Name), owner(one.Name)}, true, false},
		{"no label, the owner of two", short, "", []metav1.OwnerReference{owner(two.Name)}, false, true},
		{"the label of a name with another hash, the owner of one", short, "web", []metav1.OwnerReference{owner(one.Name)}, true, false},
		{"the label of a name with another hash", short, "web", nil, true, true},
		{"no marks", short, "", nil, true, true},
		{"the long name of one, the label of two", mcs.DerivedName(one), two.Name, nil, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			meta := metav1.ObjectMeta{Namespace: "shop", Name: tt.object, Labels: map[string]string{LabelAppManagedBy: ManagedBy}, OwnerReferences: tt.owners}
			if tt.label != "" {
				meta.Labels[mcsv1beta1.LabelServiceName] = tt.label
			}
			svc := &corev1.Service{ObjectMeta: meta}
			if got := [2]bool{IsDerivedService(one, svc), IsDerivedService(two, svc)}; got != [2]bool{tt.ofOne, tt.ofTwo} {
				t.Errorf("the Service is of one and two: %t", got)
			}
			slice := &discoveryv1.EndpointSlice{ObjectMeta: *meta.DeepCopy(), AddressType: discoveryv1.AddressTypeIPv4}
			slice.Name += "-cls1-ipv4-0"
			if tt.object == short {
				if got := [2]bool{IsImportedSlice(one, slice), IsImportedSlice(two, slice)}; got != [2]bool{tt.ofOne, tt.ofTwo} {
					t.Errorf("the slice is of one and two: %t", got)
				}
			}
		})
	}
}

func TestDerivedName(t *testing.T) {
	legacy := "imported-0123456789"
	for annotation, want := range map[string]string{
		mcs.ShortDerivedName(ownedKey): mcs.ShortDerivedName(ownedKey), mcs.DerivedName(ownedKey): mcs.DerivedName(ownedKey), legacy: legacy,
		"": mcs.DerivedName(ownedKey), "kubernetes": mcs.DerivedName(ownedKey), `[{"cluster":"a"}]`: mcs.DerivedName(ownedKey),
	} {
		imp := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationDerivedService: annotation}}}
		if got := DerivedName(ownedKey, imp); got != want {
			t.Errorf("with annotation %q the derived Service is %q, want %q", annotation, got, want)
		}
	}
	if got := DerivedName(ownedKey, nil); got != mcs.DerivedName(ownedKey) {
		t.Errorf("without a ServiceImport it is %q", got)
	}
}

func TestSourceCluster(t *testing.T) {
	derived := mcs.DerivedName(ownedKey)
	tests := []struct{ name, family, want string }{
		{derived + "-cls2-ipv4-0", "IPv4", "cls2"},
		{derived + "-cls2-ipv6-12", "IPv6", "cls2"},
		{derived + "-a-ipv4-0-ipv4-1", "IPv4", "a-ipv4-0"},
		{derived + "-cls2-ipv6-0", "IPv4", "label"},
		{derived + "-x7kqp", "IPv4", "label"},
		{derived + "-ipv4-0", "IPv4", "label"},
		{derived + "-cls2-ipv4-", "IPv4", "label"},
		{derived + "-cls2-ipv4-0x", "IPv4", "label"},
		{"web-cls2-ipv4-0", "IPv4", "label"},
	}
	for _, tt := range tests {
		s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressType(tt.family)}
		s.Name, s.Labels = tt.name, map[string]string{mcsv1beta1.LabelSourceCluster: "label"}
		if got := SourceCluster(s); got != tt.want {
			t.Errorf("%s slice %s is of cluster %s, want %s", tt.family, tt.name, got, tt.want)
		}
	}
}

func TestHeldService(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: mcs.DerivedName(ownedKey), Labels: map[string]string{"theirs": "1"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "multicluster.x-k8s.io/v1beta1", Kind: "ServiceImport", Name: "web"}, {APIVersion: "apps/v1", Kind: "Deployment", Name: "theirs"},
			},
		},
		Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, Selector: map[string]string{"app": "web"}},
	}
	before := svc.DeepCopy()
	held := HeldService(ownedKey, svc, now)
	want := svc.DeepCopy()
	want.Labels = map[string]string{"theirs": "1", LabelAppManagedBy: ManagedBy, mcsv1beta1.LabelServiceName: "web"}
	want.Annotations = map[string]string{AnnotationHeldSince: "2026-07-01T12:00:00Z"}
	want.OwnerReferences = want.OwnerReferences[1:]
	want.Spec.Selector = nil
	if d := cmp.Diff(want, held); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(before, svc); d != "" {
		t.Errorf("the Service was changed (-before +after):\n%s", d)
	}
	if d := cmp.Diff(held, HeldService(ownedKey, held, now.Add(time.Minute))); d != "" {
		t.Errorf("it is held anew (-want +got):\n%s", d)
	}
	for _, tt := range []struct {
		name, since string
		want        time.Duration
	}{
		{"for a quarter", "2026-07-01T11:45:00Z", 45 * time.Minute},
		{"for longer than the hold time", "2026-07-01T10:00:00Z", 0},
		{"from the future, by another clock", "2026-07-01T13:00:00Z", time.Hour},
		{"a text", "x", time.Hour},
	} {
		held.Annotations[AnnotationHeldSince] = tt.since
		if got := HoldRemaining(held, time.Hour, now); got != tt.want {
			t.Errorf("%s: %s are left, want %s", tt.name, got, tt.want)
		}
	}
}

func TestRequestIPs(t *testing.T) {
	v4, v6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	tests := []struct {
		name         string
		families     []corev1.IPFamily
		ips          []string
		want         []string
		wantFamilies []corev1.IPFamily
	}{
		{"none", []corev1.IPFamily{v4}, nil, nil, []corev1.IPFamily{v4}},
		{"one of one family", []corev1.IPFamily{v4}, []string{"10.0.0.1"}, []string{"10.0.0.1"}, []corev1.IPFamily{v4}},
		{"both", []corev1.IPFamily{v4, v6}, []string{"10.0.0.1", "fd00::1"}, []string{"10.0.0.1", "fd00::1"}, []corev1.IPFamily{v4, v6}},
		{"both, the other family first", []corev1.IPFamily{v4, v6}, []string{"fd00::1", "10.0.0.1"}, []string{"fd00::1", "10.0.0.1"}, []corev1.IPFamily{v6, v4}},
		{"one of two families", []corev1.IPFamily{v4, v6}, []string{"fd00::1"}, []string{"fd00::1"}, []corev1.IPFamily{v6, v4}},
		{"one of a family that the service has no more", []corev1.IPFamily{v6}, []string{"10.0.0.1"}, nil, []corev1.IPFamily{v6}},
		{"two of one family", []corev1.IPFamily{v4}, []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.1"}, []corev1.IPFamily{v4}},
		{"families unknown", nil, []string{"10.0.0.1", "fd00::1"}, []string{"10.0.0.1"}, []corev1.IPFamily{v4}},
		{"no IP", []corev1.IPFamily{v4}, []string{"x"}, nil, []corev1.IPFamily{v4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := &corev1.Service{Spec: corev1.ServiceSpec{IPFamilies: tt.families}}
			if got := RequestIPs(svc, tt.ips); got != (len(tt.want) > 0) {
				t.Errorf("IPs are requested: %t", got)
			}
			if d := cmp.Diff(tt.want, svc.Spec.ClusterIPs); d != "" {
				t.Errorf("IPs (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.wantFamilies, svc.Spec.IPFamilies); d != "" {
				t.Errorf("families (-want +got):\n%s", d)
			}
		})
	}
}
