package export

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
)

// TestSessions compares terminal sessions with testdata/<name>.txt.
func TestSessions(t *testing.T) {
	clitest.RunSessions(t, Commands, []clitest.TerminalSession{
		{Name: "export", Setup: func(c clitest.Clusters) {
			c["cls1"].Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"}})
		}, Lines: []string{
			"export web --wait 0s", "export web --wait 5ms", "export web --wait 0s --context cls1,cls2", "unexport web --context cls1,cls2",
		}},
		{Name: "export-name", Setup: func(c clitest.Clusters) {
			for _, name := range []string{"web", "web-blue", "web-green"} {
				c["cls1"].Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name}})
			}
			c["cls1"].Add(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "external"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName},
			})
		}, Lines: []string{
			"export web-blue --name web --wait 0s", "export web-blue --name web --wait 0s", "export web-green --name web --wait 0s", "export web-green --name shop --wait 0s",
			"unexport web-green", "export web-red --name web", "export external --name web", "export web --wait 0s", "export web --name web --wait 0s", "export web --wait 0s",
		}},
		{Name: "release", Setup: func(c clitest.Clusters) {
			service := func(name string, annotations map[string]string) *corev1.Service {
				return &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "imported-" + name, Annotations: annotations, Labels: map[string]string{
						"app.kubernetes.io/managed-by": "cloud-map-mcs-controller", "multicluster.kubernetes.io/service-name": name,
					}},
					Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"}},
				}
			}
			c["cls1"].Add(service("web", map[string]string{"multicluster.k8s.aws/held-since": "2026-07-01T12:00:00Z"}))
			c["cls1"].Add(service("used", nil))
		}, Lines: []string{"release web --context cls1,cls2", "release web", "release used"}},
		{Name: "export-ready", Setup: clitest.ExportWeb, Lines: []string{"export web"}},
		{Name: "export-fails", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			export := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"}}
			c["cls1"].Remove(export)
			export.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Failed", Message: "the registry has not been read: AccessDenied"}}
			c["cls1"].Add(export)
		}, Lines: []string{"export web --wait 1h"}},
	})
}
