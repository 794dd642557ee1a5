package mcs

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// The domains as users have them in their manifests.
const (
	newDomain = "cloud-map-mcs.github.io/"
	oldDomain = "multicluster.k8s.aws/"
)

// annotated returns a Source whose objects have the annotations of one place, "" for the
// ServiceExport.
func annotated(place string, annotations map[string]string) Source {
	src := Source{ServiceExport: &mcsv1beta1.ServiceExport{}, Service: &corev1.Service{}}
	switch place {
	case "Service":
		src.Service.Annotations = annotations
	case "namespace":
		src.NamespaceAnnotations = annotations
	case "exported":
		src.ServiceExport.Spec.ExportedAnnotations = annotations
	default:
		src.ServiceExport.Annotations = annotations
	}
	return src
}

// TestAnnotation_BothDomains checks that each annotation of a user is read in both domains, that
// the new one has precedence, also if its value is not valid, and that the old one is deprecated.
func TestAnnotation_BothDomains(t *testing.T) {
	const selectors = `[{"propertySelector":{"matchProperties":{"a":"b"}}}]`
	recipients := func(src Source) string { r, _ := src.Recipients(); return string(r) }
	selection := func(src Source) string { s, _ := src.Selection(); return string(s.Selectors) }
	minimum := func(src Source) string {
		src.ServiceExport.Spec.ExportedAnnotations[newDomain+"cluster-selectors"] = selectors
		s, _ := src.Selection()
		return FormatPercentage(s.MinimumReady)
	}
	attributes := func(src Source) string { a, _ := src.InstanceAttributes(); return string(a) }
	records := func(src Source) string { d, _ := src.InstanceDNSOf(); return string(d) }
	drain := func(src Source) string {
		var e Export
		src.readAnnotations(&e)
		return string(e.Drain)
	}
	tests := map[string]struct {
		place, key, value, other string
		read                     func(Source) string
	}{
		"recipients":                  {"", "export-to", "cls2", "cls3", recipients},
		"recipients of the namespace": {"namespace", "export-to", "cls2", "not valid", recipients},
		"selectors":                   {"exported", "cluster-selectors", selectors, "not valid", selection},
		"minimum ready":               {"exported", "cluster-selectors-minimum-ready", "20%", "30%", minimum},
		"preference":                  {"", "cluster-preference", "PreferSameCluster", "None", selection},
		"preference of the namespace": {"namespace", "cluster-preference", "PreferSameRegion", "None", selection},
		"attributes":                  {"", "instance-attributes", "a=b", "a=c", attributes},
		"attributes of the Service":   {"Service", "instance-attributes", "a=b", "a=c", attributes},
		"records":                     {"namespace", "instance-dns", "auto", "srv", records},
		"drain":                       {"", "drain", "50%", "force", drain},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			with := func(keysAndValues ...string) Source {
				annotations := map[string]string{}
				for i := 0; i < len(keysAndValues); i += 2 {
					annotations[keysAndValues[i]] = keysAndValues[i+1]
				}
				return annotated(tt.place, annotations)
			}
			want, other, none := tt.read(with(newDomain+tt.key, tt.value)), tt.read(with(newDomain+tt.key, tt.other)), tt.read(with())
			if want == none || want == other {
				t.Fatalf("%q of the new key, %q of another value, %q of none: the test cannot fail", want, other, none)
			}
			if got := tt.read(with(oldDomain+tt.key, tt.value)); got != want {
				t.Errorf("the old key has %q, want %q", got, want)
			}
			if got := tt.read(with(newDomain+tt.key, tt.value, oldDomain+tt.key, tt.other)); got != want {
				t.Errorf("both keys have %q, want %q of the new one", got, want)
			}
			if got := tt.read(with(newDomain+tt.key, tt.other, oldDomain+tt.key, tt.value)); got != other {
				t.Errorf("both keys have %q, want %q of the new one", got, other)
			}
			text := with(oldDomain+tt.key, tt.value).Deprecation()
			if !strings.HasPrefix(text, "annotation "+oldDomain+tt.key+" ") || !strings.Contains(text, "use "+newDomain+tt.key+" ") {
				t.Errorf("the old key gives %q", text)
			}
			for _, src := range []Source{with(newDomain+tt.key, tt.value), with(newDomain+tt.key, tt.value, oldDomain+tt.key, tt.other), with()} {
				if text := src.Deprecation(); text != "" {
					t.Errorf("the new key gives %q", text)
				}
			}
		})
	}
}

// The recipients of a ServiceExport have precedence over those of its namespace in either domain,
// and the error of a value that is not valid names the key that the user has.
func TestRecipients_BothDomains(t *testing.T) {
	src := annotated("", map[string]string{oldDomain + "export-to": "cls2"})
	src.NamespaceAnnotations = map[string]string{newDomain + "export-to": "cls3"}
	if got, err := src.Recipients(); err != nil || !strings.Contains(string(got), "cls2") {
		t.Errorf("recipients %q (%v), want those of the ServiceExport", got, err)
	}
	got, err := annotated("", map[string]string{oldDomain + "export-to": "Cls2"}).Recipients()
	if got != noRecipients || err == nil || !strings.Contains(err.Error(), "annotation "+oldDomain+"export-to:") {
		t.Errorf("recipients %q (%v), want none and an error with the old key", got, err)
	}
}

func TestSanitize_NoAnnotationsOfTheProject(t *testing.T) {
	var left LeftOuts
	got := left.sanitizeAnnotations(map[string]string{
		"note": "kept", newDomain + "export-times": "cls1=1", oldDomain + "export-times": "cls1=1",
		newDomain + "cluster-selectors": "[]", oldDomain + "cluster-selectors": "[]", newDomain + "cluster-selectors-minimum-ready": "1%",
		oldDomain + "cluster-selectors-minimum-ready": "1%",
	})
	if diff := cmp.Diff(map[string]string{"note": "kept"}, got); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if len(left) != 2 { // the selectors are fields of the export
		t.Errorf("left out %v, want both export-times", left)
	}
}

func TestRenameConditions(t *testing.T) {
	condition := func(kind, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.Unix(1790000000, 0)}
	}
	tests := map[string]struct{ list, want []metav1.Condition }{
		"none": {},
		"new":  {[]metav1.Condition{condition("Ready", "a"), condition(newDomain+"Stale", "b")}, []metav1.Condition{condition("Ready", "a"), condition(newDomain+"Stale", "b")}},
		"old": {
			[]metav1.Condition{condition(oldDomain+"Stale", "a"), condition("Ready", "b"), condition(oldDomain+"Drained", "c"), condition("example.com/Stale", "d")},
			[]metav1.Condition{condition("Ready", "b"), condition("example.com/Stale", "d"), condition(newDomain+"Stale", "a"), condition(newDomain+"Drained", "c")},
		},
		"both, after a downgrade": {
			[]metav1.Condition{condition(newDomain+"Stale", "new"), condition(oldDomain+"Stale", "old")},
			[]metav1.Condition{condition(newDomain+"Stale", "old")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := append([]metav1.Condition(nil), tt.list...)
			if diff := cmp.Diff(tt.want, RenameConditions(tt.list)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tt.list); diff != "" {
				t.Errorf("the list was changed:\n%s", diff)
			}
		})
	}
}
