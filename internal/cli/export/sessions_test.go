package export

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		{Name: "export-ready", Setup: clitest.ExportWeb, Lines: []string{"export web"}},
	})
}
