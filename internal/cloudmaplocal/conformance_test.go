package cloudmaplocal

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRegisterAndDiscover(t *testing.T) {
	w := newWorld(t, Options{})
	svc := w.service(w.namespace("demo"), "nginx")
	attributes := map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1", "READY": "true"}
	op := w.operation(new(w.register(svc, "a", attributes)))
	if op.Status != "SUCCESS" {
		t.Errorf("status = %s, want SUCCESS", op.Status)
	}
	found, revision := w.discovered("demo", "nginx")
	if diff := cmp.Diff(attributes, found["a"].Attributes); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	w.deregister(svc, "a")
	found, after := w.discovered("demo", "nginx")
	if len(found) != 0 || after <= revision {
		t.Errorf("found %v at revision %d, want nothing at a revision after %d", found, after, revision)
	}
}
