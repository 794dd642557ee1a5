package cloudmap

import (
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// The instance view has exports for all clusters only: its readers are not members.
func TestForAll(t *testing.T) {
	for _, recipients := range []mcs.ClusterSelectors{"", `[{"propertySelector":{"matchProperties":{"env.example.com":"prod"}}}]`} {
		exp, known := forAll(func(mcs.Key) (*mcs.Export, bool) { return &mcs.Export{Recipients: recipients}, true })(mcs.Key{})
		if !known || (exp != nil) != (recipients == "") {
			t.Errorf("an export with recipients %q is in the instance view: %v, known: %v", recipients, exp != nil, known)
		}
	}
	if exp, known := forAll(func(mcs.Key) (*mcs.Export, bool) { return nil, false })(mcs.Key{}); exp != nil || known {
		t.Errorf("no export became %v, known: %v", exp, known)
	}
}
