package mcs

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// exportOf returns the ServiceExport of a name, with an AnnotationService if there is another one.
func exportOf(name string, service ...string) *mcsv1beta1.ServiceExport {
	exp := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name}}
	for _, s := range service {
		exp.Annotations = map[string]string{AnnotationService: s}
	}
	return exp
}

func TestExportedService(t *testing.T) {
	other := exportOf("web")
	other.Annotations = map[string]string{DeprecatedKey(AnnotationService): "web-green", "service": "web-green"}
	for name, tc := range map[string]struct {
		exp  *mcsv1beta1.ServiceExport
		want string // "" if the annotation is not valid
	}{
		"no annotation":                       {exportOf("web"), "web"},
		"annotations of other domains":        {other, "web"},
		"another Service":                     {exportOf("web", "web-green"), "web-green"},
		"its own name":                        {exportOf("web", "web"), "web"},
		"a digit first, as Kubernetes allows": {exportOf("web", "7-web"), "7-web"},
		"63 characters":                       {exportOf("web", strings.Repeat("a", 63)), strings.Repeat("a", 63)},
		"64 characters":                       {exportOf("web", strings.Repeat("a", 64)), ""},
		"empty":                               {exportOf("web", ""), ""},
		"another namespace":                   {exportOf("web", "shop/web"), ""},
		"a DNS name":                          {exportOf("web", "web.shop"), ""},
		"capitals":                            {exportOf("web", "Web"), ""},
		"a space":                             {exportOf("web", "web "), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ExportedService(tc.exp)
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
	_, err := ExportedService(exportOf("web", strings.Repeat("ä", 1000)))
	if err == nil || len(err.Error()) > 400 || !strings.Contains(err.Error(), AnnotationService) || !strings.Contains(err.Error(), "Service web") {
		t.Errorf("error %v, want a short one with the annotation and the Service without it", err)
	}
}

// TestNewExport_UnderAnotherName: the name of the ServiceExport is that of the export, and
// everything else is of the Service that it names.
func TestNewExport_UnderAnotherName(t *testing.T) {
	want, _, err := NewExport(webSource(webSlice("web-1", pod("10.10.0.1", true))), nil, start)
	if err != nil {
		t.Fatal(err)
	}
	src := webSource(webSlice("web-1", pod("10.10.0.1", true)))
	src.ServiceExport.Name = "shop"
	src.ServiceExport.Annotations = map[string]string{AnnotationService: "web"}
	got, left, err := NewExport(src, nil, start)
	if err != nil || len(left) > 0 {
		t.Fatal(left, err)
	}
	want.Key.Name = "shop"
	if !got.Equal(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
