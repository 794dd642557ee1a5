package controllertest

import (
	"os"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// NeedAssets skips a test that needs an API server if there is none, or fails it if REQUIRE_ENVTEST is set.
func NeedAssets(t *testing.T) {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") != "" {
		if err := testprocess.EndChildren(); err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Getenv("REQUIRE_ENVTEST") != "" {
		t.Fatal(`KUBEBUILDER_ASSETS is not set: run with KUBEBUILDER_ASSETS="$(bin/testbed assets)"`)
	}
	t.Skip(`needs an API server: run with KUBEBUILDER_ASSETS="$(bin/testbed assets)"`)
}
