package e2e

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/docs"
)

// TestAnnouncement follows the announcement of the legacy controller, with its names of samples,
// namespace and service, from the page about the migration.
func TestAnnouncement(t *testing.T) {
	t.Parallel()
	const page = "docs/migration.md"
	cls1, cls2 := installed(t)
	t.Cleanup(func() { // the page deletes them if all its commands succeed
		for _, c := range []cluster{cls1, cls2} {
			_ = c.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "example"}})
		}
	})
	runBlocks(t, page, slices.DeleteFunc(pageBlocks(t, page), func(b docs.Block) bool { return b.Section != "The samples of the announcement" }))
}
